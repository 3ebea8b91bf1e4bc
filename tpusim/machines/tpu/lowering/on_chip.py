"""The lowered matrix in the vector memories: its rows are written while the ifmap comes, and it never is in HBM."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.dense import Dense
from tpusim.machines.tpu.lowering.geometry import ConvShape
from tpusim.machines.tpu.lowering.reduction import Chunk


class OnChip(Dense):
    """K in the filter's order, R rows a pass. A lane has the points of one row of the lowered matrix a pass.

    An element of the ifmap comes from HBM once for all rows of a chunk that have it, and is written to each.
    """

    @property
    def by_tap(self) -> bool:
        """It always has."""
        return True

    @property
    def together(self) -> int:
        """All of it, or what fits."""
        return self.groups

    @property
    def per_fold(self) -> float:
        """Channels a pass of what comes once: outputs are as many points of it as their steps are long."""
        axes = self.shape.row, self.shape.col
        return self.shape.channels * prod(min(axis.step, axis.kernel * axis.tap_step) for axis in axes) / self.groups

    @property
    def stacked(self) -> str:
        """How the rows come about."""
        rows = f"{self.shape.taps * self.shape.channels:,} rows of the lowered matrix, {self.block_k} a pass"
        return f"{rows}, are written in the lanes while the ifmap comes"

    def chunks(self, groups: int, folds: int) -> tuple[Chunk, ...]:
        """`groups` passes at a time."""
        return tuple(replace(chunk, scattered=True) for chunk in super().chunks(groups, folds))


def cut(shape: ConvShape, hardware: Hardware) -> OnChip:
    """The lowered matrix of a convolution."""
    return OnChip(shape, hardware)
