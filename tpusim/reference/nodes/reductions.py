"""Operators that sum up along axes: products, pooling, normalizations by sums; and maps that are resized."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tpusim.reference.nodes.node import Call, Function, Values, as_real, ints, like_first


def _reduced(function: Any) -> Function:
    """Reduce along the given axes, an attribute or an operand; along all where none are given."""

    def compute(values: Values, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Values:
        which = ints(axes)
        if not which and noop_with_empty_axes:
            return values
        return as_real(function(values, axis=tuple(which) if which else None, keepdims=bool(keepdims)), values)

    return compute


def _log_sum_exp(values: Values, **along: Any) -> Values:
    most = values.max(axis=along["axis"], keepdims=True, initial=np.finfo(values.dtype).min)
    alone = most if along["keepdims"] else np.squeeze(most, along["axis"])
    return np.asarray(np.log(np.exp(values - most).sum(**along)) + alone)


def _farthest(function: Any) -> Function:
    """Return the place of the largest, or the smallest; of equals the first unless the last is asked for."""

    def compute(values: Values, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Values:
        at = function(np.flip(values, axis) if select_last_index else values, axis, keepdims=bool(keepdims))
        return np.asarray(values.shape[axis] - 1 - at if select_last_index else at, np.int64)

    return compute


def _cumulative(values: Values, axis: Values, *, exclusive: int = 0, reverse: int = 0) -> Values:
    at = int(axis.item())
    ordered = np.flip(values, at) if reverse else values
    sums = np.cumsum(ordered, at, dtype=values.dtype)
    sums = sums - ordered if exclusive else sums
    return np.flip(sums, at) if reverse else sums


def _softmax(values: Values, *, axis: int | None = None, call: Call) -> Values:
    """Compute a softmax; before opset 13 all axes from one on count as one."""
    along = values
    if call.opset < 13:
        along, axis = values.reshape(*values.shape[: (1 if axis is None else axis) % values.ndim], -1), -1
    at = -1 if axis is None else axis
    raised = np.exp(along - along.max(axis=at, keepdims=True))
    return np.asarray(raised / raised.sum(axis=at, keepdims=True)).reshape(values.shape)


def _along_channels(numbers: Values, values: Values) -> Values:
    """Broadcast a number a channel over [image, channel, ...]."""
    return numbers.reshape(-1, *[1] * (values.ndim - 2))


def _batch_normalization(
    values: Values, scale: Values, bias: Values, mean: Values, variance: Values, *, epsilon: float = 1e-5
) -> Values:
    """Normalize as networks in use do: with the mean and variance from training."""
    factor = scale / np.sqrt(variance + epsilon)
    number = np.result_type(values, factor, mean, bias)
    shifted = np.subtract(values, _along_channels(mean, values), dtype=number)
    shifted *= _along_channels(factor, values)
    shifted += _along_channels(bias, values)
    return as_real(shifted, values)


def _normalized(values: Values, axes: tuple[int, ...], epsilon: float) -> Values:
    """Return values of mean 0 and variance 1 along axes."""
    apart = values - values.mean(axis=axes, keepdims=True)
    return as_real(apart / np.sqrt((apart**2).mean(axis=axes, keepdims=True) + epsilon), values)


def _instance_normalization(values: Values, scale: Values, bias: Values, *, epsilon: float = 1e-5) -> Values:
    alone = _normalized(values, tuple(range(2, values.ndim)), epsilon)
    return alone * _along_channels(scale, values) + _along_channels(bias, values)


def _group_normalization(
    values: Values, scale: Values, bias: Values, *, call: Call, num_groups: Any = None, epsilon: float = 1e-5
) -> Values:
    """Normalize groups; before opset 21, scale and bias come by group."""
    alone = _normalized(values.reshape(len(values), num_groups, -1), (2,), epsilon).reshape(values.shape)
    each = values.shape[1] // num_groups if call.opset < 21 else 1
    factor, more = np.repeat(scale, each), np.repeat(bias, each)
    return alone * _along_channels(factor, values) + _along_channels(more, values)


def _layer_normalization(
    values: Values, scale: Values, bias: Values | None = None, *, axis: int = -1, epsilon: float = 1e-5, call: Call
) -> Sequence[Values]:
    """Return the rows normalized, and, if they are asked for, their means, and one by their deviations."""
    axes = tuple(range(axis % values.ndim, values.ndim))
    alone = _normalized(values, axes, epsilon)
    normal = alone * scale if bias is None else alone * scale + bias
    if call.results < 2:
        return [normal]
    over = as_real(1 / np.sqrt(values.var(axis=axes, keepdims=True) + epsilon), values)
    return normal, values.mean(axis=axes, keepdims=True), over


def _rms_normalization(values: Values, scale: Values, *, axis: int = -1, epsilon: float = 1e-5) -> Values:
    axes = tuple(range(axis % values.ndim, values.ndim))
    return as_real(values / np.sqrt((values**2).mean(axis=axes, keepdims=True) + epsilon), values) * scale


def _lp_normalization(values: Values, *, p: int = 2, axis: int = -1) -> Values:
    size = (abs(values) ** p).sum(axis=axis, keepdims=True) ** (1 / p)
    return np.asarray(values / np.where(size == 0, 1, size))


def _mean_variance_normalization(values: Values, *, axes: Sequence[int] = (0, 2, 3)) -> Values:
    apart = values - values.mean(axis=tuple(axes), keepdims=True)
    return np.asarray(apart / (np.sqrt((apart**2).mean(axis=tuple(axes), keepdims=True)) + 1e-9))


def _local_response(
    values: Values, *, size: Any = None, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Values:
    """Divide by a power of the squares of the channels around each."""
    channels, ends = values.shape[1], [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (values.ndim - 2)]
    squares = np.pad(values**2, ends)
    around = sum(squares[:, at : at + channels] for at in range(size))
    return np.asarray(values / (bias + alpha / size * around) ** beta)


class _Windows(NamedTuple):
    """Windows along an axis of maps: their taps, their number, the padding, and how far they reach beyond it."""

    kernel: int
    stride: int
    dilation: int
    outputs: int
    ends: tuple[int, int]
    beyond: int


def _windows(call: Call, sides: tuple[int, ...]) -> list[_Windows]:
    """Return the windows of a pooling node, axis by axis."""
    found, axes = list[_Windows](), len(sides)
    wanted = {"kernel_shape": [], "strides": [1] * axes, "dilations": [1] * axes, "pads": [0] * 2 * axes}
    kernel, strides, dilations, pads = (ints(call.get(name)) or usual for name, usual in wanted.items())
    auto = call.get("auto_pad", "NOTSET")
    for at, (side, taps, stride, dilation) in enumerate(zip(sides, kernel, strides, dilations, strict=True)):
        reach = (taps - 1) * dilation + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            outputs = -(-side // stride)
            missing = max(0, (outputs - 1) * stride + reach - side)
            before = missing // 2 if auto == "SAME_UPPER" else -(-missing // 2)
            after = missing - before
        else:
            before, after = pads[at], pads[axes + at]
            room = side + before + after - reach
            outputs = room // stride + 1
            if call.get("ceil_mode", 0):
                # The last window may stick out at the far end if it begins on the map or the padding before it.
                outputs = -(-room // stride) + 1
                outputs -= (outputs - 1) * stride >= side + before
        beyond = max(0, (outputs - 1) * stride + reach - side - before - after)
        found.append(_Windows(taps, stride, dilation, outputs, (before, after), beyond))
    return found


def _taps(values: Values, windows: Sequence[_Windows], filler: Any, beyond: Any) -> Iterator[Values]:
    """Yield the values under each tap of the windows, [image, channel, *outputs], of maps with padding, and with
    `beyond`.
    """
    alone = [(0, 0), (0, 0)]
    inside = np.pad(values, [*alone, *(each.ends for each in windows)], constant_values=filler)
    padded = np.pad(inside, [*alone, *((0, each.beyond) for each in windows)], constant_values=beyond)
    for tap in np.ndindex(*(each.kernel for each in windows)):
        firsts = (at * each.dilation for at, each in zip(tap, windows, strict=True))
        cut = (
            slice(first, first + (each.outputs - 1) * each.stride + 1, each.stride)
            for first, each in zip(firsts, windows, strict=True)
        )
        yield padded[:, :, *cut]


def _max_pool(values: Values, *, call: Call) -> Sequence[Values]:
    """Return the largest element of each window, and, if it is asked for, the first place in the map that has it."""
    low = -np.inf if np.issubdtype(values.dtype, np.floating) else np.iinfo(values.dtype).min
    windows = _windows(call, values.shape[2:])
    taps = _taps(values, windows, low, low)
    if call.results < 2:
        most = next(taps).copy()
        for each in taps:
            np.maximum(most, each, out=most)
        return [most]
    places = _taps(_numbered(values.shape, call.get("storage_order", 0)), windows, -1, -1)
    most, at = (each.copy() for each in (next(taps), next(places)))
    for each, place in zip(taps, places, strict=True):
        # What is as small as the padding is on the map all the same.
        better = (each > most) | ((at < 0) & (place >= 0))
        most[better], at[better] = each[better], place[better]
    return most, at


def _numbered(shape: tuple[int, ...], by_columns: int) -> Values:
    """Return the number of each element of maps, image after image and channel after channel; the elements of a channel
    are counted row by row, or column by column.
    """
    lead, sides = shape[:2], shape[2:]
    inner = np.arange(prod(sides), dtype=np.int64).reshape(sides[::-1] if by_columns else sides)
    first = np.arange(prod(lead), dtype=np.int64).reshape(*lead, *[1] * len(sides)) * prod(sides)
    return np.asarray(first + (inner.T if by_columns else inner))


def _average_pool(values: Values, *, call: Call, count_include_pad: int = 0) -> Values:
    """Average the part of a window on the map; with `count_include_pad` on its padding, too."""
    windows = _windows(call, values.shape[2:])
    counts = sum(_taps(np.ones((1, 1, *values.shape[2:]), values.dtype), windows, count_include_pad, 0))
    return np.divide(sum(_taps(values, windows, 0, 0)), counts)


def _over_maps(function: Any) -> Function:
    """Reduce over all axes after image and channel."""
    return like_first(lambda x: function(x, axis=tuple(range(2, x.ndim)), keepdims=True))


def _resize(
    values: Values,
    region: Values | None = None,
    scales: Values | None = None,
    sizes: Values | None = None,
    *,
    call: Call,
) -> Values:
    """Resize axis by axis; by `scales` or to `sizes`. Before opset 11, scales stood where regions do."""
    given = region if call.opset < 11 else scales
    resized = values
    for number, axis in enumerate(ints(call.get("axes")) or range(values.ndim)):
        old = values.shape[axis]
        if sizes is not None and sizes.size:
            extent, factor = int(sizes[number]), float(sizes[number]) / old
        else:
            factor = float(np.asarray(given)[number])
            extent = int(np.floor(old * factor))
        # An axis that keeps its size may still be resampled, by another factor.
        if extent != old or factor != 1:
            resized = _resized(call, resized, axis, extent, factor)
    return as_real(resized, values)


NEAREST: dict[str, Callable[[Values], Values]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


PLACES = "asymmetric", "align_corners", "half_pixel", "pytorch_half_pixel"
"""How Resize finds the places of new elements among the old, of what it may be asked for."""


def _resized(call: Call, values: Values, axis: int, extent: int, factor: float) -> Values:
    size = values.shape[axis]
    places = _places(call, size, extent, factor)
    if call.get("mode", "nearest") == "nearest":
        rounding = "floor" if call.opset < 11 else call.get("nearest_mode", "round_prefer_floor")
        nearest = np.clip(NEAREST[rounding](places), 0, size - 1)
        return np.asarray(np.take(values, nearest.astype(int), axis))
    places = np.clip(places, 0, size - 1)
    low = np.floor(places).astype(int)
    share = (places - low).reshape(-1, *[1] * (values.ndim - 1 - axis))
    here, there = (np.take(values, np.minimum(low + more, size - 1), axis) for more in (0, 1))
    return np.asarray(here * (1 - share) + there * share)


def _places(call: Call, size: int, extent: int, factor: float) -> Values:
    """Return the places of the new elements among the old."""
    at, by = np.arange(extent), call.get("coordinate_transformation_mode", "half_pixel")
    if call.opset < 11 or by == "asymmetric":
        return at / factor
    if by == "align_corners":
        return at * ((size - 1) / (factor * size - 1)) if extent > 1 else np.zeros(1)
    if by == "half_pixel" or (by == "pytorch_half_pixel" and extent > 1):
        return (at + 0.5) / factor - 0.5
    return np.zeros(1)


def with_bias(call: Call, product: Values, bias: Values | None) -> Values:
    """Return Gemm's result for a product: alpha times it, and beta times the bias."""
    scaled = product * call.get("alpha", 1.0)
    return as_real(scaled if bias is None else scaled + call.get("beta", 1.0) * bias, product)


NODES: dict[str, Function] = {
    "ArgMax": _farthest(np.argmax), "ArgMin": _farthest(np.argmin), "BatchNormalization": _batch_normalization,
    "CumSum": _cumulative, "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization, "LRN": like_first(_local_response),
    "LpNormalization": like_first(_lp_normalization), "LayerNormalization": _layer_normalization,
    "LogSoftmax": lambda x, *, axis=None, call: np.log(_softmax(x, axis=axis, call=call)),
    "Gemm": lambda one, other, bias=None, *, transA=0, transB=0, call: (
        with_bias(call, (one.T if transA else one) @ (other.T if transB else other), bias)
    ),
    "MatMul": lambda first, second: np.asarray(np.matmul(first, second)),
    "MeanVarianceNormalization": like_first(_mean_variance_normalization), "RMSNormalization": _rms_normalization,
    "ReduceL1": _reduced(lambda x, **along: abs(x).sum(**along)),
    "ReduceL2": _reduced(lambda x, **along: np.sqrt((x**2).sum(**along))),
    "ReduceLogSum": _reduced(lambda x, **along: np.log(x.sum(**along))), "ReduceLogSumExp": _reduced(_log_sum_exp),
    "ReduceMax": _reduced(np.max), "ReduceMean": _reduced(np.mean), "ReduceMin": _reduced(np.min),
    "ReduceProd": _reduced(np.prod), "ReduceSum": _reduced(np.sum),
    "ReduceSumSquare": _reduced(lambda x, **along: (x**2).sum(**along)), "Softmax": _softmax,
    "AveragePool": like_first(_average_pool), "GlobalAveragePool": _over_maps(np.mean),
    "GlobalLpPool": like_first(
        lambda x, *, p=2: (abs(x) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)
    ), "GlobalMaxPool": _over_maps(np.max), "LpPool": like_first(
        lambda x, *, p=2, call: np.power(sum(_taps(abs(x) ** p, _windows(call, x.shape[2:]), 0, 0)), 1 / p)
    ),
    "MaxPool": _max_pool, "Resize": _resize,
    # Upsample is the former name of Resize.
    "Upsample": lambda x, scales=None, *, mode="nearest": (
        _resize(x, np.asarray(scales, np.float32), call=Call({"mode": mode}, opset=10))
    ),
}  # fmt: skip
"""The functions by the name of the operator."""
