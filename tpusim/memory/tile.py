"""The tiles in which a memory has tensors, and what their padding takes."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple


class Tile(NamedTuple):
    """The tile of `rows` x `lanes` elements in which a memory has the two minor axes of every tensor, padded to whole
    tiles. An axis too short for all rows takes a tile of fewer: a power of two, of `least_bytes` or more.
    """

    rows: int = 1
    lanes: int = 1
    least_bytes: int = 1

    def bytes(self, shape: tuple[int, ...], bits: int) -> int:
        """Return the bytes of a tensor of 4 axes, its elements of `bits`, with the axes in the tiles that pad least.

        The first axis is in the lanes, beside any other, or the last beside the first: channels and images of a map,
        outputs and inputs of a filter. So the compiler of TPU v2 lays them, on all shapes that it was asked for. A
        tensor of one axis fills tiles row by row.
        """
        return -(-_elements(self, shape, bits) * bits // 8)

    def padded(self, rows: int, bits: int) -> int:
        """Return rows of elements of `bits` with the padding of their tiles."""
        least = max(1, 8 * self.least_bytes // (self.lanes * bits))
        tile = min(self.rows, max(least, 1 << (rows - 1).bit_length()))
        return -(-rows // tile) * tile


# Networks have many tensors of few shapes.
@lru_cache(maxsize=1 << 12)
def _elements(tile: Tile, shape: tuple[int, ...], bits: int) -> int:
    """Elements of a tensor in whole tiles."""
    count = prod(shape)
    if tile.rows == tile.lanes == 1:
        return count
    if max(shape) == count:
        return tile.padded(-(-count // tile.lanes), bits) * tile.lanes
    last = len(shape) - 1
    return min(
        -(-shape[lane] // tile.lanes) * tile.lanes
        * tile.padded(shape[row], bits)
        * prod(size for at, size in enumerate(shape) if at not in (lane, row))
        for lane, row in (*((0, row) for row in range(1, last + 1)), (last, 0))
    )  # fmt: skip
