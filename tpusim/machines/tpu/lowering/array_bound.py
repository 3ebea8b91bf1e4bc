"""What the array takes at least for candidate tilings: streams of passes, what comes before and behind them."""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from tpusim.machines.tpu.definition.frame import IFMAP, PSUM, RESULT, frame_of
from tpusim.machines.tpu.definition.latencies import add_cycles, word_cycles, word_latency
from tpusim.machines.tpu.lowering.pace import patch
from tpusim.machines.tpu.lowering.tiling import Counts, Tiling

if TYPE_CHECKING:
    from tpusim.machines.tpu.lowering.candidates import Candidates

Cycles: TypeAlias = Any  # a float, or an array of them: one a candidate


class ArrayCycles(NamedTuple):
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


class ArrayBound:
    """The least cycles of the array for candidate tilings of one layer."""

    def __init__(self, candidates: Candidates) -> None:
        self.of, self.shape, self.hardware = candidates, candidates.shape, candidates.hardware
        self.chunk, self.passes = candidates.chunk, len(candidates.passes)
        self.delay = self.hardware.sequencer.block_cycles

    def cycles(self, tilings: Tiling[Counts], chunks: Counts) -> ArrayCycles:
        """The cycles of every candidate, its sums in so many `chunks`."""
        drains, columns, groups = self.of.drains, self.of.columns, self.shape.groups
        bodies, weights = -(-columns // tilings.kept_folds) * chunks, self.hardware.preload_cycles + self.delay
        issued, waited = np.zeros_like(tilings.blocks), np.zeros(tilings.blocks.shape)
        smallest = words = np.full_like(tilings.blocks, np.iinfo(np.int64).max)
        for count, size, prepared in self._sizes(tilings):
            stream = -(-size // self.hardware.array.count) * self._period
            turn, late = self._turn(stream), np.where(chunks == 1, prepared, 0)
            issued = issued + count * columns * self.passes * turn
            extra = self.after + weights + stream - turn if drains else self._turn(stream, self.delay) - turn
            waited = waited + count * (bodies * extra + (late if drains else 0))
            smallest, words = (
                np.where(count > 0, np.minimum(had, new), had) for had, new in ((smallest, stream), (words, size))
            )
        first, *_ = self._sizes(tilings)
        prepared = np.where(chunks == 1, first[2], 0)
        beyond = self.after + weights + prepared if drains else self._turn(smallest, self.delay) - smallest
        every = groups * (issued + waited) - beyond
        short = self._turn(smallest) - smallest
        return ArrayCycles(every, groups * issued, short, smallest, words, tilings.blocks * columns * groups)

    @cached_property
    def after(self) -> int:
        """Cycles from the last frame of a pass until its results are written, if their slot is the next."""
        latency = word_latency(self.of.word_fill, self.hardware)
        written = latency - 1 + add_cycles(self.of.word_fill, self.hardware) if self.passes > 1 else latency
        return written + 2 - self._period

    def rotated(self, rows: Cycles, cols: Cycles, groups: Cycles) -> Cycles:
        """Cycles to rotate what blocks of such extents need into the lane groups of further copies."""
        cycles = 0 if self.of.cut.transposed else self.chunk.rotations * float(self.hardware.vector_unit.stack_cycles)
        return cycles and prod(patch(self.shape, self.chunk, (rows, cols, groups))) * groups * cycles

    @cached_property
    def _period(self) -> int:
        clients = (IFMAP, PSUM, RESULT) if self.passes > 1 else (IFMAP, RESULT)
        ready = word_cycles(self.of.groups, self.of.cut.transposed, self.hardware)
        return frame_of(self.hardware, self.of.word_fill, clients, word_cycles=ready).period

    def _turn(self, stream: Counts, delay: int = 0) -> Counts:
        """From pass to pass: the stream of one, or what comes before the next where that takes longer."""
        weights = self.hardware.preload_cycles + delay
        return stream + weights if self.hardware.array.weight_buffers == 1 else np.maximum(stream, weights)

    def _sizes(self, tilings: Tiling[Counts]) -> list[tuple[Counts, Counts, Cycles]]:
        """How many blocks there are of how many words, full ones first; what the vector unit takes for each patch."""
        extents = self.shape.row.extent, self.shape.col.extent, self.of.groups
        if tilings.span.any():
            return [(count, size, 0) for count, size in _portions(prod(extents), tilings.span)]
        rows, cols, groups = (
            _portions(extent, size)
            for extent, size in zip(extents, (tilings.rows, tilings.cols, tilings.groups), strict=True)
        )
        return [(a * b * c, x * y * z, self.rotated(x, y, z)) for a, x in rows for b, y in cols for c, z in groups]


def _portions(extent: int, sizes: Counts) -> list[tuple[Counts, Counts]]:
    left = extent % sizes
    return [(extent // sizes, sizes), (np.minimum(left, 1), left)]
