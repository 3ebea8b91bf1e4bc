"""Ops over channels in independent groups, with a kernel that moves over a map: what they have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Self, TypeAlias

from tpusim.base.errors import Problem
from tpusim.base.words import counted
from tpusim.input.form import pair, whole
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.ops.op import MOST_CHANNELS

Sides: TypeAlias = tuple[int, int]
"""Of rows and of columns."""

MOST_SIDE = 2**16
"""The largest extent of a map, and of what moves over it."""
Size: TypeAlias = Annotated[int, whole(MOST_SIDE)]
Channels: TypeAlias = Annotated[int, whole(MOST_CHANNELS)]
Steps: TypeAlias = Annotated[Sides, pair(MOST_SIDE)]


class GroupedOp(ArrayOp):
    """Such an op; the channels of both maps are divided among its groups."""

    __slots__ = ()

    in_channels: int
    out_channels: int
    groups: int

    @property
    def folded(self) -> tuple[str, str]:
        into, out = self.in_channels // self.groups, self.out_channels // self.groups
        return counted(into, "input channel"), counted(out, "output channel")

    def filled(self, rows: int, cols: int) -> tuple[Self, str]:
        """Each group has channels for every row and column."""
        into, out = (
            self.groups * -(-channels // self.groups // side) * side
            for channels, side in ((self.in_channels, rows), (self.out_channels, cols))
        )
        return replace(self, in_channels=into, out_channels=out), f"in_channels={into} out_channels={out}"

    def _group_problems(self) -> Iterator[Problem]:
        for key in ("in_channels", "out_channels"):
            if getattr(self, key) % self.groups:
                sizes = f"groups {self.groups} does not divide {key} {getattr(self, key)}"
                yield Problem(f"{sizes}; choose a divisor of both channel counts", "groups")


def short(sides: Sides) -> str:
    """ "3", or "3x5" where rows and columns differ."""
    return f"{sides[0]}" if sides[0] == sides[1] else f"{sides[0]}x{sides[1]}"
