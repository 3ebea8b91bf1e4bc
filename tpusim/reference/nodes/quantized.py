"""Operators on whole numbers of a byte, and their sums of 32 bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tpusim.base.errors import InputError
from tpusim.reference.nodes.node import Function, Values


def _of_matrix(values: Values, zero: Values | None, which: int) -> Values:
    """Take off a zero point: one in all, one for each row of the first factor, or for each column of the second."""
    if zero is None:
        return values.astype(np.int16)
    # A factor of the first kind has its rows along the axis before the last.
    along = zero.reshape(-1, 1) if which == 0 and zero.ndim == 1 and zero.size > 1 else zero
    along = along.reshape(()) if along.size == 1 else along
    return np.subtract(values, along, dtype=np.int16)


def _of_map(values: Values, zero: Values | None, which: int) -> Values:
    """Take off a zero point: one in all, or one for each output channel of the weights."""
    if zero is None:
        return values.astype(np.int16)
    along = zero.reshape(()) if zero.size == 1 else zero.reshape(-1, *[1] * (values.ndim - 1))
    return np.subtract(values, along, dtype=np.int16)


CENTRED: Mapping[str, Callable[[Values, Values | None, int], Values]] = {
    "MatMulInteger": _of_matrix, "ConvInteger": _of_map,
}  # fmt: skip
"""By operator the function from a factor, its zero point, and which factor it is, to what is multiplied."""


def _product(one: Values, other: Values, zero: Values | None = None, other_zero: Values | None = None) -> Values:
    first, second = _of_matrix(one, zero, 0), _of_matrix(other, other_zero, 1)
    return np.asarray(np.matmul(first.astype(np.int32), second.astype(np.int32)))


def _convolution(*_: Values | None) -> Values:
    raise InputError("a convolution of whole numbers that no layer computes")


NODES: dict[str, Function] = {"MatMulInteger": _product, "ConvInteger": _convolution}
"""The functions by the name of the operator."""
