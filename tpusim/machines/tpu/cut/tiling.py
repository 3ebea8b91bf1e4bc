"""Tilings of a layer: the block of outputs held on chip, the loop order and the buffers; and sizes that are given.

Then demands that units of work make on a machine: a pass over a block, a step of the vector unit, a transfer. Every
choice of blocks is based on these demands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import starmap
from math import prod
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.cut.blocks import portions
from tpusim.machines.tpu.cut.geometry import ConvShape, MapAxis, StripMaps
from tpusim.machines.tpu.cut.reduction import Chunk, Cut, ReductionPass
from tpusim.machines.tpu.definition import (
    Frame,
    StepLoop,
    beat_of,
    frame_of,
    issue_cycles,
    ready_delay,
    stream_clients,
    word_cycles,
)
from tpusim.machines.tpu.description import Hardware

Counts = NDArray[np.int64]

MOST_PIECES = 4
"""Most pieces that one load is cut into, so that the first passes need not wait for all of it."""

Extent = TypeVar("Extent", int, Counts)
Way = TypeVar("Way")


@dataclass(frozen=True)
class Tiling(Generic[Extent]):
    """A tiling of a layer. In a search, fields are arrays with an entry for each candidate; a lowering gets integers.

    Attributes:
        rows, cols, groups: outputs and word groups of a block.
        span: words of a block that may begin and end within a row of such a rectangle; 0 for rectangular blocks.
        blocks: number of blocks of the ofmap of a channel group.
        loop_order: "block_major" or "filter_major", or an array of these.
        kept_folds: column folds of a block whose partial sums stay on chip together.
        chunk_taps, chunk_folds: tap groups and row folds whose part of the ifmap is filled together.
        section_passes: passes whose weights are filled together.
        ifmap_buffers, filter_buffers, psum_buffers: number of buffers of each kind.
        ifmap_words, section_words, psum_words: words of one buffer of each kind.
        lag: stages from the end of a block's sums to the place of their spill in the DMA queue.
    """

    rows: Extent
    cols: Extent
    groups: Extent
    span: Extent
    blocks: Extent
    loop_order: Any
    kept_folds: Extent
    chunk_taps: Extent
    chunk_folds: Extent
    section_passes: Extent
    ifmap_buffers: Extent
    filter_buffers: Extent
    psum_buffers: Extent
    ifmap_words: Extent
    section_words: Extent
    psum_words: Extent
    lag: Extent

    @property
    def outputs(self) -> tuple[Extent, Extent, Extent]:
        """Rows, columns and word groups of a block."""
        return self.rows, self.cols, self.groups

    @property
    def buffers(self) -> tuple[tuple[Extent, Extent], ...]:
        """(words of a buffer, number of buffers) of the ifmap, the filter and the results."""
        ifmap, filter_ = (self.ifmap_words, self.ifmap_buffers), (self.section_words, self.filter_buffers)
        return ifmap, filter_, (self.psum_words, self.psum_buffers)

    @property
    def words(self) -> Extent:
        """Words of vector memory a lane needs for all buffers together."""
        ifmap, filter_, results = (words * count for words, count in self.buffers)
        total: Extent = ifmap + filter_ + results
        return total

    def each(self: Tiling[Counts], change: Callable[..., Any], *others: Tiling[Counts]) -> Tiling[Any]:
        """The tiling with every array changed by a function of it and the same array of `others`."""
        every = [vars(tiling) for tiling in (self, *others)]
        return Tiling(**{name: change(*(of[name] for of in every)) for name in vars(self)})

    def at(self: Tiling[Counts], index: int) -> Tiling[int]:
        """The candidate at an index of the arrays."""
        return self.each(lambda values: values[index].item())

    def one_by_one(self: Tiling[Counts]) -> Iterator[Tiling[int]]:
        """Every candidate, in the order of the arrays."""
        return starmap(Tiling, zip(*(values.tolist() for values in vars(self).values()), strict=True))


def together(tilings: Sequence[Tiling[Any]]) -> Tiling[Counts]:
    """Candidates of all tilings, in order; a field that has one value in all of a tiling may be a number there."""
    sizes = [len(each.rows) for each in tilings]

    def column(*parts: Any) -> NDArray[Any]:
        if not any(isinstance(each, np.ndarray) for each in parts):
            return np.repeat(parts, sizes)
        arrays = zip(parts, sizes, strict=True)
        return np.concatenate([each if isinstance(each, np.ndarray) else np.full(size, each) for each, size in arrays])

    return tilings[0].each(column, *tilings[1:])


def col_folds(out_channels: int, hardware: Hardware) -> tuple[range, ...]:
    """Output channels of a group in portions of at most C or `block_n`, within those that a given block holds."""
    wanted, cols = hardware.mapping.block_n, hardware.array.cols
    width = min(wanted, cols) if isinstance(wanted, int) else cols
    return tuple(portions(out_channels, width, hardware.mapping.block.given.get("out_channels")))


def weight_words(passes: tuple[ReductionPass, ...], hardware: Hardware) -> list[int]:
    """Words a lane needs for the weights of each pass: W weights of its column to a word."""
    return [-(-each.rows // hardware.vector_memory.word_elements) for each in passes]


# ---- what mapping.block gives, in the units of a tiling


def given_outputs(shape: StripMaps, hardware: Hardware) -> tuple[int | None, int | None, int | None]:
    """Rows, columns and word groups of a given block; None for sizes that are left to the search."""
    block = hardware.mapping.block.given
    groups, fill = shape.word_groups(hardware.vector_memory.word_elements)
    # Words of a pixel that hold the given number of images.
    images = block.get("images")
    words = images and min(-(-images // max(1, fill // shape.strips)), groups)
    return _at_most(block.get("rows"), shape.row), _at_most(block.get("cols"), shape.col), words


def _at_most(outputs: int | None, axis: MapAxis) -> int | None:
    return outputs and min(max(1, outputs // axis.cell), axis.extent)


def said(hardware: Hardware) -> str:
    """Words for the given sizes of a block; empty if none is given."""
    return ", ".join(f"{name} {value}" for name, value in hardware.mapping.block.given.items())


# ---- where nothing fits


def fitting(ways: Iterable[Way], words: Callable[[Way], int], hardware: Hardware) -> Iterator[Way]:
    """The ways whose `words` fit in a lane.

    Raises:
        CapacityError: when no way fits; says how much memory would do.
    """
    sizes = list[int]()
    for each in ways:
        sizes.append(words(each))
        if sizes[-1] <= hardware.capacity_words:
            yield each
    if min(sizes) > hardware.capacity_words:
        raise too_small(min(sizes), hardware)


def too_small(words: int, hardware: Hardware) -> CapacityError:
    """An error for vector memories with fewer than `words` words a lane, with what to do."""
    what, instead = wanted_by(hardware)
    return CapacityError(
        f"{what} needs {words} words of {hardware.word_bytes} B a lane, and the vector memory has "
        f"{hardware.capacity_words}; set vector_memory.capacity to at least {words * hardware.word_bytes} B "
        f"(it is {hardware.vector_memory.capacity_bytes} B), or {instead}"
    )


def wanted_by(hardware: Hardware) -> tuple[str, str]:
    """Words for what needs too much, the smallest tiling or that of a given block, and for what may need less."""
    if given := said(hardware):
        return f"the smallest tiling of the block that mapping.block gives ({given})", "give a smaller block"
    return "the smallest tiling", "choose smaller words or a larger array"


# ---- what a unit of work demands of a machine

Cycles: TypeAlias = Any  # a number, or an array of them: one a candidate

BlockShape = tuple[int, int, int]
"""Rows and columns of the outputs of a block, and its word groups."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of some work on each resource: numbers, or arrays with an entry for each candidate.

    Attributes:
        cycles: cycles of the array or the vector unit.
        bus: cycles of the HBM bus.
        converted: cycles in which words are unpacked or packed.
        port: cycles of a lane's port, one for each word.
    """

    cycles: Cycles = 0
    bus: Cycles = 0
    converted: Cycles = 0
    port: Cycles = 0

    def __add__(self, other: Demand) -> Demand:
        return Demand(
            self.cycles + other.cycles, self.bus + other.bus, self.converted + other.converted, self.port + other.port
        )

    @property
    def busiest(self) -> Cycles:
        """Cycles of the busiest resource, if all are busy at once."""
        return np.maximum(np.maximum(self.cycles, self.port), np.maximum(self.bus, self.converted))


def step(
    words: int, operands: int, operations: Fraction | int, elements: int, hardware: Hardware, lanes: int | None = None,
    loop: StepLoop | None = None,
) -> Demand:  # fmt: skip
    """Demand of a vector step that makes `words` words of results in some lanes, or all, with `elements` in use."""
    beat = beat_of(operands, operations, elements, hardware, words, lanes, loop=loop)
    turns = beat.turns(words)
    # Where words are written beside reads, the port is charged for the whole turn: too much where the work is longer.
    port = turns * beat.period if beat.beside else words * (operands + 1)
    return Demand(cycles=turns * beat.period + beat.result_delay + beat.body, port=port)


@lru_cache(maxsize=1 << 10)
def frames_of(cut: Cut, adds: bool, hardware: Hardware) -> tuple[Frame, Frame]:
    """The port's period while passes stream, of which some may add to sums; and while they stream only the last word of
    each pixel, which may hold fewer images.
    """
    word = hardware.vector_memory.word_elements
    groups, fill = cut.shape.word_groups(word)
    ready = word_cycles(groups, cut.transposed, hardware, cut.gathered)
    fills = {fill: None, cut.shape.last_word(word): None}
    whole, *last = (frame_of(hardware, each, stream_clients(adds), word_cycles=ready) for each in fills)
    return whole, last[0] if last else whole


def parted(tilings: Tiling[Any], cut: Cut, hardware: Hardware) -> NDArray[np.bool_]:
    """A mask of the tilings whose last words of pixels stream by a frame of their own: where blocks have no others, and
    passes over these save more than it costs to end all passes before frames change, twice.
    """
    shape, sums = cut.shape, cut.whole.sums
    passes, columns = max(map(len, sums)), len(sums) * len(col_folds(shape.out_channels, hardware))
    whole, last = frames_of(cut, passes > 1, hardware)
    if whole is last:
        return np.zeros(np.shape(tilings.groups), dtype=bool)
    groups, _ = shape.word_groups(hardware.vector_memory.word_elements)
    words = tilings.rows * tilings.cols * shape.cell
    # A pass over few words takes as long as the weights of the next.
    taken, less = (
        np.maximum(-(-words // each.arrays) * each.period, hardware.preload_cycles) for each in (whole, last)
    )
    blocks = -(-shape.row.extent // tilings.rows) * -(-shape.col.extent // tilings.cols)
    folds = np.where(tilings.loop_order == "block_major", columns, np.minimum(tilings.kept_folds, columns))
    saved = blocks * passes * folds * (taken - less)
    alone = (tilings.span == 0) & ((groups - 1) % tilings.groups == 0)
    return np.asarray(alone & (saved > 2 * (whole.result_delay + hardware.preload_cycles)))


def delay_of(words: int, hardware: Hardware, begins: bool = True) -> int:
    """Cycles before a block of the vector unit: the body that it `begins`, and the time to make its words ready."""
    return hardware.sequencer.block_cycles * begins + ready_delay(words, hardware)


def op_delay(words: int, hardware: Hardware, begins: bool = True) -> int:
    """Cycles before a block of an op of the vector unit: none where its steps have a share of bodies
    (`slots.body_cycles`).
    """
    slots = hardware.vector_unit.slots
    return 0 if slots and slots.body_cycles else delay_of(words, hardware, begins)


def summed(chunk: Chunk) -> list[tuple[ReductionPass, ...]]:
    """Passes of a chunk that add up, outcome by outcome."""
    return [chunk.passes[some.start - chunk.numbers.start : some.stop - chunk.numbers.start] for some in chunk.sums]


# ---- what the vector unit does with a new patch of the ifmap before passes use it


def preparing(cut: Cut, chunk: Chunk, sizes: BlockShape, hardware: Hardware) -> tuple[Fraction, Fraction]:
    """(cycles to convert a block and rotate it into further lane groups, cycles to lay it out anew that passes do not
    hide).

    With `mapping.entry: relaid`, a word is put together by loads, one a cycle, in the first pass that needs it. They
    hide behind its stream, except for the cycles of the pass's other loads: of weights, of sums, and of words for
    several lane groups, which are written back in between.
    """
    cycles, (rows, cols, groups) = hardware.vector_unit.relayout_cycles, sizes
    unit, shape, word = hardware.vector_unit, cut.shape, hardware.vector_memory.word_elements
    rotated = Fraction(rotating(cut, chunk, sizes, unit.stack_cycles))
    if unit.convert_cycles:
        # Elements of a word and lanes that are in use: what is empty is not converted.
        lanes = min(unit.slots.lanes, hardware.lanes) if unit.slots else hardware.lanes
        used = Fraction(sum(len(each.channels) for each in chunk.places) * shape.word_groups(word)[1], lanes * word)
        rotated += prod(patch(shape, chunk, sizes)) * groups * used * unit.convert_cycles
    if hardware.mapping.entry == "ready" or not cycles:
        return rotated, Fraction(0)
    words = rows * cols * groups * shape.cell
    streamed = -(-words // hardware.array.count) * issue_cycles(word, hardware)
    again = words if any(len(place.first_lanes) > 1 for place in chunk.places) else 0
    lanes, wanted = hardware.lanes, {run.channels[-1] for each in chunk.passes for run in each.runs}
    # Words that an earlier pass of the chunk has already put together, in groups as wide as all lanes.
    seen = np.zeros((max(wanted) // lanes + 1, *patch(shape, chunk, sizes)), dtype=bool)
    total, before = Fraction(0), 0
    for number, each in zip(chunk.numbers, chunk.passes, strict=True):
        for run in each.runs:
            folds = slice(run.channels[0] // lanes, run.channels[-1] // lanes + 1)
            at = _under(shape.row, run.tap[0], chunk.tap_rows, rows)
            seen[folds, at, _under(shape.col, run.tap[1], chunk.tap_cols, cols)] = True
        new = int(np.count_nonzero(seen)) - before
        besides = -(-each.rows // word) + again + (words if number else 0)
        total += max(new * groups * cycles + besides - streamed, Fraction(0)) if new else 0
        before += new
    return rotated, total


def rotating(cut: Cut, chunk: Chunk, sizes: tuple[Cycles, Cycles, Cycles], a_word: Cycles) -> Cycles:
    """Cycles to rotate a block, with padding, into the lane groups of copies that do not come by themselves."""
    unit = cut.hardware.vector_unit
    most = {"copy": None, "column": cut.shape.col.kernel, "word": unit.stack_free + 1}[unit.stack_by]
    cycles = 0 * a_word if cut.transposed else chunk.rotations(unit.stack_free, most) * a_word
    return cycles and prod(patch(cut.shape, chunk, sizes)) * sizes[2] * cycles


def _under(axis: MapAxis, tap: int, taps: range, outputs: int) -> slice:
    """Grid points under one tap, within a patch for several taps."""
    first = axis.place(tap) - axis.places(taps).start
    return slice(first, first + (outputs - 1) * axis.step + 1, axis.step)


def patch(shape: ConvShape, chunk: Chunk, sizes: BlockShape) -> tuple[int, int]:
    """Rows and columns of grid points of a patch, with padding."""
    return shape.row.reach(sizes[0], chunk.tap_rows), shape.col.reach(sizes[1], chunk.tap_cols)
