"""Parts of a machine, each a section of its file, with units in the values, and the choices of lowerings."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Literal, NamedTuple

from pydantic import PlainSerializer, PlainValidator, ValidationInfo, field_validator, model_validator

from tpusim.base.errors import InputError, Problem
from tpusim.base.units import BANDWIDTH, SIZE, TIME
from tpusim.input.form import Choice, FileSection, Quantity, Rational, whole, written
from tpusim.input.scalars import show, whole_number
from tpusim.memory.dram.device import Device, device_of, with_mapping
from tpusim.memory.layout import Layouts, read_layouts

_MOST_PES_A_SIDE = 65536
_MOST_OPERATIONS = 65536
MOST_ARRAYS = 16


class Array(FileSection):
    """The systolic array: `rows` x `cols` PEs, each with `weight_buffers` weight registers (1 or 2).

    `count` arrays share lanes and ports. With `shared` weights each holds the same and takes every `count`-th word of
    a stream, a cycle behind the one before; with weights of its `own` each takes whole passes, beside the others.
    `weights_per_cycle` enter each column while weights are loaded, at most a word. A word streams the elements that are
    `used`, or `all` it has room for (`streamed`).
    """

    rows: Annotated[int, whole(_MOST_PES_A_SIDE), written(128)]
    cols: Annotated[int, whole(_MOST_PES_A_SIDE), written(128)]
    weight_buffers: Annotated[int, whole(2)] = 2
    weights_per_cycle: Annotated[int, whole(4096)] = 1
    count: Annotated[int, whole(MOST_ARRAYS)] = 1
    weights: Annotated[Literal["shared", "own"], Choice()] = "shared"
    streamed: Annotated[Literal["used", "all"], Choice()] = "used"

    @property
    def together(self) -> int:
        """Arrays that take the words of one stream in turn."""
        return self.count if self.weights == "shared" else 1

    @property
    def queues(self) -> int:
        """Queues of passes: one for all arrays that share weights, or one for each."""
        return self.count // self.together


class VectorMemory(FileSection):
    """An SRAM in each lane: words of `word_elements` elements of `element_bytes` bytes each.

    Its one port is `shared` by all clients; `separate` asks what a port for each of them would gain. Under `banked` the
    ifmap has SRAMs of its own, `banks` of them, which array rows reach through a crossbar: each has `bank_ports` ports
    to read and one to write. `bank_map` is how lowerings lay the ifmap out in them.
    """

    word_elements: Annotated[int, whole(4096), written(8)]
    element_bytes: Annotated[int, whole(64), written(4)]
    capacity_bytes: Annotated[int, Quantity(SIZE, "16 GiB"), written("256 KiB", "capacity")]
    ports: Annotated[Literal["shared", "separate"], Choice()] = "shared"
    organization: Annotated[Literal["lanes", "banked"], Choice()] = "lanes"
    banks: Annotated[int | Literal["lanes"], Choice(_MOST_PES_A_SIDE)] = "lanes"
    bank_ports: Annotated[int, whole(64)] = 1
    # The default is the value of configs/tpu_v2_banked.yaml.
    bank_capacity_bytes: Annotated[int, Quantity(SIZE, "16 GiB"), written("128 KiB", "bank_capacity")] = 131_072
    bank_map: Annotated[Literal["window", "chw", "hwc"], Choice()] = "window"

    @field_validator("capacity_bytes", "bank_capacity_bytes")
    @classmethod
    def _holds_a_word(cls, capacity: int, info: ValidationInfo) -> int:
        # A word size that is itself wrong is missing from info.data, and reported on its own.
        word = info.data.get("word_elements", 1) * info.data.get("element_bytes", 1)
        if capacity < word:
            needed = f"one word of {word} B (word_elements x element_bytes); write at least {SIZE.format(word)}"
            raise InputError(f"{SIZE.format(capacity)} cannot hold {needed}, or make the word smaller")
        return capacity


class AluWork(NamedTuple):
    """ALU operations that an element takes: multiplications, and others."""

    products: int
    others: int


def _read_work(value: object) -> AluWork | None:
    """Text "multiplications + others", or the two; None: not known. Raises InputError."""
    if value is None:
        return None
    parts = re.split(r" *\+ *", value) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or len(parts) != 2:
        raise InputError(f"{show(value)} is not two counts; write multiplications + other operations, such as 11 + 16")
    counts = (int(each) if isinstance(each, str) and re.fullmatch("[0-9]{1,9}", each) else each for each in parts)
    return AluWork(*(whole_number(each, 0, _MOST_OPERATIONS) for each in counts))


_Work = Annotated[
    AluWork | None,
    PlainValidator(_read_work),
    PlainSerializer(lambda work: f"{work.products} + {work.others}" if work else None),
]


class Functions(FileSection):
    """Functions that ALUs work out in many operations: multiplications, and others, for an element.

    A machine does not do those of these of which it does not say what they take. A function that has no field here is
    worked out in as many as the dearest of those of which it does.
    """

    exp: _Work = None
    tanh: _Work = None
    erf: _Work = None
    divide: _Work = None
    reciprocal_root: _Work = None

    def work_of(self, name: str) -> AluWork | None:
        """What a function takes; None where the machine does not say so."""
        if name in Functions.model_fields:
            return getattr(self, name)  # type: ignore[no-any-return]
        given = filter(None, (getattr(self, each) for each in Functions.model_fields))
        return max(given, key=sum, default=None)


class VectorUnit(FileSection):
    """`alus` vector ALUs over all lanes together; they add partial sums.

    Where numbers are wider on chip than in HBM, they also take `unpack_cycles` for each ifmap word that comes
    in, and `pack_cycles` for each result word that goes out; 0 for a machine that converts nothing. Where taps are
    stacked, rotating a word into another lane group takes `stack_cycles`, for each copy beyond the second. Where a
    lowering has the ifmap transposed, that takes `transpose_cycles` for at most `transpose_words` words of a pixel.
    Where the ifmap arrives in another layout (`mapping.entry: relaid`), a word takes `relayout_cycles` of loads, most
    of which passes hide.

    In steps of its own it keeps `scalar_words` of scalars a lane, and takes at least `operand_cycles` for each word
    that it reads, `result_cycles` for each that it writes. What it works on by itself it first makes ready, in
    `ready_cycles` a word. What its ALUs take for functions stands under `functions`.
    """

    alus: Annotated[int, whole(2**24), written(256)]
    unpack_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)
    pack_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)
    stack_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)
    transpose_cycles: Annotated[int, whole(65536, least=0)] = 0
    transpose_words: Annotated[int, whole(65536)] = 8
    relayout_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)
    # The default is the value of configs/tpu_v2.yaml.
    scalar_words: Annotated[int, whole(65536)] = 2
    operand_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)
    result_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)
    ready_cycles: Annotated[Fraction, Rational(65536)] = Fraction(0)
    functions: Functions = Functions()


class Hbm(FileSection):
    """Off-chip memory: bytes a second, picoseconds to the first byte, bytes of the smallest access.

    The channels of a feature map are stored in multiples of `channel_multiple`; the rest is moved as padding. Tensors
    lie one after another, each at a multiple of `alignment`, with their axes in the order of `layout`.

    Under `model: banks` transfers take what the DRAM `device` takes for their addresses; lowerings still estimate
    blocks by `bandwidth` and `latency`. `mapping` stands for the device's own.
    """

    model: Annotated[Literal["pipe", "banks"], Choice()] = "pipe"
    bandwidth_bytes_per_s: Annotated[int, Quantity(BANDWIDTH, "1000 TB/s"), written("700 GB/s", "bandwidth")]
    # The defaults are the values of configs/tpu_v2.yaml, which gives their sources.
    latency_ps: Annotated[int, Quantity(TIME, "1 ms"), written("100 ns", "latency")] = 46_200
    burst_bytes: Annotated[int, Quantity(SIZE, "64 KiB"), written("64 B", "burst")] = 64
    channel_multiple: Annotated[int, whole(65536)] = 1
    layout: Annotated[Layouts, PlainValidator(read_layouts), PlainSerializer(lambda layouts: layouts.written)] = (
        Layouts()
    )
    # A tile of Google's compiler: 8 x 128 elements of 4 bytes.
    alignment_bytes: Annotated[int, Quantity(SIZE, "16 MiB"), written("4 KiB", "alignment")] = 4096
    device: Annotated[
        Device | None, PlainValidator(device_of), PlainSerializer(lambda device: device.to_dict() if device else None)
    ] = None
    mapping: str | None = None

    @model_validator(mode="after")
    def _has_banks(self) -> Hbm:
        if self.model == "banks" and self.device is None:
            message = "model: banks needs a device; write the name of a shipped one, e.g. hbm2_16ch_700, or a path"
            raise InputError([Problem(message, "device")])
        if self.model == "banks" and self.device:
            if (own := self.device.organisation.burst_bytes) != self.burst_bytes:
                given, burst = SIZE.format(self.burst_bytes), SIZE.format(own)
                raise InputError(
                    [Problem(f"is {given}, and a burst of {self.device.name} is {burst}; write {burst}", "burst")]
                )
            try:
                with_mapping(self.device, self.mapping or self.device.mapping)
            except InputError as error:
                raise InputError([Problem(each.message, "mapping") for each in error.problems]) from None
        elif "model" not in self.model_fields_set and (self.device or self.mapping):
            message = "changes nothing where HBM is a pipe, as it is unless told otherwise; set hbm.model to banks"
            raise InputError([Problem(message, "device" if self.device else "mapping")])
        return self

    @property
    def dram(self) -> Device | None:
        """The DRAM whose banks are modelled, `mapping` applied; None under a pipe."""
        if self.model == "pipe" or self.device is None or self.mapping is None:
            return self.device if self.model == "banks" else None
        return with_mapping(self.device, self.mapping)


class ScratchMemory(FileSection):
    """A memory on the chip between HBM and the lanes: bytes, bytes a second to and from the lanes, picoseconds to the
    first of them.

    HBM writes it through a port of its own.
    """

    capacity_bytes: Annotated[int, Quantity(SIZE, "16 GiB"), written("128 MiB", "capacity")]
    bandwidth_bytes_per_s: Annotated[int, Quantity(BANDWIDTH, "1000 TB/s"), written("2 TB/s", "bandwidth")]
    latency_ps: Annotated[int, Quantity(TIME, "1 ms"), written("20 ns", "latency")]


class Sequencer(FileSection):
    """What issues the steps of a layer: the cycles to launch one, what rides on its results, whether blocks overlap.

    Biases, additions and activations of a network may ride on the `results` of the layers that they follow (`fusion`),
    or each be a layer of its own, but for biases, which take no time then.

    Under `drain`, the weights of a block, or of a chunk of one, are not loaded before the results of the one ahead have
    been written: a loop whose body, with all column folds that a block keeps, is scheduled by itself. `block_cycles` is
    what a body takes beyond its steps, before the first of its weights; where blocks overlap, passes ahead hide it.

    Layers follow one another, each on an empty machine (`between_layers: drain`), or `overlap`: one begins while the
    one ahead ends, and launching is paid for once. `stay` is that, and outcomes stay on chip where those who read
    them can find them there.
    """

    launch_cycles: Annotated[int, whole(2**24, least=0)] = 0
    between_blocks: Annotated[Literal["overlap", "drain"], Choice()] = "overlap"
    block_cycles: Annotated[int, whole(2**24, least=0)] = 0
    fusion: Annotated[Literal["none", "results"], Choice()] = "none"
    between_layers: Annotated[Literal["drain", "overlap", "stay"], Choice()] = "drain"


_MOST = 2**24

_Extent = Annotated[int | Literal["auto"], Choice(_MOST)]


class BlockSizes(FileSection):
    """The block of a layer: what of it is on chip at a time. What is `auto` is chosen; more than there is means all.

    `rows` x `cols` outputs (of a strip, where a small batch is cut into strips) of `images` (rows of a product;
    in whole words) and `out_channels` are computed before the next block. Their reduction holds `in_channels` and
    `taps` of the filter at a time, in its order: fewer than all are chunks, of whole passes, at least one.
    """

    rows: _Extent = "auto"
    cols: _Extent = "auto"
    images: _Extent = "auto"
    in_channels: _Extent = "auto"
    out_channels: _Extent = "auto"
    taps: _Extent = "auto"

    @property
    def given(self) -> dict[str, int]:
        """The fields that are not left to the search."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


_RECTANGLE = ("rows", "cols", "images")


class MappingPolicy(FileSection):
    """Choices of the lowering: how many taps one pass stacks, which loop goes outside, and when a reduction is cut.

    Multi-tile `auto` is the paper's rule, min(R / C_I, W_F); `rows` also stacks whole filter rows where several fit;
    `dense` fills passes as the code of Google's compiler does, across filter rows, `dense_rows` as its estimate has it
    (`cut/dense`). What else it does:
    tensors lie in tiles whichever way round pads less (`layout: least_padding`); layers of at most
    `transposed_channels` are packed by transposing words (0: none), in `vector_unit.transpose_cycles`; kernels of at
    least `row_windows` taps a side, whose channels do not fill the array, are held a filter row at a time (0: none);
    blocks keep all of their column folds (`column_folds`), and bring the points between those they need (`patch`).
    Words that a batch leaves half empty are filled with strips of the map, in the way that takes fewest cycles of the
    array, or in another where a convolution waits for ports (`strips: balanced`); or only those of `one_image`, with
    strips of its columns.
    An ifmap is `ready` as its words are, or arrives in another layout and is laid out anew, patch by patch (`entry:
    relaid`), as that of a layer compiled by itself.
    Of ops of whole rows, such as softmax, rows are `kept` on chip from one stage to the next where they fit, or
    `read_again` for each, as by operations of their own (`rows`).
    Blocks are chosen by an `estimate`, or those that may be the best are timed on the event engine (`simulate`), or so
    where a layer takes noticeably longer than was estimated (`search: auto`).
    Chunks of the reduction are taken where they are cheaper (`auto`), or only where it does not fit whole (`needed`).
    A block, or chunk of one, begins with the first of the `pieces` that its loads come in, or when they are `whole`.
    Where the ifmap is transformed before it is multiplied, that goes on beside the product (`overlapped`) or all of it
    `before`, by way of HBM; or what a block needs of the lowered matrix never leaves the vector memories (`on_chip`).
    What a block needs of the ifmap is fetched for all taps at once, or for each tap by itself (paper Fig. 8).

    A `block` is what is on chip at a time. A pass is what the array does at a time, and may be cut at given sizes of
    its own: words streamed (`block_m`), rows that it fills (`block_k`, of dense passes), columns (`block_n`); at most
    what there is. As a pass streams all words of its block, `block_m` is also the size of a block, one that disregards
    rows of the map: it excludes rows, cols, images. `k_order` is implicit GEMM's: channels or taps move fastest.
    A run may take several lowerings: a choice goes to those that know it.
    """

    multi_tile: Annotated[int | Literal["auto", "rows", "dense", "dense_rows"], Choice(65536)] = "auto"
    loop_order: Annotated[Literal["auto", "block_major", "filter_major"], Choice()] = "auto"
    chunks: Annotated[Literal["auto", "needed"], Choice()] = "auto"
    transformation: Annotated[Literal["overlapped", "before", "on_chip"], Choice()] = "overlapped"
    loads: Annotated[Literal["pieces", "whole"], Choice()] = "pieces"
    fetch: Annotated[Literal["resident", "per_tap"], Choice()] = "resident"
    k_order: Annotated[Literal["channels_fastest", "taps_fastest"], Choice()] = "channels_fastest"
    patch: Annotated[Literal["touched", "window"], Choice()] = "touched"
    layout: Annotated[Literal["plain", "least_padding"], Choice()] = "plain"
    strips: Annotated[Literal["balanced", "one_image"], Choice()] = "balanced"
    row_windows: Annotated[int, whole(_MOST_PES_A_SIDE, least=0)] = 0
    transposed_channels: Annotated[int, whole(_MOST_PES_A_SIDE, least=0)] = 0
    column_folds: Annotated[Literal["one", "all"], Choice()] = "one"
    entry: Annotated[Literal["ready", "relaid"], Choice()] = "ready"
    rows: Annotated[Literal["kept", "read_again"], Choice()] = "kept"
    search: Annotated[Literal["auto", "estimate", "simulate"], Choice()] = "auto"
    block_m: _Extent = "auto"
    block_k: Annotated[int | Literal["auto"], Choice(_MOST_PES_A_SIDE)] = "auto"
    block_n: Annotated[int | Literal["auto"], Choice(_MOST_PES_A_SIDE)] = "auto"
    block: BlockSizes = BlockSizes()

    @field_validator("block")
    @classmethod
    def _one_size(cls, block: BlockSizes, info: ValidationInfo) -> BlockSizes:
        # A block_m that is itself wrong is missing from info.data, and reported on its own.
        words, given = info.data.get("block_m", "auto"), [name for name in _RECTANGLE if name in block.given]
        if given and isinstance(words, int):
            message = f"block_m gives the size of a block, too: {words} words; set one of them to auto"
            raise InputError([Problem(message, given[0])])
        return block
