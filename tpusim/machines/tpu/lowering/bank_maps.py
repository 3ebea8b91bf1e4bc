"""Every way to lay a patch of the ifmap out in banks, by its name. A new one is a function and a line here.

A word's address is the sum of one offset for each of its coordinates; it stands in bank address % banks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import count
from typing import NamedTuple, TypeAlias

import numpy as np

from tpusim.machines.tpu.lowering.geometry import MapAxis, padded


class Spacing(NamedTuple):
    """Positions along an axis, `stride` words apart; after every `wrap` of them come `jump` words more."""

    stride: int
    wrap: int = 1
    jump: int = 0

    def offsets(self, positions: range) -> tuple[int, ...]:
        """Words from position 0 to each."""
        return tuple(at * self.stride + at // self.wrap * self.jump for at in positions)


class PatchExtents(NamedTuple):
    """What is to be laid out, and how it is read.

    Attributes:
        channels, rows, cols, groups: of the patch: channels, grid points of either axis, word groups of each.
        together: neighbouring channels that a word of a pass is made of.
        row, col: the axes, whose taps are read at once.
    """

    channels: int
    rows: int
    cols: int
    groups: int
    together: int
    row: MapAxis
    col: MapAxis


class BankMap(NamedTuple):
    """Where each word stands: the sum of what its channel, row, column and word group are apart from the first.

    `words` are the addresses in use, gaps among them included.
    """

    channel: Spacing
    row: Spacing
    col: Spacing
    group: Spacing
    words: int


MapMaker: TypeAlias = Callable[[PatchExtents, int], BankMap]
"""From what is wanted and the number of banks."""


def chw(wanted: PatchExtents, banks: int) -> BankMap:
    """One channel after another, in each row after row."""
    channels, rows, cols, groups = wanted[:4]
    channel, row = rows * cols * groups, cols * groups
    return BankMap(Spacing(channel), Spacing(row), Spacing(groups), Spacing(1), channels * channel)


def hwc(wanted: PatchExtents, banks: int) -> BankMap:
    """One pixel after another, in each channel after channel."""
    channels, rows, cols, groups = wanted[:4]
    row, col = cols * groups * channels, groups * channels
    return BankMap(Spacing(1), Spacing(row), Spacing(col), Spacing(channels), rows * row)


def window(wanted: PatchExtents, banks: int) -> BankMap:
    """The words that are read at once stand in different banks, wherever the window stands.

    The patch is cut into cells, in which each channel's points are neighbours and channels follow one another: bank
    (height width c + width (h mod height) + (w mod width)) mod banks. A cell takes whole lines of all banks, and no two
    taps of a window have the same place in theirs. Of such cells the one that wastes the fewest words is taken.
    """
    most = max(1, banks // wanted.together)
    height, width = np.array(_apart(wanted.row, most))[:, None], np.array(_apart(wanted.col, most))
    cells = -(-wanted.rows // height) * -(-wanted.cols // width)
    words = cells * padded(height * width * wanted.channels * wanted.groups, banks)
    # The least cell is taken where none has room.
    fits = height * width <= max(most, int(height[0, 0] * width[0]))
    row, col = divmod(int(np.where(fits, words, words.max() + 1).argmin()), len(width))
    return _in_cells(wanted, banks, int(height[row, 0]), int(width[col]))


@lru_cache(maxsize=1024)
def _apart(axis: MapAxis, most: int) -> list[int]:
    """Lengths of a cell, ascending, in which no two taps have the same place: the least, and others up to `most`."""
    # Taps that span fewer points than a cell is long are apart in it.
    least = next(length for length in count(axis.kernel) if _tells_apart(axis, length))
    return [least, *(length for length in range(least + 1, most + 1) if _tells_apart(axis, length))]


def _tells_apart(axis: MapAxis, length: int) -> bool:
    return len({tap * axis.tap_step % length for tap in range(axis.kernel)}) == axis.kernel


def _in_cells(wanted: PatchExtents, banks: int, height: int, width: int) -> BankMap:
    points = height * width
    group = points * wanted.channels
    cell = padded(group * wanted.groups, banks)
    down, across = -(-wanted.rows // height), -(-wanted.cols // width)
    return BankMap(
        channel=Spacing(points),
        row=Spacing(width, height, across * cell - points),
        col=Spacing(1, width, cell - width),
        group=Spacing(group),
        words=down * across * cell,
    )


MAPS: dict[str, MapMaker] = {"window": window, "chw": chw, "hwc": hwc}
