"""Ops that sum up over channels, straight from their definitions, in float64; and how far float32 may be off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.reference import Box, Operands, Tensor, number_of
from tpusim.reference.attention import ATTENTIONS

if TYPE_CHECKING:
    from tpusim.network.ops.op import Op
    from tpusim.network.ops.rows import (
        CrossEntropyGradient,
        LayerNorm,
        LayerNormGradient,
        Lrn,
        RmsNorm,
        RmsNormGradient,
        RowOp,
        Softmax,
        TopK,
    )


_Doubles: TypeAlias = NDArray[np.float64]

SOFTMAX_ROUNDINGS = 3
"""Roundings of a softmax beyond those of the sum: of powers, of the divisor, of the quotient."""
NORM_ROUNDINGS = 8
"""Roundings of a norm beyond those of the sums."""
LRN_ROUNDINGS = 4
"""Roundings of local response normalization beyond those of the squares: of bias plus sum, its power, and the product.
"""


_ROUNDINGS = {
    **dict.fromkeys(("layer_norm", "layer_norm_gradient", "rms_norm", "rms_norm_gradient"), NORM_ROUNDINGS),
    **dict.fromkeys(
        ("softmax", "softmax_gradient", "top_k", "cross_entropy", "cross_entropy_gradient"), SOFTMAX_ROUNDINGS
    ),
}


def roundings(layer: Op, batch: int) -> int:
    """Return how often an output is rounded at most, in whatever order elements are summed up."""
    sums = layer.terms(batch)
    if layer.op == "lrn":
        # All summands are positive, so that the error of the sum is a share of the sum itself.
        return 2 * sums + LRN_ROUNDINGS
    if layer.op in ATTENTIONS:
        # Sums of scores and of shares, and for each block of keys both are scaled anew.
        return 4 * sums + SOFTMAX_ROUNDINGS
    return sums + _ROUNDINGS.get(layer.op, 1)


def magnitudes(layer: Op, operands: Operands, box: Box, true: Tensor, share: float) -> Tensor:
    """Return the factor of `share`, the gamma of all roundings, in the error of the `true` outputs in `box`.

    A softmax is a power over a sum of powers: all are positive, so that it is a share of itself; so are sums of powers,
    and of squares, and what is divided by such a sum or its root. A mean is off by the mean size of what it is made of.
    """
    if layer.op in ATTENTIONS:
        return ATTENTIONS[layer.op](layer, operands, box, share)
    if layer.op in _ERRORS:
        return _ERRORS[layer.op](layer, operands, box, share)
    # Sums of numbers of one sign cancel nothing, so their error is a share of the result.
    of_one_sign = layer.op in ("softmax", "sum_exp", "sum_squares", "rms_norm", "top_k")
    return abs(true) if of_one_sign else abs(_rows(operands, box)).mean(axis=0, keepdims=True)


def _rows(operands: Operands, box: Box, name: str = "ifmap") -> _Doubles:
    """Return the whole rows of the elements in `box`."""
    return np.asarray(operands[name][:, :, :, box[3].start : box[3].stop], np.float64)


def softmax(layer: Softmax, operands: Operands, box: Box) -> Tensor:
    """Compute the softmax over the keys that each row sees, straight from the numbers of rows and keys."""
    rows = _rows(operands, box)
    if layer.queries:
        query, key = np.array(box[3]) % layer.queries, np.arange(layer.channels)[:, None, None, None]
        ahead = layer.channels - layer.queries + query - key
        # A hidden key has minus infinity for a score, and so a power of zero.
        hidden = (ahead < 0) | (ahead >= (layer.window or layer.channels))
        rows = np.where(hidden, -np.inf, rows)
    return _softmax(rows, box)


def _softmax(rows: _Doubles, box: Box) -> Tensor:
    # Powers of differences to the largest element cannot overflow, and the quotient is the same.
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


def rms_norm(layer: RmsNorm, operands: Operands, box: Box) -> Tensor:
    part, scale = slice(box[0].start, box[0].stop), operands["scale"].astype(np.float64)
    rows = _rows(operands, box)
    # By another way than the machine, which adds up squares and takes one over a root.
    size = np.linalg.norm(rows, axis=0, keepdims=True) / np.sqrt(layer.channels)
    return np.asarray(rows[part] / np.hypot(size, np.sqrt(layer.epsilon)) * scale[part])


def rms_norm_gradient(layer: RmsNormGradient, operands: Operands, box: Box) -> Tensor:
    """Compute the gradient by that of each normalized element, less what changes the root."""
    mine = slice(box[0].start, box[0].stop)
    of_normalized, rows, root = _of_root(layer, operands, box)
    normalized = rows / root
    along = np.einsum("cxyr,cxyr->xyr", of_normalized, normalized) / layer.channels
    return np.asarray((of_normalized[mine] - normalized[mine] * along) / root)


def _of_root(layer: Any, operands: Operands, box: Box) -> tuple[_Doubles, _Doubles, _Doubles]:
    """Return the gradient of whole normalized rows, the rows, and the roots that they were divided by."""
    rows = _rows(operands, box, "other")
    root = np.hypot(np.linalg.norm(rows, axis=0, keepdims=True) / np.sqrt(layer.channels), np.sqrt(layer.epsilon))
    return _rows(operands, box) * operands["scale"].astype(np.float64), rows, root


def _of_rms_gradient(layer: Any, operands: Operands, box: Box, share: float) -> Tensor:
    """Return the error of (g - x b / root^2) / root, where b is the mean of g x, over the `share`, which is the gamma
    of all roundings.

    A sum of squares is off by the share of itself, and so are its root and what is divided by it; while that is below
    a quarter, 1 / root^3 is off by 4 shares. b is off by the mean of the sizes of g x. All is rounded once more in the
    end.
    """
    g, rows, root = (abs(each) for each in _of_root(layer, operands, box))
    of_b = (g * rows).mean(axis=0, keepdims=True)
    unsure = (g * (3 + share) + rows * of_b * (6 + 5 * share) / root**2) / root
    return np.where(4 * share < 1, unsure, np.inf)[box[0].start : box[0].stop]


def layer_norm_gradient(layer: LayerNormGradient, operands: Operands, box: Box) -> Tensor:
    """Compute the gradient by that of each normalized element: it is less its mean, and less what changes the root."""
    of_normalized, normalized, root = _back(layer, operands, box)
    along = (of_normalized * normalized).mean(axis=0, keepdims=True)
    made = (of_normalized - of_normalized.mean(axis=0, keepdims=True) - normalized * along) / root
    return np.asarray(made[box[0].start : box[0].stop])


def _back(layer: LayerNormGradient, operands: Operands, box: Box) -> tuple[_Doubles, _Doubles, _Doubles]:
    """Return the gradient of whole normalized rows, these rows, and the roots that they were divided by."""
    apart, root = _parts(layer, _rows(operands, box, "other"), (range(layer.channels), *box[1:]))
    return _rows(operands, box) * operands["scale"].astype(np.float64), apart / root, root


def _of_norm_gradient(layer: Any, operands: Operands, box: Box, share: float) -> Tensor:
    """Return the error of (g - a - (x - m) b / root^2) / root, where a is the mean of g and b that of g (x - m), over
    the `share`, which is the gamma of all roundings.

    As of a norm, m is off by e, the mean size A of the row, and 1 / root by a share r of w = 1 + share (A / root)^2,
    all of them times the share; this r is to be below a half, so that 1 / root^3 is off by 5 r. a is off by the mean
    size G of g, and b by that of g (x - m) and 2 A G, for x - m is off by e. All is rounded once more in the end.
    """
    g, normalized, root = _back(layer, operands, box)
    rows = _rows(operands, box, "other")
    size, apart = abs(rows).mean(axis=0, keepdims=True), abs(normalized) * root
    of_a = abs(g).mean(axis=0, keepdims=True)
    of_b = (abs(g) * apart).mean(axis=0, keepdims=True) + 2 * size * of_a
    a, b = (abs(each.mean(axis=0, keepdims=True)) for each in (g, g * normalized * root))
    wrong = 1 + share * (size / root) ** 2
    unsure = (abs(g) + a) * wrong + 1.5 * of_a
    unsure += (5 * wrong * apart * b + 3.5 * (size * b + apart * of_b + share * size * of_b)) / root**2
    unsure = (unsure * (1 + share) + abs(g) + a + apart * b / root**2) / root
    return np.where(2 * share * wrong < 1, unsure, np.inf)[box[0].start : box[0].stop]


def softmax_gradient(_: RowOp, operands: Operands, box: Box) -> Tensor:
    """Compute the gradient through the derivative of each share by each element: s_i (1 if i = j else 0) - s_i s_j."""
    gradients, shares = (_rows(operands, box, name)[:, 0, 0] for name in ("ifmap", "other"))
    mine = slice(box[0].start, box[0].stop)
    made = shares[mine] * gradients[mine] - shares[mine] * np.einsum("jr,jr->r", shares, gradients)
    return np.asarray(made[:, None, None])


def _of_softmax_gradient(_: Any, operands: Operands, box: Box, share: float) -> Tensor:
    """Return the error of s (g - sum(g s)) over the `share`: of the sum that of its summands, and all is rounded."""
    gradients, shares = (abs(_rows(operands, box, name)) for name in ("ifmap", "other"))
    summed = (gradients * shares).sum(axis=0, keepdims=True)
    mine = slice(box[0].start, box[0].stop)
    return np.asarray(shares[mine] * (gradients[mine] + (2 + share) * summed))


def cross_entropy(_: RowOp, operands: Operands, box: Box) -> Tensor:
    labels, apart, log = _logarithms(operands, box)
    return np.asarray((labels * (log - apart)).sum(axis=0, keepdims=True))


def _logarithms(operands: Operands, box: Box) -> tuple[_Doubles, _Doubles, _Doubles]:
    """Return labels, whole rows less their largest elements, and the logarithms of the sums of powers of these."""
    rows, labels = _rows(operands, box), _rows(operands, box, "other")
    apart = rows - rows.max(axis=0, keepdims=True)
    return labels, apart, np.log(np.exp(apart).sum(axis=0, keepdims=True))


def _of_cross_entropy(_: Any, operands: Operands, box: Box, share: float) -> Tensor:
    """Return the error of the sum of label (log - (x - largest)) over the `share`, the gamma of all roundings.

    The sum of powers is off by a share of itself, its logarithm by twice that and twice its own share, and the outer
    sum by the size of its summands.
    """
    labels, apart, log = _logarithms(operands, box)
    return np.asarray((abs(labels) * (3 + 4 * abs(log) + abs(apart))).sum(axis=0, keepdims=True))


def cross_entropy_gradient(layer: CrossEntropyGradient, operands: Operands, box: Box) -> Tensor:
    labels = _rows(operands, box, "other")[box[0].start : box[0].stop]
    return (_softmax(_rows(operands, box), box) - labels) * np.float64(np.float32(layer.factor))


def _of_cross_entropy_gradient(layer: Any, operands: Operands, box: Box, share: float) -> Tensor:
    """Return the error over the `share`: the softmax is off by a share of itself, and all is rounded in the end."""
    labels = abs(_rows(operands, box, "other")[box[0].start : box[0].stop])
    return np.asarray((2 * _softmax(_rows(operands, box), box) + labels) * abs(layer.factor))


_ERRORS: dict[str, Callable[[Any, Operands, Box, float], Tensor]] = {
    "layer_norm": _of_norm,
    "layer_norm_gradient": _of_norm_gradient,
    "rms_norm_gradient": _of_rms_gradient,
    "softmax_gradient": _of_softmax_gradient,
    "cross_entropy": _of_cross_entropy,
    "cross_entropy_gradient": _of_cross_entropy_gradient,
}
"""Errors that are told by functions of their own, over the share of all roundings."""


def top_k(layer: TopK, operands: Operands, box: Box) -> Tensor:
    """Compute the elements among the `k` largest different ones of whole rows, and their shares of the sum of these."""
    rows = _rows(operands, box)
    falling = -np.sort(-rows, axis=0)
    # The rank of a number is how many different ones are not less.
    ranks = np.cumsum(np.diff(falling, axis=0, prepend=np.inf) < 0, axis=0)
    kept = np.where(rows >= np.where(ranks <= layer.k, falling, np.inf).min(axis=0), rows, 0)
    whole = kept.sum(axis=0, keepdims=True) if layer.renormalize else 1
    return np.asarray(kept[box[0].start : box[0].stop] / whole)


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
