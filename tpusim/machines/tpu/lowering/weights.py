"""Which weight of the filter stands in which row and column of a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tpusim.machines.tpu.lowering.block import Columns
from tpusim.machines.tpu.lowering.geometry import ConvShape, shifted
from tpusim.machines.tpu.lowering.reduction import ReductionPass, as_coordinates
from tpusim.machines.tpu.program.tensor import Along, Part

OUT_CHANNEL, K = range(2)
"""The axes of the filter."""


@dataclass(frozen=True)
class Weights:
    """The weights of all passes of a shape, W = `word` of a column in every word of a lane."""

    shape: ConvShape
    passes: Sequence[ReductionPass]
    word: int

    def parts(self, at: Columns, group: int, number: int, base: int) -> tuple[Part, ...]:
        """Those of a pass for some columns, from word `base` on."""
        return (Part(base, (0,), self._columns(at, group), (self.rows[number],), self.word),)

    def count(self, at: Columns, group: int, numbers: range) -> int:
        """The weights of some passes that come from HBM: without the zeros of a bundle."""
        shape = self.shape
        if shape.bundle == 1:
            return sum(self.passes[number].rows for number in numbers) * len(at.channels)
        left = shape.tensors.filter[0] * shape.bundle // shape.out_channels - group * shape.bundle
        columns = Counter(own for own in self._groups_of(at.channels) if own < left)
        return sum(self._row_groups[number][own] * count for number in numbers for own, count in columns.items())

    @cached_property
    def rows(self) -> list[Along]:
        """The k of the filter whose weight stands in each array row of a pass; of a bundle, group after group."""
        width, taps, size = self.shape.col.kernel, self.shape.taps, self.shape.channels // self.shape.bundle
        rows = (
            [
                (c // size * taps + run.tap[0] * width + run.tap[1]) * size + c % size
                for run in each.runs
                for c in run.channels
            ]
            for each in self.passes
        )
        return [Along(K, as_coordinates(ks)) for ks in rows]

    def _columns(self, at: Columns, group: int) -> tuple[Along, ...]:
        """The output channels of a column fold, one a lane.

        In a bundle each begins where the rows of its own group do, so that what other rows ask of it the filter does
        not have: zero.
        """
        shape, own = self.shape, self._groups_of(at.channels)
        lane = (Along(OUT_CHANNEL, shifted(at.channels, group * shape.out_channels)),)
        if not any(own):
            return lane
        apart = -prod(shape.tensors.filter[1:])
        return (*lane, Along(K, tuple([apart * each for each in own])))

    def _groups_of(self, columns: range) -> list[int]:
        """The group in its bundle of each output channel."""
        size = self.shape.out_channels // self.shape.bundle
        return [column // size for column in columns] if self.shape.bundle > 1 else [0]

    @cached_property
    def _row_groups(self) -> list[Counter[int]]:
        """How many array rows of each pass every group of a bundle has."""
        size = self.shape.channels // self.shape.bundle
        return [Counter(c // size for run in each.runs for c in run.channels) for each in self.passes]
