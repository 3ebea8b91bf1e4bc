"""Pooling and its gradient, rotations of channels, and ops that only move elements, straight from their definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.reference import Box, Operand, Operands, Tensor, number_of

if TYPE_CHECKING:
    from tpusim.network.ops.elementwise import Rotary
    from tpusim.network.ops.moves import Move, Spread
    from tpusim.network.ops.pool2d import Pool2d, Pool2dChoice, Pool2dGradient


def pool2d(layer: Pool2d, operands: Operands, box: Box) -> Tensor:
    """Compute out[c, y, x, n] = the largest of ifmap[c, y*s+i*d-p, x*s+j*d-p, n], or the smallest, or their sum times
    one by their count.
    """
    ifmap, (channels, rows, cols, images) = operands["ifmap"], box
    begin, joined = _JOINED[layer.kind]
    outputs = np.full([len(part) for part in box], begin, number_of(ifmap))
    part = ifmap[channels.start : channels.stop, :, :, images.start : images.stop]
    for i, j in np.ndindex(*layer.kernel):
        (to_rows, from_rows), (to_cols, from_cols) = _brought(layer, 0, i, rows), _brought(layer, 1, j, cols)
        place = outputs[:, to_rows, to_cols]
        # `place` is a view, so that the outputs are updated without a copy.
        joined(place, part[:, from_rows, from_cols], out=place)
    if layer.kind != "average":
        return outputs
    counts = np.outer(_counts(layer, 0, rows), _counts(layer, 1, cols))
    return outputs * (1 / counts).astype(np.float32)[:, :, None]


_JOINED: Mapping[str, tuple[float, Any]] = {
    "max": (-np.inf, np.maximum), "min": (np.inf, np.minimum), "average": (0, np.add)
}  # fmt: skip
"""By kind of pooling what a window begins with, and what joins another element to it."""


def pool2d_choice(layer: Pool2dChoice, operands: Operands, box: Box) -> Tensor:
    """Compute the number of the first tap, row by row, on which the largest element under each window stands."""
    ifmap, (channels, rows, cols, images) = operands["ifmap"], box
    part = ifmap[channels.start : channels.stop, :, :, images.start : images.stop]
    largest = np.full([len(part) for part in box], -np.inf, number_of(ifmap))
    chosen = np.full(largest.shape, -1, number_of(ifmap))
    for number, (i, j) in enumerate(np.ndindex(*layer.kernel)):
        (to_rows, from_rows), (to_cols, from_cols) = _brought(layer, 0, i, rows), _brought(layer, 1, j, cols)
        here, most, choice = part[:, from_rows, from_cols], largest[:, to_rows, to_cols], chosen[:, to_rows, to_cols]
        better = (here > most) | (choice < 0)
        most[better], choice[better] = here[better], number
    return chosen


def pool2d_gradient(layer: Pool2dGradient, operands: Operands, box: Box) -> Tensor:
    """Compute dx[c, y*s+i*d-p, x*s+j*d-p, n] += dy[c, y, x, n] for each tap (i, j) of each window.

    Of a maximum only the chosen tap counts; of an average all do, over the count of the window.
    """
    (channels, rows, cols, images), of_max = box, layer.kind == "max"
    dy, *choice = (each[channels.start : channels.stop, :, :, images.start : images.stop] for each in operands.values())
    if not of_max:
        counts = np.outer(*(_counts(layer, axis, range(dy.shape[1 + axis])) for axis in (0, 1)))
        dy = dy * (1 / counts).astype(np.float32)[:, :, None]
    made = np.zeros([len(part) for part in box], number_of(dy))
    for number, (i, j) in enumerate(np.ndindex(*layer.kernel)):
        places, windows = zip(
            *(_met(layer, axis, tap, (rows, cols)[axis]) for axis, tap in enumerate((i, j))), strict=True
        )
        share = dy[:, *windows]
        made[:, *places] += np.where(choice[0][:, *windows] == number, share, 0) if of_max else share
    return made


def _met(layer: Pool2dGradient, axis: int, tap: int, elements: range) -> tuple[slice, slice]:
    """Return on which of some elements of the map a tap of a window stands, and of which windows."""
    stride, first = layer.stride[axis], tap * layer.dilation[axis] - layer.axes[axis].ends[0]
    begin = max(0, -((first - elements.start) // stride))
    end = max(begin, min(layer.axes[axis].outputs, -((first - elements.stop) // stride)))
    at = begin * stride + first - elements.start
    return slice(at, at + (end - begin) * stride, stride), slice(begin, end)


def _brought(layer: Pool2d, axis: int, tap: int, outputs: range) -> tuple[slice, slice]:
    """Return which of some outputs have an element under a tap, and which rows, or columns, these are."""
    stands = _stands(layer, axis, tap, outputs)
    real = np.flatnonzero((stands >= 0) & (stands < (layer.in_height, layer.in_width)[axis]))
    if not real.size:
        return slice(0), slice(0)
    return slice(real[0], real[-1] + 1), slice(stands[real[0]], stands[real[-1]] + 1, layer.stride[axis])


def _counts(layer: Pool2d, axis: int, outputs: range) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return how many taps of each output count along an axis."""
    size = (layer.in_height, layer.in_width)[axis]
    low, high = _padded(layer)[axis] if layer.count_include_pad else (0, size)
    counts = np.zeros(len(outputs), np.int64)
    for tap in range(layer.kernel[axis]):
        stands = _stands(layer, axis, tap, outputs)
        counts += (low <= stands) & (stands < high)
    return counts


def _stands(layer: Pool2d, axis: int, tap: int, outputs: range) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the row, or column, that a tap of some outputs stands on."""
    first = layer.axes[axis].ends[0]
    return np.array(outputs) * layer.stride[axis] + tap * layer.dilation[axis] - first


def _padded(layer: Pool2d) -> list[tuple[int, int]]:
    """Return the first padded row and the one after the last, then those of columns; as the padding is written."""
    sizes = layer.in_height, layer.in_width
    if isinstance(layer.padding, str):
        return [(-axis.ends[0], size + axis.ends[1]) for axis, size in zip(layer.axes, sizes, strict=True)]
    top, left, bottom, right = layer.padding if len(layer.padding) == 4 else (*layer.padding, *layer.padding)
    return [(-top, layer.in_height + bottom), (-left, layer.in_width + right)]


def rotary(layer: Rotary, operands: Operands, box: Box) -> Tensor:
    """Compute the embedding in float64: each half of the channels times the cosines, plus the other times the sines."""
    _, rows, cols, images = box
    x = operands["ifmap"][:, rows.start : rows.stop, cols.start : cols.stop, images.start : images.stop]
    cos, sin = (operands[name][:, :, cols.start : cols.stop].astype(np.float64) for name in ("cos", "sin"))
    first, second = np.split(x.astype(np.float64), 2)
    made = cos * np.concatenate([first, second]) + sin * np.concatenate([second, first])
    return np.asarray(made[box[0].start : box[0].stop])


_AXES = {"channels": 0, "height": 1, "width": 2, "images": 3}


def move(layer: Move, operands: Operands, box: Box) -> Tensor:
    """Return the elements in `box` of the map, moved as a whole."""
    ifmap = operands["ifmap"]
    made = _MOVES[layer.op](layer, ifmap)
    return made[tuple(slice(part.start, part.stop) for part in box)].astype(number_of(ifmap))


_MOVES: dict[str, Callable[[Any, Operand], Operand]] = {
    "transpose": lambda layer, ifmap: np.transpose(ifmap, [_AXES[axis] for axis in layer.order]),
    "channel_shuffle": lambda layer, ifmap: (
        ifmap.reshape(layer.groups, -1, *ifmap.shape[1:]).swapaxes(0, 1).reshape(ifmap.shape)
    ),
    "slice": lambda layer, ifmap: ifmap[
        tuple(slice(layer.start, layer.stop, layer.step) if axis == layer.axis else slice(None) for axis in _AXES)
    ],
    "pad": lambda layer, ifmap: np.pad(ifmap, ((0, 0), layer.sides[::2], layer.sides[1::2], (0, 0))),
    "spread": lambda layer, ifmap: _spread(layer, ifmap),
    "embedding": lambda layer, table: table[:, [*layer.words]].swapaxes(1, 3),
    "upsample": lambda layer, ifmap: ifmap.repeat(layer.scale[0], axis=1).repeat(layer.scale[1], axis=2),
}
"""By the name of the op in files: the function from an ifmap to its ofmap."""


def _spread(layer: Spread, ifmap: Operand) -> Operand:
    made = np.zeros((len(ifmap), layer.out_height, layer.out_width, ifmap.shape[-1]), ifmap.dtype)
    (down, across), (rows, cols) = layer.step, ifmap.shape[1:3]
    made[:, : rows * down : down, : cols * across : across] = ifmap
    return made
