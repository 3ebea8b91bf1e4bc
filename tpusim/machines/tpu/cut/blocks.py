"""Axes of feature maps, ways to cut an extent, and rectangles: blocks of the outputs, patches of what they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import NamedTuple, TypeVar

from tpusim.machines.tpu.program.addresses import boxes_of
from tpusim.machines.tpu.program.transfers import Coordinates

T = TypeVar("T")

CHANNEL, ROW, COL, IMAGE = range(4)
"""Axes of a feature map."""


# ---- ways to cut an extent or a load


def word_groups(images: int, word_elements: int) -> tuple[int, int]:
    """(words of a pixel, elements used of a word): images are spread evenly over the fewest words that hold them."""
    groups = -(-images // word_elements)
    return groups, -(-images // groups)


@lru_cache(maxsize=1 << 10)
def growing(count: int, largest: int) -> tuple[range, ...]:
    """Cut `range(count)` into pieces of 1, 1, 2, 4, ... up to `largest`, so that the first pass need not wait long."""
    cuts, at, size = list[range](), 0, 1
    while at < count:
        cuts.append(range(at, min(at + size, count)))
        at = cuts[-1].stop
        size = min(largest, max(1, at))
    return tuple(cuts)


@lru_cache(maxsize=1 << 10)
def even(count: int, pieces: int) -> tuple[range, ...]:
    """Cut `range(count)` into at most `pieces` nearly equal pieces."""
    pieces = max(1, min(pieces, count))
    return tuple([range(i * count // pieces, (i + 1) * count // pieces) for i in range(pieces)])


def halves(count: int) -> list[int]:
    """`count`, and ever smaller numbers that cut it into even parts, down to 1."""
    return sorted({-(-count // (1 << n)) for n in range(count.bit_length() + 1)}, reverse=True)


def even_extents(extent: int) -> list[int]:
    """All distinct ceil(extent / n), ascending: extents that cut an axis into nearly equal parts."""
    parts, n = [extent], 1
    while parts[-1] > 1:
        # The next smaller extent is the one with the fewest parts that are all below this one.
        n = -(-extent // (parts[-1] - 1))
        parts.append(-(-extent // n))
    return parts[::-1]


def portions(extent: int, most: int, part: int | None = None) -> list[range]:
    """`range(extent)` in portions of at most `most`, none of which crosses a border between two `part`s."""
    part = part or extent
    return [
        range(at, min(at + most, start + part, extent))
        for start in range(0, extent, part or 1)
        for at in range(start, min(start + part, extent), most)
    ]


def padded(count: int, multiple: int) -> int:
    """`count` rounded up to a multiple."""
    return -(-count // multiple) * multiple


def neighbours(ascending: Sequence[int]) -> list[range]:
    """Ranges of consecutive numbers, from ascending numbers."""
    starts = [at for at, number in enumerate(ascending) if at == 0 or ascending[at - 1] != number - 1]
    ends = [*starts[1:], len(ascending)]
    return [range(ascending[start], ascending[end - 1] + 1) for start, end in zip(starts, ends, strict=True)]


def alike(numbers: range, key: Callable[[int], T]) -> list[tuple[range, T]]:
    """Ranges of neighbouring numbers with equal keys, and their keys."""
    runs = groupby(numbers, key)
    return [(range((held := [*mine])[0], held[-1] + 1), of) for of, mine in runs]


def as_coordinates(values: Sequence[int]) -> Coordinates:
    """Coordinates as a range if they are consecutive, since a range is smaller than a table; else as a tuple."""
    together = range(values[0], values[0] + len(values))
    return together if [*values] == [*together] else tuple(values)


# ---- rectangles


class Block(NamedTuple):
    """A rectangular part of the ofmap; with a `span`, only these of its words, counted row by row."""

    rows: range
    cols: range
    groups: range
    span: range | None = None

    @property
    def words(self) -> int:
        """Words of one output channel."""
        return len(self.rows) * len(self.cols) * len(self.groups) if self.span is None else len(self.span)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns and word groups."""
        return len(self.rows), len(self.cols), len(self.groups)

    @property
    def rectangles(self) -> list[Block]:
        """The rectangles that make up the block, in the order of its words: part of a row, whole rows, part
        of a row.
        """
        if self.span is None:
            return [self]
        every = self.rows, self.cols, self.groups
        boxes = boxes_of(self.sizes, self.span)
        parts = ([all_[at.start : at.stop] for all_, at in zip(every, box, strict=True)] for box in boxes)
        return [Block(rows, cols, groups) for rows, cols, groups in parts]


class Patch(NamedTuple):
    """The grid points of the ifmap that a block needs for the taps of a chunk; for tap 0 if each tap has points of its
    own.
    """

    rows: range
    cols: range
    groups: range

    @property
    def words(self) -> int:
        """Words of one input channel."""
        return len(self.rows) * len(self.cols) * len(self.groups)

    def cut(self, pieces: int) -> list[Patch]:
        """Parts, `pieces` of them at most: cut by rows, a single row by columns, a single point by word groups."""
        name = next((name for name in ("rows", "cols") if len(getattr(self, name)) > 1), "groups")
        whole: range = getattr(self, name)
        return [self._replace(**{name: whole[part.start : part.stop]}) for part in even(len(whole), pieces)]

    def words_before(self, part: Patch) -> int:
        """Words ahead of a part of the patch."""
        rows = (part.rows.start - self.rows.start) // self.rows.step
        cols = (part.cols.start - self.cols.start) // self.cols.step
        return (rows * len(self.cols) + cols) * len(self.groups) + part.groups.start - self.groups.start


def spanning(every: tuple[int, int, int], words: range) -> Block:
    """The block of words `words` of all rows, columns and word groups: the smallest rectangle, with its span."""
    boxes = boxes_of(every, words)
    rows, cols, groups = (
        range(min(box[axis].start for box in boxes), max(box[axis].stop for box in boxes)) for axis in range(3)
    )
    row, rest = divmod(words.start, prod(every[1:]))
    col, group = divmod(rest, every[2])
    # Words inside one row, or one pixel, are consecutive in the narrower rectangle as well.
    first = ((row - rows.start) * len(cols) + col - cols.start) * len(groups) + group - groups.start
    return Block(rows, cols, groups, range(first, first + len(words)))
