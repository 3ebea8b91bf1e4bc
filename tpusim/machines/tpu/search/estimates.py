"""The tilings of a layer that the search may choose from, and an estimate of each.

An estimate overlaps the demands of units of work that run beside one another, and adds what hides behind nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache, cached_property
from itertools import accumulate, chain, product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.cut.blocks import even_extents, halves, padded, portions, spanning
from tpusim.machines.tpu.cut.geometry import MapAxis, stored_ifmap, taps_on_chip
from tpusim.machines.tpu.cut.reduction import Chunk, Cut
from tpusim.machines.tpu.cut.tiling import (
    MOST_PIECES,
    Counts,
    Cycles,
    Demand,
    Tiling,
    col_folds,
    frames_of,
    given_outputs,
    parted,
    patch,
    preparing,
    rotating,
    summed,
    together,
    too_small,
    weight_words,
)
from tpusim.machines.tpu.definition import Frame, issue_cycles, word_latency
from tpusim.machines.tpu.description import Hardware

MOST_CHUNKS = 1 << 9
"""Most parts into which a sum is cut."""


class TilingKind(NamedTuple):
    """Tilings of ways to hold blocks, way by way with an entry for each size of block; a mask of those that fit; where
    ways begin and end; and the estimate of each tiling.
    """

    tilings: Tiling[Counts]
    fits: NDArray[np.bool_]
    ends: list[int]
    estimates: NDArray[np.float64]


class Extents(NamedTuple):
    """Blocks to try, one an entry: their extents, their words, their number, and the words of spans that ignore row
    ends.
    """

    rows: Counts
    cols: Counts
    groups: Counts
    psum_words: Counts
    blocks: Counts
    span: Counts


class _Costs(NamedTuple):
    """Costs of every candidate: `results` to be written, one a block and column fold, and cycles of the parts of its
    run.
    """

    results: Counts
    per_pass: Counts
    load: Cycles
    spill: Cycles
    first: Cycles
    last: Cycles


class Candidates:
    """Tilings of one layer to choose from: a `Tiling` of arrays for each way to hold blocks, its demands and rough
    costs.

    Sizes of blocks that the machine's policy gives are the same in all; `block` may give the other extents.

    Attributes:
        chunk, passes: the whole reduction, and the most passes that one outcome has.
        folds, taps: row folds and tap groups of the reduction.
        col_folds, columns: output channels of a group, portion by portion, for each outcome; the number of portions.
        groups, word_fill: words of a pixel, and elements used of each.
        extents: rows and columns of the outputs, and word groups.
        drains: whether a block begins when the one before is done.
        element_cycles: cycles of the bus for an element.
        weight_bus, weight_cycles: cycles of the bus for a weight, and those until it is unpacked, too.
        filter_cycles: cycles for the filter of a channel group.
    """

    def __init__(self, cut: Cut, hardware: Hardware, block: tuple[int, int, int] | None = None) -> None:
        self.shape, self.hardware, self.cut, self.block = (shape := cut.shape), hardware, cut, block
        self.chunk = cut.whole
        self.passes = max(map(len, self.chunk.sums))
        self.folds, self.taps = cut.folds, cut.groups
        self.col_folds = col_folds(shape.out_channels, hardware) * len(self.chunk.sums)
        self.columns = len(self.col_folds)
        self.groups, self.word_fill = shape.word_groups(hardware.vector_memory.word_elements)
        self.extents = shape.row.extent, shape.col.extent, self.groups
        self.drains = hardware.sequencer.between_blocks == "drain"
        self.element_cycles = hardware.element_bytes / float(hardware.hbm_bytes_per_cycle)
        self.result_cycles = hardware.result_bytes / float(hardware.hbm_bytes_per_cycle)
        self.weight_bus, unpacked = shape.weight_cycles(hardware.hbm_bytes_per_cycle, hardware)
        self.weight_cycles = max(self.weight_bus, unpacked)
        self.filter_cycles = shape.taps * shape.channels * shape.out_channels // shape.bundle * self.weight_cycles
        # Passes may begin when the first piece of a load is there, so a piece is one part in so many of the load.
        self._begun_with = 1 if hardware.mapping.loads == "whole" else MOST_PIECES
        # Between the fill of one block and the spill of another the bus waits for the last words and the drain.
        drain = word_latency(self.word_fill, hardware) - 1
        self._turnaround = hardware.latency_cycles + drain
        # A block's first preload and last results, where they are not hidden behind other blocks.
        self._drain_cycles = hardware.preload_cycles + drain if self.drains else 0
        given = hardware.mapping.block.given
        # Column folds that begin below the given channels: a fold never crosses their end.
        channels = given.get("out_channels")
        self._given_kept = channels and sum(fold.start < channels for fold in self.col_folds)
        taps, self._given_folds = cut.held(taps_on_chip(shape, hardware), given.get("in_channels"))
        # Taps that are fetched one by one are not held together, whatever block is given.
        self._given_taps = taps and min(taps, cut.together)
        wanted = hardware.mapping.loop_order
        self._orders = ("block_major", "filter_major") if wanted == "auto" else (wanted,)
        # Whether a whole reduction may have its ifmap on chip, and whether the given block holds no less than that.
        self._at_once = cut.together >= self.taps
        all_taps, all_folds = self._given_taps in (None, self.taps), self._given_folds in (None, self.folds)
        self._uncut = self._at_once and all_taps and all_folds
        self._places_of = cache(self._places)
        # Every block asks for the same chunks.
        self._cut_into = cache(lambda taps: cut.chunks(taps, 1))
        # Filter buffers for the column folds of a block, and one to be filled meanwhile.
        self._few_buffers = min((self._given_kept or 1) + 1, shape.groups * self.columns)

    @cached_property
    def piped(self) -> Candidates:
        """The candidates of a machine whose HBM is a pipe."""
        if not self.hardware.hbm.dram:
            return self
        return type(self)(self.cut, self.hardware.having("hbm", model="pipe"))

    def whole(self) -> Iterator[Tiling[Counts]]:
        """Tilings with the filter resident or two column folds of it, in either order, then ever smaller sections of a
        fold.
        """
        folds = self.shape.groups * self.columns
        passes, orders = self.passes, self._orders if self._uncut else ()
        whole = self._section_words([self.chunk], passes)
        for order in orders:
            yield self._whole(order, passes, whole, folds)
            yield self._whole(order, passes, whole, self._few_buffers)
        section = passes // 2
        while section and "block_major" in orders:
            yield self._whole("block_major", section, self._section_words([self.chunk], section), 2)
            section //= 2

    def deep(self) -> Iterator[Tiling[Counts]]:
        """Tilings that hide more of HBM's time.

        Where blocks drain, results go out beside the next block. Otherwise a column fold at a time, with buffers for
        several blocks: where HBM sets the pace, it should not wait until the array has drained. A given block keeps its
        own buffers.
        """
        passes, order = self.passes, self._orders[0]
        whole = self._section_words([self.chunk], passes)
        if self.drains:
            kept = self._kept(order)
            for buffers in (self.shape.groups * self.columns, self._few_buffers) if self._uncut and kept > 1 else ():
                yield self._whole(order, passes, whole, buffers, lag=kept, psums=2 * kept)
            return
        # Whether moving every tensor once, with a turn of the bus a column fold, takes longer than all passes.
        issue, folds = issue_cycles(self.word_fill, self.hardware), self.shape.groups * self.columns
        array = folds * self.passes * prod(self.extents) * issue / self.hardware.array.count
        moved = self._all_once + folds * self._turnaround
        worth = passes == 1 and moved > array and self.block is None and self._uncut
        for depth in (2, 4) if worth else ():
            yield self._whole(order, passes, whole, self._few_buffers, depth, depth + 1, depth + 1)

    def chunked(self) -> Iterator[Tiling[Counts]]:
        """Tilings in chunks, for every block and number of kept folds: first of row folds, then of ever fewer tap
        groups of one fold.

        Where each tap is fetched by itself, chunks are of row folds of one tap; the filter comes again for each block,
        or stays.
        """
        order, wanted = self._orders[0], self._given_folds
        if not self._at_once:
            yield self._chunks(order, self.cut.together, [wanted] if wanted else halves(self.folds))
            if wanted in (None, self.folds):
                yield self._chunks(order, self.cut.together, [self.folds], resident=True)
            return
        sizes = [self._given_taps] if self._given_taps else halves(self.taps)
        # Of a very long sum, parts that are a small share of it would only be more bodies.
        for taps in [each for each in sizes if self.taps <= MOST_CHUNKS * each] or sizes:
            folds = halves(self.folds) if taps == self.taps or self._given_taps else [1]
            folds = [each for each in ([wanted] if wanted else folds) if (taps, each) != (self.taps, self.folds)]
            if folds:
                yield self._chunks(order, taps, folds)

    def _section_words(self, chunks: Sequence[Chunk], size: int) -> int:
        """The most words of weights for `size` passes of a chunk that add up."""
        every = [weight_words(some, self.hardware) for chunk in chunks for some in summed(chunk)]
        return max(sum(words[at : at + size]) for words in every for at in range(0, len(words), size))

    def fits(self, tilings: Tiling[Counts]) -> NDArray[np.bool_]:
        """A mask of the tilings that fit in the memory of a lane."""
        return np.asarray(self.lane_words(tilings) <= self.hardware.capacity_words)

    def lane_words(self, tilings: Tiling[Counts]) -> Counts:
        """Words of a lane that tilings need."""
        return tilings.words

    @cached_property
    def fitting(self) -> list[TilingKind]:
        """Kinds of ways of which some tilings fit. Chunks are among them if nothing else fits, or if the policy says
        so.
        """
        found = [*self._fitting(self.whole()), *self._fitting(self.deep())]
        if not found or self.hardware.mapping.chunks == "auto":
            found += self._fitting(self.chunked())
        return found

    def _fitting(self, ways: Iterable[Tiling[Counts]]) -> Iterator[TilingKind]:
        """The ways of which some tilings fit, as a kind; nothing where none does."""
        if found := [(each, fits) for each in ways if (fits := self.fits(each)).any()]:
            tilings, fits = together([each for each, _ in found]), np.concatenate([fits for _, fits in found])
            ends = [0, *accumulate(len(fits) for _, fits in found)]
            # All at once: an estimate takes as long for one tiling as for a thousand.
            yield TilingKind(tilings, fits, ends, self.estimate(tilings))

    def too_small(self) -> CapacityError:
        """An error that says how much memory the smallest tiling needs, and what to do."""
        return too_small(least_words(self.cut, self.hardware, type(self)), self.hardware)

    @cached_property
    def _blocks(self) -> Extents:
        """Blocks to try: whole rows or parts of one, in a wide map whole columns, too; with their words and their
        number.
        """
        row, col, every = self.extents
        if isinstance(words := self.hardware.mapping.block_m, int):
            # A block of `block_m` words may end within a row, so room is needed for the largest rectangle around one.
            span = min(max(1, words // self.shape.cell), row * col * every)
            spans = [spanning(self.extents, part).sizes for part in portions(row * col * every, span)]
            extents = *map(max, zip(*spans, strict=True)), span * self.shape.cell, len(spans), span
            return Extents(*(np.array([each], dtype=np.int64) for each in extents))
        rows, cols, groups = np.array([self.block] if self.block else self._rectangles, dtype=np.int64).T
        blocks = -(-row // rows) * -(-col // cols) * -(-every // groups)
        return Extents(rows, cols, groups, rows * cols * groups * self.shape.cell, blocks, np.zeros_like(blocks))

    @property
    def _rectangles(self) -> list[tuple[int, int, int]]:
        (rows, cols, groups), row, col = given_outputs(self.shape, self.hardware), *self.extents[:2]
        each, parts = [groups] if groups else even_extents(self.groups), even_extents(col)
        if rows or cols:
            return [*product([rows] if rows else even_extents(row), [cols] if cols else parts, each)]
        whole = [(r, parts[-1], g) for r in even_extents(row) for g in each]
        split = [(1, c, g) for c in parts[:-1] for g in each]
        if self.shape.col.outputs > self.shape.row.outputs:
            split += [(row, c, g) for c in parts[:-1] for g in each]
        return whole + split

    def _whole(
        self, order: str, section: int, section_words: int, buffers: int, lag: int = 1, psums: int = 2, ifmaps: int = 2
    ) -> Tiling[Counts]:
        """Tilings of every block with the ifmap of its whole reduction on chip, and the filter in sections of
        passes.
        """
        parts, queues = self.shape.groups * self._blocks.blocks, self.hardware.array.queues
        sections = self.shape.groups * self.columns * -(-self.passes // section)
        return Tiling(
            **self._blocks._asdict(), loop_order=order, kept_folds=self._kept(order), chunk_taps=self.taps,
            chunk_folds=self.folds, section_passes=section, ifmap_buffers=np.minimum(ifmaps, parts),
            filter_buffers=max(buffers, min(buffers * queues, sections)),
            psum_buffers=np.minimum(psums * queues, parts * self.columns),
            ifmap_words=self._whole_words, section_words=section_words, lag=lag * queues,
        )  # fmt: skip

    @cached_property
    def _whole_words(self) -> Counts:
        """Words for the ifmap of a whole reduction, for each block."""
        return self._held(self.chunk, self._blocks)

    def _kept(self, order: str) -> int:
        """Column folds that a block keeps, with its whole reduction on chip."""
        together = self.hardware.mapping.column_folds == "all" and order == "block_major"
        return self._given_kept or (self.columns if together else 1)

    def _chunks(self, order: str, taps: int, chunk_folds: list[int], resident: bool = False) -> Tiling[Counts]:
        """Tilings with chunks of tap groups and row folds. The filter comes for each block, or is `resident`
        for all.
        """
        columns = [self._given_kept] if self._given_kept else halves(self.columns)
        at, kept, folds, buffers = combined(range(len(self._blocks.rows)), columns, chunk_folds, (2, 3))
        extents = Extents(*(each[at] for each in self._blocks))
        whole, *_ = each = self._cut_into(taps)
        # Chunks of one kind differ only in their row fold, and the first fold is the largest.
        kinds = {(chunk.tap_rows, chunk.tap_cols, len(chunk.places)): chunk for chunk in reversed(each)}
        stored = np.max([self._held(chunk, self._blocks) for chunk in kinds.values()], axis=0)
        return Tiling(
            **extents._asdict(), loop_order=order, kept_folds=kept, chunk_taps=taps, chunk_folds=folds,
            section_passes=folds * max(map(len, whole.sums)), ifmap_buffers=buffers,
            filter_buffers=self.shape.groups * self.columns * len(each) // self.folds if resident else 2,
            psum_buffers=np.maximum(kept, np.minimum(2, self.shape.groups * extents.blocks * self.columns)),
            ifmap_words=folds * stored[at], section_words=folds * self._section_words(each, self.passes),
            lag=1,
        )  # fmt: skip

    def _held(self, chunk: Chunk, blocks: Extents) -> Counts:
        """Words for the places of a chunk, with the largest patch of each block."""
        return len(chunk.places) * prod(self.patches(chunk, blocks)) * blocks.groups

    def patches(self, chunk: Chunk, blocks: Extents) -> tuple[Counts, Counts]:
        """The most grid points, in rows and in columns, that the taps of a chunk touch in each block."""
        down = _points(self.shape.row, blocks.rows, chunk.tap_rows, chunk.by_tap)
        return down, _points(self.shape.col, blocks.cols, chunk.tap_cols, chunk.by_tap)

    # ---- what a tiling demands

    @property
    def frame(self) -> Frame:
        """The port's period while passes stream."""
        return self.frames[0]

    @cached_property
    def frames(self) -> tuple[Frame, Frame]:
        """The port's period while passes stream, and while they stream only the last word of each pixel."""
        return frames_of(self.cut, self.passes > 1, self.hardware)

    @cached_property
    def least_of_a_word(self) -> tuple[float, float]:
        """The fewest cycles of a streamed word, and of the last word of a pixel alone, over all numbers of arrays with
        passes: some may be left without any.
        """
        arrays = self.hardware.array
        every = [self.frames]
        if arrays.queues > 1:
            fewer = (self.hardware.having("array", count=few) for few in range(1, arrays.queues + 1))
            every = [frames_of(self.cut, self.passes > 1, each) for each in fewer]
        word, last = (min(frame.period / frame.arrays for frame in each) for each in zip(*every, strict=True))
        return word, last

    def stream(self, words: Counts, last: bool = False) -> Counts:
        """Cycles in which a pass streams the words of a block, or of one that has only the `last` of each pixel."""
        frame = self.frames[last]
        return np.asarray(-(-words // frame.arrays) * frame.period)

    def turn(self, tilings: Tiling[Counts]) -> Counts:
        """Cycles from pass to pass over a block, on the mean."""
        whole = self._turn(tilings.psum_words, self.frame)
        if self.frames[1] is self.frame:
            return whole
        last = self._turn(tilings.psum_words, self.frames[1])
        own = (tilings.groups == 1) & parted(tilings, self.cut, self.hardware)
        return np.where(own, whole - (whole - last) / self.groups, whole)

    def _turn(self, words: Counts, frame: Frame) -> Counts:
        """Cycles from pass to pass over some words: the longer of their stream and the next preload, or the sum."""
        stream, hardware = -(-words // frame.arrays) * frame.period, self.hardware
        # A full frame leaves the preload no slot until the stream is over; with one weight buffer, there is no place
        # for the weights until then.
        shared = hardware.vector_memory.ports == "shared"
        if (shared and frame.period == frame.slots) or hardware.array.weight_buffers == 1:
            return np.asarray(stream + hardware.preload_cycles)
        # A preload loses a frame if its words would fall into slots of sums or results: it asks for its words in the
        # cycle ahead of a frame, and for one in as many cycles as a frame has.
        slots = (
            (frame.psum_slot, frame.result_slot) if shared and not hardware.weight_word_cycles % frame.period else ()
        )
        lost = frame.period * any(slot is not None and slot + frame.arrays == frame.period for slot in slots)
        return np.asarray(np.maximum(stream, hardware.preload_cycles + lost))

    @cached_property
    def _beside_streams(self) -> float:
        """Cycles of a word that is loaded during a stream and waits for one of the slots that the stream leaves free.

        A full frame leaves no slot free, so the word waits until the stream is over, and for no slot after it.
        """
        shared, frame = self.hardware.vector_memory.ports == "shared", self.frame
        return frame.period / (frame.period - frame.slots) if shared and frame.slots < frame.period else 1

    def streamed(self, tilings: Tiling[Counts]) -> Cycles:
        """Cycles of the port that the passes of an outcome take away from transfers, with their preloads."""
        if self.hardware.vector_memory.ports != "shared":
            return 0
        # The first pass of an outcome adds to no partial sum, so it reads one word less for each result.
        frame = self.frame
        reads = self.passes * frame.slots - frame.arrays * (self.passes > 1)
        return -(-tilings.psum_words // frame.arrays) * reads + self._weight_words

    @cached_property
    def _weight_words(self) -> int:
        """Words of a lane for the weights of all passes of an outcome."""
        return sum(sum(weight_words(each, self.hardware)) for each in summed(self.chunk))

    def load(self, tilings: Tiling[Counts]) -> Demand:
        """Demand of the ifmap of a block and chunk.

        Every word crosses the port of a lane, however few elements it holds; the many words of copies cross it beside a
        stream.
        """
        elements = tilings.ifmap_words / self.folds * self.word_fill * self.cut.per_fold * self._stored_share
        brought = np.minimum(tilings.ifmap_words, elements / (self.word_fill * self.hardware.lanes))
        return Demand(
            bus=elements * self.element_cycles * self.waste(tilings.groups, self.stored_channels),
            converted=brought * float(self.hardware.vector_unit.unpack_cycles),
            port=tilings.ifmap_words * (self._beside_streams if self.cut.copies else 1),
        )

    def spill(self, tilings: Tiling[Counts]) -> Demand:
        """Demand of the results of a block and column fold, with their share of the padding behind the last channel."""
        of_group, width = self.shape.out_channels, len(self.col_folds[0])
        total = of_group * self.shape.groups
        stored = padded(total, self.hardware.hbm.channel_multiple)
        elements = tilings.psum_words * self.word_fill * (width * stored / total)
        return Demand(
            bus=elements * self.result_cycles * self.waste(tilings.groups, of_group * stored / total),
            converted=tilings.psum_words * float(self.hardware.vector_unit.pack_cycles),
        )

    def waste(self, groups: Counts, channels: float) -> NDArray[np.float64]:
        """Bytes moved over bytes wanted: each run of all images of some channels is moved in whole bursts, and so is
        each run of some images, but where bursts hold the images between them.
        """
        share, size = self.word_fill // self.shape.strips, self.hardware.vector_memory.element_bytes
        run = np.where(groups == self.groups, channels * self.shape.images, groups * share)
        run_bytes, burst = run * size, self.hardware.hbm.burst_bytes
        whole = -(-run_bytes // burst) * burst
        moved = np.where(groups == self.groups, whole, np.minimum(whole, self.shape.images * size))
        return np.asarray(moved / run_bytes, dtype=np.float64)

    @property
    def stored_channels(self) -> float:
        """Channels of a group as the ifmap is stored, with padding."""
        return self.shape.channels * self._stored_share

    @cached_property
    def _stored_share(self) -> float:
        channels, images = stored_ifmap(self.shape, self.hardware)
        return channels * images / (self.shape.channels * self.shape.groups * self.shape.images)

    @cached_property
    def ready_cycles(self) -> float:
        """Cycles in which the vector unit makes a word of the ifmap ready, as if the whole map were one block."""
        points = prod(patch(self.shape, self.chunk, self.extents)) * self.groups
        hardware = self.hardware
        if hardware.vector_unit.convert_cycles:
            hardware = hardware.having("vector_unit", convert_cycles=Fraction(0))
        cycles = sum(preparing(self.cut, self.chunk, self.extents, hardware))
        return float(cycles / points) / len(self.chunk.places)

    def rotated(self, rows: Cycles, cols: Cycles, groups: Cycles) -> Cycles:
        """Cycles to rotate blocks of these extents into the lane groups of further copies."""
        return rotating(self.cut, self.chunk, (rows, cols, groups), float(self.hardware.vector_unit.stack_cycles))

    # ---- what a tiling would cost, roughly: it steers the choice only and is never reported

    def estimate(self, tilings: Tiling[Any]) -> NDArray[np.float64]:
        """Estimated cycles of the layer for every candidate."""
        costs = self._costs(tilings)
        between = self._in_chunks if (self._parts(tilings) > 1).any() else self._undivided
        # Where blocks drain, every spill that lags behind is still to be written at the end.
        behind = np.minimum(tilings.lag, costs.results) if self.drains else 1
        return np.asarray(costs.first + between(tilings, costs) + costs.spill * behind, dtype=np.float64)

    @cached_property
    def floor(self) -> Callable[[float], float]:
        """Cycles that no tiling can beat, whether array or HBM sets the pace, by the share of its streams that the
        array takes.
        """
        streamed = prod(self.extents) * self.shape.groups * self.columns * self.passes * self.least_of_a_word[False]
        moved = self._all_once
        return lambda share: max(share * streamed, moved)

    @property
    def _all_once(self) -> float:
        """Cycles of the bus to move every tensor once."""
        ifmap, weights, ofmap = map(prod, self.shape.tensors)
        as_elements = self.weight_cycles / self.element_cycles
        return (ifmap + weights * as_elements + ofmap) * self.element_cycles

    def late(self, tilings: Tiling[Any]) -> NDArray[np.float64]:
        """Cycles that `estimate` leaves out: the first block's wait for its own operands, which hides behind nothing.

        They hardly differ between whole reductions, and a reduction in chunks has next to none.
        """
        whole = (self._parts(tilings) == 1) & (self.folds > 1)
        if not whole.any():
            return np.zeros(whole.shape)
        costs = self._costs(tilings)
        sections, passes = self._section_cycles(tilings), tilings.section_passes
        last = costs.per_pass * (self.passes // self.folds) * _ceil(tilings.chunk_folds, self._begun_with)
        brought = costs.load - costs.first
        all_in = brought + sections + last - self.passes * costs.per_pass
        # The second section is queued behind the ifmap, so it comes when all of that is there.
        second = brought + 2 * sections * passes / self.passes - passes * costs.per_pass
        late = np.maximum(all_in, np.where(passes < self.passes, second, 0))
        return np.asarray(np.where(whole, np.maximum(late, 0), 0), dtype=np.float64)

    def _costs(self, tilings: Tiling[Counts]) -> _Costs:
        results, passes = tilings.blocks * self.shape.groups * self.columns, tilings.section_passes
        load, per_pass = self.load(tilings).busiest, self.turn(tilings)
        # Passes left to do when the last piece arrives: those of a section, or of the only block there is.
        alone = np.where(results == 1, _ceil(tilings.chunk_folds, self._begun_with), 0)
        last = per_pass * np.maximum(_ceil(passes, self._begun_with), alone)
        # The first pass waits for one fold; where blocks drain, it waits for an even piece of block and filter.
        first = load / tilings.chunk_folds
        if self.drains:
            section = self.filter_cycles / self.columns * passes / self.passes
            of_load, of_section = (np.minimum(self._begun_with, count) for count in (tilings.chunk_folds, passes))
            first = load / of_load + section / of_section
        return _Costs(results, per_pass, load, self.spill(tilings).busiest, first, last)

    def _undivided(self, tilings: Tiling[Counts], costs: _Costs) -> NDArray[np.float64]:
        """Cycles where a block has its whole reduction on chip: the longer of array and HBM."""
        results, groups, held = costs.results, self.shape.groups, _ceil(self.columns, tilings.kept_folds)
        # In filter-major order, other blocks replace the ifmap between two column folds of a block, so it is loaded
        # again.
        again = np.where((tilings.loop_order == "filter_major") & (tilings.blocks > 2), held, 1)
        loaded, turns = groups * (tilings.blocks * again), groups * tilings.blocks * held
        ahead = turns * self.hardware.sequencer.block_cycles + loaded * (tilings.ifmap_words * self.ready_cycles)
        exposed = turns * self._drain_cycles + self._exposed(ahead, turns, costs)
        array = results * self.passes * costs.per_pass + exposed + self._changes(tilings)
        filled = groups * self.columns * self._filter_loads(tilings)
        sections = _ceil(self.passes, tilings.section_passes)
        kept = np.where((tilings.loop_order == "block_major") | (tilings.blocks == 1), self.columns, tilings.kept_folds)
        filters = self._section_cycles(tilings, filled)
        loads = self._moving(costs.load, self._pieces(tilings, sections * kept), loaded)
        bus = filters + loads + costs.spill * results
        # A spill that lags behind hides its wait behind the stages in between, once enough stages are under way.
        hidden = (tilings.lag - 1) * np.maximum(array, bus) / results
        wait = np.where(results > 2 * tilings.lag, np.maximum(self._turnaround - hidden, 0), self._turnaround)
        waits = (results - 1) * wait + costs.last
        # A section waits in the queue behind a spill, and that for its sums; meanwhile the section ahead is used.
        piece = self.filter_cycles / self.columns / self.passes * _ceil(tilings.section_passes, MOST_PIECES)
        late = wait + piece + self.hardware.preload_cycles - tilings.section_passes * costs.per_pass
        array = array + (filled - 1) * np.maximum(late - exposed / results, 0)
        crossing = self._crossing(tilings)
        port = results * (self.streamed(tilings) + tilings.psum_words) + loaded * crossing
        port += filled * self._weight_words
        paces = array, port - np.minimum(crossing, costs.first), bus - costs.first - costs.spill + waits
        return np.asarray(np.max(np.broadcast_arrays(*paces), axis=0))

    def _in_chunks(self, tilings: Tiling[Counts], costs: _Costs) -> NDArray[np.float64]:
        """Cycles chunk by chunk: the longer of array and HBM; only beside the last chunk of a block are results
        written.
        """
        chunks = self._parts(tilings)
        ready = tilings.ifmap_words * self.ready_cycles
        ahead = self._exposed(ready + self.hardware.sequencer.block_cycles, 1, costs)
        array = self.passes / chunks * costs.per_pass + (ahead + self._drain_cycles) / tilings.kept_folds
        # With two buffers, a chunk can be loaded only when the chunk two before it is done; a third buffer removes this
        # wait.
        freed = np.where(tilings.ifmap_buffers > 2, 0, self._turnaround)
        # Buffers that hold all of the filter are filled once, chunk by chunk of the first block.
        held = tilings.filter_buffers >= self.shape.groups * self.columns * chunks
        once = np.where(held & (self.cut.together < self.cut.groups), 1 / tilings.blocks, 1.0)
        sections = self._section_pieces(tilings) * once / chunks
        pieces = sections + self._pieces(tilings, tilings.kept_folds) / tilings.kept_folds
        moved = self.filter_cycles / self.columns * once / chunks + costs.load / tilings.kept_folds
        times = costs.results * chunks
        bus = np.maximum(moved + freed / tilings.kept_folds, self._moving(moved, pieces, times) / times)
        port = (self.streamed(tilings) + once * self._weight_words) / chunks
        port += self._crossing(tilings) / tilings.kept_folds
        pace = np.maximum(array, port)
        # The last chunk may be over before the next one has crossed the port in the slots that its passes leave.
        size = tilings.section_passes
        over = costs.per_pass * np.where(self.passes % size, self.passes % size, size)
        beside = np.maximum(self._crossing(tilings) * self._beside_streams, costs.load) + freed
        late = np.where(tilings.ifmap_buffers > 2, 0, np.maximum(beside / tilings.kept_folds - over, 0))
        end = np.maximum(array + late, np.maximum(bus + costs.spill + self._turnaround, port + tilings.psum_words))
        each = (chunks - 1) * np.maximum(pace, bus) + end
        return np.asarray(costs.results * each + costs.last + self._changes(tilings))

    def _changes(self, tilings: Tiling[Counts]) -> Cycles:
        """Cycles in which the array ends passes of one frame before it loads weights for another."""
        turns = np.where(tilings.loop_order == "block_major", 1, _ceil(self.columns, tilings.kept_folds))
        ends = self.frame.result_delay + self.hardware.preload_cycles
        return np.where(parted(tilings, self.cut, self.hardware), (2 * self.shape.groups * turns - 1) * ends, 0)

    def _crossing(self, tilings: Tiling[Counts]) -> Counts:
        """Words of a load that cross the port beside passes; none where the ifmap goes to banks."""
        return tilings.ifmap_words * (not self.hardware.banked)

    def _parts(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Chunks of a reduction; the last one counts in proportion to its size."""
        return np.asarray(self.folds / tilings.chunk_folds * _ceil(self.taps, tilings.chunk_taps))

    def _filter_loads(self, tilings: Tiling[Counts]) -> Counts:
        """Number of times that the filter of a column fold is loaded: once if it stays for all blocks."""
        resident = tilings.filter_buffers >= self.shape.groups * self.columns
        whole = tilings.section_passes == self.passes
        return np.where(whole & (resident | (tilings.loop_order == "filter_major")), 1, tilings.blocks)

    def _exposed(self, cycles: Cycles, times: Counts | int, costs: _Costs) -> NDArray[np.float64]:
        """Wait for weights that nothing hides; where blocks overlap, the passes ahead hide part of it each time."""
        spare = 0 if self.drains else costs.per_pass - self.hardware.preload_cycles
        return np.asarray(np.maximum(cycles - times * spare, 0))

    def _section_cycles(self, tilings: Tiling[Counts], times: Cycles = 1) -> NDArray[np.float64]:
        """Bus time of the filter of one column fold, in sections; of all its loads if it is loaded several `times`."""
        return self._moving(self.filter_cycles / self.columns, self._section_pieces(tilings), times)

    def _section_pieces(self, tilings: Tiling[Counts]) -> Counts:
        """Pieces of the filter of one column fold."""
        sections = _ceil(self.passes, tilings.section_passes)
        return np.asarray(sections * np.minimum(MOST_PIECES, tilings.section_passes))

    def _pieces(self, tilings: Tiling[Counts], stages: Counts) -> Counts:
        """Pieces of a load of the ifmap: one for each of its places; or, with a single place, one for each stage during
        which it may be loaded. Each buffer beyond the first allows for `stages` of them, the stages that use a load.
        """
        taps, where = np.unique(tilings.chunk_taps, return_inverse=True)
        places = np.array([self._places_of(each) for each in taps.tolist()])[where] * tilings.chunk_folds
        parts = np.minimum(np.maximum((tilings.ifmap_buffers - 1) * stages, 1), tilings.ifmap_words)
        return np.asarray(np.minimum(np.where(places > 1, places, parts), MOST_PIECES))

    def _places(self, taps: int) -> int:
        """Most places that a row fold of `taps` tap groups has in a chunk; 1 if they come together."""
        if taps == self.taps:
            return 1 if self.chunk.scattered else len(self.chunk.places) // self.folds
        return max(1 if chunk.scattered else len(chunk.places) for chunk in self._cut_into(taps))

    def _moving(self, cycles: Cycles, pieces: Cycles, times: Cycles = 1) -> NDArray[np.float64]:
        """Bus time of loads in pieces, all `times` of them. Two pieces are under way at once, each from its latency to
        its last word; the latency of the first two is left out.
        """
        pending = (times * pieces - 2) * self.hardware.latency_cycles
        return np.asarray(np.maximum(times * cycles, (times * cycles + pending) / 2))


def least_words(cut: Cut, hardware: Hardware, among: type[Candidates] = Candidates) -> int:
    """Words a lane needs for the smallest tiling, in a memory of just that size."""
    known = 0
    while True:
        candidates = among(cut, hardware)
        tilings = chain(candidates.whole(), candidates.chunked())
        words = min(int(candidates.lane_words(each).min()) for each in tilings)
        if words <= known:
            return known
        # Tables beside the buffers may shrink with the memory, so the answer is asked again for the smaller one.
        known, hardware = words, hardware.having("vector_memory", capacity_bytes=words * hardware.word_bytes)


def combined(*choices: Sequence[int]) -> list[Counts]:
    """Every combination of the choices, the last moving fastest: an array for each choice."""
    sizes = [*map(len, choices)]
    return [
        np.tile(np.repeat(np.array(each, dtype=np.int64), prod(sizes[at + 1 :])), prod(sizes[:at]))
        for at, each in enumerate(choices)
    ]


def _points(axis: MapAxis, outputs: Any, taps: range, by_tap: bool) -> Any:
    """The most grid points of an axis that `taps` touch for any `outputs` neighbouring outputs; padding points are left
    out.

    With `by_tap`, each tap has points of its own, one for each output.
    """
    if by_tap:
        return np.minimum(outputs, len(axis.under(range(axis.extent), taps)))
    return np.minimum(axis.reach(outputs, taps), len(axis.stored(range(axis.extent), taps)))


def _ceil(extent: Cycles, part: Counts | int) -> Counts:
    return np.asarray(-(-extent // part))
