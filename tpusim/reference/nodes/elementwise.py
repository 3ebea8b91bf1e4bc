"""Operators that work element by element, broadcasting as NumPy does; and numbers to whole ones and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from tpusim.base.errors import InputError
from tpusim.reference import pointwise
from tpusim.reference.nodes.node import Call, Function, Values, as_real


def _ufunc(function: Any) -> Function:
    """A function of NumPy, whose results are of the operands' type."""
    return lambda _, *operands: function(*operands)


def _folded(function: Any) -> Function:
    """A function of any number of operands, one after the other."""
    return lambda _, *operands: reduce(function, operands)


def _div(_: Call, one: Values, other: Values) -> Values:
    """Whole numbers are divided towards zero."""
    if np.issubdtype(one.dtype, np.floating):
        return np.divide(one, other)
    quotient = np.floor_divide(abs(one), abs(other)) * np.sign(one) * np.sign(other)
    return as_real(quotient, one)


def _mod(call: Call, one: Values, other: Values) -> Values:
    """With `fmod` the sign is that of the first."""
    return np.fmod(one, other) if call.get("fmod", 0) else np.mod(one, other)


def _clip(call: Call, values: Values, least: Values | None = None, most: Values | None = None) -> Values:
    """Limits are attributes before opset 11."""
    low = call.get("min") if least is None else least
    high = call.get("max") if most is None else most
    return values if low is None and high is None else as_real(np.clip(values, low, high), values)


def _elu(call: Call, values: Values) -> Values:
    return as_real(np.where(values < 0, call.get("alpha", 1.0) * np.expm1(np.minimum(values, 0)), values), values)


def _celu(call: Call, values: Values) -> Values:
    alpha = call.get("alpha", 1.0)
    return as_real(np.maximum(values, 0) + np.minimum(0, alpha * np.expm1(np.minimum(values, 0) / alpha)), values)


def _selu(call: Call, values: Values) -> Values:
    alpha, gain = call.get("alpha", 1.67326319217681884765625), call.get("gamma", 1.05070102214813232421875)
    return as_real(gain * np.where(values < 0, alpha * np.expm1(np.minimum(values, 0)), values), values)


def _in_doubles(function: Callable[[Values], Values]) -> Function:
    """A function of the oracle, whose results are of the operand's type."""
    return lambda _, values: as_real(function(values.astype(np.float64)), values)


def _is_infinite(call: Call, values: Values) -> Values:
    up, down = np.isposinf(values), np.isneginf(values)
    wanted = [each for each, name in ((up, "detect_positive"), (down, "detect_negative")) if call.get(name, 1)]
    return np.asarray(sum(wanted, np.zeros_like(up)))


def _along(call: Call, numbers: Values, values: Values) -> Values:
    """A scale or zero point for all values, or one for each place along an axis."""
    if call.get("block_size", 0):
        raise InputError("numbers that are quantized block by block")
    if numbers.size == 1:
        return numbers.reshape(())
    axis = call.get("axis", 1) % values.ndim
    return numbers.reshape(-1, *[1] * (values.ndim - 1 - axis))


def _quantize(call: Call, values: Values, scale: Values, zero: Values | None = None) -> Values:
    point = np.zeros(1, np.uint8) if zero is None else zero
    limits = np.iinfo(point.dtype)
    moved = np.rint(values / _along(call, scale, values)) + _along(call, point, values).astype(np.int64)
    return np.asarray(np.clip(moved, limits.min, limits.max), point.dtype)


def _dequantize(call: Call, values: Values, scale: Values, zero: Values | None = None) -> Values:
    numbers = values.astype(np.int64)
    if zero is not None:
        numbers = numbers - _along(call, zero, values).astype(np.int64)
    return numbers.astype(scale.dtype) * _along(call, scale, values)


def _dynamic(_: Call, values: Values) -> Sequence[Values]:
    """The bytes, their scale, their zero point."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    scale = np.float32((high - low) / 255)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255)) if scale else np.uint8(0)
    numbers = np.clip(np.rint(values / scale) + zero, 0, 255) if scale else np.zeros(values.shape)
    return numbers.astype(np.uint8), np.asarray(scale), np.asarray(zero)


NODES: dict[str, Function] = {
    **{name: _ufunc(each) for name, each in {
        "Abs": np.abs, "Add": np.add, "And": np.logical_and, "Ceil": np.ceil, "Cos": np.cos, "Equal": np.equal,
        "Exp": np.exp, "Floor": np.floor, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
        "IsNaN": np.isnan, "Less": np.less, "LessOrEqual": np.less_equal, "Log": np.log, "Mul": np.multiply,
        "Neg": np.negative, "Not": np.logical_not, "Or": np.logical_or, "Reciprocal": np.reciprocal,
        "Round": np.rint, "Sign": np.sign, "Sin": np.sin, "Sqrt": np.sqrt, "Sub": np.subtract, "Xor": np.logical_xor,
    }.items()},
    **{name: _in_doubles(each) for name, each in {
        "Erf": pointwise.erf_of, "Sigmoid": pointwise.sigmoid, "Softplus": pointwise.softplus, "Tanh": pointwise.tanh,
    }.items()},
    "Celu": _celu, "Clip": _clip, "Div": _div, "Elu": _elu, "IsInf": _is_infinite, "Max": _folded(np.maximum),
    "Min": _folded(np.minimum), "Mod": _mod, "Selu": _selu, "Sum": _folded(np.add),
    "Relu": lambda _, values: np.maximum(values, values.dtype.type(0)),
    "Gelu": lambda call, x: as_real(pointwise.gelu(x.astype(np.float64), call.get("approximate", "none")), x),
    "HardSigmoid": lambda call, x: as_real(np.clip(call.get("alpha", 0.2) * x + call.get("beta", 0.5), 0, 1), x),
    "Swish": lambda call, x: as_real(x * pointwise.sigmoid(call.get("alpha", 1.0) * x.astype(np.float64)), x),
    "HardSwish": lambda _, values: as_real(values * np.clip(values / 6 + 0.5, 0, 1), values),
    "LeakyRelu": lambda call, values: np.where(values < 0, values * np.float32(call.get("alpha", 0.01)), values),
    "Mean": lambda _, *operands: as_real(reduce(np.add, operands) / len(operands), operands[0]),
    "Mish": lambda _, values: as_real(values * np.tanh(np.logaddexp(values, 0)), values),
    "ThresholdedRelu": lambda call, x: np.where(x > call.get("alpha", 1.0), x, as_real(np.zeros(()), x)),
    "PRelu": lambda _, values, slope: np.where(values < 0, values * slope, values),
    "Pow": lambda _, one, other: as_real(np.power(one, other), one),
    "Softsign": lambda _, values: np.asarray(values / (1 + abs(values))),
    "Where": lambda _, condition, one, other: np.where(condition, one, other),
    "DequantizeLinear": _dequantize, "DynamicQuantizeLinear": _dynamic, "QuantizeLinear": _quantize,
}  # fmt: skip
"""By the name of the operator."""
