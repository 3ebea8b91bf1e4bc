"""What a tiling would cost, in cycles, roughly: it steers the choice only and is never reported."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.lowering.pace import Cycles, LayerWork
from tpusim.machines.tpu.lowering.tiling import MOST_PIECES, Counts, Tiling


class _Costs(NamedTuple):
    """What every candidate has to bring out (`results`, one a block and column fold), and the cycles of its parts."""

    results: Counts
    per_pass: Counts
    load: Cycles
    spill: Cycles
    first: Cycles
    last: Cycles


class Estimate:
    """The first fill, the longer of array and HBM, and the last spill, for candidate tilings of one layer."""

    def __init__(self, of: LayerWork) -> None:
        self.of, self.shape, self.hardware, self.cut = of, of.shape, of.hardware, of.cut
        self.passes, self.folds, self.columns = len(of.passes), of.folds, of.columns

    def cycles(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Estimated cycles of the layer for every candidate."""
        costs = self._costs(tilings)
        between = self._in_chunks if (self._chunks(tilings) > 1).any() else self._at_once
        # Where blocks drain, all that lags behind goes out in the end.
        behind = np.minimum(tilings.lag, costs.results) if self.of.drains else 1
        return np.asarray(costs.first + between(tilings, costs) + costs.spill * behind, dtype=np.float64)

    def late(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Cycles that `cycles` leaves out: the first block cannot hide behind others while its own operands come.

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
        whole = (self._chunks(tilings) == 1) & (self.folds > 1)
        return np.asarray(np.where(whole, np.maximum(late, 0), 0), dtype=np.float64)

    def _costs(self, tilings: Tiling[Counts]) -> _Costs:
        results = tilings.blocks * self.shape.groups * self.columns
        load, per_pass = self.of.load(tilings).busiest, self.of.turn(tilings)
        # Passes left when the last piece is there: of a section, or of a block that is the only one.
        alone = np.where(results == 1, _ceil(tilings.chunk_folds, self._begun_with), 0)
        return _Costs(
            results=results,
            per_pass=per_pass,
            load=load,
            spill=self.of.spill(tilings).busiest,
            first=self._first_cycles(tilings, load),
            last=per_pass * np.maximum(_ceil(tilings.section_passes, self._begun_with), alone),
        )

    def _at_once(self, tilings: Tiling[Counts], costs: _Costs) -> NDArray[np.float64]:
        """The longer of array and HBM, where the ifmap of a block is on chip for its whole reduction."""
        results, groups, held = costs.results, self.shape.groups, _ceil(self.columns, tilings.kept_folds)
        # The ifmap of a block comes again for column folds that other blocks lie between.
        again = np.where(tilings.blocks > 2, held, 1) if tilings.loop_order == "filter_major" else 1
        loaded, turns = groups * (tilings.blocks * again), groups * tilings.blocks * held
        ahead = turns * self.hardware.sequencer.block_cycles + loaded * self._ready(tilings)
        exposed = turns * self._drain_cycles() + self._exposed(ahead, turns, costs)
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
        chunks = self._chunks(tilings)
        ahead = self._exposed(self._ready(tilings) + self.hardware.sequencer.block_cycles, 1, costs)
        array = self.passes / chunks * costs.per_pass + (ahead + self._drain_cycles()) / tilings.kept_folds
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
        words = self.shape.row.extent * self.shape.col.extent * self.of.groups
        array = self.shape.groups * self.columns * self.passes * words * self.of.word_fill / self.hardware.array.count
        turns = self.shape.groups * self.columns * self._turnaround
        return elements * self.of.element_cycles + turns > array

    @property
    def _turnaround(self) -> int:
        """Between the fill of one block and the spill of another the bus waits for the last words and the drain."""
        return self.hardware.latency_cycles + self.hardware.array.rows + self.of.word_fill

    def _chunks(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Chunks of a reduction; the last of them counts as what it is of a whole one."""
        return np.asarray(self.folds / tilings.chunk_folds * _ceil(self.passes // self.folds, tilings.chunk_taps))

    def _filter_loads(self, tilings: Tiling[Counts]) -> Counts:
        """How often the filter of a column fold comes: once, where it stays whole for all blocks."""
        resident = tilings.filter_buffers >= self.shape.groups * self.columns
        whole = tilings.section_passes == self.passes
        return np.where(whole & (resident | (tilings.loop_order == "filter_major")), 1, tilings.blocks)

    def _ready(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """What the vector unit takes to make one load of the ifmap ready."""
        return np.asarray(tilings.ifmap_words * self.of.ready_cycles)

    def _exposed(self, cycles: Cycles, times: Counts | int, costs: _Costs) -> NDArray[np.float64]:
        """Waits that nothing hides before weights come; where blocks overlap, passes ahead hide some each time."""
        spare = 0 if self.of.drains else costs.per_pass - self.hardware.preload_cycles
        return np.asarray(np.maximum(cycles - times * spare, 0))

    def _drain_cycles(self) -> int:
        """A block's first preload and last results, where they are not hidden behind other blocks."""
        return self.hardware.preload_cycles + self.hardware.array.rows + self.of.word_fill if self.of.drains else 0

    def _first_cycles(self, tilings: Tiling[Counts], load: NDArray[np.float64]) -> NDArray[np.float64]:
        """What the first pass waits for: one fold, or an even piece of the block and of the filter."""
        if not self.of.drains:
            return np.asarray(load / tilings.chunk_folds)
        passes = tilings.section_passes
        section = self.of.filter_cycles / self.columns * passes / self.passes
        of_load, of_section = (np.minimum(self._begun_with, count) for count in (tilings.chunk_folds, passes))
        return np.asarray(load / of_load + section / of_section)

    def _section_cycles(self, tilings: Tiling[Counts]) -> NDArray[np.float64]:
        """Bus time of the filter of one column fold, a section after the other."""
        sections = _ceil(self.passes, tilings.section_passes)
        return self._moving(self.of.filter_cycles / self.columns, sections * _pieces(tilings.section_passes))

    def _loading(self, tilings: Tiling[Counts], costs: _Costs) -> NDArray[np.float64]:
        """Bus time of the ifmap of one block, in pieces of folds or else of rows."""
        return self._moving(
            costs.load, _pieces(np.where(tilings.chunk_folds > 1, tilings.chunk_folds, self.shape.row.extent))
        )

    def _moving(self, cycles: Cycles, pieces: Counts) -> NDArray[np.float64]:
        """Bus time of a load in pieces. Two are under way at once, each from its latency to its last word."""
        return np.asarray(np.maximum(cycles, (cycles + (pieces - 2) * self.hardware.latency_cycles) / 2))

    @property
    def _begun_with(self) -> int:
        """Pieces of a load, of which passes wait for the first."""
        return 1 if self.hardware.mapping.loads == "whole" else MOST_PIECES


def _pieces(count: Cycles) -> Counts:
    """Pieces that a load of folds, passes or rows is cut into."""
    return np.asarray(np.minimum(MOST_PIECES, count))


def _ceil(extent: Cycles, part: Counts | int) -> Counts:
    return np.asarray(-(-extent // part))
