"""Ops that only move elements, straight from their definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpusim.network.ops.moves import ChannelShuffle, Move, Pad, Slice, Transpose, Upsample
from tpusim.reference.operands import Operand, Operands, Tensor, number_of

_AXES = {"channels": 0, "height": 1, "width": 2, "images": 3}


def compute(layer: Move, operands: Operands, box: tuple[range, range, range, range]) -> Tensor:
    """The elements in `box` of the map, moved as a whole."""
    ifmap = operands["ifmap"]
    made = OPS[layer.op](layer, ifmap)
    return made[tuple(slice(part.start, part.stop) for part in box)].astype(number_of(ifmap))


def _transpose(layer: Transpose, ifmap: Operand) -> Operand:
    return np.transpose(ifmap, [_AXES[axis] for axis in layer.order])


def _channel_shuffle(layer: ChannelShuffle, ifmap: Operand) -> Operand:
    grouped = ifmap.reshape(layer.groups, -1, *ifmap.shape[1:])
    return grouped.swapaxes(0, 1).reshape(ifmap.shape)


def _slice(layer: Slice, ifmap: Operand) -> Operand:
    along = [slice(None)] * ifmap.ndim
    along[_AXES[layer.axis]] = slice(layer.start, layer.stop, layer.step)
    return ifmap[tuple(along)]


def _pad(layer: Pad, ifmap: Operand) -> Operand:
    top, left, bottom, right = layer.sides
    return np.pad(ifmap, ((0, 0), (top, bottom), (left, right), (0, 0)))


def _upsample(layer: Upsample, ifmap: Operand) -> Operand:
    rows, cols = layer.scale
    return ifmap.repeat(rows, axis=1).repeat(cols, axis=2)


OPS: dict[str, Callable[[Any, Operand], Operand]] = {
    "transpose": _transpose, "channel_shuffle": _channel_shuffle, "slice": _slice, "pad": _pad, "upsample": _upsample,
}  # fmt: skip
"""By the name of the op in files: the ofmap of an ifmap."""
