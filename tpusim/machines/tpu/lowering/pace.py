"""What a unit of work demands of a machine: a pass over a block, a step of the vector unit, a transfer.

Every choice of blocks is built of these demands. An estimate overlaps those of units that run beside one another, and
adds what hides behind nothing; a bound takes what the busiest resource cannot do without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition import IFMAP, PSUM, RESULT, Frame, beat_of, frame_of, ready_delay, word_cycles
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import ConvShape, MapAxis, padded
from tpusim.machines.tpu.lowering.reduction import Chunk, Cut, ReductionPass
from tpusim.machines.tpu.lowering.tiles import stored_ifmap
from tpusim.machines.tpu.lowering.tiling import Counts, Tiling, col_folds, word_groups

Cycles: TypeAlias = Any  # a number, or an array of them: one a candidate

Sizes = tuple[int, int, int]
"""Rows and columns of the outputs of a block, and its word groups."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What some work takes of each resource; numbers, or arrays with an entry for each candidate.

    Attributes:
        cycles: of the array or the vector unit.
        bus: cycles in which bytes go over the bus of the HBM.
        converted: cycles in which words are unpacked or packed on their way.
        port: cycles of a lane's port, a word in each.
    """

    cycles: Cycles = 0
    bus: Cycles = 0
    converted: Cycles = 0
    port: Cycles = 0

    def __add__(self, other: Demand) -> Demand:
        return Demand(
            self.cycles + other.cycles,
            self.bus + other.bus,
            self.converted + other.converted,
            self.port + other.port,
        )

    @property
    def busiest(self) -> Cycles:
        """Cycles of the busiest resource, if all are busy at once."""
        return np.maximum(np.maximum(self.cycles, self.port), np.maximum(self.bus, self.converted))


def step(words: int, operands: int, operations: int, elements: int, hardware: Hardware) -> Demand:
    """A step of the vector unit that makes `words` of results, with some `elements` in use."""
    beat = beat_of(operands, operations, elements, hardware)
    return Demand(cycles=words * beat.period + beat.result_delay, port=words * (operands + 1))


def delay_of(words: int, hardware: Hardware) -> int:
    """Cycles before a block of the vector unit: its turn of the loop, and its words made ready."""
    return hardware.sequencer.block_cycles + ready_delay(words, hardware)


class LayerWork:
    """The units of work of one layer whose reduction is cut in this way, and what each demands.

    Attributes:
        chunk: the whole reduction; `passes`: those of an outcome, the most.
        folds, taps: row folds and tap groups of it.
        col_folds: the output channels of a group, portion by portion, for each outcome; `columns`: how many.
        groups, word_fill: words of a pixel, and elements used of each.
    """

    def __init__(self, shape: ConvShape, hardware: Hardware, cut: Cut) -> None:
        self.shape, self.hardware, self.cut = shape, hardware, cut
        (self.chunk,) = cut.chunks(cut.groups, cut.folds)
        self.passes = max(summed(self.chunk), key=len)
        self.folds, self.taps = cut.folds, cut.groups
        self.col_folds = col_folds(shape.out_channels, hardware) * len(self.chunk.sums)
        self.columns = len(self.col_folds)
        self.groups, self.word_fill = word_groups(shape.word_images, hardware.vector_memory.word_elements)

    @property
    def drains(self) -> bool:
        """Whether a block begins when the one before is done."""
        return self.hardware.sequencer.between_blocks == "drain"

    @cached_property
    def frame(self) -> Frame:
        """The port's period while passes stream."""
        clients = (IFMAP, PSUM, RESULT) if len(self.passes) > 1 else (IFMAP, RESULT)
        ready = word_cycles(self.groups, self.cut.transposed, self.hardware)
        return frame_of(self.hardware, self.word_fill, clients, word_cycles=ready)

    def stream(self, words: Counts) -> Counts:
        """Cycles in which a pass streams the words of a block."""
        return np.asarray(-(-words // self.frame.arrays) * self.frame.period)

    def turn(self, tilings: Tiling[Counts]) -> Counts:
        """Cycles from pass to pass over a block: its stream or the next preload, whichever takes longer."""
        preload, shared = self.hardware.preload_cycles, self.hardware.vector_memory.ports == "shared"
        # A full frame leaves the preload no slot before the stream is over.
        serial = preload if self.frame.period == self.frame.slots and shared else 0
        return np.asarray(np.maximum(self.stream(tilings.psum_words), preload) + serial)

    def load(self, tilings: Tiling[Counts]) -> Demand:
        """The ifmap of a block and chunk; a word that comes in beside a stream waits for a free slot of the port."""
        elements = tilings.ifmap_words / self.folds * self.word_fill * self.cut.per_fold * self._stored_share
        brought = np.minimum(tilings.ifmap_words, elements / (self.word_fill * self.hardware.lanes))
        shared, frame = self.hardware.vector_memory.ports == "shared", self.frame
        a_word = frame.period / max(frame.period - frame.slots, 1) if shared else 1
        return Demand(
            bus=elements * self.element_cycles * self.waste(tilings.groups, self.stored_channels),
            converted=brought * float(self.hardware.vector_unit.unpack_cycles),
            port=tilings.ifmap_words * (a_word if self.cut.copies else 0),
        )

    def spill(self, tilings: Tiling[Counts]) -> Demand:
        """The results of a block and column fold, with their share of the padding after the last channel of all."""
        of_group, width = self.shape.out_channels, len(self.col_folds[0])
        total = of_group * self.shape.groups
        stored = padded(total, self.hardware.hbm.channel_multiple)
        elements = tilings.psum_words * self.word_fill * (width * stored / total)
        return Demand(
            bus=elements * self.element_cycles * self.waste(tilings.groups, of_group * stored / total),
            converted=tilings.psum_words * float(self.hardware.vector_unit.pack_cycles),
        )

    def waste(self, groups: Counts, channels: float) -> NDArray[np.float64]:
        """Bytes moved over bytes wanted: runs of images, or of all images of some channels, are whole bursts."""
        run = np.where(groups == self.groups, channels * self.shape.images, groups * self.word_fill)
        run_bytes, burst = run * self.hardware.vector_memory.element_bytes, self.hardware.hbm.burst_bytes
        return np.asarray(-(-run_bytes // burst) * burst / run_bytes, dtype=np.float64)

    @cached_property
    def stored_channels(self) -> float:
        """Channels of a group as its ifmap is stored, so that padding counts."""
        return self.shape.channels * self._stored_share

    @cached_property
    def _stored_share(self) -> float:
        channels, images = stored_ifmap(self.shape, self.hardware)
        return channels * images / (self.shape.channels * self.shape.groups * self.shape.images)

    @cached_property
    def filter_cycles(self) -> float:
        """Cycles of the bus for the filter of a channel group."""
        weights = self.shape.taps * self.shape.channels * self.shape.out_channels // self.shape.bundle
        return weights * self.element_cycles

    @cached_property
    def element_cycles(self) -> float:
        """Cycles of the bus for an element."""
        return self.hardware.vector_memory.element_bytes / float(self.hardware.hbm_bytes_per_cycle)

    @cached_property
    def ready_cycles(self) -> float:
        """Cycles in which the vector unit makes a word of the ifmap ready, as if the whole map were one block."""
        hardware, shape, chunk = self.hardware, self.shape, self.chunk
        if not hardware.vector_unit.stack_cycles and hardware.mapping.entry == "ready":
            return 0.0
        stacking = 0 if self.cut.transposed else hardware.vector_unit.stack_cycles * chunk.rotations
        sizes = shape.row.extent, shape.col.extent, self.groups
        points = prod(patch(shape, chunk, sizes)) * self.groups
        return float(stacking + relaying(shape, chunk, sizes, hardware) / points) / len(chunk.places)

    def rotated(self, rows: Cycles, cols: Cycles, groups: Cycles) -> Cycles:
        """Cycles to rotate what blocks of such extents need into the lane groups of further copies."""
        cycles = 0 if self.cut.transposed else self.chunk.rotations * float(self.hardware.vector_unit.stack_cycles)
        return cycles and prod(patch(self.shape, self.chunk, (rows, cols, groups))) * groups * cycles


def summed(chunk: Chunk) -> list[tuple[ReductionPass, ...]]:
    """The passes of a chunk that add up, outcome by outcome."""
    return [chunk.passes[some.start - chunk.numbers.start : some.stop - chunk.numbers.start] for some in chunk.sums]


# ---- what the vector unit does with a new patch of the ifmap before passes use it


def rotating(shape: ConvShape, chunk: Chunk, sizes: Sizes, hardware: Hardware) -> Fraction:
    """Cycles to rotate what a block needs, padding too, into the lane groups of copies beyond the second."""
    cycles = hardware.vector_unit.stack_cycles
    return chunk.rotations * prod(patch(shape, chunk, sizes)) * sizes[2] * cycles


def relaying(shape: ConvShape, chunk: Chunk, sizes: Sizes, hardware: Hardware) -> Fraction:
    """Cycles to lay out anew what a block needs, as far as passes do not hide them (`mapping.entry: relaid`).

    A word is put together by loads, one a cycle, in the first pass that wants it. They hide behind its stream but for
    the loads that the pass needs besides: of weights, of sums, and of words that are put together for several lane
    groups, which are written back in between.
    """
    cycles, (rows, cols, groups) = hardware.vector_unit.relayout_cycles, sizes
    if hardware.mapping.entry == "ready" or not cycles:
        return Fraction(0)
    word, words = hardware.vector_memory.word_elements, rows * cols * groups * shape.cell
    streamed = -(-words // hardware.array.count) * word
    again = words if any(len(place.first_lanes) > 1 for place in chunk.places) else 0
    total, new_words = Fraction(0), _new_words(shape, chunk, sizes, hardware)
    for number, each, new in zip(chunk.numbers, chunk.passes, new_words, strict=True):
        besides = -(-each.rows // word) + again + (words if number else 0)
        total += max(new * groups * cycles + besides - streamed, Fraction(0)) if new else 0
    return total


def _new_words(shape: ConvShape, chunk: Chunk, sizes: Sizes, hardware: Hardware) -> Iterator[int]:
    """Words of a group, as wide as all lanes, that each pass is the first of its chunk to want."""
    lanes, wanted = hardware.lanes, {run.channels[-1] for each in chunk.passes for run in each.runs}
    seen = np.zeros((max(wanted) // lanes + 1, *patch(shape, chunk, sizes)), dtype=bool)
    for each in chunk.passes:
        before = np.count_nonzero(seen)
        for run in each.runs:
            folds = slice(run.channels[0] // lanes, run.channels[-1] // lanes + 1)
            rows = _under(shape.row, run.tap[0], chunk.tap_rows, sizes[0])
            seen[folds, rows, _under(shape.col, run.tap[1], chunk.tap_cols, sizes[1])] = True
        yield int(np.count_nonzero(seen) - before)


def _under(axis: MapAxis, tap: int, taps: range, outputs: int) -> slice:
    """The grid points on which a tap stands, of those of a patch for several."""
    first = axis.place(tap) - axis.places(taps).start
    return slice(first, first + (outputs - 1) * axis.step + 1, axis.step)


def patch(shape: ConvShape, chunk: Chunk, sizes: Sizes) -> tuple[int, int]:
    """Rows and columns of grid points, padding too."""
    return shape.row.reach(sizes[0], chunk.tap_rows), shape.col.reach(sizes[1], chunk.tap_cols)
