"""Numbers to whole ones and back, by a scale and a zero point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tpusim.base.errors import InputError
from tpusim.reference.nodes.node import Call, Function, Values


def _along(call: Call, numbers: Values, values: Values) -> Values:
    """One number, or one for each place along an axis."""
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
    "DequantizeLinear": _dequantize, "DynamicQuantizeLinear": _dynamic, "QuantizeLinear": _quantize,
}  # fmt: skip
"""By the name of the operator."""
