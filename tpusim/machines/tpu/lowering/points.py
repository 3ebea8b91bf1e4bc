"""Grid points of the ifmap that blocks of the outputs need, axis by axis, for whoever asks about many blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tpusim.machines.tpu.lowering.geometry import ConvShape, MapAxis
from tpusim.machines.tpu.lowering.reduction import Chunk
from tpusim.machines.tpu.lowering.tiling import Counts, Tiling
from tpusim.memory.layout import inside

_Counting: TypeAlias = Callable[[MapAxis, int, range], int]
"""Of an axis, from the size of its blocks and the taps."""


class Points:
    """What blocks need for the taps of a chunk: points by rows times points by columns, each worked out once."""

    def __init__(self, shape: ConvShape, chunk: Chunk) -> None:
        self._axes = (shape.row, chunk.tap_rows), (shape.col, chunk.tap_cols)
        self._known: dict[tuple[_Counting, int, bytes], Counts] = {}

    @property
    def touched(self) -> int:
        """Coordinates of the ifmap on which some tap stands, whatever the blocks."""
        row, col = (_touched(axis, taps) for axis, taps in self._axes)
        return row * col

    def brought(self, tilings: Tiling[Counts]) -> Counts:
        """Those that come from HBM for all blocks, in every strip."""
        return self._looked_up(_brought, tilings)

    def needing(self, tilings: Tiling[Counts]) -> Counts:
        """Blocks that need any."""
        return self._looked_up(_needing, tilings)

    def first(self, tilings: Tiling[Counts]) -> Counts:
        """Those of the first block."""
        return self._looked_up(_first, tilings)

    def _looked_up(self, counting: _Counting, tilings: Tiling[Counts]) -> Counts:
        by_rows, by_cols = (self._by_size(counting, at, (tilings.rows, tilings.cols)[at]) for at in range(2))
        return by_rows * by_cols

    def _by_size(self, counting: _Counting, at: int, sizes: Counts) -> Counts:
        """The same blocks come in many ways."""
        key = counting, at, sizes.tobytes()
        if key not in self._known:
            (axis, taps), (different, where) = self._axes[at], np.unique(sizes, return_inverse=True)
            counts = [counting(axis, size, taps) for size in different.tolist()]
            self._known[key] = np.array(counts, dtype=np.int64)[where]
        return self._known[key]


def _in_blocks(axis: MapAxis, size: int, taps: range) -> list[range]:
    """Grid points that blocks of so many outputs need, block by block."""
    starts = range(0, axis.extent, size)
    return [axis.stored(range(at, min(at + size, axis.extent)), taps) for at in starts]


def _brought(axis: MapAxis, size: int, taps: range) -> int:
    apart, blocks = axis.extent * axis.stride, [axis.coordinates(each) for each in _in_blocks(axis, size, taps)]
    return sum(len(inside(each, strip * apart, axis.size)) for each in blocks for strip in range(axis.strips))


def _needing(axis: MapAxis, size: int, taps: range) -> int:
    return sum(len(each) > 0 for each in _in_blocks(axis, size, taps))


def _first(axis: MapAxis, size: int, taps: range) -> int:
    return len(axis.stored(range(size), taps))


def _touched(axis: MapAxis, taps: range) -> int:
    stands = {out * axis.stride + tap * axis.dilation - axis.padding[0] for out in range(axis.outputs) for tap in taps}
    return len(stands & {*range(axis.size)})
