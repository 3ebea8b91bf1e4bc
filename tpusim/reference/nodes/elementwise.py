"""Operators that work element by element, broadcasting as NumPy does; and numbers to whole ones and back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from tpusim.reference import pointwise
from tpusim.reference.nodes import standard
from tpusim.reference.nodes.node import Call, Function, Values, as_real, div, in_doubles, like_first


def _folded(function: Any) -> Function:
    """Make a function of any number of operands, one after the other."""
    return lambda *operands: reduce(function, operands)


def _clip(values: Values, min: Any = None, max: Any = None) -> Values:
    return values if min is None and max is None else as_real(np.clip(values, min, max), values)


_INTEGERS = "iu"
"""Kinds of numbers that NumPy has, of all that bytes may be: the others are those of the onnx library."""


def _along(numbers: Values, values: Values, axis: int) -> Values:
    """Broadcast a scale or zero point: one for all values, or one for each place along an axis."""
    return (
        numbers.reshape(()) if numbers.size == 1 else numbers.reshape(-1, *[1] * (values.ndim - 1 - axis % values.ndim))
    )


def _quantize(
    values: Values, scale: Values, zero: Values | None = None, *, axis: int = 1, call: Call
) -> Values | Sequence[Values]:
    kind = np.dtype(np.uint8) if zero is None else zero.dtype
    if kind.kind not in _INTEGERS or call.get("block_size", 0) or (zero is None and call.get("output_dtype", 0)):
        return standard.evaluated("QuantizeLinear", values, scale, zero, call=call)
    limits = np.iinfo(kind)
    moved = np.rint(values / _along(scale, values, axis))
    moved = moved + (0 if zero is None else _along(zero, values, axis).astype(np.int64))
    return np.asarray(np.clip(moved, limits.min, limits.max), kind)


def _dequantize(
    values: Values, scale: Values, zero: Values | None = None, *, axis: int = 1, call: Call
) -> Values | Sequence[Values]:
    if values.dtype.kind not in _INTEGERS or call.get("block_size", 0):
        return standard.evaluated("DequantizeLinear", values, scale, zero, call=call)
    numbers = values.astype(np.int64)
    if zero is not None:
        numbers = numbers - _along(zero, values, axis).astype(np.int64)
    return numbers.astype(scale.dtype) * _along(scale, values, axis)


def _dynamic(values: Values) -> Sequence[Values]:
    """Return the bytes, their scale, their zero point."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    scale = np.float32((high - low) / 255)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255)) if scale else np.uint8(0)
    numbers = np.clip(np.rint(values / scale) + zero, 0, 255) if scale else np.zeros(values.shape)
    return numbers.astype(np.uint8), np.asarray(scale), np.asarray(zero)


_ALPHA, _GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
"""The constants of SELU by ONNX."""

NODES: dict[str, Function] = {
    "Abs": np.abs, "Add": np.add, "And": np.logical_and, "Ceil": np.ceil, "Cos": np.cos, "Equal": np.equal,
    "Exp": np.exp, "Floor": np.floor, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
    "IsNaN": np.isnan, "Less": np.less, "LessOrEqual": np.less_equal, "Log": np.log, "Mul": np.multiply,
    "Neg": np.negative, "Not": np.logical_not, "Or": np.logical_or, "Reciprocal": np.reciprocal,
    "Round": np.rint, "Sign": np.sign, "Sin": np.sin, "Sqrt": np.sqrt, "Sub": np.subtract, "Xor": np.logical_xor,
    "Erf": in_doubles(pointwise.erf_of), "Sigmoid": in_doubles(pointwise.sigmoid),
    "Softplus": in_doubles(pointwise.softplus), "Tanh": in_doubles(pointwise.tanh),
    "Div": div, "Max": _folded(np.maximum), "Min": _folded(np.minimum), "Sum": _folded(np.add), "Clip": _clip,
    "Mod": lambda one, other, *, fmod=0: np.fmod(one, other) if fmod else np.mod(one, other),
    "Elu": like_first(lambda x, *, alpha=1.0: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)),
    "Celu": like_first(
        lambda x, *, alpha=1.0: np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(np.minimum(x, 0) / alpha))
    ),
    "Selu": like_first(
        lambda x, *, alpha=_ALPHA, gamma=_GAMMA: gamma * np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)
    ),
    "IsInf": lambda x, *, detect_positive=1, detect_negative=1: (
        np.asarray((np.isposinf(x) & bool(detect_positive)) | (np.isneginf(x) & bool(detect_negative)))
    ),
    "Relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "Gelu": like_first(lambda x, *, approximate="none": pointwise.gelu(x.astype(np.float64), approximate)),
    "HardSigmoid": like_first(lambda x, *, alpha=0.2, beta=0.5: np.clip(alpha * x + beta, 0, 1)),
    "Swish": like_first(lambda x, *, alpha=1.0: x * pointwise.sigmoid(alpha * x.astype(np.float64))),
    "HardSwish": like_first(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "LeakyRelu": lambda x, *, alpha=0.01: np.where(x < 0, x * np.float32(alpha), x),
    "Mean": like_first(lambda *operands: reduce(np.add, operands) / len(operands)),
    "Mish": like_first(lambda x: x * np.tanh(np.logaddexp(x, 0))),
    "ThresholdedRelu": lambda x, *, alpha=1.0: np.where(x > alpha, x, as_real(np.zeros(()), x)),
    "PRelu": lambda x, slope: np.where(x < 0, x * slope, x),
    "Pow": like_first(lambda one, other: np.power(one, other)),
    "Softsign": lambda x: np.asarray(x / (1 + abs(x))),
    "Where": lambda condition, one, other: np.where(condition, one, other),
    "DequantizeLinear": _dequantize, "DynamicQuantizeLinear": _dynamic, "QuantizeLinear": _quantize,
}  # fmt: skip
"""The functions by the name of the operator."""
