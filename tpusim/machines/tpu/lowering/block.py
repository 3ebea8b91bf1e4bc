"""The parts that a plan goes through: blocks of the ofmap, patches of the ifmap, stages.

Beside them stand the ways to cut an extent, how the words of a lane hold a feature map, and how taps walk over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from math import prod

from tpusim.machines.tpu.lowering.geometry import ConvShape, InStrips
from tpusim.machines.tpu.lowering.reduction import Tap
from tpusim.machines.tpu.program.addresses import Counter, Counters, boxes_of
from tpusim.machines.tpu.program.tensor import Along, Coordinates, Part
from tpusim.memory.layout import Box

CHANNEL, ROW, COL, IMAGE = range(4)
"""The axes of a feature map."""


# ---- ways to cut an extent or a load


def growing(count: int, largest: int) -> list[range]:
    """Cut `range(count)` into pieces of 1, 1, 2, 4, ... up to `largest`: a short wait for the first pass."""
    cuts, at, size = [], 0, 1
    while at < count:
        cuts.append(range(at, min(at + size, count)))
        at = cuts[-1].stop
        size = min(largest, max(1, at))
    return cuts


def even(count: int, pieces: int) -> list[range]:
    """Cut `range(count)` into at most `pieces` nearly equal pieces."""
    pieces = max(1, min(pieces, count))
    return [range(i * count // pieces, (i + 1) * count // pieces) for i in range(pieces)]


def halves(count: int) -> list[int]:
    """`count`, and ever smaller numbers that cut it into even parts, down to 1."""
    return sorted({-(-count // (1 << n)) for n in range(count.bit_length() + 1)}, reverse=True)


def even_extents(extent: int) -> list[int]:
    """All distinct ceil(extent / n), ascending: extents that cut an axis into nearly equal parts."""
    parts, n = [extent], 1
    while parts[-1] > 1:
        n = -(-extent // (parts[-1] - 1))
        parts.append(-(-extent // n))
    return parts[::-1]


def portions(extent: int, size: int) -> list[range]:
    """`range(extent)` in portions of `size`, the last perhaps smaller."""
    return [range(at, min(at + size, extent)) for at in range(0, extent, size)]


# ---- blocks and patches


@dataclass(frozen=True)
class Block:
    """A rectangular part of the ofmap; of its words, row by row, those of `span` only where there is one."""

    rows: range
    cols: range
    groups: range
    span: range | None = None

    @property
    def words(self) -> int:
        """Words of one output channel."""
        return prod(self.sizes) if self.span is None else len(self.span)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns and word groups."""
        return len(self.rows), len(self.cols), len(self.groups)

    @property
    def rectangles(self) -> list[Block]:
        """What it consists of, in the order of its words: at most a part of a row, whole ones, a part of one."""
        if self.span is None:
            return [self]
        every = self.rows, self.cols, self.groups
        boxes = boxes_of(self.sizes, self.span)
        parts = ([all_[at.start : at.stop] for all_, at in zip(every, box, strict=True)] for box in boxes)
        return [Block(rows, cols, groups) for rows, cols, groups in parts]


@dataclass(frozen=True)
class Patch:
    """The ifmap grid points that a block needs for the taps of a chunk; under tap 0, where each tap has its own."""

    rows: range
    cols: range
    groups: range

    @property
    def words(self) -> int:
        """Words of one input channel."""
        return len(self.rows) * len(self.cols) * len(self.groups)

    def cut(self, pieces: int) -> list[Patch]:
        """Parts, `pieces` of them at most: by rows; of one row by columns; of one point by word groups."""
        name = next((name for name in ("rows", "cols") if len(getattr(self, name)) > 1), "groups")
        whole: range = getattr(self, name)
        return [replace(self, **{name: whole[part.start : part.stop]}) for part in even(len(whole), pieces)]

    def words_before(self, part: Patch) -> int:
        """Words ahead of a part that was cut."""
        rows = (part.rows.start - self.rows.start) // self.rows.step
        cols = (part.cols.start - self.cols.start) // self.cols.step
        return (rows * len(self.cols) + cols) * len(self.groups) + part.groups.start - self.groups.start


def span_of(every: tuple[int, int, int], words: range) -> tuple[range, range, range]:
    """The smallest rows, columns and word groups that hold words `words` of all, row by row."""
    boxes = boxes_of(every, words)
    rows, cols, groups = (
        range(min(box[axis].start for box in boxes), max(box[axis].stop for box in boxes)) for axis in range(3)
    )
    return rows, cols, groups


def spanning(every: tuple[int, int, int], words: range) -> Block:
    """The words `words` of all rows, columns and word groups: the smallest rectangle, and where in it they stand."""
    rows, cols, groups = span_of(every, words)
    row, rest = divmod(words.start, prod(every[1:]))
    col, group = divmod(rest, every[2])
    # Inside one row, or one pixel, the rectangle is narrower than all of them, and has the words one after another.
    first = ((row - rows.start) * len(cols) + col - cols.start) * len(groups) + group - groups.start
    return Block(rows, cols, groups, range(first, first + len(words)))


def blocks_of(shape: InStrips, groups: int, sizes: tuple[int, int, int]) -> list[Block]:
    """The outputs in blocks of `sizes` (rows, columns, word groups): word groups outside, then rows, then columns."""
    rows, cols, together = sizes
    return [
        Block(of_rows, of_cols, of_groups)
        for of_groups in portions(groups, together)
        for of_rows in portions(shape.row.extent, rows)
        for of_cols in portions(shape.col.extent, cols)
    ]


# ---- how the words of a lane hold a feature map, and taps walk over it


def map_items(
    shape: InStrips, word_fill: int, rows: range, cols: range, groups: range, apart: tuple[int, int]
) -> tuple[Along, ...]:
    """What one lane holds of a feature map: a word a grid point and group, of every strip and image in it.

    Strips lie `apart` (rows, cols) from one another; `word_fill` elements of a word are in use.
    """
    share = word_fill // shape.strips
    first_images = range(groups.start * share, groups.stop * share, share)
    strips = tuple(
        Along(axis, range(0, count * distance, distance))
        for axis, count, distance in ((ROW, shape.row.strips, apart[0]), (COL, shape.col.strips, apart[1]))
        if count > 1
    )
    return (Along(ROW, rows), Along(COL, cols), Along(IMAGE, first_images), *strips, Along(IMAGE, range(share)))


def map_part(
    shape: InStrips, fill: int, channels: Coordinates, part: Block | Patch, apart: tuple[int, int], base: int
) -> tuple[Part, Box]:
    """Ascending channels of rows, columns and word groups of a map, one a lane, from word `base` on; the box of it."""
    items = map_items(shape, fill, part.rows, part.cols, part.groups, apart)
    box = Box(range(channels[0], channels[-1] + 1), part.rows, part.cols, images_of(shape, fill, part.groups))
    return Part(base, (0,), (Along(CHANNEL, channels),), items, fill), box


def images_of(shape: InStrips, word_fill: int, groups: range) -> range:
    """The images in a range of word groups; strips share the one word of a pixel."""
    return range(min(groups.start * word_fill, shape.images), min(groups.stop * word_fill, shape.images))


def patch_of(shape: InStrips, block: Block) -> Patch:
    """What is filled of a map for all taps of a block."""
    row, col = shape.row, shape.col
    rows, cols = row.stored(block.rows, range(row.kernel)), col.stored(block.cols, range(col.kernel))
    return Patch(rows, cols, block.groups)


def taps_of(shape: ConvShape) -> tuple[Tap, ...]:
    """All taps in the order of the filter."""
    return tuple(product(range(shape.row.kernel), range(shape.col.kernel)))


def walk_of(shape: InStrips, tap: Tap, block: Block, patch: Patch, by_tap: bool) -> Counters:
    """The grid points on which a tap stands: rows, then columns, then the word groups of each (paper Fig. 11)."""
    groups, before, counters = len(block.groups), 0, []
    axes = (shape.row, block.rows, patch.rows, len(patch.cols) * groups), (shape.col, block.cols, patch.cols, groups)
    for (axis, outputs, grid, stride), number in zip(axes, tap, strict=True):
        if by_tap:
            # A tap that has lanes of its own: the words before its points, and these.
            real = axis.under(outputs, range(number, number + 1))
            before += (real.start - grid.start // axis.step) * stride
            counters.append(Counter(len(outputs), outputs.start - real.start, 1, len(real), stride))
        else:
            start = outputs.start * axis.step + axis.place(number) - grid.start
            counters.append(Counter(len(outputs), start, axis.step, len(grid), stride))
    return Counters(before, (*counters, Counter(groups, 0, 1, groups, 1)), block.span)


# ---- stages


@dataclass(frozen=True, slots=True)
class Columns:
    """What passes bring out of the columns of the array: a portion of the output channels, of one outcome."""

    channels: range
    outcome: int


@dataclass(frozen=True, slots=True)
class Section:
    """Passes of a chunk and an outcome, by number, whose weights share a filter buffer."""

    chunk: int
    numbers: range
    outcome: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The passes of one section for one channel group, block and column fold (of an outcome)."""

    group: int
    block: int
    fold: int
    section: int


def by_outcome(sections: Sequence[Section]) -> list[list[list[int]]]:
    """The numbers of the sections of each chunk, outcome by outcome."""
    chunks = [[*each] for _, each in groupby(range(len(sections)), lambda at: sections[at].chunk)]
    return [[[*each] for _, each in groupby(chunk, lambda at: sections[at].outcome)] for chunk in chunks]
