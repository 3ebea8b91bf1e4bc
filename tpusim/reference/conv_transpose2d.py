"""The transposed 2-D convolution, straight from its definition: every tap scatters the ifmap over the ofmap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tpusim.network.ops.conv_transpose2d import ConvTranspose2d
from tpusim.reference.operands import Operand, Operands, Tensor, number_of

_Box = tuple[range, range, range, range]
_Places = NDArray[np.int64]


def compute(layer: ConvTranspose2d, operands: Operands, box: _Box) -> Tensor:
    """out[o, y*s+i*d-p, x*s+j*d-p, n] += filter[o, i, j, c] * ifmap[c, y, x, n], group by group, in `box`.

    Rows and columns of the box may be strided.
    """
    ifmap, filter_ = operands["ifmap"], operands["filter"]
    channels, rows, cols, images = box
    outputs = np.zeros([len(part) for part in box], number_of(ifmap, filter_))
    size, into = layer.out_channels // layer.groups, layer.in_channels // layer.groups
    batch = slice(images.start, images.stop)
    for group in range(channels.start // size, (channels.stop - 1) // size + 1):
        mine = range(max(channels.start, group * size), min(channels.stop, (group + 1) * size))
        weights = filter_[mine.start : mine.stop].astype(outputs.dtype)
        source = ifmap[group * into : (group + 1) * into, ..., batch]
        place = outputs[mine.start - channels.start : mine.stop - channels.start]
        _scatter(layer, source, weights, (rows, cols), place)
    return outputs


def _scatter(
    layer: ConvTranspose2d, source: Operand, weights: Tensor, box: tuple[range, range], outputs: Tensor
) -> None:
    """Tap by tap, all elements of the ifmap that it brings into the box."""
    height, width = layer.kernel
    downwards = [_landing(layer, 0, tap, box[0]) for tap in range(height)]
    across = [_landing(layer, 1, tap, box[1]) for tap in range(width)]
    for i in range(height):
        from_rows, to_rows = downwards[i]
        for j in range(width):
            from_cols, to_cols = across[j]
            if len(from_rows) and len(from_cols):
                elements = source[:, from_rows[:, None], from_cols].astype(outputs.dtype)
                added = weights[:, i, j] @ elements.reshape(len(elements), -1)
                shape = len(weights), len(from_rows), len(from_cols), elements.shape[-1]
                outputs[:, to_rows[:, None], to_cols] += added.reshape(shape)


def _landing(layer: ConvTranspose2d, axis: int, tap: int, wanted: range) -> tuple[_Places, _Places]:
    """The rows (or columns) of the ifmap that a tap brings to one of those `wanted`, and to which of them."""
    size = (layer.in_height, layer.in_width)[axis]
    shift = tap * layer.dilation[axis] - layer.padding[axis]
    every = np.arange(size)
    lands = every * layer.stride[axis] + shift
    inside = (lands >= wanted.start) & (lands < wanted.stop) & ((lands - wanted.start) % wanted.step == 0)
    return every[inside], (lands[inside] - wanted.start) // wanted.step
