"""Operators that reduce along axes, and what is normalized by such sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpusim.base.errors import InputError
from tpusim.reference.nodes.node import Call, Function, Values, as_real


def _reduced(function: Any) -> Function:
    """Along the axes that are given, as an attribute or an operand; along all where none are."""

    def compute(call: Call, values: Values, axes: Values | None = None) -> Values:
        which = call.ints("axes", axes)
        if not which and call.get("noop_with_empty_axes", 0):
            return values
        along = tuple(which) if which else None
        return as_real(function(values, axis=along, keepdims=bool(call.get("keepdims", 1))), values)

    return compute


def _log_sum_exp(values: Values, **along: Any) -> Values:
    most = values.max(axis=along["axis"], keepdims=True, initial=np.finfo(values.dtype).min)
    alone = most if along["keepdims"] else np.squeeze(most, along["axis"])
    return np.asarray(np.log(np.exp(values - most).sum(**along)) + alone)


def _farthest(function: Any) -> Function:
    """Where the largest, or the smallest, stands; of equals the first unless the last is asked for."""

    def compute(call: Call, values: Values) -> Values:
        axis, last = call.get("axis", 0), call.get("select_last_index", 0)
        at = function(np.flip(values, axis) if last else values, axis, keepdims=bool(call.get("keepdims", 1)))
        return np.asarray(values.shape[axis] - 1 - at if last else at, np.int64)

    return compute


def _cumulative(call: Call, values: Values, axis: Values) -> Values:
    at = int(axis.item())
    ordered = np.flip(values, at) if call.get("reverse", 0) else values
    sums = np.cumsum(ordered, at, dtype=values.dtype)
    sums = sums - ordered if call.get("exclusive", 0) else sums
    return np.flip(sums, at) if call.get("reverse", 0) else sums


def _softmax(call: Call, values: Values) -> Values:
    """Before opset 13 all axes from one on count as one."""
    if call.opset >= 13:
        return _of_exponents(values, call.get("axis", -1))
    axis = call.get("axis", 1) % values.ndim
    return _of_exponents(values.reshape(*values.shape[:axis], -1), -1).reshape(values.shape)


def _of_exponents(values: Values, axis: int) -> Values:
    raised = np.exp(values - values.max(axis=axis, keepdims=True))
    return np.asarray(raised / raised.sum(axis=axis, keepdims=True))


def _log_softmax(call: Call, values: Values) -> Values:
    return np.log(_softmax(call, values))


def _along_channels(numbers: Values, values: Values) -> Values:
    """A number a channel, to be broadcast over [image, channel, ...]."""
    return numbers.reshape(-1, *[1] * (values.ndim - 2))


def _batch_normalization(
    call: Call, values: Values, scale: Values, bias: Values, mean: Values, variance: Values
) -> Values:
    """As networks are used: with the mean and variance that they were trained to."""
    if call.get("training_mode", 0):
        raise InputError("BatchNormalization as it is in training")
    factor = scale / np.sqrt(variance + call.get("epsilon", 1e-5))
    number = np.result_type(values, factor, mean, bias)
    shifted = np.subtract(values, _along_channels(mean, values), dtype=number)
    shifted *= _along_channels(factor, values)
    shifted += _along_channels(bias, values)
    return as_real(shifted, values)


def _normalized(values: Values, axes: tuple[int, ...], epsilon: float) -> Values:
    """Mean 0 and variance 1 along axes."""
    apart = values - values.mean(axis=axes, keepdims=True)
    return as_real(apart / np.sqrt((apart**2).mean(axis=axes, keepdims=True) + epsilon), values)


def _instance_normalization(call: Call, values: Values, scale: Values, bias: Values) -> Values:
    alone = _normalized(values, tuple(range(2, values.ndim)), call.get("epsilon", 1e-5))
    return alone * _along_channels(scale, values) + _along_channels(bias, values)


def _group_normalization(call: Call, values: Values, scale: Values, bias: Values) -> Values:
    """Before opset 21, scale and bias come by group."""
    groups = call.get("num_groups")
    alone = _normalized(values.reshape(len(values), groups, -1), (2,), call.get("epsilon", 1e-5)).reshape(values.shape)
    each = values.shape[1] // groups if call.opset < 21 else 1
    factor, more = np.repeat(scale, each), np.repeat(bias, each)
    return alone * _along_channels(factor, values) + _along_channels(more, values)


def _layer_normalization(call: Call, values: Values, scale: Values, bias: Values | None = None) -> Values:
    first = call.get("axis", -1) % values.ndim
    alone = _normalized(values, tuple(range(first, values.ndim)), call.get("epsilon", 1e-5))
    return alone * scale if bias is None else alone * scale + bias


def _rms_normalization(call: Call, values: Values, scale: Values) -> Values:
    axes = tuple(range(call.get("axis", -1) % values.ndim, values.ndim))
    size = np.sqrt((values**2).mean(axis=axes, keepdims=True) + call.get("epsilon", 1e-5))
    return as_real(values / size, values) * scale


def _lp_normalization(call: Call, values: Values) -> Values:
    order, axis = call.get("p", 2), call.get("axis", -1)
    size = (abs(values) ** order).sum(axis=axis, keepdims=True) ** (1 / order)
    return as_real(values / np.where(size == 0, 1, size), values)


def _mean_variance_normalization(call: Call, values: Values) -> Values:
    axes = tuple(call.get("axes", (0, 2, 3)))
    apart = values - values.mean(axis=axes, keepdims=True)
    return as_real(apart / (np.sqrt((apart**2).mean(axis=axes, keepdims=True)) + 1e-9), values)


def _local_response(call: Call, values: Values) -> Values:
    """By the squares of the channels around each."""
    size, channels = call.get("size"), values.shape[1]
    before, after = (size - 1) // 2, size // 2
    squares = np.pad(values**2, [(0, 0), (before, after), *[(0, 0)] * (values.ndim - 2)])
    around = sum(squares[:, at : at + channels] for at in range(size))
    alpha, beta, bias = call.get("alpha", 1e-4), call.get("beta", 0.75), call.get("bias", 1.0)
    return as_real(values / (bias + alpha / size * around) ** beta, values)


NODES: dict[str, Function] = {
    "ArgMax": _farthest(np.argmax), "ArgMin": _farthest(np.argmin), "BatchNormalization": _batch_normalization,
    "CumSum": _cumulative, "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization, "LRN": _local_response,
    "LayerNormalization": _layer_normalization, "LogSoftmax": _log_softmax, "LpNormalization": _lp_normalization,
    "MeanVarianceNormalization": _mean_variance_normalization, "RMSNormalization": _rms_normalization,
    "ReduceL1": _reduced(lambda x, **along: abs(x).sum(**along)),
    "ReduceL2": _reduced(lambda x, **along: np.sqrt((x**2).sum(**along))),
    "ReduceLogSum": _reduced(lambda x, **along: np.log(x.sum(**along))), "ReduceLogSumExp": _reduced(_log_sum_exp),
    "ReduceMax": _reduced(np.max), "ReduceMean": _reduced(np.mean), "ReduceMin": _reduced(np.min),
    "ReduceProd": _reduced(np.prod), "ReduceSum": _reduced(np.sum),
    "ReduceSumSquare": _reduced(lambda x, **along: (x**2).sum(**along)), "Softmax": _softmax,
}  # fmt: skip
"""By the name of the operator."""
