"""Ops of whole rows, straight from their definitions, in float64; and how far float32 may be off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.network.ops.rows import LayerNorm, RowOp
from tpusim.reference.operands import Operands, Tensor, number_of

_Box: TypeAlias = tuple[range, range, range, range]
_Doubles: TypeAlias = NDArray[np.float64]

SOFTMAX_ROUNDINGS = 3
"""Beyond those of the sum: of powers, of what they are divided by, of the quotient."""
NORM_ROUNDINGS = 8
"""Beyond those of the sums."""


def compute(layer: RowOp, operands: Operands, box: _Box) -> Tensor:
    """The elements in `box` [channel, 1, 1, row]."""
    return _FUNCTIONS[layer.op](layer, operands, box)


def roundings(layer: RowOp) -> int:
    """How often an output is rounded at most, in whatever order a row is summed up."""
    return layer.channels + {"softmax": SOFTMAX_ROUNDINGS, "layer_norm": NORM_ROUNDINGS}.get(layer.op, 1)


def magnitudes(layer: RowOp, operands: Operands, box: _Box, true: Tensor, share: float) -> Tensor:
    """What `share`, the gamma of all roundings, has to be multiplied by, for the error of the `true` outputs in `box`.

    A softmax is a power over a sum of powers: all are positive, so that it is a share of itself; so are sums of powers,
    and of squares. A mean is off by the mean size of what it is made of.
    """
    if isinstance(layer, LayerNorm):
        return _of_norm(layer, operands, box, share)
    return abs(true) if layer.op in _OF_ONE_SIGN else abs(_rows(operands, box)).mean(axis=0, keepdims=True)


def _rows(operands: Operands, box: _Box) -> _Doubles:
    """Whole rows, those in `box`."""
    return np.asarray(operands["ifmap"][:, :, :, box[3].start : box[3].stop], np.float64)


def _softmax(layer: RowOp, operands: Operands, box: _Box) -> Tensor:
    rows = _rows(operands, box)
    raised = np.exp(rows - rows.max(axis=0, keepdims=True))
    return np.asarray(raised[box[0].start : box[0].stop] / raised.sum(axis=0, keepdims=True))


def _layer_norm(layer: RowOp, operands: Operands, box: _Box) -> Tensor:
    assert isinstance(layer, LayerNorm)
    rows, (scale, shift) = _rows(operands, box), _channels(operands, box)
    apart, root = _parts(layer, rows, box)
    return np.asarray(apart / root * scale + shift)


def _parts(layer: LayerNorm, rows: _Doubles, box: _Box) -> tuple[_Doubles, _Doubles]:
    """What is more than the mean, of the channels in `box`, and the root of the variance and epsilon."""
    apart = rows - rows.mean(axis=0, keepdims=True)
    root = np.sqrt((apart * apart).mean(axis=0, keepdims=True) + layer.epsilon)
    return apart[box[0].start : box[0].stop], root


def _channels(operands: Operands, box: _Box) -> tuple[_Doubles, _Doubles]:
    scale, shift = (operands[name][box[0].start : box[0].stop].astype(np.float64) for name in ("scale", "shift"))
    return scale, shift


def _of_norm(layer: LayerNorm, operands: Operands, box: _Box, share: float) -> Tensor:
    """The error of scale (x - mean) / root + shift, where g, the `share`, is the gamma of all roundings.

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


def _mean(layer: RowOp, operands: Operands, box: _Box) -> Tensor:
    """The sum times one by their number, in float32 where the operands are exact in that."""
    rows = operands["ifmap"][:, :, :, box[3].start : box[3].stop].astype(number_of(operands["ifmap"]))
    return np.asarray(rows.sum(axis=0, keepdims=True) * np.float32(1 / layer.channels))


def _sum_exp(_: RowOp, operands: Operands, box: _Box) -> Tensor:
    return np.asarray(np.exp(_apart(operands, box)).sum(axis=0, keepdims=True))


def _sum_squares(_: RowOp, operands: Operands, box: _Box) -> Tensor:
    return np.asarray(np.square(_apart(operands, box)).sum(axis=0, keepdims=True))


def _apart(operands: Operands, box: _Box) -> _Doubles:
    """Elements less the number that is given for their row."""
    return _rows(operands, box) - operands["about"][:, :, :, box[3].start : box[3].stop].astype(np.float64)


_OF_ONE_SIGN = frozenset({"softmax", "sum_exp", "sum_squares"})
_FUNCTIONS: dict[str, Callable[[Any, Operands, _Box], Tensor]] = {
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "reduce_mean": _mean,
    "sum_exp": _sum_exp,
    "sum_squares": _sum_squares,
}
OPS = tuple(_FUNCTIONS)
"""Their names in files."""
