"""Ops that sum up over channels, straight from their definitions, in float64; and how far float32 may be off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.reference import Box, Operands, Tensor, number_of

if TYPE_CHECKING:
    from tpusim.network.ops.op import Op
    from tpusim.network.ops.rows import LayerNorm, Lrn, RowOp


_Doubles: TypeAlias = NDArray[np.float64]

SOFTMAX_ROUNDINGS = 3
"""Roundings of a softmax beyond those of the sum: of powers, of the divisor, of the quotient."""
NORM_ROUNDINGS = 8
"""Roundings of a layer norm beyond those of the sums."""
LRN_ROUNDINGS = 4
"""Roundings of local response normalization beyond those of the squares: of bias plus sum, its power, and the product.
"""


def roundings(layer: Op, batch: int) -> int:
    """Return how often an output is rounded at most, in whatever order elements are summed up."""
    sums = layer.terms(batch)
    if layer.op == "lrn":
        # All summands are positive, so that the error of the sum is a share of the sum itself.
        return 2 * sums + LRN_ROUNDINGS
    return sums + {"softmax": SOFTMAX_ROUNDINGS, "layer_norm": NORM_ROUNDINGS}.get(layer.op, 1)


def magnitudes(layer: RowOp, operands: Operands, box: Box, true: Tensor, share: float) -> Tensor:
    """Return the factor of `share`, the gamma of all roundings, in the error of the `true` outputs in `box`.

    A softmax is a power over a sum of powers: all are positive, so that it is a share of itself; so are sums of powers,
    and of squares. A mean is off by the mean size of what it is made of.
    """
    if layer.op == "layer_norm":
        return _of_norm(layer, operands, box, share)
    of_one_sign = layer.op in ("softmax", "sum_exp", "sum_squares")
    return abs(true) if of_one_sign else abs(_rows(operands, box)).mean(axis=0, keepdims=True)


def _rows(operands: Operands, box: Box) -> _Doubles:
    """Return the whole rows of the elements in `box`."""
    return np.asarray(operands["ifmap"][:, :, :, box[3].start : box[3].stop], np.float64)


def softmax(layer: RowOp, operands: Operands, box: Box) -> Tensor:
    rows = _rows(operands, box)
    raised = np.exp(rows - rows.max(axis=0, keepdims=True))
    return np.asarray(raised[box[0].start : box[0].stop] / raised.sum(axis=0, keepdims=True))


def layer_norm(layer: LayerNorm, operands: Operands, box: Box) -> Tensor:
    rows, (scale, shift) = _rows(operands, box), _channels(operands, box)
    apart, root = _parts(layer, rows, box)
    return np.asarray(apart / root * scale + shift)


def _parts(layer: LayerNorm, rows: _Doubles, box: Box) -> tuple[_Doubles, _Doubles]:
    """Return the channels in `box` less the mean, and the root of the variance plus epsilon."""
    apart = rows - rows.mean(axis=0, keepdims=True)
    root = np.sqrt((apart * apart).mean(axis=0, keepdims=True) + layer.epsilon)
    return apart[box[0].start : box[0].stop], root


def _channels(operands: Operands, box: Box) -> tuple[_Doubles, _Doubles]:
    scale, shift = (operands[name][box[0].start : box[0].stop].astype(np.float64) for name in ("scale", "shift"))
    return scale, shift


def _of_norm(layer: Any, operands: Operands, box: Box, share: float) -> Tensor:
    """Return the error of scale (x - mean) / root + shift, where g, the `share`, is the gamma of all roundings.

    The mean is off by e of at most g times the mean size A of the row. With that mean the squares' mean is e^2 more,
    and off by g of itself: the factor 1 / root is off by a share r of at most g + (e / root)^2, while that is below
    a half.
    So an output is off by scale / root ((1 + r) e + |x - mean| r), and by g of what it is a sum of.
    """
    rows, (scale, shift) = _rows(operands, box), _channels(operands, box)
    apart, root = _parts(layer, rows, box)
    size = abs(rows).mean(axis=0, keepdims=True)
    wrong = 1 + share * (size / root) ** 2
    unsure = abs(scale) / root * (2 * size + abs(apart) * (1 + wrong)) + abs(shift)
    return np.where(2 * share * wrong < 1, unsure, np.inf)


def reduce_mean(layer: RowOp, operands: Operands, box: Box) -> Tensor:
    """Compute the sum times one by the count, in float32 where the operands are exact in that."""
    rows = operands["ifmap"][:, :, :, box[3].start : box[3].stop].astype(number_of(operands["ifmap"]))
    return np.asarray(rows.sum(axis=0, keepdims=True) * np.float32(1 / layer.channels))


def sum_exp(_: RowOp, operands: Operands, box: Box) -> Tensor:
    return np.asarray(np.exp(_apart(operands, box)).sum(axis=0, keepdims=True))


def sum_squares(_: RowOp, operands: Operands, box: Box) -> Tensor:
    return np.asarray(np.square(_apart(operands, box)).sum(axis=0, keepdims=True))


def _apart(operands: Operands, box: Box) -> _Doubles:
    """Return elements less the number that is given for their row."""
    return _rows(operands, box) - operands["about"][:, :, :, box[3].start : box[3].stop].astype(np.float64)


def lrn(layer: Lrn, operands: Operands, box: Box) -> Tensor:
    """Compute out[c] = x[c] / (bias + alpha / size * sum of x[i]^2)^beta, i from c - (size - 1) // 2 to c + size //
    2.
    """
    channels, rows, cols, images = box
    part = operands["ifmap"][:, rows.start : rows.stop, cols.start : cols.stop, images.start : images.stop]
    x = part.astype(np.float64)
    outputs = []
    for channel in channels:
        near = x[max(0, channel - (layer.size - 1) // 2) : channel + layer.size // 2 + 1]
        line = layer.bias + layer.alpha / layer.size * np.square(near).sum(axis=0)
        outputs.append(x[channel] / line**layer.beta)
    return np.stack(outputs)
