"""What a tiling would cost, in cycles, roughly: it steers the choice only and is never reported."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.geometry import ConvShape, padded
from tpusim.machines.tpu.lowering.tiling import MOST_PIECES, Counts, FilterPlan, Tiling

Cycles: TypeAlias = Any  # a float, or an array of them: one a candidate


class Estimate:
    """The first fill, the longer of array and HBM, and the last spill, for candidate blocks of one layer.

    Args:
        passes: that add up to one output block, over `folds` row folds.
        columns: column folds.
        groups: word groups of a pixel, of `word_fill` elements each; `block_groups` of them in each candidate.
        blocks: how many blocks each candidate makes.
    """

    def __init__(
        self, shape: ConvShape, hardware: Hardware, passes: int, folds: int, columns: int, groups: int, word_fill: int,
        block_groups: Counts, blocks: Counts,
    ) -> None:  # fmt: skip
        self.shape, self.hardware = shape, hardware
        self.passes, self.folds, self.columns = passes, folds, columns
        self.groups, self.word_fill, self.block_groups, self.blocks = groups, word_fill, block_groups, blocks

    def cycles(self, plan: FilterPlan, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Estimated cycles of the layer for every candidate block."""
        blocks, folds = self.blocks, self.shape.groups * self.columns
        per_pass = self._pass_cycles(tilings)
        array = blocks * folds * (self.passes * per_pass + self._drain_cycles())
        load, spill = self._load_cycles(tilings), self._spill_cycles(tilings)
        again = 1 if plan.resident or plan.loop_order == "filter_major" else blocks
        reloads = np.where(blocks > 2, self.columns if plan.loop_order == "filter_major" else 1, 1)
        filters = folds * again * self._moving(self._filter_cycles() / self.columns, self._filter_pieces(plan))
        loads = self.shape.groups * blocks * reloads * self._moving(load, self._ifmap_pieces())
        bus = filters + loads + spill * blocks * folds
        first = self._first_cycles(plan, load)
        # Between the fill of one tile and the spill of another the bus waits for the last words and the drain.
        turnaround = self.hardware.latency_cycles + self.hardware.array.rows + self.word_fill
        waits = (folds * blocks - 1) * turnaround + per_pass * plan.last_passes
        return np.asarray(first + spill + np.maximum(array, bus - first - spill + waits), dtype=np.float64)

    def _pass_cycles(self, tilings: Tiling[Counts]) -> Counts:
        """One pass over a block: its stream or the next preload, whichever takes longer."""
        hardware, arrays = self.hardware, self.hardware.array.count
        shared = hardware.vector_memory.ports == "shared"
        slots = (1 if not shared else 3 if self.passes > 1 else 2) * arrays
        adds = -(-self.word_fill * arrays * hardware.lanes // hardware.vector_unit.alus) if self.passes > 1 else 0
        frame = max(self.word_fill, slots, adds)
        # A full frame leaves the preload no slot before the stream is over.
        serial = hardware.preload_cycles if frame == slots and shared else 0
        return np.asarray(np.maximum(-(-tilings.psum_words // arrays) * frame, hardware.preload_cycles) + serial)

    def _drain_cycles(self) -> int:
        """A block's first preload and last results, where they are not hidden behind other blocks."""
        return self.hardware.preload_cycles + self.hardware.array.rows + self.word_fill if self.drains else 0

    def _load_cycles(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """The ifmap of one block, from HBM or through the unpacking."""
        elements = (
            tilings.ifmap_words
            / self.folds
            * self.word_fill
            * self._stored_channels(self.shape.channels, self.shape.channels)
        )
        moved = elements * self._element_cycles * self._waste("in")
        return np.maximum(moved, tilings.ifmap_words * self.hardware.vector_unit.unpack_cycles)

    def _spill_cycles(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """The results of one block and column fold, to HBM or through the packing."""
        out = self.shape.out_channels
        channels = self._stored_channels(min(self.hardware.array.cols, out), out)
        moved = tilings.psum_words * self.word_fill * channels * self._element_cycles * self._waste("out")
        return np.maximum(moved, tilings.psum_words * self.hardware.vector_unit.pack_cycles)

    def _filter_cycles(self) -> float:
        """The filter of one channel group, once."""
        shape = self.shape
        return shape.channels * shape.row.kernel * shape.col.kernel * shape.out_channels * self._element_cycles

    def _first_cycles(self, plan: FilterPlan, load: NDArray[np.float64]) -> NDArray[np.float64]:
        """What the first pass waits for: one fold, or an even piece of the block and of the filter."""
        if not self.drains:
            return load / self.folds
        chunk = self._filter_cycles() / self.columns * plan.chunk_passes / self.passes
        return load / min(MOST_PIECES, self.folds) + chunk / min(MOST_PIECES, plan.chunk_passes)

    def _moving(self, cycles: Cycles, pieces: int) -> Cycles:
        """Bus time of a load in pieces. Two are under way at once, each from its latency to its last word."""
        return np.maximum(cycles, (cycles + (pieces - 2) * self.hardware.latency_cycles) / 2)

    def _ifmap_pieces(self) -> int:
        return min(MOST_PIECES, self.folds if self.folds > 1 else self.shape.row.extent)

    def _filter_pieces(self, plan: FilterPlan) -> int:
        """Pieces of one column fold's filter."""
        return -(-self.passes // plan.chunk_passes) * min(MOST_PIECES, plan.chunk_passes)

    @property
    def drains(self) -> bool:
        return self.hardware.sequencer.between_blocks == "drain"

    def _stored_channels(self, channels: int, of_group: int) -> float:
        """Channels moved for `channels`, with their share of the padding after the last of all."""
        total = of_group * self.shape.groups
        return channels * padded(total, self.hardware.hbm.channel_multiple) / total

    @property
    def _element_cycles(self) -> float:
        return self.hardware.vector_memory.element_bytes / float(self.hardware.hbm_bytes_per_cycle)

    def _waste(self, direction: str) -> NDArray[np.float64]:
        """Bytes moved over bytes wanted: short runs of images are rounded up to whole bursts."""
        groups = self.block_groups
        channels = self.shape.channels if direction == "in" else self.shape.out_channels
        stored = self._stored_channels(channels, channels)
        run = np.where(groups == self.groups, stored * self.shape.images, groups * self.word_fill)
        run_bytes = run * self.hardware.vector_memory.element_bytes
        burst = self.hardware.hbm.burst_bytes
        return np.asarray(-(-run_bytes // burst) * burst / run_bytes, dtype=np.float64)
