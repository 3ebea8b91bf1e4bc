"""What no run of a tiling can beat: cycles that every engine takes at least, whatever waits for what.

A search that tries tilings in this order may stop as soon as the best so far is close to what is left. `estimate` says
about what a tiling would cost, this what it must cost. What is hard to tell is left out.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition.frame import IFMAP, PSUM, RESULT, frame_of
from tpusim.machines.tpu.definition.latencies import add_cycles, word_cycles, word_latency
from tpusim.machines.tpu.lowering.geometry import padded
from tpusim.machines.tpu.lowering.points import Points
from tpusim.machines.tpu.lowering.preparation import patch
from tpusim.machines.tpu.lowering.tiles import stored_ifmap
from tpusim.machines.tpu.lowering.tiling import MOST_PIECES, Counts, Tiling
from tpusim.memory.orders import Layouts

if TYPE_CHECKING:
    from tpusim.machines.tpu.lowering.candidates import Candidates

Cycles: TypeAlias = Any  # a float, or an array of them: one a candidate


class _Array(NamedTuple):
    """Cycles of the array.

    `all`: from its first pass to the end of the last. `issued`: from pass to pass, without what comes before a body;
    the last of several has its stream only, at most `short` fewer. `smallest`: the stream of the fewest `words` that a
    block has. `results`: one a block and column fold.
    """

    all: Cycles
    issued: Counts
    short: Counts
    smallest: Counts
    words: Counts
    results: Counts


class _Moved(NamedTuple):
    """Cycles that transfers take of the bus by their bytes, and by their conversion."""

    bus: Cycles
    converted: Cycles = 0


class _Sections(NamedTuple):
    """Sections of the filter of a column fold, how often they come, and how many come in all."""

    of_fold: Counts
    times: Counts
    loads: Counts


class Bound:
    """The least cycles of candidate tilings of one layer."""

    def __init__(self, candidates: Candidates) -> None:
        self.of, self.shape, self.hardware = candidates, candidates.shape, candidates.hardware
        self.chunk, self.passes = candidates.chunk, len(candidates.passes)
        self.delay = self.hardware.sequencer.block_cycles
        self.points = Points(self.shape, self.chunk)

    def cycles(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """The least cycles of every candidate: no run takes fewer."""
        chunks = np.asarray(-(-self.of.folds // tilings.chunk_folds) * -(-self.of.taps // tilings.chunk_taps))
        array, again = self._array(tilings, chunks), self._again(tilings, chunks)
        ifmap, ofmap, last = self._loads(tilings, again), self._spills(tilings), self._last_spill(array)
        sections = self._sections(tilings, chunks)
        filters, first = _Moved(self._filters(sections)), self._first_pass(tilings, chunks)
        loads, spills = self._in_turn(ifmap), self._in_turn(ofmap)
        paths = [
            first + array.all + self._after + last,
            self._in_turn(ifmap, filters, ofmap),
            self._in_turn(ifmap, filters) + self._latency + array.smallest + self._after + last,
            self._by_sections(tilings, sections, filters) + array.smallest + self._after + last,
            self._two_at_once(
                self._in_turn(ifmap, filters) + spills * (1 - 1 / array.words),
                self._filter_fills(tilings, chunks, sections) + self._ifmap_fills(tilings, chunks, again),
            ),
        ]
        if (simple := (chunks == 1) & (tilings.span == 0)).any():
            turns = [
                first + self._by_results(tilings, array, spills),
                *(self._by_loads(tilings, array, loads, again, spills, last) if not self.chunk.by_tap else ()),
            ]
            paths += [np.where(simple, each, 0) for each in turns]
        ends = self.hardware.sequencer.launch_cycles + self._latency + self.hardware.lanes - 1
        # Cycles are whole; a little less, as these are not exact.
        return np.asarray(np.ceil(ends + np.max(np.broadcast_arrays(*paths), axis=0) - 1e-6), dtype=np.float64)

    # ---- the array

    @cached_property
    def _period(self) -> int:
        clients = (IFMAP, PSUM, RESULT) if self.passes > 1 else (IFMAP, RESULT)
        ready = word_cycles(self.of.groups, self.of.cut.transposed, self.hardware)
        return frame_of(self.hardware, self.of.word_fill, clients, word_cycles=ready).period

    @cached_property
    def _after(self) -> int:
        """From the last frame of a pass to the cycle in which its results are written, if their slot is the next."""
        latency = word_latency(self.of.word_fill, self.hardware)
        written = latency - 1 + add_cycles(self.of.word_fill, self.hardware) if self.passes > 1 else latency
        return written + 2 - self._period

    def _turn(self, stream: Counts, delay: int = 0) -> Counts:
        """From pass to pass: the stream of one, or what comes before the next where that takes longer."""
        weights = self.hardware.preload_cycles + delay
        return stream + weights if self.hardware.array.weight_buffers == 1 else np.maximum(stream, weights)

    def _array(self, tilings: Tiling[Counts], chunks: Counts) -> _Array:
        drains, columns, groups = self.of.estimate.drains, self.of.columns, self.shape.groups
        bodies, weights = -(-columns // tilings.kept_folds) * chunks, self.hardware.preload_cycles + self.delay
        issued, waited = np.zeros_like(tilings.blocks), np.zeros(tilings.blocks.shape)
        smallest = words = np.full_like(tilings.blocks, np.iinfo(np.int64).max)
        for count, size, prepared in self._sizes(tilings):
            stream = -(-size // self.hardware.array.count) * self._period
            turn, late = self._turn(stream), np.where(chunks == 1, prepared, 0)
            issued = issued + count * columns * self.passes * turn
            extra = self._after + weights + stream - turn if drains else self._turn(stream, self.delay) - turn
            waited = waited + count * (bodies * extra + (late if drains else 0))
            smallest, words = (
                np.where(count > 0, np.minimum(had, new), had) for had, new in ((smallest, stream), (words, size))
            )
        first, *_ = self._sizes(tilings)
        prepared = np.where(chunks == 1, first[2], 0)
        beyond = self._after + weights + prepared if drains else self._turn(smallest, self.delay) - smallest
        every = groups * (issued + waited) - beyond
        short = self._turn(smallest) - smallest
        return _Array(every, groups * issued, short, smallest, words, tilings.blocks * columns * groups)

    def _sizes(self, tilings: Tiling[Counts]) -> list[tuple[Counts, Counts, Cycles]]:
        """How many blocks there are of how many words, full ones first; what the vector unit takes for each patch."""
        extents = self.shape.row.extent, self.shape.col.extent, self.of.groups
        if tilings.span.any():
            return [(count, size, 0) for count, size in _portions(prod(extents), tilings.span)]
        rows, cols, groups = (
            _portions(extent, size)
            for extent, size in zip(extents, (tilings.rows, tilings.cols, tilings.groups), strict=True)
        )
        return [(a * b * c, x * y * z, self._rotated(x, y, z)) for a, x in rows for b, y in cols for c, z in groups]

    def _rotated(self, rows: Cycles, cols: Cycles, groups: Cycles) -> Cycles:
        """Cycles to rotate what blocks of such extents need into the lane groups of further copies."""
        cycles = 0 if self.of.cut.transposed else self.chunk.rotations * float(self.hardware.vector_unit.stack_cycles)
        return cycles and prod(patch(self.shape, self.chunk, (rows, cols, groups))) * groups * cycles

    # ---- the bus

    @cached_property
    def _latency(self) -> int:
        """That of a DRAM is its own."""
        return 0 if self.hardware.hbm.dram else self.hardware.latency_cycles

    @cached_property
    def _element_cycles(self) -> float:
        return self.hardware.vector_memory.element_bytes / float(self.hardware.hbm_peak_bytes_per_cycle)

    def _in_turn(self, *moved: _Moved) -> Cycles:
        """One after another. A DRAM may still have bursts to move while those after them are converted."""
        if self.hardware.hbm.dram:
            return np.maximum(sum(each.bus for each in moved), sum(each.converted for each in moved))
        return sum(np.maximum(*each) for each in moved)

    @cached_property
    def _unpacking(self) -> float:
        """Cycles an element: of a fill, no more stand in a word of all lanes."""
        words = self.hardware.lanes * self.hardware.vector_memory.word_elements
        return float(self.hardware.vector_unit.unpack_cycles) / words

    def _images(self, tilings: Tiling[Counts]) -> Cycles:
        """As many as take the bus as long as all do, where each run of a word group's is moved in whole bursts: only
        where images are neighbours in HBM.
        """
        if self.hardware.hbm.layout != Layouts() or self.hardware.hbm.dram:
            return self.shape.images
        images, run, size = self.shape.images, tilings.groups * self.of.word_fill, self.hardware.vector_memory
        burst = self.hardware.hbm.burst_bytes
        full, left = (-(-each * size.element_bytes // burst) * burst for each in (run, images % run))
        apart = (images // run * full + left) / size.element_bytes
        return np.where((tilings.groups < self.of.groups) & (self.shape.strips == 1), apart, images)

    def _spills(self, tilings: Tiling[Counts]) -> _Moved:
        """All results, once."""
        shape, (channels, rows, cols, _) = self.shape, self.shape.tensors.ofmap
        stored = padded(channels, self.hardware.hbm.channel_multiple)
        words = shape.row.extent * shape.col.extent * self.of.groups * shape.groups * self.of.columns
        moved = stored * rows * cols * self._images(tilings) * self._element_cycles
        return _Moved(moved, words * float(self.hardware.vector_unit.pack_cycles))

    def _last_spill(self, array: _Array) -> Cycles:
        """The fewest cycles of one spill."""
        # A word of the last group may be the emptiest; where strips share words, one may be all padding.
        images = self.shape.images - (self.of.groups - 1) * self.of.word_fill if self.shape.strips == 1 else 0
        moved = images * min(map(len, self.of.col_folds)) * self._element_cycles
        return array.words * max(moved, float(self.hardware.vector_unit.pack_cycles))

    def _filters(self, sections: _Sections) -> Cycles:
        """All of it, so often."""
        return prod(self.shape.tensors.filter) * self._element_cycles * sections.times

    def _sections(self, tilings: Tiling[Counts], chunks: Counts) -> _Sections:
        """They come once, or for every block where those of all folds that come by turns do not find buffers."""
        sections = np.maximum(chunks, -(-self.passes // tilings.section_passes))
        kept = self.of.columns if tilings.loop_order == "block_major" else tilings.kept_folds
        left = self.of.columns % kept
        fewest = np.where(left, left, kept)
        times = np.where(fewest * sections > tilings.filter_buffers, tilings.blocks, 1)
        return _Sections(sections, times, sections * times * self.of.columns * self.shape.groups)

    def _again(self, tilings: Tiling[Counts], chunks: Counts) -> Counts:
        """How often the ifmap comes, for all column folds."""
        held = chunks if tilings.loop_order == "block_major" else chunks * tilings.blocks
        return np.where(held > tilings.ifmap_buffers, -(-self.of.columns // tilings.kept_folds), 1)

    def _loads(self, tilings: Tiling[Counts], again: Counts) -> _Moved:
        """The ifmap for all blocks, so often: what lies between taps too, where all of them are on chip together."""
        shape, (channels, images) = self.shape, stored_ifmap(self.shape, self.hardware)
        points = np.full_like(tilings.blocks, self.points.touched)
        if not self.chunk.by_tap and not tilings.span.any():
            together = self.points.brought(tilings)
            points = np.where(tilings.chunk_taps < self.of.taps, points, together)
        moved = points * channels * np.maximum(self._images(tilings), images) * self._element_cycles
        return _Moved(moved * again, points * self._unpacked_channels * shape.images * self._unpacking * again)

    @cached_property
    def _unpacked_channels(self) -> int:
        """Channels of all groups; the padding after the last, too, if the place that has them leaves lanes for it."""
        shape, (stored, _) = self.shape, stored_ifmap(self.shape, self.hardware)
        own = min(shape.channels * shape.groups, shape.tensors.ifmap[0])
        most = max(len({*place.channels}) for place in self.chunk.places)
        free = not self.hardware.banked and not self.chunk.by_tap and most + stored - own <= self.hardware.lanes
        return stored if free else own

    def _first_pass(self, tilings: Tiling[Counts], chunks: Counts) -> Cycles:
        """Until it is issued: its weights come, then, beside the preload, the first places of the first block; where
        loads are whole, all of both loads.
        """
        rotated = self._rotated(tilings.rows, tilings.cols, tilings.groups)
        drains = self.of.estimate.drains & (chunks == 1) & (tilings.span == 0)
        own, waited = (self._first_weights(passes) for passes in (1, tilings.section_passes if self._whole else 1))
        preload = self.delay + self.hardware.preload_cycles + np.where(drains, rotated, 0)
        loaded = np.where(chunks == 1, own + preload, preload)
        if self.chunk.by_tap or tilings.span.any() or self.shape.strips > 1:
            return self._latency + np.maximum(loaded, np.where(chunks == 1, waited, 0))
        points = self.points.first(tilings)
        elements = points * np.minimum(tilings.groups * self.of.word_fill, self.shape.images) * self._begun_with
        ifmap = _Moved(elements * self._element_cycles, elements * self._unpacking)
        filled = self._in_turn(_Moved(waited), ifmap) + self._latency
        if self._whole:
            fills = np.minimum(MOST_PIECES, tilings.section_passes) + np.where(points > 0, self._ifmap_pieces, 0)
            filled = np.maximum(filled, self._two_at_once(filled - self._latency, fills))
        return np.maximum(self._latency + loaded, np.where(chunks == 1, filled, 0))

    def _first_weights(self, passes: Counts | int) -> Cycles:
        """Bus time of the weights of the first passes. Of a bundle's, those of other groups are zeros from nowhere."""
        rows = np.cumsum([each.rows for each in self.of.passes])
        first = np.asarray(rows[np.minimum(passes, len(rows)) - 1]) / self.shape.bundle
        return first * len(self.of.col_folds[0]) * self._element_cycles

    @property
    def _whole(self) -> bool:
        return self.hardware.mapping.loads == "whole"

    @cached_property
    def _begun_with(self) -> int:
        """Channels of the ifmap that the first pass waits for; the padding after the last, too, where it is all."""
        if not self._whole:
            return self.chunk.places[0].brought
        brought = sum(len(channels) for _, channels in self.chunk.brought(range(len(self.chunk.places))))
        stored, _ = stored_ifmap(self.shape, self.hardware)
        return brought + (stored - self.shape.channels if self.shape.groups == 1 else 0)

    # ---- two transfers under way at once

    def _two_at_once(self, moved: Cycles, fills: Counts) -> Cycles:
        """Each fill is under way from its latency to the cycle after its last word; beside it, one other transfer."""
        return (moved + fills * (self._latency + 1)) / 2

    def _filter_fills(self, tilings: Tiling[Counts], chunks: Counts, sections: _Sections) -> Counts:
        """Pieces of all sections; of those in chunks, sections."""
        full, left = self.passes // tilings.section_passes, self.passes % tilings.section_passes
        pieces = full * np.minimum(MOST_PIECES, tilings.section_passes) + np.minimum(MOST_PIECES, left)
        return np.asarray(sections.loads // sections.of_fold * np.where(chunks == 1, pieces, sections.of_fold))

    def _ifmap_fills(self, tilings: Tiling[Counts], chunks: Counts, again: Counts) -> Counts:
        """Pieces of all loads, where every block is known to need one. Rows of a patch may come together."""
        every = self._every_filled(tilings) & (chunks == 1) & (tilings.span == 0)
        loads = tilings.blocks * self.shape.groups * again
        return np.where(every, loads * self._ifmap_pieces, 0)

    @cached_property
    def _ifmap_pieces(self) -> int:
        return min(MOST_PIECES, len(self.chunk.places)) if self.chunk.one_by_one else 1

    def _every_filled(self, tilings: Tiling[Counts]) -> Counts:
        """Whether no block is padding alone, which waits for nothing."""
        if self.chunk.by_tap:
            return np.zeros_like(tilings.blocks)
        of_groups = -(-self.of.groups // tilings.groups)
        return np.asarray(self.points.needing(tilings) * of_groups == tilings.blocks)

    # ---- what takes turns in buffers

    def _by_results(self, tilings: Tiling[Counts], array: _Array, spills: Cycles) -> Cycles:
        """Partial sums in so many buffers: passes, then their results, then the spill up to its last word."""
        read = np.maximum(spills * (1 - 1 / array.words) - array.results, 0)
        return (array.issued + array.results * (self._after - array.short) + read) / tilings.psum_buffers

    def _by_sections(self, tilings: Tiling[Counts], sections: _Sections, filters: _Moved) -> Cycles:
        """Weights in so many buffers: a fill, then the preload of the last of them."""
        turns = filters.bus + sections.loads * (self._latency + self.hardware.preload_cycles)
        return turns / tilings.filter_buffers

    def _by_loads(
        self, tilings: Tiling[Counts], array: _Array, loads: Cycles, again: Counts, spills: Cycles, last: Cycles
    ) -> list[Cycles]:
        """Patches in so many buffers: a fill, then all passes over it. Places are filled beside passes over others.

        Where each patch is for one result, the one queue takes its fill after the spill of the last but one.
        """
        count = tilings.blocks * self.shape.groups * again
        each = self._after - array.short + self._latency
        turns = array.issued + count * each + (0 if self.chunk.one_by_one else loads)
        turns = np.where(self._every_filled(tilings), turns, 0)
        both = np.where(count == array.results, (turns + spills) / (2 * tilings.lag), 0)
        return [turns / tilings.ifmap_buffers + last, np.where(turns > 0, both, 0)]


def _portions(extent: int, sizes: Counts) -> list[tuple[Counts, Counts]]:
    left = extent % sizes
    return [(extent // sizes, sizes), (np.minimum(left, 1), left)]
