"""The tilings of a layer whose bodies are steps of a pipeline (`loads: windows`), as Google's compiler emits it.

A step reads windows of the ifmap and of the filter, and leaves a window of the ofmap. While a step runs, the windows of
the next step are loaded, and the window of the step before is spilled. So n steps take about

    first windows in + (n - 1) max(body, bytes of a step / bandwidth) + body + last window out,

where a body loads its first weights, streams its passes, and drains the array.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.cut.blocks import even_extents
from tpusim.machines.tpu.cut.tiling import Counts, Tiling, given_outputs
from tpusim.machines.tpu.search.estimates import Candidates, Extents, TilingKind, combined

MOST_COLUMN_PARTS = 4
"""Most parts into which columns are cut beside rows."""


class Windows(Candidates):
    """Every block, with all numbers of column folds and of passes that cut a layer evenly; two buffers of everything
    that changes from step to step.
    """

    @property
    def _rectangles(self) -> list[tuple[int, int, int]]:
        """Parts of columns beside parts of rows, too: a window is seldom long and narrow."""
        sizes = given_outputs(self.shape, self.hardware)
        rows, cols, groups = (
            [size] if size else even_extents(extent) for size, extent in zip(sizes, self.extents, strict=True)
        )
        few = cols if len(cols) == 1 else {-(-self.extents[1] // parts) for parts in range(1, MOST_COLUMN_PARTS + 1)}
        found = {*product(rows, few, groups)}
        if 1 in rows:
            found |= {*product([1], cols, groups)}
        return sorted(found)

    def whole(self) -> Iterator[Tiling[Counts]]:
        """Steps that make whole sums."""
        for order in self._orders if self._uncut else ():
            yield self._steps(order, self.taps, [self.folds])

    def deep(self) -> Iterator[Tiling[Counts]]:
        """No deeper ways: a step hides the windows beside it, and no others."""
        return iter(())

    def chunked(self) -> Iterator[Tiling[Counts]]:
        """Steps that add to sums: of some row folds, or of some groups of taps of one fold."""
        for taps in [self._given_taps] if self._given_taps else even_extents(self.cut.together):
            folds = [self._given_folds] if self._given_folds else even_extents(self.folds)
            if taps < self.taps and not self._given_taps:
                folds = [1]
            if folds := [each for each in folds if (taps, each) != (self.taps, self.folds) or not self._at_once]:
                yield self._steps(self._orders[0], taps, folds)

    @cached_property
    def fitting(self) -> list[TilingKind]:
        """Whole sums and chunks, in whose steps no more bytes move than `mapping.window` allows, or than must."""
        kinds = [*self._fitting(self.whole()), *self._fitting(self.chunked())]
        moved = [self.window_bytes(kind.tilings) for kind in kinds]
        least = min((each[kind.fits].min() for each, kind in zip(moved, kinds, strict=True)), default=0)
        most = max(self.hardware.mapping.window_bytes, least)
        fit = (kind._replace(fits=kind.fits & (each <= most)) for each, kind in zip(moved, kinds, strict=True))
        return [kind for kind in fit if kind.fits.any()]

    def _steps(self, order: str, taps: int, chunk_folds: list[int]) -> Tiling[Counts]:
        columns = [self._given_kept] if self._given_kept else even_extents(self.columns)
        at, kept, folds = combined(range(len(self._blocks.rows)), columns, chunk_folds)
        extents = Extents(*(each[at] for each in self._blocks))
        chunks = self.cut.chunks(taps, 1)
        # Of chunks that are alike, and of row folds, the first is the largest.
        kinds = {(chunk.tap_rows, chunk.tap_cols, len(chunk.places)): chunk for chunk in reversed(chunks)}
        a_fold = folds if self.folds > 1 else np.ones_like(folds)
        passes = a_fold * max(len(some) for chunk in chunks for some in chunk.sums)
        parts = -(-self.folds // folds) * -(-self.taps // taps)
        outcomes = self.shape.groups * extents.blocks
        return Tiling(
            **extents._asdict(), loop_order=order, kept_folds=kept, chunk_taps=taps, chunk_folds=folds,
            section_passes=passes, ifmap_buffers=np.minimum(2, outcomes * parts),
            filter_buffers=np.minimum(2 * kept, self.shape.groups * self.columns * parts),
            psum_buffers=np.minimum(2 * kept, outcomes * self.columns),
            ifmap_words=a_fold * np.max([self._held(chunk, extents) for chunk in kinds.values()], axis=0),
            section_words=a_fold * self._section_words(chunks, self.passes), lag=1,
        )  # fmt: skip

    # ---- what steps take

    def window_bytes(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """The bytes of a step that reads windows of everything and leaves one, copies of converted operands among
        them.
        """
        hardware = self.hardware
        held = 1 + hardware.vector_unit.convert_bytes / hardware.vector_memory.element_bytes
        # Weights that the vector unit widens keep the bus for longer than their bytes take.
        of_filter = self._of_filter(tilings) * self.weight_bus / self.weight_cycles
        moved = (self.load(tilings).busiest + of_filter) * held + self._of_results(tilings)
        return np.asarray(moved * float(hardware.hbm_bytes_per_cycle))

    def estimate(self, tilings: Tiling[Any]) -> NDArray[np.float64]:
        """Cycles that a compiler is thought to expect: the first windows and the last, and in between whatever is
        longer in a step, its body or its transfers.
        """
        mapping, spill = self.hardware.mapping, self._of_results(tilings)
        share, load, of_filter = float(mapping.window_bandwidth), self.load(tilings).busiest, self._of_filter(tilings)
        steps, loads, filters, results = self._times(tilings)
        body, first, last = self._body(tilings), load + of_filter, spill * float(mapping.window_results)
        read = ((loads - 1) * load + (filters - 1) * of_filter) / np.maximum(1, steps - 1) / share
        # Steps that add to sums leave no results.
        bare = np.maximum(body, read + mapping.window_cycles)
        full = np.maximum(body, read + mapping.window_cycles + last / share)
        inner = (steps - results) * bare + (results - 1) * full
        return np.asarray(first / share + inner + body + last / share, dtype=np.float64)

    def late(self, tilings: Tiling[Any]) -> NDArray[np.float64]:
        """Nothing: `estimate` has the first windows."""
        return np.zeros(np.shape(tilings.blocks))

    def _turns(self, tilings: Tiling[Counts]) -> Counts:
        """Bodies of a block and chunk."""
        return -(-self.columns // tilings.kept_folds)

    def _of_filter(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Cycles of the bus for the largest window of the filter."""
        kept = np.minimum(tilings.kept_folds / self.columns, 1)
        return np.asarray(self.filter_cycles * kept * self._share_of_sum(tilings))

    def _share_of_sum(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """What the largest chunk has of a reduction."""
        return np.asarray(tilings.chunk_folds / self.folds * tilings.chunk_taps / self.taps)

    def _of_results(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Cycles of the bus for the largest window of results."""
        return np.asarray(self.spill(tilings).busiest * np.minimum(tilings.kept_folds, self.columns))

    def _body(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Cycles of the largest body: the sums of its column folds go to the arrays in turn."""
        queues = self.hardware.array.queues
        kept, a_pass = np.minimum(tilings.kept_folds, self.columns), self.turn(tilings)
        if queues > 1:
            kept = np.ceil(kept / queues)
            a_pass = np.maximum(tilings.psum_words * self.frame.period, self.hardware.preload_cycles)
        ready = tilings.ifmap_words * self.ready_cycles
        alone = self._drain_cycles + self.hardware.sequencer.block_cycles
        return np.asarray(self.passes * self._share_of_sum(tilings) * kept * a_pass + ready + alone)

    def _times(self, tilings: Tiling[Counts]) -> tuple[Counts, ...]:
        """How many steps there are, loads of the ifmap and of the filter, and windows of results.

        A window comes again whenever a step needs another than the step ahead.
        """
        groups, blocks = self.shape.groups, tilings.blocks
        chunks = -(-self.folds // tilings.chunk_folds) * -(-self.taps // tilings.chunk_taps)
        turns, block_major = self._turns(tilings), tilings.loop_order == "block_major"
        results = blocks * turns
        loads = np.where(block_major | (blocks == 1), blocks, results)
        filters = np.where(block_major & (turns > 1), results, turns)
        loads, filters = (np.where(chunks > 1, results * chunks, each) for each in (loads, filters))
        return groups * results * chunks, groups * loads, groups * filters, groups * results
