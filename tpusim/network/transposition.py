"""A transposition of any number of axes, as one of the axes of a map."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from tpusim.network.ops.moves import AXES

_FIRST = "images", "channels", "height", "width"
_LAST = {1: ("channels",), 2: ("images", "channels"), 3: ("images", "height", "channels"),
         4: ("images", "height", "width", "channels")}  # fmt: skip
"""By how many axes there are."""


class Transposition(NamedTuple):
    """What is transposed, as a map.

    Attributes:
        axes: the name of each axis in order, axes that stay together taken as one; those of the result are the same.
        sizes: how long each is.
        order: for channels, height, width and images of the result the axis of the map that is read.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    order: tuple[str, ...]

    def size(self, axis: str) -> int:
        """How long an axis of the map is."""
        return self.sizes[self.axes.index(axis)] if axis in self.axes else 1


def transposition(shape: Sequence[int], order: Sequence[int], channels_first: bool) -> Transposition | None:
    """A value of that shape with its axes in another order; None where a map has too few axes for it.

    Axes are images, channels, height and width where channels come first, else images, height, width and channels.
    """
    together = _together(order) if len(order) > len(AXES) else [[axis] for axis in order]
    inner = sorted(together)
    if len(inner) > len(AXES):
        return None
    names = _FIRST[: len(inner)] if channels_first else _LAST[len(inner)]
    read = dict(zip(names, (names[inner.index(each)] for each in together), strict=True))
    sizes = tuple(prod(shape[axis] for axis in each) for each in inner)
    return Transposition(names, sizes, tuple(read.get(axis, axis) for axis in AXES))


def stays(shape: Sequence[int], order: Sequence[int]) -> bool:
    """Whether elements keep their order, whatever the number of images, which axis 0 may be."""
    moved = [axis for axis in order if shape[axis] != 1 or axis == 0]
    return moved == sorted(moved)


def _together(order: Sequence[int]) -> list[list[int]]:
    """Axes that stay neighbours; the first may be the images, and stays alone."""
    runs: list[list[int]] = []
    for axis in order:
        if runs and runs[-1][-1] == axis - 1 != 0:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs
