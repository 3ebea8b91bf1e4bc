"""What no run of a tiling can beat: cycles that every engine takes at least, whatever waits for what.

A search that tries tilings in this order may stop as soon as the best so far is close to what is left. `estimate` says
about what a tiling would cost, this what it must cost. What is hard to tell is left out.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.lowering.array_bound import ArrayBound, ArrayCycles, Cycles
from tpusim.machines.tpu.lowering.bus_bound import BusBound, Moved, Sections
from tpusim.machines.tpu.lowering.points import Points
from tpusim.machines.tpu.lowering.tiles import stored_ifmap
from tpusim.machines.tpu.lowering.tiling import MOST_PIECES, Counts, Tiling

if TYPE_CHECKING:
    from tpusim.machines.tpu.lowering.candidates import Candidates


class Bound:
    """The least cycles of candidate tilings of one layer."""

    def __init__(self, candidates: Candidates) -> None:
        self.of, self.shape, self.hardware = candidates, candidates.shape, candidates.hardware
        self.chunk, self.passes = candidates.chunk, len(candidates.passes)
        self.points = Points(self.shape, self.chunk)
        self.array, self.bus = ArrayBound(candidates), BusBound(candidates, self.points)

    def cycles(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """The least cycles of every candidate: no run takes fewer."""
        chunks = np.asarray(-(-self.of.folds // tilings.chunk_folds) * -(-self.of.taps // tilings.chunk_taps))
        array, again = self.array.cycles(tilings, chunks), self.bus.again(tilings, chunks)
        ifmap, ofmap, last = self.bus.loads(tilings, again), self.bus.spills(tilings), self.bus.last_spill(array.words)
        sections = self.bus.sections(tilings, chunks)
        filters, first = Moved(self.bus.filters(sections)), self._first_pass(tilings, chunks)
        loads, spills = self.bus.in_turn(ifmap), self.bus.in_turn(ofmap)
        paths = [
            first + array.all + self.array.after + last,
            self.bus.in_turn(ifmap, filters, ofmap),
            self.bus.in_turn(ifmap, filters) + self.bus.latency + array.smallest + self.array.after + last,
            self._by_sections(tilings, sections, filters) + array.smallest + self.array.after + last,
            self._two_at_once(
                self.bus.in_turn(ifmap, filters) + spills * (1 - 1 / array.words),
                self._filter_fills(tilings, chunks, sections) + self._ifmap_fills(tilings, chunks, again),
            ),
        ]
        if (simple := (chunks == 1) & (tilings.span == 0)).any():
            turns = [
                first + self._by_results(tilings, array, spills),
                *(self._by_loads(tilings, array, loads, again, spills, last) if not self.chunk.by_tap else ()),
            ]
            paths += [np.where(simple, each, 0) for each in turns]
        ends = self.hardware.sequencer.launch_cycles + self.bus.latency + self.hardware.lanes - 1
        # Cycles are whole; a little less, as these are not exact.
        return np.asarray(np.ceil(ends + np.max(np.broadcast_arrays(*paths), axis=0) - 1e-6), dtype=np.float64)

    def _first_pass(self, tilings: Tiling[Counts], chunks: Counts) -> Cycles:
        """Until it is issued: its weights come, then, beside the preload, the first places of the first block; where
        loads are whole, all of both loads.
        """
        rotated = self.array.rotated(tilings.rows, tilings.cols, tilings.groups)
        drains = self.of.drains & (chunks == 1) & (tilings.span == 0)
        own, waited = (self._first_weights(passes) for passes in (1, tilings.section_passes if self._whole else 1))
        preload = self.array.delay + self.hardware.preload_cycles + np.where(drains, rotated, 0)
        loaded = np.where(chunks == 1, own + preload, preload)
        if self.chunk.by_tap or tilings.span.any() or self.shape.strips > 1:
            return self.bus.latency + np.maximum(loaded, np.where(chunks == 1, waited, 0))
        points = self.points.first(tilings)
        elements = points * np.minimum(tilings.groups * self.of.word_fill, self.shape.images) * self._begun_with
        ifmap = Moved(elements * self.bus.element_cycles, elements * self.bus.unpacking)
        filled = self.bus.in_turn(Moved(waited), ifmap) + self.bus.latency
        if self._whole:
            fills = np.minimum(MOST_PIECES, tilings.section_passes) + np.where(points > 0, self._ifmap_pieces, 0)
            filled = np.maximum(filled, self._two_at_once(filled - self.bus.latency, fills))
        return np.maximum(self.bus.latency + loaded, np.where(chunks == 1, filled, 0))

    def _first_weights(self, passes: Counts | int) -> Cycles:
        """Bus time of the weights of the first passes. Of a bundle's, those of other groups are zeros from nowhere."""
        rows = np.cumsum([each.rows for each in self.of.passes])
        first = np.asarray(rows[np.minimum(passes, len(rows)) - 1]) / self.shape.bundle
        return first * len(self.of.col_folds[0]) * self.bus.element_cycles

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
        return (moved + fills * (self.bus.latency + 1)) / 2

    def _filter_fills(self, tilings: Tiling[Counts], chunks: Counts, sections: Sections) -> Counts:
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

    def _by_results(self, tilings: Tiling[Counts], array: ArrayCycles, spills: Cycles) -> Cycles:
        """Partial sums in so many buffers: passes, then their results, then the spill up to its last word."""
        read = np.maximum(spills * (1 - 1 / array.words) - array.results, 0)
        return (array.issued + array.results * (self.array.after - array.short) + read) / tilings.psum_buffers

    def _by_sections(self, tilings: Tiling[Counts], sections: Sections, filters: Moved) -> Cycles:
        """Weights in so many buffers: a fill, then the preload of the last of them."""
        turns = filters.bus + sections.loads * (self.bus.latency + self.hardware.preload_cycles)
        return turns / tilings.filter_buffers

    def _by_loads(
        self, tilings: Tiling[Counts], array: ArrayCycles, loads: Cycles, again: Counts, spills: Cycles, last: Cycles
    ) -> list[Cycles]:
        """Patches in so many buffers: a fill, then all passes over it. Places are filled beside passes over others.

        Where each patch is for one result, the one queue takes its fill after the spill of the last but one.
        """
        count = tilings.blocks * self.shape.groups * again
        each = self.array.after - array.short + self.bus.latency
        turns = array.issued + count * each + (0 if self.chunk.one_by_one else loads)
        turns = np.where(self._every_filled(tilings), turns, 0)
        both = np.where(count == array.results, (turns + spills) / (2 * tilings.lag), 0)
        return [turns / tilings.ifmap_buffers + last, np.where(turns > 0, both, 0)]
