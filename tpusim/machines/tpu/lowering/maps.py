"""How the words of a lane hold a feature map, and the blocks that it comes in."""

from __future__ import annotations

from tpusim.machines.tpu.lowering.block import Block
from tpusim.machines.tpu.lowering.geometry import InStrips
from tpusim.machines.tpu.program.tensor import Along

CHANNEL, ROW, COL, IMAGE = range(4)
"""The axes of a feature map."""


def portions(extent: int, size: int) -> list[range]:
    """`range(extent)` in portions of `size`, the last perhaps smaller."""
    return [range(at, min(at + size, extent)) for at in range(0, extent, size)]


def blocks_of(shape: InStrips, groups: int, sizes: tuple[int, int, int]) -> list[Block]:
    """The outputs in blocks of so many rows, columns and word groups: word groups outside, then rows, then columns."""
    rows, cols, together = sizes
    return [
        Block(of_rows, of_cols, of_groups)
        for of_groups in portions(groups, together)
        for of_rows in portions(shape.row.extent, rows)
        for of_cols in portions(shape.col.extent, cols)
    ]


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


def images_of(shape: InStrips, word_fill: int, groups: range) -> range:
    """The images in a range of word groups; strips share the one word of a pixel."""
    return range(min(groups.start * word_fill, shape.images), min(groups.stop * word_fill, shape.images))
