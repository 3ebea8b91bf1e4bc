"""Parts of a machine, each a section of its file, with units in the values, and the choices of lowerings."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Literal, NamedTuple

from pydantic import PlainSerializer, ValidationInfo, field_validator, model_validator

from tpusim.base.errors import InputError, Problem
from tpusim.base.units import BANDWIDTH, SIZE, TIME
from tpusim.input.form import Choice, FileSection, Quantity, Reader, Truth, rational, whole, written
from tpusim.input.scalars import show, whole_number
from tpusim.memory.dram.device import Device, device_of, with_mapping
from tpusim.memory.hbm_layout import Layouts, read_layouts

_MOST_PES_A_SIDE = 65536
_MOST_OPERATIONS = 65536
MOST_ARRAYS = 16


class Array(FileSection):
    """The systolic array: PEs (processing elements) in rows and columns.

    Attributes:
        rows: rows of PEs. Elements of the ifmap enter from the left; a row has one input channel at one tap.
        cols: columns of PEs. Sums leave at the bottom; a column has one output channel.
        weight_buffers: weight registers of a PE. With 2, the next weights are loaded while the array multiplies by the
            last.
        weights_per_cycle: weights that enter a column in a cycle while weights are loaded, at most a word of them.
        weights_rate: whose rate that is where arrays have weights of their own: that of `each`, or of `all` together.
        elements_per_cycle: elements of a word that enter a row in a cycle, at most a word of them. A PE multiplies all
            of them by its weight at once.
        pes_per_cycle: h, the PEs that elements and weights cross in a cycle, to the right and down: sums are added up
            over h rows in a cycle, and lane i runs i // h cycles behind lane 0.
        count: arrays that share the lanes and their ports.
        weights: what several arrays hold. `shared`: the same weights, and each array takes every `count`-th word of a
            stream, a cycle behind the one before. `own`: weights of their own, and each array takes whole passes, at
            the same time as the others. `either`: what is expected to be faster, layer by layer.
        split: smaller arrays on its diagonal that an array may work as, for layers whose output channels fit into the
            columns of one of them. They use as many lanes as they have rows.
        streamed: elements of a word that stream into the array: the `used` ones, or `all` that it has room for.
    """

    rows: Annotated[int, whole(_MOST_PES_A_SIDE), written(128)]
    cols: Annotated[int, whole(_MOST_PES_A_SIDE), written(128)]
    weight_buffers: Annotated[int, whole(2), written(1)] = 2
    weights_per_cycle: Annotated[int, whole(4096), written(8)] = 1
    weights_rate: Annotated[Literal["each", "all"], Choice()] = "each"
    elements_per_cycle: Annotated[int, whole(4096), written(2)] = 1
    pes_per_cycle: Annotated[int, whole(_MOST_PES_A_SIDE), written(2)] = 1
    count: Annotated[int, whole(MOST_ARRAYS)] = 1
    weights: Annotated[Literal["shared", "own", "either"], Choice()] = "shared"
    split: Annotated[int, whole(2)] = 1
    streamed: Annotated[Literal["used", "all"], Choice()] = "used"

    @field_validator("split")
    @classmethod
    def _has_parts(cls, split: int, info: ValidationInfo) -> int:
        sides = {key: info.data[key] for key in ("rows", "cols") if key in info.data}
        if small := [f"{key} is {side}" for key, side in sides.items() if side < split]:
            raise InputError(f"{split} arrays do not fit on the diagonal: {small[0]}; set split to 1")
        return split

    @property
    def flow_cycles(self) -> int:
        """Cycles in which a sum goes down a column."""
        return -(-self.rows // self.pes_per_cycle)

    @property
    def together(self) -> int:
        """Arrays that take the words of one stream in turn."""
        return self.count if self.weights == "shared" else 1

    @property
    def queues(self) -> int:
        """Queues of passes: one for all arrays that share weights, or one for each."""
        return self.count // self.together


class Arrangement(NamedTuple):
    """How a layer uses the arrays: the `weights` of several (`Array.weights`), the parts of a `split` array; or one of
    them `alone`.
    """

    weights: Literal["shared", "own"]
    split: int
    alone: bool = False

    def words(self, array: Array) -> str:
        """What is told of the arrays that a layer uses."""
        count, rows, cols = array.count * self.split, array.rows // self.split, array.cols // self.split
        if self.alone:
            return f"1 of {rows} x {cols}; the others have no work"
        held = "the same weights, a word each in turn" if self.weights == "shared" else "weights of their own"
        return f"{count} of {rows} x {cols}, {held}" + f"; each is 1 of {self.split} of a split array" * (
            self.split > 1
        )


class VectorMemory(FileSection):
    """The vector memories: an SRAM in each lane. There are as many lanes as rows or columns, whichever are more.

    Attributes:
        word_elements: elements of a word, which one access of a port reads or writes.
        element_bytes: bytes of an element on the chip and in HBM.
        result_bytes: bytes of a result of the arrays in HBM; 0: as many as an element has.
        capacity_bytes: bytes of the SRAM of one lane.
        ports: whether all clients of a lane share its one port (`shared`), or each has a port of its own (`separate`),
            which shows what the shared port costs.
        organization: where the ifmap lies: in the `lanes`, or in SRAMs of its own (`banked`), which array rows reach
            through a crossbar.
        banks: SRAMs of the ifmap, where it is banked; `lanes` means as many as there are lanes.
        bank_ports: ports of a bank that read; one more writes.
        bank_capacity_bytes: bytes of one bank.
        bank_map: order of the ifmap's words in the banks. `window`: words that are read at once lie in different banks.
            `chw`: row after row of each channel. `hwc`: pixel after pixel, all channels of each.
    """

    word_elements: Annotated[int, whole(4096), written(8)]
    element_bytes: Annotated[int, whole(64), written(4)]
    result_bytes: Annotated[int, whole(64, least=0), written(4)] = 0
    capacity_bytes: Annotated[int, Quantity(SIZE, "16 GiB"), written("256 KiB", "capacity")]
    ports: Annotated[Literal["shared", "separate"], Choice()] = "shared"
    organization: Annotated[Literal["lanes", "banked"], Choice()] = "lanes"
    banks: Annotated[int | Literal["lanes"], Choice(_MOST_PES_A_SIDE), written(64)] = "lanes"
    bank_ports: Annotated[int, whole(64), written(2)] = 1
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


class NumberType(FileSection):
    """What numbers of a type take of the machine.

    Attributes:
        bytes: bytes of an operand, in HBM and in a word. A word holds as many elements as `vector_memory` says, or more
            where its bytes have room for them.
        rate: how many times as many elements of a word, and weights, enter the array in a cycle.
        weights_per_cycle: weights that enter a column in a cycle, of all arrays together, where the vector unit
            converts them on their way; 0: `rate` times those of the array.
        result_bytes: bytes of a result of the arrays in HBM; 0: as many as an operand has.
        window_bytes: most bytes that a step of the pipeline reads and leaves, in place of `mapping.window`.
        convert_cycles: cycles in which the vector unit converts a full word of the ifmap, in the lanes of a register or
            in all, ahead of the passes that use it, where the array has no such numbers.
        convert_bytes: bytes of a converted operand, which windows hold in addition to the operand.
        convert_weight_cycles: cycles in which the vector unit converts a word of weights, while passes stream.
        convert_result_cycles: cycles in which it converts a word of results, behind the passes of a body.
        widen: ALU operations that widen an element of an operand of the vector unit.
        narrow: ALU operations that narrow an element of its results.
        rounding: ALU operations that round an element of its results which no operand had.
    """

    bytes: Annotated[int, whole(64), written(1)]
    rate: Annotated[int, whole(16), written(2)] = 1
    weights_per_cycle: Annotated[int, whole(4096, least=0), written(1)] = 0
    result_bytes: Annotated[int, whole(64, least=0), written(4)] = 0
    window_bytes: Annotated[int | None, Quantity(SIZE, "16 GiB"), written("8 MiB", "window")] = None
    convert_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    convert_bytes: Annotated[int, whole(64, least=0), written(2)] = 0
    convert_weight_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    convert_result_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    widen: Annotated[Fraction, rational(65536)] = Fraction(0)
    narrow: Annotated[Fraction, rational(65536)] = Fraction(0)
    rounding: Annotated[int, whole(65536, least=0), written(4)] = 0


class NumberTypes(FileSection):
    """Types of numbers whose time a machine tells. Operands of any other type take what the rest of the file says.

    Attributes:
        f32: float32; a section.
        bf16: bfloat16; a section.
        f16: float16; a section.
        int8: whole numbers of a byte; a section.
        f8: 8-bit floating point (e4m3); a section.
    """

    f32: NumberType | None = None
    bf16: NumberType | None = None
    f16: NumberType | None = None
    int8: NumberType | None = None
    f8: NumberType | None = None


class AluWork(NamedTuple):
    """Operations that an element takes: multiplications and others of the ALUs, and those of the unit of functions."""

    products: int
    others: int
    lookups: int = 0

    @property
    def operations(self) -> int:
        """All of the ALUs."""
        return self.products + self.others


def _read_work(value: object) -> AluWork | None:
    """Operations from a text "multiplications + others", perhaps "+ lookups", or from two or three numbers; None if
    not given. Raises InputError.
    """
    if value is None:
        return None
    parts = re.split(r" *\+ *", value) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or len(parts) not in (2, 3):
        raise InputError(f"{show(value)} is not two counts; write multiplications + other operations, such as 11 + 16")
    counts = (int(each) if isinstance(each, str) and re.fullmatch("[0-9]{1,9}", each) else each for each in parts)
    return AluWork(*(whole_number(each, 0, _MOST_OPERATIONS) for each in counts))


_Work = Annotated[
    AluWork | None,
    Reader(_read_work, f"multiplications + other operations, each 0 to {_MOST_OPERATIONS}"),
    written("11 + 16"),
    PlainSerializer(lambda work: " + ".join(map(str, work if work.lookups else work[:2])) if work else None),
]


class Functions(FileSection):
    """ALU operations that a function takes for an element: multiplications + all others, and perhaps + those of a unit
    of their own (`slots.lookup_cycles`).

    A machine refuses one of the first five whose operations its file does not give. Where it does not give those of a
    sigmoid or a GELU, these are made by tanh. Any other function takes as many operations as the most expensive one
    that the file gives.

    Attributes:
        exp: operations of the exponential.
        tanh: operations of the hyperbolic tangent.
        erf: operations of the error function.
        divide: operations of a division.
        reciprocal_root: operations of 1 over the square root.
        sigmoid: operations of 1 / (1 + exp(-x)).
        gelu_tanh: operations of GELU by tanh, whole.
        wide_divide: operations of a division of numbers as wide as the ALUs, if these take more to be exact.
        wide_sigmoid: operations of a sigmoid of such numbers, if these take more.
    """

    exp: _Work = None
    tanh: _Work = None
    erf: _Work = None
    divide: _Work = None
    reciprocal_root: _Work = None
    sigmoid: _Work = None
    gelu_tanh: _Work = None
    wide_divide: _Work = None
    wide_sigmoid: _Work = None

    def work_of(self, name: str) -> AluWork | None:
        """Operations of a function for an element; None where the machine does not give them."""
        if name in Functions.model_fields:
            return getattr(self, name)  # type: ignore[no-any-return]
        # A function without a field of its own counts as the most expensive one given: a cautious guess.
        given = filter(None, (getattr(self, each) for each in _FUNCTIONS))
        return max(given, key=lambda work: work.operations, default=None)


_FUNCTIONS = "exp", "tanh", "erf", "divide", "reciprocal_root"
"""Functions that others are counted as, where they have no field of their own."""


class Slots(FileSection):
    """Slots of a vector unit that reads and writes registers in the same cycle, as bundles of instructions do.

    Attributes:
        loads: registers that are read in a cycle.
        stores: registers that are written in a cycle.
        lanes: lanes of a register; a word of more lanes lies in several.
        register_bytes: bytes of a register in a lane, where words of narrow types lie side by side.
        registers: registers of results that a turn of the loop makes.
        packed: whether narrow words lie side by side in a register, and are copied so; if not, a load widens a word,
            and a store narrows one, even of a copy.
        latency: cycles from an operation to one that needs its result. The operands of a result are joined one after
            another; meanwhile so are those of other results, as many as a body has registers for (`window`).
        lookup_cycles: cycles in which the unit of functions works on a register, for each operation that `functions`
            gives it.
        turn_cycles: cycles in which all transposing units together turn a register of words of the machine's own type;
            wider words take more, as their bytes do.
        body_cycles: cycles of a loop body beyond its busiest slot, which its words share.
        window: registers of 4 bytes that a body works on at most.
        sum_cycles: further cycles of a body that joins words to sums or maxima.
        bare_cycles: cycles of a body of one instruction, such as an addition of two maps, beyond its busiest slot.
        bare_window: registers of such a body.
        map_cycles: further cycles of such a body for each map that it reads beyond the first.
        turn_body_cycles: cycles of a body that turns words, beyond its busiest slot.
        turn_window: registers of such a body.
        spread_cycles: cycles in which the numbers of the rows of a register, such as their means, reach all its lanes.
    """

    loads: Annotated[int, whole(64), written(3)]
    stores: Annotated[int, whole(64), written(1)]
    lanes: Annotated[int, whole(_MOST_PES_A_SIDE), written(128)]
    register_bytes: Annotated[int, Quantity(SIZE, "64 KiB"), written("32 B", "register")]
    registers: Annotated[int, whole(4096), written(8)]
    latency: Annotated[int, whole(65536, least=0), written(2)] = 0
    packed: Annotated[bool, Truth()] = True
    lookup_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    turn_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    body_cycles: Annotated[int, whole(2**24, least=0)] = 0
    window: Annotated[int, whole(2**24), written(1024)] = 1024
    sum_cycles: Annotated[int, whole(2**24, least=0)] = 0
    bare_cycles: Annotated[int, whole(2**24, least=0)] = 0
    map_cycles: Annotated[int, whole(2**24, least=0)] = 0
    bare_window: Annotated[int, whole(2**24), written(128)] = 1024
    spread_cycles: Annotated[int, whole(2**24, least=0)] = 0
    turn_body_cycles: Annotated[int, whole(2**24, least=0)] = 0
    turn_window: Annotated[int, whole(2**24), written(384)] = 1024

    @property
    def rows(self) -> int:
        """Elements of 4 bytes of a register in a lane."""
        return max(1, self.register_bytes // 4)


class VectorUnit(FileSection):
    """The vector unit: ALUs that add partial sums and carry out every op that no array can.

    Attributes:
        alus: ALUs of all lanes together.
        unpack_cycles: cycles to widen an ifmap word that comes from HBM; 0 where numbers are as wide there as on the
            chip.
        pack_cycles: cycles to narrow a result word that goes to HBM; 0 where nothing is converted.
        stack_cycles: cycles to rotate a word into another lane group where taps are stacked, for each copy beyond the
            first `stack_free`.
        stack_free: copies of a word that come without a rotation.
        stack_by: which copies are rotated where taps are stacked: each `copy`; one for each `column` of the filter,
            whose copies for other filter rows come from other addresses; or one for each `word`, from which all other
            copies come by addresses and masks.
        transpose_cycles: cycles to transpose up to `transpose_words` words of a pixel, where the lowering packs
            channels so.
        transpose_words: words of a pixel that are transposed together.
        gather_cycles: cycles for each tap whose channels are packed together with those of others before that.
        convert_cycles: cycles to convert a full word of the ifmap, in the lanes of a register (`slots.lanes`) or in
            all, ahead of the passes that use it, where the array has no numbers of its type.
        convert_bytes: bytes of a converted operand, which `mapping.window` counts in addition to those of the operand.
        convert_weight_cycles: cycles to convert a word of weights, while passes stream.
        convert_result_cycles: cycles to convert a word of results, behind the passes of a body.
        relayout_cycles: cycles of loads for a word of an ifmap that arrives in another layout (`mapping.entry:
            relaid`); passes hide most of them.
        scalar_words: words of scalars, such as factors of a channel, that a lane keeps during steps of the vector unit.
        operand_cycles: least cycles for each word that a step of the vector unit reads.
        result_cycles: least cycles for each word that a step of the vector unit writes.
        ready_cycles: cycles for each word that is made ready before the vector unit works on it.
        widen: ALU operations that widen an element of an operand that is narrower than the ALUs; with `slots`.
        narrow: ALU operations that narrow an element of a result to such a type; with `slots`.
        rounding: ALU operations that round an element of a result which no operand had.
        arithmetic: with `slots`, the elements of ALUs in ops that make an element of each element, by more than one
            instruction: those that are `widened`, or `narrow` ones as they are, side by side in a register.
        slots: loads and stores in the same cycle, in place of one access of a port a cycle; a section.
        functions: operations of functions such as exp; a section.
    """

    alus: Annotated[int, whole(2**24), written(256)]
    unpack_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    pack_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    stack_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    stack_free: Annotated[int, whole(65536), written(2)] = 2
    stack_by: Annotated[Literal["copy", "column", "word"], Choice()] = "copy"
    transpose_cycles: Annotated[int, whole(65536, least=0)] = 0
    transpose_words: Annotated[int, whole(65536), written(4)] = 8
    gather_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    convert_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    convert_bytes: Annotated[int, whole(64, least=0), written(2)] = 0
    convert_weight_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    convert_result_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    relayout_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    # The default is the value of configs/tpu_v2.yaml.
    scalar_words: Annotated[int, whole(65536)] = 2
    operand_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    result_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    ready_cycles: Annotated[Fraction, rational(65536)] = Fraction(0)
    widen: Annotated[Fraction, rational(65536)] = Fraction(0)
    narrow: Annotated[Fraction, rational(65536)] = Fraction(0)
    rounding: Annotated[int, whole(65536, least=0), written(4)] = 0
    arithmetic: Annotated[Literal["widened", "narrow"], Choice()] = "widened"
    slots: Slots | None = None
    functions: Functions = Functions()


class Hbm(FileSection):
    """Off-chip memory, in which all tensors lie before and after a layer.

    Attributes:
        model: what transfers take. `pipe`: their bytes at `bandwidth`, after `latency`. `banks`: what the DRAM `device`
            takes for their addresses; `bandwidth` and `latency` are then used only for estimates.
        bandwidth_bytes_per_s: bytes a second.
        latency_ps: time until the first byte of a transfer.
        burst_bytes: bytes of the smallest access; a run of addresses is moved in whole bursts.
        channel_multiple: number in whose multiples the channels of a feature map are stored; padding is moved, too.
        tile_rows: rows of the tiles in which tensors lie; a tile is `channel_multiple` wide. The padding of rows counts
            for what a network needs of HBM, and is not moved.
        smallest_tile_bytes: bytes that a tile has at least; an axis too short for all rows takes a tile of fewer.
        layout: order of a tensor's axes in HBM, the outermost first: C channels, H rows, W columns, N images.
        alignment_bytes: bytes of which the address of every tensor is a multiple.
        capacity_bytes: bytes that HBM holds; a network that takes more is refused before it runs. A machine without it
            takes any network.
        device: DRAM that `model: banks` simulates. A file of its own describes it (see the DRAM files below).
        mapping: which bits of an address are row, bank group, bank, channel and column; in place of the device's own
            mapping.
    """

    model: Annotated[Literal["pipe", "banks"], Choice()] = "pipe"
    bandwidth_bytes_per_s: Annotated[int, Quantity(BANDWIDTH, "1000 TB/s"), written("700 GB/s", "bandwidth")]
    # The defaults are the values of configs/tpu_v2.yaml, which gives their sources.
    latency_ps: Annotated[int, Quantity(TIME, "1 ms"), written("100 ns", "latency")] = 46_200
    burst_bytes: Annotated[int, Quantity(SIZE, "64 KiB"), written("64 B", "burst")] = 64
    channel_multiple: Annotated[int, whole(65536)] = 1
    tile_rows: Annotated[int, whole(65536)] = 1
    smallest_tile_bytes: Annotated[int, Quantity(SIZE, "16 MiB"), written("1 KiB", "smallest_tile")] = 1
    layout: Annotated[
        Layouts,
        Reader(read_layouts, "CHW, HWC, HWCN or another order; or a mapping of tensors to such"),
        PlainSerializer(lambda layouts: layouts.written),
        written("HWC"),
    ] = Layouts()
    # A tile of Google's compiler: 8 x 128 elements of 4 bytes.
    alignment_bytes: Annotated[int, Quantity(SIZE, "16 MiB"), written("4 KiB", "alignment")] = 4096
    capacity_bytes: Annotated[int | None, Quantity(SIZE, "1024 GiB"), written("16 GiB", "capacity")] = None
    device: Annotated[
        Device | None,
        Reader(device_of, "a shipped name, or a path"),
        PlainSerializer(lambda device: device.to_dict() if device else None),
    ] = None
    mapping: Annotated[str | None, written("rorabachbgco")] = None

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
            if (own := self.device.capacity_bytes) < (self.capacity_bytes or 0):
                given, most = SIZE.format(self.capacity_bytes or 0), SIZE.format(own)
                raise InputError(
                    [Problem(f"is {given}, and {self.device.name} has {most}; write {most} or less", "capacity")]
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
        """The DRAM whose banks are modelled, with `mapping` applied; None if HBM is a pipe."""
        if self.model == "pipe" or self.device is None or self.mapping is None:
            return self.device if self.model == "banks" else None
        return with_mapping(self.device, self.mapping)


class ScratchMemory(FileSection):
    """A memory on the chip between HBM and the lanes; a machine without this section has none. HBM writes it through a
    port of its own.

    Attributes:
        capacity_bytes: bytes that it holds.
        bandwidth_bytes_per_s: bytes a second between it and the lanes.
        latency_ps: time until the first byte.
    """

    capacity_bytes: Annotated[int, Quantity(SIZE, "16 GiB"), written("128 MiB", "capacity")]
    bandwidth_bytes_per_s: Annotated[int, Quantity(BANDWIDTH, "1000 TB/s"), written("2 TB/s", "bandwidth")]
    latency_ps: Annotated[int, Quantity(TIME, "1 ms"), written("20 ns", "latency")]


class Sequencer(FileSection):
    """The unit that issues the steps of layers, one after another.

    Attributes:
        launch_cycles: cycles to launch a layer.
        between_blocks: whether a block's weights are loaded while the block ahead ends (`overlap`), or wait until its
            results are written (`drain`), as in a loop whose body is scheduled by itself.
        block_cycles: cycles that the body of that loop takes beyond its steps, ahead of its first weights. Where blocks
            overlap, passes ahead hide them.
        loop_cycles: cycles that it takes beyond these where a layer has several bodies of the array.
        fusion: which ops are fused. `results`: biases, additions and activations are applied to the results of the
            layers that they follow. `none`: each is a layer of its own, except biases, which take no time.
        between_layers: how layers follow one another. `drain`: each on an empty machine. `overlap`: one begins while
            the one ahead ends, and launching is paid once. `stay`: as `overlap`, and results stay on the chip where
            their readers can find them.
    """

    launch_cycles: Annotated[int, whole(2**24, least=0)] = 0
    between_blocks: Annotated[Literal["overlap", "drain"], Choice()] = "overlap"
    block_cycles: Annotated[int, whole(2**24, least=0)] = 0
    loop_cycles: Annotated[int, whole(2**24, least=0)] = 0
    fusion: Annotated[Literal["none", "results"], Choice()] = "none"
    between_layers: Annotated[Literal["drain", "overlap", "stay"], Choice()] = "drain"


_MOST = 2**24

_Extent = Annotated[int | Literal["auto"], Choice(_MOST), written(16)]


class BlockSizes(FileSection):
    """The block of a layer: what the chip holds of it at a time.

    `auto` leaves a size to the search; a size above what the layer has means all of it.

    Attributes:
        rows: rows of outputs (of a strip, where a small batch is cut into strips).
        cols: columns of outputs (of a strip).
        images: images, in whole words; rows of a product.
        in_channels: input channels of the reduction that the chip holds at a time; fewer than all are a chunk.
        out_channels: output channels.
        taps: taps of the filter that the chip holds at a time, in the filter's order.
        tap_cols: columns of a window of `taps` taps, in dense cuts: windows of taps and of `in_channels` are then
            whole, as in code of Google's compiler. What they hold beyond the filter is computed, on zeros.
    """

    rows: _Extent = "auto"
    cols: _Extent = "auto"
    images: _Extent = "auto"
    in_channels: _Extent = "auto"
    out_channels: _Extent = "auto"
    taps: _Extent = "auto"
    tap_cols: _Extent = "auto"

    @property
    def given(self) -> dict[str, int]:
        """Sizes that the file gives, by field."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


_RECTANGLE = ("rows", "cols", "images")


class MappingPolicy(FileSection):
    """Choices that lowerings follow. A run may take several lowerings: a choice goes to those that know it.

    A `block` is what the chip holds at a time, a pass what the array does at a time. Passes may be cut at sizes of
    their own (`block_m`, `block_k`, `block_n`).

    Attributes:
        multi_tile: taps that one pass stacks. `auto`: the paper's rule, min(array rows / input channels, filter width).
            `rows`: whole filter rows as well, where several fit. `dense`: passes are filled across filter rows, as the
            code of Google's compiler fills them. `dense_taps`: the same for TPU v3 and v4, where no
            tap is split. `dense_rows`: the same as that compiler's estimate counts them. A
            number: that many taps.
        loop_order: which loop goes outside: over blocks of outputs (`block_major`), over filters (`filter_major`), or
            the cheaper one (`auto`).
        chunks: when a reduction is cut: where that is cheaper (`auto`), or only where it does not fit whole (`needed`).
        transformation: when the ifmap is transformed before it is multiplied, as in explicit im2col: during the product
            (`overlapped`), all of it `before` the product by way of HBM, or block by block in the vector memories
            (`on_chip`).
        loads: when a block begins: with the first of the `pieces` in which its loads come, or once they are `whole`.
            `windows`: a body of the loop is a step of a pipeline. All that it reads comes while the step ahead runs,
            and all that it leaves goes out while the step behind runs, as in code of Google's compiler.
        window_bytes: most bytes that a step of the pipeline reads and leaves, where `loads` are `windows`; a step of
            the smallest block may have more.
        window_cycles: cycles that the choice of blocks adds to the transfers of each step of the pipeline. A compiler
            that expects more of a step than it takes makes fewer and larger ones.
        window_results: how often the choice of blocks counts the bytes of results.
        window_bandwidth: the bandwidth that it expects, in shares of `hbm.bandwidth`.
        fetch: what a block fetches of the ifmap: all that its taps need at once (`resident`), or for each tap by itself
            (`per_tap`; paper, Fig. 8).
        k_order: order of implicit GEMM's K: `channels_fastest`, or `taps_fastest`.
        patch: points that a strided block fetches of the ifmap: those that its taps have `touched`, or all of the
            `window` between them.
        layout: how tensors lie in tiles: as they are (`plain`), or whichever way round pads less (`least_padding`).
        strips: which strips of the map fill words that a small batch leaves half empty. `balanced`: those that take
            fewest cycles of the array, or others where a convolution waits for ports. `one_image`: strips of columns,
            only for a batch of one image; and for gradients by a filter with few channels, if that is faster.
        row_windows: taps a side from which kernels whose channels do not fill the array are held a filter row at a
            time; 0: never.
        transposed_channels: channels up to which a layer is packed by transposing words, in
            `vector_unit.transpose_cycles`; 0: none.
        column_folds: column folds (groups of output channels as wide as the array) that a block keeps: `one`, or `all`.
        entry: how the ifmap arrives: `ready` as its words are, or in another layout and `relaid` patch by patch, as
            that of a layer compiled by itself.
        rows: rows of softmax and other ops of whole rows, between their stages: `kept` on the chip where they fit, or
            `read_again` for each stage.
        search: how blocks are chosen. `estimate`: by estimated cycles. `simulate`: by simulating the blocks that may be
            the best. `auto`: by simulation where a Program has few steps or is noticeably off its estimate, unless a
            bound says that no block is noticeably faster; else by the estimate.
        block_m: words that a pass streams. As a pass streams all words of its block, this is a block's size as well,
            and excludes `block.rows`, `block.cols` and `block.images`.
        block_k: rows of the array that a dense pass fills, at most.
        block_n: columns of the array that a pass fills, at most.
        block: sizes of a block; a section.
    """

    multi_tile: Annotated[int | Literal["auto", "rows", "dense", "dense_taps", "dense_rows"], Choice(65536)] = "auto"
    loop_order: Annotated[Literal["auto", "block_major", "filter_major"], Choice()] = "auto"
    chunks: Annotated[Literal["auto", "needed"], Choice()] = "auto"
    transformation: Annotated[Literal["overlapped", "before", "on_chip"], Choice()] = "overlapped"
    loads: Annotated[Literal["pieces", "whole", "windows"], Choice()] = "pieces"
    window_bytes: Annotated[int, Quantity(SIZE, "16 GiB"), written("4 MiB", "window")] = 2**34
    window_cycles: Annotated[int, whole(2**24, least=0)] = 0
    window_results: Annotated[Fraction, rational(65536)] = Fraction(1)
    window_bandwidth: Annotated[Fraction, rational(65536)] = Fraction(1)
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
    block_k: Annotated[int | Literal["auto"], Choice(_MOST_PES_A_SIDE), written(64)] = "auto"
    block_n: Annotated[int | Literal["auto"], Choice(_MOST_PES_A_SIDE), written(64)] = "auto"
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
