"""Local response normalization, straight from its definition, in float64."""

from __future__ import annotations

import numpy as np

from tpusim.network.ops.rows import Lrn
from tpusim.reference.operands import Operands, Tensor

MORE_ROUNDINGS = 4
"""Beyond those of the squares: of the line of their sum, to a power of one at most, and of what is made of it."""


def compute(layer: Lrn, operands: Operands, box: tuple[range, range, range, range]) -> Tensor:
    """out[c] = x[c] / (bias + alpha / size * sum of x[i]^2)^beta, i from c - (size - 1) // 2 to c + size // 2."""
    channels, rows, cols, images = box
    part = operands["ifmap"][:, rows.start : rows.stop, cols.start : cols.stop, images.start : images.stop]
    x = part.astype(np.float64)
    outputs = [_normalized(layer, x, channel) for channel in channels]
    return np.stack(outputs)


def _normalized(layer: Lrn, x: Tensor, channel: int) -> Tensor:
    near = x[max(0, channel - (layer.size - 1) // 2) : channel + layer.size // 2 + 1]
    made: Tensor = x[channel] / (layer.bias + layer.alpha / layer.size * np.square(near).sum(axis=0)) ** layer.beta
    return made


def roundings(layer: Lrn) -> int:
    """How often an output is rounded at most: all that is summed up is positive, so that it is a share of itself."""
    return 2 * min(layer.size, layer.channels) + MORE_ROUNDINGS
