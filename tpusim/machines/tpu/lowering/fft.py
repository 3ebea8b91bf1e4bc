"""Convolutions by fast Fourier transforms, in tiles of 16 x 16 elements of the ifmap: large kernels."""

from __future__ import annotations

from functools import partial

from tpusim.base.errors import UnsuitableError
from tpusim.machines.tpu.lowering.fourier_tiles import fourier_tiles
from tpusim.machines.tpu.lowering.tile_algorithm import TileAlgorithm
from tpusim.machines.tpu.lowering.tile_lowering import in_tiles, told
from tpusim.network.ops.conv2d import Conv2d

LENGTH = 16


def tiles_of(length: int, conv: Conv2d) -> TileAlgorithm:
    """Those of a convolution of stride 1 and one channel group, of whose outputs a tile has two each way at least.

    Nor is there anything to gain of a single tap.

    Raises UnsuitableError for others.
    """
    steps = conv.stride, conv.dilation, conv.groups
    if not 1 < max(conv.kernel) < length or steps != ((1, 1), (1, 1), 1):
        takes = f"FFT of {length} x {length} takes convolutions of 2 to {length - 1} x {length - 1} taps, stride 1, "
        raise UnsuitableError(f"{takes}dilation 1 and one channel group; this one has {told(conv)}")
    return fourier_tiles(length, conv.kernel)


FFT = in_tiles(
    "fft",
    "large kernels by Fourier transforms, in tiles of 16x16: the vector unit transforms, the array multiplies",
    partial(tiles_of, LENGTH),
)
