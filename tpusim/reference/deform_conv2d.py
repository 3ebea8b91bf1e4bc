"""The deformable 2-D convolution, straight from its definition: each tap samples the ifmap between its elements."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tpusim.network.ops.deform_conv2d import MASK_PARTS, DeformConv2d, Offsets
from tpusim.reference.operands import Operand, Operands, Tensor, number_of

_Box = tuple[range, range, range, range]
_Places = NDArray[np.float64]


def compute(layer: DeformConv2d, operands: Operands, box: _Box) -> Tensor:
    """out[o, y, x, n] = sum over c, i, j of filter[o, i, j, c] * mask * sample, group by group, in `box`.

    A sample is what the ifmap [c, :, :, n] has at (y*s+i*d-p + down, ...), bilinearly; all around it is zero.
    """
    ifmap, filter_ = operands["ifmap"], operands["filter"]
    channels, rows, cols, images = box
    outputs = np.zeros([len(part) for part in box], number_of(ifmap, filter_))
    size, into = layer.out_channels // layer.groups, layer.in_channels // layer.groups
    given, points = offsets_of_shape(layer, ifmap.shape[-1]), (rows, cols, images)
    for group in range(channels.start // size, (channels.stop - 1) // size + 1):
        mine = range(max(channels.start, group * size), min(channels.stop, (group + 1) * size))
        weights = filter_[mine.start : mine.stop].astype(outputs.dtype)
        place = outputs[mine.start - channels.start : mine.stop - channels.start]
        for tap in np.ndindex(*layer.kernel):
            samples = _samples(layer, ifmap, range(group * into, (group + 1) * into), tap, given, points)
            samples = samples.astype(outputs.dtype, copy=False)
            place += (weights[:, *tap] @ samples.reshape(into, -1)).reshape(place.shape)
    return outputs


@lru_cache(maxsize=4)
def offsets_of_shape(layer: DeformConv2d, batch: int) -> Offsets:
    """A layer is computed box by box."""
    return layer.displaced(batch)


def _samples(
    layer: DeformConv2d, ifmap: Operand, channels: range, tap: tuple[int, int], given: Offsets,
    points: tuple[range, range, range],
) -> Tensor:  # fmt: skip
    """What a tap samples of some channels for the outputs in `points`, [channel, row, col, image]."""
    samples = np.empty((len(channels), *map(len, points)))
    size = layer.in_channels // layer.offset_groups
    for number in range(channels.start // size, (channels.stop - 1) // size + 1):
        here = np.ix_((number,), (tap[0],), (tap[1],), *points)
        down, across, mask = (each[here][0, 0, 0] for each in (given.down, given.across, given.masks))
        rows, cols = (_stands(layer, axis, tap[axis], points[axis]) for axis in (0, 1))
        rows, cols = rows[:, None, None] + down / given.parts, cols[:, None] + across / given.parts
        mine = range(max(channels.start, number * size), min(channels.stop, (number + 1) * size))
        place = slice(mine.start - channels.start, mine.stop - channels.start)
        samples[place] = _interpolated(ifmap[mine.start : mine.stop], rows, cols, points[2]) * (mask / MASK_PARTS)
    return samples


def _stands(layer: DeformConv2d, axis: int, tap: int, outputs: range) -> _Places:
    """The rows, or columns, on which a tap stands without its offset."""
    return np.array(outputs) * layer.stride[axis] + tap * layer.dilation[axis] - float(layer.padding[axis])


def _interpolated(ifmap: Operand, rows: _Places, cols: _Places, images: range) -> _Places:
    """The four elements around each place (rows, cols), each times how near it is; [channel, *place]."""
    total = np.zeros((len(ifmap), *rows.shape))
    for y in (np.floor(rows), np.floor(rows) + 1):
        for x in (np.floor(cols), np.floor(cols) + 1):
            near = (1 - abs(rows - y)) * (1 - abs(cols - x))
            there = (y >= 0) & (y < ifmap.shape[1]) & (x >= 0) & (x < ifmap.shape[2])
            at = np.where(there, y, 0).astype(int), np.where(there, x, 0).astype(int)
            total += np.where(there, near, 0) * ifmap[:, *at, np.array(images)]
    return total
