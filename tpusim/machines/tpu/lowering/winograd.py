"""Convolutions of 3 x 3 taps by minimal filtering (Winograd; Lavin and Gray)."""

from __future__ import annotations

from functools import partial

from tpusim.base.errors import UnsuitableError
from tpusim.machines.tpu.lowering import tile_lowering
from tpusim.machines.tpu.lowering.minimal_filtering import TAPS, MinimalFiltering
from tpusim.machines.tpu.lowering.tile_algorithm import TileAlgorithm
from tpusim.machines.tpu.lowering.tile_lowering import Functions, told
from tpusim.network.ops.conv2d import Conv2d


def of(by: MinimalFiltering) -> Functions:
    """The lowering by some F(m x m, 3 x 3)."""
    return tile_lowering.of(partial(tiles_of, by))


def tiles_of(by: MinimalFiltering, conv: Conv2d) -> TileAlgorithm:
    """Those of a convolution of 3 x 3 taps, stride 1 and one channel group; raises UnsuitableError for others."""
    if (conv.kernel, conv.stride, conv.dilation, conv.groups) != ((TAPS, TAPS), (1, 1), (1, 1), 1):
        takes = (
            f"{by.tiles.name} takes convolutions of {TAPS} x {TAPS} taps, stride 1, dilation 1 and one channel group"
        )
        raise UnsuitableError(f"{takes}; this one has {told(conv)}")
    return by.tiles
