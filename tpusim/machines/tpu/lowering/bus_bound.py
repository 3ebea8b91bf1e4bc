"""What transfers take at least of the bus for candidate tilings, by their bytes and by their conversion."""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tpusim.machines.tpu.lowering.array_bound import Cycles
from tpusim.machines.tpu.lowering.geometry import padded
from tpusim.machines.tpu.lowering.points import Points
from tpusim.machines.tpu.lowering.tiles import stored_ifmap
from tpusim.machines.tpu.lowering.tiling import Counts, Tiling
from tpusim.memory.orders import Layouts

if TYPE_CHECKING:
    from tpusim.machines.tpu.lowering.candidates import Candidates


class Moved(NamedTuple):
    """Cycles that transfers take of the bus by their bytes, and by their conversion."""

    bus: Cycles
    converted: Cycles = 0


class Sections(NamedTuple):
    """Sections of the filter of a column fold, how often they come, and how many come in all."""

    of_fold: Counts
    times: Counts
    loads: Counts


class BusBound:
    """The least cycles of transfers for candidate tilings of one layer."""

    def __init__(self, candidates: Candidates, points: Points) -> None:
        self.of, self.shape, self.hardware, self.points = candidates, candidates.shape, candidates.hardware, points
        self.chunk, self.passes = candidates.chunk, len(candidates.passes)

    @cached_property
    def latency(self) -> int:
        """Cycles to the first byte of a fill; that of a DRAM is its own."""
        return 0 if self.hardware.hbm.dram else self.hardware.latency_cycles

    @cached_property
    def element_cycles(self) -> float:
        return self.hardware.vector_memory.element_bytes / float(self.hardware.hbm_peak_bytes_per_cycle)

    def in_turn(self, *moved: Moved) -> Cycles:
        """Cycles of transfers one after another. A DRAM may still move bursts while those after them are converted."""
        if self.hardware.hbm.dram:
            return np.maximum(sum(each.bus for each in moved), sum(each.converted for each in moved))
        return sum(np.maximum(*each) for each in moved)

    @cached_property
    def unpacking(self) -> float:
        """Conversion cycles of an element: of a fill, no more stand in a word of all lanes."""
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

    def spills(self, tilings: Tiling[Counts]) -> Moved:
        """The spills of all results, once."""
        shape, (channels, rows, cols, _) = self.shape, self.shape.tensors.ofmap
        stored = padded(channels, self.hardware.hbm.channel_multiple)
        words = shape.row.extent * shape.col.extent * self.of.groups * shape.groups * self.of.columns
        moved = stored * rows * cols * self._images(tilings) * self.element_cycles
        return Moved(moved, words * float(self.hardware.vector_unit.pack_cycles))

    def last_spill(self, words: Counts) -> Cycles:
        """The fewest cycles of one spill."""
        # A word of the last group may be the emptiest; where strips share words, one may be all padding.
        images = self.shape.images - (self.of.groups - 1) * self.of.word_fill if self.shape.strips == 1 else 0
        moved = images * min(map(len, self.of.col_folds)) * self.element_cycles
        return words * max(moved, float(self.hardware.vector_unit.pack_cycles))

    def filters(self, sections: Sections) -> Cycles:
        """Cycles in which all of the filter comes, so often."""
        return prod(self.shape.tensors.filter) * self.element_cycles * sections.times

    def sections(self, tilings: Tiling[Counts], chunks: Counts) -> Sections:
        """How sections come: once, or for every block where those of all folds by turns do not find buffers."""
        sections = np.maximum(chunks, -(-self.passes // tilings.section_passes))
        kept = self.of.columns if tilings.loop_order == "block_major" else tilings.kept_folds
        left = self.of.columns % kept
        fewest = np.where(left, left, kept)
        times = np.where(fewest * sections > tilings.filter_buffers, tilings.blocks, 1)
        return Sections(sections, times, sections * times * self.of.columns * self.shape.groups)

    def again(self, tilings: Tiling[Counts], chunks: Counts) -> Counts:
        """How often the ifmap comes, for all column folds."""
        held = chunks if tilings.loop_order == "block_major" else chunks * tilings.blocks
        return np.where(held > tilings.ifmap_buffers, -(-self.of.columns // tilings.kept_folds), 1)

    def loads(self, tilings: Tiling[Counts], again: Counts) -> Moved:
        """The fills of the ifmap for all blocks, so often: with what lies between taps, where all are on chip."""
        shape, (channels, images) = self.shape, stored_ifmap(self.shape, self.hardware)
        points = np.full_like(tilings.blocks, self.points.touched)
        if not self.chunk.by_tap and not tilings.span.any():
            together = self.points.brought(tilings)
            points = np.where(tilings.chunk_taps < self.of.taps, points, together)
        moved = points * channels * np.maximum(self._images(tilings), images) * self.element_cycles
        return Moved(moved * again, points * self._unpacked_channels * shape.images * self.unpacking * again)

    @cached_property
    def _unpacked_channels(self) -> int:
        """Channels of all groups; the padding after the last, too, if the place that has them leaves lanes for it."""
        shape, (stored, _) = self.shape, stored_ifmap(self.shape, self.hardware)
        own = min(shape.channels * shape.groups, shape.tensors.ifmap[0])
        most = max(len({*place.channels}) for place in self.chunk.places)
        free = not self.hardware.banked and not self.chunk.by_tap and most + stored - own <= self.hardware.lanes
        return stored if free else own
