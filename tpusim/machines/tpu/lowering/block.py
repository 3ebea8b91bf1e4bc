"""The parts of the ofmap that are computed at a time, and what each needs of the ifmap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tpusim.machines.tpu.lowering.cuts import even
from tpusim.machines.tpu.lowering.tiling import span_of
from tpusim.machines.tpu.program.addresses import boxes_of


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
        return len(self.rows) * len(self.cols) * len(self.groups) if self.span is None else len(self.span)

    @property
    def rectangles(self) -> list[Block]:
        """What it consists of, in the order of its words: at most a part of a row, whole ones, a part of one."""
        if self.span is None:
            return [self]
        every = self.rows, self.cols, self.groups
        boxes = boxes_of(tuple(map(len, every)), self.span)
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
        """Into at most so many: by rows; one row by columns; one point by word groups."""
        name = next((name for name in ("rows", "cols") if len(getattr(self, name)) > 1), "groups")
        return [
            replace(self, **{name: getattr(self, name)[part.start : part.stop]})
            for part in even(len(getattr(self, name)), pieces)
        ]

    def words_before(self, part: Patch) -> int:
        """Words ahead of a part that was cut."""
        rows, cols = (
            (inner.start - outer.start) // outer.step
            for inner, outer in ((part.rows, self.rows), (part.cols, self.cols))
        )
        return (rows * len(self.cols) + cols) * len(self.groups) + part.groups.start - self.groups.start


def spanning(every: tuple[int, int, int], words: range) -> Block:
    """The words `words` of all rows, columns and word groups: the smallest rectangle, and where in it they stand."""
    rows, cols, groups = span_of(every, words)
    row, rest = divmod(words.start, prod(every[1:]))
    col, group = divmod(rest, every[2])
    # Inside one row, or one pixel, the rectangle is narrower than all of them, and has the words one after another.
    first = ((row - rows.start) * len(cols) + col - cols.start) * len(groups) + group - groups.start
    return Block(rows, cols, groups, range(first, first + len(words)))
