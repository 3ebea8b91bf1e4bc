"""Ops that make each element from the one at the same place, straight from their definitions; and fused ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import erf, erfc, pi, sqrt
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.network.ops.fused import BIAS, OTHER, Fused, Way
from tpusim.network.ops.op import OFMAP
from tpusim.reference import Box, Operands, Tensor, batch_of, compute, number_of

if TYPE_CHECKING:
    from tpusim.network.ops.op import Op


# ---- functions of elements, in float64

_ERF, _ERFC = np.vectorize(erf, otypes=[float]), np.vectorize(erfc, otypes=[float])
Doubles: TypeAlias = NDArray[np.float64]

FUNCTION_ROUNDINGS = 2
"""Roundings of a function: one to float32; the loss before it, in float64, is far less than another."""


def in_doubles(function: Callable[..., Doubles]) -> Callable[..., Doubles]:
    """Make the function take a layer and its operands in any type."""

    def made(layer: object, *operands: NDArray[Any]) -> Doubles:
        with np.errstate(over="ignore"):
            return function(layer, *(each.astype(np.float64) for each in operands))

    return made


def tanh(x: Doubles) -> Doubles:
    """Compute the hyperbolic tangent by exp(x) - 1 of negative numbers, which neither overflows nor cancels."""
    raised = np.expm1(-2 * abs(x))
    return np.asarray(np.sign(x) * -raised / (raised + 2))


def sigmoid(x: Doubles) -> Doubles:
    """Compute 1 / (1 + exp(-x)), without an exponential that overflows."""
    raised = np.exp(-abs(x))
    return np.asarray(np.where(x < 0, raised, 1) / (1 + raised))


def erf_of(x: Doubles) -> Doubles:
    """Compute the error function."""
    return np.asarray(_ERF(x) if x.size else x)


def softplus(x: Doubles) -> Doubles:
    """Compute log(1 + exp(x))."""
    return np.logaddexp(x, 0)


def gelu(x: Doubles, approximate: str) -> Doubles:
    """Compute the element times the share of the normal distribution below it, or its approximation by tanh."""
    if approximate == "none":
        beyond = _ERFC(abs(x) / sqrt(2)) / 2 if x.size else x
        return np.asarray(x * np.where(x < 0, beyond, 1 - beyond))
    return x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x**3))


# The slopes below are zero at one point left of zero, near which they cancel. No number of float32 is so near to it
# that they lose more in float64 than a sixth of a rounding to float32.


def silu_slope(x: Doubles) -> Doubles:
    """Compute the derivative of x times its sigmoid, by the product rule."""
    return sigmoid(x) + x * sigmoid(x) * sigmoid(-x)


def gelu_slope(x: Doubles, approximate: str) -> Doubles:
    """Compute the derivative of `gelu`, by the product rule: the share, and the element times the share's slope."""
    if approximate == "none":
        beyond = _ERFC(abs(x) / sqrt(2)) / 2 if x.size else x
        return np.asarray(np.where(x < 0, beyond, 1 - beyond) + x * np.exp(-np.square(x) / 2) / sqrt(2 * pi))
    inner, slope = 2 * sqrt(2 / pi) * (x + 0.044715 * x**3), 2 * sqrt(2 / pi) * (1 + 0.134145 * x**2)
    return sigmoid(inner) + x * slope * sigmoid(inner) * sigmoid(-inner)


REAL_FUNCTIONS: dict[str, Callable[..., Doubles]] = {
    "exp": lambda _, x: np.exp(x),
    "tanh": lambda _, x: tanh(x),
    "erf": lambda _, x: erf_of(x),
    "div": lambda _, x, y: x / y,
    "rdiv": lambda _, x, y: y / x,
    "sqrt": lambda _, x: np.sqrt(x),
    "sigmoid": lambda _, x: sigmoid(x),
    "softplus": lambda _, x: softplus(x),
    "silu": lambda _, x: x * sigmoid(x),
    "gelu": lambda op, x: gelu(x, op.approximate),
    "swiglu": lambda _, gate, x: gate * sigmoid(gate) * x,
    "geglu": lambda _, gate, x: gelu(gate, "tanh") * x,
    "soft_cap": lambda op, x: np.float32(op.cap) * tanh(x / np.float32(op.cap)),
    "over_deviation": lambda op, v, x: x * (v + np.float32(op.epsilon)) ** -0.5,
    "batch_norm_slope": lambda op, v, scale, dw: (
        scale * dw * np.float32(-1 / op.elements) * (v + np.float32(op.epsilon)) ** -0.5
    ),
    "silu_gradient": lambda _, dy, x: dy * silu_slope(x),
    "gelu_gradient": lambda op, dy, x: dy * gelu_slope(x, op.approximate),
}
"""By the name of the op: the function from the layer and an element of each operand to an element of the ofmap."""


# ---- ops


def pointwise(layer: Op, operands: Operands, box: Box) -> Tensor:
    """Compute the elements in `box`, each from those at its place; an operand of one element along an axis is
    broadcast.
    """
    return _made(FUNCTIONS[layer.op], layer, operands, box)


def magnitudes(layer: Op, operands: Operands, box: Box) -> Tensor:
    """Return the size of these elements if nothing cancelled, for operands that are magnitudes."""
    return _made(MAGNITUDES.get(layer.op, FUNCTIONS[layer.op]), layer, operands, box)


def _made(function: Callable[..., Any], layer: Op, operands: Operands, box: Box) -> Tensor:
    parts = [each[tuple(_places(each.shape, box))].astype(number_of(each), copy=False) for each in operands.values()]
    return np.broadcast_to(function(layer, *parts), [len(part) for part in box])


def _places(shape: Sequence[int], box: Box) -> Iterator[slice]:
    """The part of a tensor for a box; an axis of one element is broadcast."""
    return (slice(0, 1) if size == 1 else slice(at.start, at.stop) for size, at in zip(shape, box, strict=True))


def _line(x: Tensor, slope: float, shift: float) -> Tensor:
    return x * np.float32(slope) + np.float32(shift)


def _masked(x: Tensor, other: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    # In float32, as the machine rounds a line, so that both find the same sign.
    line, by, plus = (each.astype(np.float32) for each in (other, scale, shift))
    return np.where(line * by + plus > 0, x, x.dtype.type(0))


def _within(x: Tensor, low: float, high: float) -> Tensor:
    return np.clip(x, np.float32(low), np.float32(high))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda _, x, y: x + y,
    "sub": lambda _, x, y: x - y,
    "rsub": lambda _, x, y: y - x,
    "mul": lambda _, x, y: x * y,
    "maximum": lambda _, x, y: np.maximum(x, y),
    "minimum": lambda _, x, y: np.minimum(x, y),
    "where": lambda _, x, y, by: np.where(by != 0, x, y),
    "prelu": lambda _, x, slope: np.where(x < 0, x * slope, x),
    "power": lambda op, x: x * x if op.exponent == 2 else x * x * x,
    "copy": lambda _, x: x,
    "scale_shift": lambda _, x, scale, shift: x * scale + shift,
    "masked": lambda _, *operands: _masked(*operands),
    "relu": lambda _, x: np.maximum(x, np.float32(0)),
    "leaky_relu": lambda op, x: np.where(x > 0, x, x * np.float32(op.slope)),
    "clip": lambda op, x: _within(x, op.min, op.max),
    "hard_sigmoid": lambda op, x: _within(_line(x, op.alpha, op.beta), 0, 1),
    "hard_swish": lambda _, x: x * _within(_line(x, 1 / 6, 0.5), 0, 1),
    "relu_gradient": lambda _, dy, y: np.where(y > 0, dy, np.float32(0)),
    "leaky_relu_gradient": lambda op, dy, y: np.where(y > 0, dy, dy * np.float32(op.slope)),
    "clip_gradient": lambda op, dy, y: np.where((np.float32(op.min) < y) & (y < np.float32(op.max)), dy, np.float32(0)),
    "sigmoid_gradient": lambda _, dy, y: dy * y * (1 - y),
    "tanh_gradient": lambda _, dy, y: dy * (1 - y * y),
    "weighted_sum": lambda op, x, y: x * np.float32(op.factor) + y * np.float32(op.other_factor),
    "adam_second": lambda op, v, g: v * np.float32(op.decay) + g * g * np.float32(1 - op.decay),
    "adam_step": in_doubles(lambda op, w, m, v: w - np.float32(op.rate) * m / (np.sqrt(v) + np.float32(op.epsilon))),
    "batch_norm_shift": lambda _, mean, scale, shift: shift - mean * scale,
    "batch_norm_offset": lambda op, mean, scale, slope, total: (
        scale * total * np.float32(-1 / op.elements) - mean * slope
    ),
    "batch_norm_gradient": lambda _, dy, x, scale, slope, offset: dy * scale + x * slope + offset,
    "scale_shift_relu": lambda _, x, scale, shift: np.clip(x * scale + shift, 0, None),
    "shortcut": lambda _, x, other, scale, shift, *more: np.clip(
        x * scale + shift + (other * more[0] + more[1] if more else other), 0, None
    ),
    "mean_of_total": lambda op, x: x * np.float32(1 / op.elements),
    "variance_of_squares": lambda op, mean, squares: squares * np.float32(1 / op.elements) - np.square(mean),
    "centred_total": lambda _, mean, total, products: products - total * mean,
    **{name: in_doubles(each) for name, each in REAL_FUNCTIONS.items()},
}
"""By the name of the op: the function from the layer and an element of each operand to an element of the ofmap."""

MAGNITUDES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("sub", "rsub"), lambda _, x, y: x + y),
    "minimum": lambda _, x, y: np.maximum(x, y),
    "where": lambda _, x, y, by: np.maximum(x, y),
    "prelu": lambda _, x, slope: np.maximum(x, x * slope),
    "masked": lambda _, x, *others: x,
    # What is below zero may be as large as before.
    "clip": lambda op, x: np.maximum(x, x.dtype.type(max(op.min, -op.max, 0))),
    "hard_sigmoid": lambda op, x: _line(x, abs(op.alpha), abs(op.beta)),
    "hard_swish": lambda _, x: x * _line(x, 1 / 6, 0.5),
    "sigmoid_gradient": lambda _, dy, y: dy * y * (1 + y),
    "tanh_gradient": lambda _, dy, y: dy * (1 + y * y),
    "weighted_sum": lambda op, x, y: x * np.float32(abs(op.factor)) + y * np.float32(abs(op.other_factor)),
    "batch_norm_shift": lambda _, mean, scale, shift: shift + mean * scale,
    "variance_of_squares": lambda op, mean, squares: squares * np.float32(1 / op.elements) + np.square(mean),
    "centred_total": lambda _, mean, total, products: products + total * mean,
    "batch_norm_offset": lambda op, mean, scale, slope, total: (
        scale * total * np.float32(1 / op.elements) + mean * slope
    ),
    "adam_step": in_doubles(
        lambda op, w, m, v: w + np.float32(abs(op.rate)) * m / (np.sqrt(v) + np.float32(op.epsilon))
    ),
}
"""Functions for magnitudes of results, where they are not the function of magnitudes."""
ROUNDINGS = {
    **dict.fromkeys(("add", "sub", "rsub", "mul", "prelu"), 1), **dict.fromkeys(("maximum", "minimum", "where"), 0),
    "power": 2, "copy": 0, "scale_shift": 2, "masked": 0, "relu": 0,
    "leaky_relu": 1, "clip": 0, "hard_sigmoid": 2, "hard_swish": 3, "relu_gradient": 0, "leaky_relu_gradient": 1,
    "clip_gradient": 0, "sigmoid_gradient": 3, "tanh_gradient": 3, "weighted_sum": 2, "adam_second": 3,
    "adam_step": FUNCTION_ROUNDINGS,
    "batch_norm_shift": 2, "batch_norm_offset": 3, "batch_norm_gradient": 3,
    "scale_shift_relu": 2, "shortcut": 4, "mean_of_total": 2, "variance_of_squares": 4, "centred_total": 2,
    **dict.fromkeys(REAL_FUNCTIONS, FUNCTION_ROUNDINGS),
}  # fmt: skip
"""The number of successive roundings of an element."""


class MadeOperands(dict[str, Any]):
    """Operands of a fused layer with the ifmap, and the filter, that the ops ahead make: made once for many boxes."""


def prepared(layer: Fused, operands: Operands, made: Callable[..., Tensor] = pointwise) -> Operands:
    """The operands with those that the ops ahead make; `made` computes the elements of an op."""
    if not (layer.ahead or layer.ahead_filter) or isinstance(operands, MadeOperands):
        return operands
    found = {}
    ways: tuple[tuple[Way, str], ...] = ("ahead", "ifmap"), ("ahead_filter", "filter")
    for where, name in ways:
        values = operands[name]
        whole = tuple(map(range, values.shape))
        for op, others in _ops(layer, operands, where):
            values = made(op, {"ifmap": values, **others}, whole)
        found[name] = values
    return MadeOperands({**operands, **found})


def fused(layer: Fused, operands: Operands, box: Box) -> Tensor:
    """Compute the outputs in `box`: those of the core, then the fused operations, one after another."""
    results = summed(compute, layer, prepared(layer, operands), box)
    whole = tuple(map(range, results.shape))
    for each in layer.finish:
        results = pointwise(each, {"ifmap": results}, whole)  # type: ignore[arg-type]
    return left(layer, operands, box, results)


def left(
    layer: Fused, operands: Operands, box: Box, results: Tensor, made: Callable[..., Tensor] = pointwise
) -> Tensor:
    """Results in `box` as the ops behind leave them; `made` computes the elements of an op."""
    whole = tuple(map(range, results.shape))
    for op, others in _ops(layer, operands, "behind"):
        mine = {name: each[tuple(_places(each.shape, box))] for name, each in others.items()}
        results = made(op, {"ifmap": results, **mine}, whole)
    return results


def _ops(layer: Fused, operands: Operands, where: Way) -> Iterator[tuple[Op, Operands]]:
    """The ops ahead or behind, each with its further operands by their names in the op."""
    for op, more in layer.chain(batch_of(layer, operands), where):
        yield op, {each.source: operands[each.name] for each in more}


def tallies(layer: Fused, operands: Operands, box: Box) -> Tensor:
    """Compute the sums in `box` of [channel, number of the tally, 1, 1], in float64."""
    return tallied(layer, operands, box, fused, np.asarray)


def tallied(
    layer: Fused, operands: Operands, box: Box, made: Callable[..., Tensor], sized: Callable[[Any], Any]
) -> Tensor:
    """Compute sums in `box`; `made` computes results, and `sized` makes these what is summed up."""
    _, *points = layer.shapes(batch_of(layer, operands))[OFMAP]
    rows, cols, images = map(range, points)
    whole = box[0], rows, cols, images
    results = sized(made(layer, operands, whole).astype(np.float64))
    behind = layer.chain(batch_of(layer, operands), "behind")
    maps = [each.name for _, more in behind for each in more if each.is_map]
    sums = []
    for number in box[1]:
        kind = layer.tallies[number]
        beside = results if kind == "squares" else np.float64(1)
        if kind == "products":
            # As many maps from the end as sums of products from here on.
            name = maps[-layer.tallies[number:].count("products")]
            beside = sized(operands[name][box[0].start : box[0].stop].astype(np.float64))
        sums.append((results * beside).sum(axis=(1, 2, 3)))
    return np.stack(sums, axis=1)[:, :, None, None]


def summed(made: Callable[..., Any], layer: Fused, operands: Operands, box: Box) -> Tensor:
    """Compute the outputs in `box` up to the sum; `made` computes those of the core."""
    own = {name: each for name, each in operands.items() if name in layer.core.shapes(batch_of(layer, operands))}
    results: Tensor = made(layer.core, own, box)
    if layer.bias:
        results = results + operands[BIAS][box[0].start : box[0].stop].astype(results.dtype, copy=False)
    if layer.adds:
        other = operands[OTHER][tuple(slice(each.start, each.stop) for each in box)]
        results = results + other.astype(results.dtype, copy=False)
    return results
