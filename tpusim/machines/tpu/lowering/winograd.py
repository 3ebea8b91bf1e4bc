"""Convolutions of 3 x 3 taps by minimal filtering (Winograd; Lavin and Gray)."""

from __future__ import annotations

from functools import partial

from tpusim.base.errors import UnsuitableError
from tpusim.machines.tpu.lowering.minimal_filtering import F2, F4, TAPS, MinimalFiltering
from tpusim.machines.tpu.lowering.tile_algorithm import TileAlgorithm
from tpusim.machines.tpu.lowering.tile_lowering import in_tiles, told
from tpusim.network.ops.conv2d import Conv2d


def tiles_of(by: MinimalFiltering, conv: Conv2d) -> TileAlgorithm:
    """Those of a convolution of 3 x 3 taps, stride 1 and one channel group; raises UnsuitableError for others."""
    if (conv.kernel, conv.stride, conv.dilation, conv.groups) != ((TAPS, TAPS), (1, 1), (1, 1), 1):
        takes = (
            f"{by.tiles.name} takes convolutions of {TAPS} x {TAPS} taps, stride 1, dilation 1 and one channel group"
        )
        raise UnsuitableError(f"{takes}; this one has {told(conv)}")
    return by.tiles


WINOGRAD_2 = in_tiles(
    "winograd_2",
    "3x3 convolutions in 2x2 tiles: the vector unit transforms, the array has 2.25 times fewer products",
    partial(tiles_of, F2),
)
WINOGRAD_4 = in_tiles(
    "winograd_4",
    "the same in 4x4 tiles: 4 times fewer products, and more to transform",
    partial(tiles_of, F4),
)
