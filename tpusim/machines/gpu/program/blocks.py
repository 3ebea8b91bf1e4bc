"""Which outputs a block makes: neighbours of the whole batch in order, or boxes of images, rows and columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Outputs = NDArray[np.int64]
"""Positions in [image, row, col], flat, [block, row of the tile]; -1 where a row of the tile has none."""


@dataclass(frozen=True)
class InOrder:
    """Tiles of `rows` outputs, one after another, of so many `outputs`."""

    outputs: int
    rows: int

    @property
    def count(self) -> int:
        """Tiles."""
        return -(-self.outputs // self.rows)

    def places(self, first: int, stop: int) -> Outputs:
        """What the tiles from `first` to before `stop` make."""
        at = np.arange(first * self.rows, stop * self.rows, dtype=np.int64)
        return np.where(at < self.outputs, at, -1).reshape(-1, self.rows)


@dataclass(frozen=True)
class Boxes:
    """Tiles of `box` = images, rows and columns, of a map of so many each (`extent`)."""

    extent: tuple[int, int, int]
    box: tuple[int, int, int]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Tiles along images, rows and columns."""
        images, rows, cols = (-(-size // side) for size, side in zip(self.extent, self.box, strict=True))
        return images, rows, cols

    @property
    def count(self) -> int:
        """Tiles."""
        images, rows, cols = self.counts
        return images * rows * cols

    def corners(self, first: int, stop: int) -> NDArray[np.int64]:
        """The first image, row and column of the tiles from `first` to before `stop`, [tile, 3]."""
        at = np.stack(np.unravel_index(np.arange(first, stop), self.counts), axis=1)
        return np.asarray(at * self.box, np.int64)

    def places(self, first: int, stop: int) -> Outputs:
        """What they make."""
        inside = np.stack(np.meshgrid(*map(np.arange, self.box), indexing="ij"), axis=-1).reshape(1, -1, 3)
        at = self.corners(first, stop)[:, None] + inside
        there = (at < np.array(self.extent)).all(axis=-1)
        return np.where(there, np.ravel_multi_index(tuple(np.moveaxis(at, -1, 0)), self.extent, mode="clip"), -1)

    def shapes(self) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """How many tiles there are of each shape: those at the ends may be smaller."""
        axes = [_sides(size, side) for size, side in zip(self.extent, self.box, strict=True)]
        for (some, images), (more, rows), (most, cols) in product(*axes):
            yield some * more * most, (images, rows, cols)


Blocks = InOrder | Boxes


def _sides(size: int, side: int) -> list[tuple[int, int]]:
    whole, rest = divmod(size, side)
    return [each for each in ((whole, side), (1, rest)) if all(each)]
