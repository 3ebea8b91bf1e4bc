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
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.cut.geometry import ConvShape, MapAxis, padded
from tpusim.machines.tpu.cut.reduction import Chunk, Cut, ReductionPass
from tpusim.machines.tpu.cut.stored import stored_ifmap
from tpusim.machines.tpu.cut.tiling import MOST_PIECES, Counts, Tiling, col_folds, word_groups
from tpusim.machines.tpu.definition import Frame, beat_of, frame_of, ready_delay, stream_clients, word_cycles
from tpusim.machines.tpu.description import Hardware

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
            self.cycles + other.cycles, self.bus + other.bus, self.converted + other.converted, self.port + other.port
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


class _Costs(NamedTuple):
    """What every candidate has to bring out (`results`, one a block and column fold), and the cycles of its parts."""

    results: Counts
    per_pass: Counts
    load: Cycles
    spill: Cycles
    first: Cycles
    last: Cycles


class LayerWork:
    """The units of work of one layer whose reduction is cut in this way, what each demands, and an estimate of all.

    Attributes:
        chunk: the whole reduction; `passes`: how many an outcome has, the most.
        folds, taps: row folds and tap groups of it.
        col_folds: the output channels of a group, portion by portion, for each outcome; `columns`: how many.
        groups, word_fill: words of a pixel, and elements used of each.
        extents: rows and columns of the outputs, and word groups.
        drains: whether a block begins when the one before is done.
        element_cycles, filter_cycles: cycles of the bus for an element, and for the filter of a channel group.
    """

    def __init__(self, shape: ConvShape, hardware: Hardware, cut: Cut) -> None:
        self.shape, self.hardware, self.cut = shape, hardware, cut
        (self.chunk,) = cut.chunks(cut.groups, cut.folds)
        self.passes = max(map(len, self.chunk.sums))
        self.folds, self.taps = cut.folds, cut.groups
        self.col_folds = col_folds(shape.out_channels, hardware) * len(self.chunk.sums)
        self.columns = len(self.col_folds)
        self.groups, self.word_fill = word_groups(shape.word_images, hardware.vector_memory.word_elements)
        self.extents = shape.row.extent, shape.col.extent, self.groups
        self.drains = hardware.sequencer.between_blocks == "drain"
        self.element_cycles = hardware.vector_memory.element_bytes / float(hardware.hbm_bytes_per_cycle)
        self.filter_cycles = shape.taps * shape.channels * shape.out_channels // shape.bundle * self.element_cycles
        # Pieces of a load, of which passes wait for the first.
        self._begun_with = 1 if hardware.mapping.loads == "whole" else MOST_PIECES
        # Between the fill of one block and the spill of another the bus waits for the last words and the drain.
        drain = hardware.array.rows + self.word_fill
        self._turnaround = hardware.latency_cycles + drain
        # A block's first preload and last results, where they are not hidden behind other blocks.
        self._drain_cycles = hardware.preload_cycles + drain if self.drains else 0

    @cached_property
    def frame(self) -> Frame:
        """The port's period while passes stream."""
        ready = word_cycles(self.groups, self.cut.transposed, self.hardware)
        clients = stream_clients(self.passes > 1)
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

    @property
    def stored_channels(self) -> float:
        """Channels of a group as its ifmap is stored, so that padding counts."""
        return self.shape.channels * self._stored_share

    @cached_property
    def _stored_share(self) -> float:
        channels, images = stored_ifmap(self.shape, self.hardware)
        return channels * images / (self.shape.channels * self.shape.groups * self.shape.images)

    @cached_property
    def ready_cycles(self) -> float:
        """Cycles in which the vector unit makes a word of the ifmap ready, as if the whole map were one block."""
        points = prod(patch(self.shape, self.chunk, self.extents)) * self.groups
        cycles = sum(preparing(self.cut, self.chunk, self.extents, self.hardware))
        return float(cycles / points) / len(self.chunk.places)

    def rotated(self, rows: Cycles, cols: Cycles, groups: Cycles) -> Cycles:
        """Cycles to rotate what blocks of such extents need into the lane groups of further copies."""
        return rotating(self.cut, self.chunk, (rows, cols, groups), float(self.hardware.vector_unit.stack_cycles))

    # ---- what a tiling would cost, roughly: it steers the choice only and is never reported

    def estimate(self, tilings: Tiling[Any]) -> NDArray[np.float64]:
        """Estimated cycles of the layer for every candidate."""
        costs = self._costs(tilings)
        between = self._in_chunks if (self._parts(tilings) > 1).any() else self._undivided
        # Where blocks drain, all that lags behind goes out in the end.
        behind = np.minimum(tilings.lag, costs.results) if self.drains else 1
        return np.asarray(costs.first + between(tilings, costs) + costs.spill * behind, dtype=np.float64)

    def late(self, tilings: Tiling[Any]) -> NDArray[np.float64]:
        """Cycles that `estimate` leaves out: the first block cannot hide behind others while its own operands come.

        It hardly tells whole reductions apart, and one in chunks has next to none of it.
        """
        costs = self._costs(tilings)
        sections, passes = self._section_cycles(tilings), tilings.section_passes
        last = costs.per_pass * (self.passes // self.folds) * _ceil(tilings.chunk_folds, self._begun_with)
        brought = costs.load - costs.first
        all_in = brought + sections + last - self.passes * costs.per_pass
        # The second section comes when all of the ifmap is there.
        second = brought + 2 * sections * passes / self.passes - passes * costs.per_pass
        late = np.maximum(all_in, np.where(passes < self.passes, second, 0))
        whole = (self._parts(tilings) == 1) & (self.folds > 1)
        return np.asarray(np.where(whole, np.maximum(late, 0), 0), dtype=np.float64)

    def _costs(self, tilings: Tiling[Counts]) -> _Costs:
        results, passes = tilings.blocks * self.shape.groups * self.columns, tilings.section_passes
        load, per_pass = self.load(tilings).busiest, self.turn(tilings)
        # Passes left when the last piece is there: of a section, or of a block that is the only one.
        alone = np.where(results == 1, _ceil(tilings.chunk_folds, self._begun_with), 0)
        last = per_pass * np.maximum(_ceil(passes, self._begun_with), alone)
        # The first pass waits for one fold; where blocks drain, for an even piece of the block and of the filter.
        first = load / tilings.chunk_folds
        if self.drains:
            section = self.filter_cycles / self.columns * passes / self.passes
            of_load, of_section = (np.minimum(self._begun_with, count) for count in (tilings.chunk_folds, passes))
            first = load / of_load + section / of_section
        return _Costs(results, per_pass, load, self.spill(tilings).busiest, first, last)

    def _undivided(self, tilings: Tiling[Counts], costs: _Costs) -> NDArray[np.float64]:
        """The longer of array and HBM, where the ifmap of a block is on chip for its whole reduction."""
        results, groups, held = costs.results, self.shape.groups, _ceil(self.columns, tilings.kept_folds)
        # The ifmap of a block comes again for column folds that other blocks lie between.
        again = np.where((tilings.loop_order == "filter_major") & (tilings.blocks > 2), held, 1)
        loaded, turns = groups * (tilings.blocks * again), groups * tilings.blocks * held
        ahead = turns * self.hardware.sequencer.block_cycles + loaded * (tilings.ifmap_words * self.ready_cycles)
        exposed = turns * self._drain_cycles + self._exposed(ahead, turns, costs)
        array = results * self.passes * costs.per_pass + exposed
        filters = groups * self.columns * self._filter_loads(tilings) * self._section_cycles(tilings)
        loads = loaded * self._loading(tilings, costs)
        bus = filters + loads + costs.spill * results
        # Stages that a spill lags behind hide the wait for what it spills, once there are enough of them under way.
        hidden = (tilings.lag - 1) * np.maximum(array, bus) / results
        wait = np.where(results > 2 * tilings.lag, np.maximum(self._turnaround - hidden, 0), self._turnaround)
        waits = (results - 1) * wait + costs.last
        return np.asarray(np.maximum(array, bus - costs.first - costs.spill + waits))

    def _in_chunks(self, tilings: Tiling[Counts], costs: _Costs) -> NDArray[np.float64]:
        """Chunk by chunk, the longer of array and HBM; results go out beside the last chunk of a block only."""
        chunks = self._parts(tilings)
        ready = tilings.ifmap_words * self.ready_cycles
        ahead = self._exposed(ready + self.hardware.sequencer.block_cycles, 1, costs)
        array = self.passes / chunks * costs.per_pass + (ahead + self._drain_cycles) / tilings.kept_folds
        # The next chunk but one may come when this one is done, unless there is a third buffer.
        freed = np.where(tilings.ifmap_buffers > 2, 0, self._turnaround)
        loads = (self._loading(tilings, costs) + freed) / tilings.kept_folds
        # Buffers that hold all of the filter are filled once, chunk by chunk of the first block.
        held = tilings.filter_buffers >= self.shape.groups * self.columns * chunks
        once = np.where(held & (self.cut.together < self.cut.groups), 1 / tilings.blocks, 1.0)
        bus = self._section_cycles(tilings) * once / chunks + loads
        end = np.maximum(array, bus + costs.spill + self._turnaround)
        return np.asarray(costs.results * ((chunks - 1) * np.maximum(array, bus) + end) + costs.last)

    @property
    def bound_by_hbm(self) -> bool:
        """Whether moving every tensor once, with a turn of the bus a column fold, takes longer than all passes."""
        elements = sum(map(prod, self.shape.tensors))
        outputs = prod(self.extents) * self.word_fill
        array = self.shape.groups * self.columns * self.passes * outputs / self.hardware.array.count
        turns = self.shape.groups * self.columns * self._turnaround
        return elements * self.element_cycles + turns > array

    def _parts(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Chunks of a reduction; the last of them counts as what it is of a whole one."""
        return np.asarray(self.folds / tilings.chunk_folds * _ceil(self.passes // self.folds, tilings.chunk_taps))

    def _filter_loads(self, tilings: Tiling[Counts]) -> Counts:
        """How often the filter of a column fold comes: once, where it stays whole for all blocks."""
        resident = tilings.filter_buffers >= self.shape.groups * self.columns
        whole = tilings.section_passes == self.passes
        return np.where(whole & (resident | (tilings.loop_order == "filter_major")), 1, tilings.blocks)

    def _exposed(self, cycles: Cycles, times: Counts | int, costs: _Costs) -> NDArray[np.float64]:
        """Waits that nothing hides before weights come; where blocks overlap, passes ahead hide some each time."""
        spare = 0 if self.drains else costs.per_pass - self.hardware.preload_cycles
        return np.asarray(np.maximum(cycles - times * spare, 0))

    def _section_cycles(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Bus time of the filter of one column fold, a section after the other."""
        sections = _ceil(self.passes, tilings.section_passes)
        pieces = sections * np.minimum(MOST_PIECES, tilings.section_passes)
        return self._moving(self.filter_cycles / self.columns, pieces)

    def _loading(self, tilings: Tiling[Counts], costs: _Costs) -> NDArray[np.float64]:
        """Bus time of the ifmap of one block, in pieces of folds or else of rows."""
        pieces = np.where(tilings.chunk_folds > 1, tilings.chunk_folds, self.shape.row.extent)
        return self._moving(costs.load, np.minimum(MOST_PIECES, pieces))

    def _moving(self, cycles: Cycles, pieces: Counts) -> NDArray[np.float64]:
        """Bus time of a load in pieces. Two are under way at once, each from its latency to its last word."""
        return np.asarray(np.maximum(cycles, (cycles + (pieces - 2) * self.hardware.latency_cycles) / 2))


def summed(chunk: Chunk) -> list[tuple[ReductionPass, ...]]:
    """The passes of a chunk that add up, outcome by outcome."""
    return [chunk.passes[some.start - chunk.numbers.start : some.stop - chunk.numbers.start] for some in chunk.sums]


# ---- what the vector unit does with a new patch of the ifmap before passes use it


def preparing(cut: Cut, chunk: Chunk, sizes: Sizes, hardware: Hardware) -> tuple[Fraction, Fraction]:
    """Cycles to rotate what a block needs into further lane groups, and to lay it out anew."""
    return rotating(cut, chunk, sizes, hardware.vector_unit.stack_cycles), _relaying(cut.shape, chunk, sizes, hardware)


def rotating(cut: Cut, chunk: Chunk, sizes: tuple[Cycles, Cycles, Cycles], a_word: Cycles) -> Cycles:
    """Cycles to rotate what a block needs, padding too, into the lane groups of copies beyond the second."""
    cycles = 0 * a_word if cut.transposed else chunk.rotations * a_word
    return cycles and prod(patch(cut.shape, chunk, sizes)) * sizes[2] * cycles


def _relaying(shape: ConvShape, chunk: Chunk, sizes: Sizes, hardware: Hardware) -> Fraction:
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


def _ceil(extent: Cycles, part: Counts | int) -> Counts:
    return np.asarray(-(-extent // part))
