"""Launching the channel-first convolution on a real GPU, or in Triton's interpreter on a processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.imports import need
from tpusim.network.ops.array_op import Conv2d

ORDERS = ("taps_outside", "channels_outside")
"""The outer of the two loops over k-steps; the paper calls the second reordered."""
MOST_ELEMENTS = 2**31 - 1
"""Most elements of a tensor, as addresses are whole numbers of 32 bits."""


class KernelTile(NamedTuple):
    """The work of a block of threads.

    Attributes:
        pixels: of the ofmap, one after another by image, row and column.
        out_channels: of each.
        channels: of the ifmap in a k-step, all of one tap.
        warps: of threads in a block.
        stages: k-steps whose loads are under way at once.
    """

    pixels: int = 128
    out_channels: int = 128
    channels: int = 32
    warps: int = 8
    stages: int = 3


TILE = KernelTile()


class DeviceTensor(Protocol):
    """A tensor that Triton takes, such as one of PyTorch: contiguous, on the GPU that is to work."""

    @property
    def shape(self) -> Sequence[int]: ...

    def data_ptr(self) -> int:
        """Return the address of its first element."""


def shapes(layer: Conv2d, batch: int) -> Mapping[str, tuple[int, int, int, int]]:
    """Return shapes of the tensors: the ifmap and the ofmap as NHWC, the filter as its taps, C_I, C_O."""
    return {
        "ifmap": (batch, layer.in_height, layer.in_width, layer.in_channels),
        "filters": (*layer.kernel, layer.in_channels, layer.out_channels),
        "ofmap": (batch, layer.out_height, layer.out_width, layer.out_channels),
    }


def convolve(
    layer: Conv2d,
    ifmap: DeviceTensor,
    filters: DeviceTensor,
    ofmap: DeviceTensor,
    order: str = ORDERS[1],
    tile: KernelTile = TILE,
) -> None:
    """Write the ofmap of a layer; sums are of float32, whatever the tensors hold.

    Raises:
        InputError: an unknown order, a grouped convolution, tensors of other shapes than `shapes` or too large, or
            Triton is not installed.
    """
    if order not in ORDERS:
        raise InputError(f"unknown order {order!r}{did_you_mean(order, ORDERS)}; there is {', '.join(ORDERS)}")
    if layer.groups > 1:
        raise InputError(f"layer {layer.name}: has {layer.groups} groups, and the kernel is for layers of one")
    tensors = {"ifmap": ifmap, "filters": filters, "ofmap": ofmap}
    for name, wanted in shapes(layer, ifmap.shape[0]).items():
        if (found := tuple(tensors[name].shape)) != wanted:
            raise InputError(f"layer {layer.name}: its {name} is {found}, and should be {wanted}")
        if prod(wanted) > MOST_ELEMENTS:
            raise InputError(f"layer {layer.name}: its {name} has over {MOST_ELEMENTS:,} elements; take fewer images")
    need("a kernel on a GPU", "Triton", "triton")
    from tpusim.kernels.triton_convolution import convolution

    batch, (rows, cols) = ifmap.shape[0], layer.pads
    pixels = batch * layer.out_height * layer.out_width
    grid = -(-pixels // tile.pixels), -(-layer.out_channels // tile.out_channels)
    launch: Any = convolution[grid]
    launch(
        ifmap, filters, ofmap,
        batch, layer.in_height, layer.in_width, layer.in_channels, layer.out_height, layer.out_width,
        layer.out_channels, *layer.stride, *layer.dilation, rows[0], cols[0],
        KERNEL_ROWS=layer.kernel[0], KERNEL_COLS=layer.kernel[1], CHANNELS_OUTSIDE=order == ORDERS[1],
        BLOCK_M=tile.pixels, BLOCK_N=tile.out_channels, BLOCK_K=tile.channels,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
