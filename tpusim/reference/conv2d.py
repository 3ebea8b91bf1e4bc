"""The 2-D convolution, straight from its definition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from tpusim.network.ops.array_op import Conv2d
from tpusim.reference.operands import Operand, Operands, Tensor, number_of

MOST_ELEMENTS = 1 << 19
"""The receptive fields of about this many elements are gathered at a time, to stay within the cache."""

_Box: TypeAlias = tuple[range, range, range, range]


def compute(layer: Conv2d, operands: Operands, box: _Box) -> Tensor:
    """out[o, y, x, n] = sum over c, i, j of filter[o, i, j, c] * ifmap[c, y*s+i*d-p, ...], group by group, in `box`."""
    return np.asarray(shares(layer, operands, box, 1)[0])


def shares(layer: Conv2d, operands: Operands, box: _Box, count: int) -> Tensor:
    """The same sums in `count` shares [share, o, y, x, n], of as many products each but for one; there are as many."""
    ifmap, filter_ = operands["ifmap"], operands["filter"]
    outputs = np.empty([count, *map(len, box)], number_of(ifmap, filter_))
    into = layer.in_channels // layer.groups
    for group, channels in _groups(layer, box[0]):
        fields = receptive_fields(layer, ifmap[group * into : (group + 1) * into], box, outputs.dtype)
        place = outputs[:, channels.start - box[0].start : channels.stop - box[0].start]
        _convolve(fields, filter_[channels.start : channels.stop].astype(outputs.dtype, copy=False), place)
    return outputs


def _groups(layer: Conv2d, channels: range) -> Iterator[tuple[int, range]]:
    """The groups that output `channels` belong to, each with its share of them."""
    size = layer.out_channels // layer.groups
    for group in range(channels.start // size, (channels.stop - 1) // size + 1):
        yield group, range(max(channels.start, group * size), min(channels.stop, (group + 1) * size))


def receptive_fields(layer: Conv2d, ifmap: Operand, box: _Box, number: np.dtype[Any]) -> Tensor:
    """The receptive fields of the outputs in `box` as a view, [kh, kw, c, h, w, n]; padding is zero."""
    reach = [(taps - 1) * step + 1 for taps, step in zip(layer.kernel, layer.dilation, strict=True)]
    under = [
        range(part.start * stride - pad, (part.stop - 1) * stride - pad + length)
        for part, stride, (pad, _), length in zip(box[1:3], layer.stride, layer.pads, reach, strict=True)
    ]
    window = _window(ifmap[..., box[3].start : box[3].stop], under, number)
    fields = np.lib.stride_tricks.sliding_window_view(window, reach, axis=(1, 2))
    (sh, sw), (dh, dw) = layer.stride, layer.dilation
    return fields[:, ::sh, ::sw, :, ::dh, ::dw].transpose(4, 5, 0, 1, 2, 3)


def _window(ifmap: Operand, under: Sequence[range], number: np.dtype[Any]) -> Tensor:
    """The rows and columns `under` a kernel; what there is of them as it stands, if that is all."""
    rows, cols = under
    (to_row, from_row), (to_col, from_col) = (_stored(*each) for each in zip(under, ifmap.shape[1:3], strict=True))
    stored = ifmap[:, from_row, from_col]
    if stored.shape[1:3] == (len(rows), len(cols)):
        return stored.astype(number, copy=False)
    window = np.zeros((len(ifmap), len(rows), len(cols), ifmap.shape[-1]), number)
    window[:, to_row, to_col] = stored
    return window


def _stored(under: range, extent: int) -> tuple[slice, slice]:
    """Where the positions `under` a kernel go that a map of that extent has, and where they come from."""
    first, stop = max(under.start, 0), max(under.start, 0, min(under.stop, extent))
    return slice(first - under.start, stop - under.start), slice(first, stop)


def _convolve(fields: Tensor, filter_: Tensor, outputs: Tensor) -> None:
    """fields [kh, kw, c, h, w, n], a view, to outputs [share, o, h, w, n].

    A few output rows at a time, and of a long sum some channels.
    """
    taps, channels, row = int(np.prod(fields.shape[:2])), fields.shape[2], int(np.prod(fields.shape[4:]))
    height = max(1, MOST_ELEMENTS // (taps * channels * row))
    depth = min(channels, max(1, 8 * MOST_ELEMENTS // (taps * row)))
    flat = outputs.reshape(*outputs.shape[:2], -1)
    ends = [*pairwise(number * taps * channels // len(outputs) for number in range(len(outputs) + 1))]
    for top in range(0, fields.shape[3], height):
        places = flat[..., top * row : (top + height) * row]
        for at in range(0, channels, depth):
            weights = filter_[..., at : at + depth].reshape(len(filter_), -1)
            part = fields[:, :, at : at + depth, top : top + height].reshape(weights.shape[1], -1)
            for place, (first, stop) in zip(places, ends, strict=True):
                mine = slice(max(first - taps * at, 0), min(stop - taps * at, len(part)))
                if mine.start >= mine.stop:
                    continue
                if first >= taps * at:
                    np.matmul(weights[:, mine], part[mine], out=place)
                else:
                    place += weights[:, mine] @ part[mine]
