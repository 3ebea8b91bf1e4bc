"""Operators that reduce along axes, and what is normalized by such sums; pooling, and maps that are resized."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Windows:
    """Windows over the axes of maps after image and channel."""

    kernel: list[int]
    stride: list[int]
    dilation: list[int]
    before: list[int]
    after: list[int]
    outputs: list[int]

    @classmethod
    def of(cls, call: Call, sides: tuple[int, ...]) -> _Windows:
        """The windows of a pooling node."""
        kernel = [int(each) for each in call.get("kernel_shape")]
        axes = len(kernel)
        stride = call.ints("strides") or [1] * axes
        dilation = call.ints("dilations") or [1] * axes
        pads, auto = call.ints("pads") or [0] * 2 * axes, call.get("auto_pad", "NOTSET")
        reach = [(taps - 1) * step + 1 for taps, step in zip(kernel, dilation, strict=True)]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            outputs = [-(-side // step) for side, step in zip(sides, stride, strict=True)]
            missing = [max(0, (o - 1) * s + r - n) for o, s, r, n in zip(outputs, stride, reach, sides, strict=True)]
            less, more = [each // 2 for each in missing], [-(-each // 2) for each in missing]
            before, after = (less, more) if auto == "SAME_UPPER" else (more, less)
            return cls(kernel, stride, dilation, before, after, outputs)
        before, after = pads[:axes], pads[axes:]
        room = [n + b + a - r for n, b, a, r in zip(sides, before, after, reach, strict=True)]
        outputs = [_count(call, *each) for each in zip(room, stride, sides, before, strict=True)]
        return cls(kernel, stride, dilation, before, after, outputs)

    def padded(self, values: Values, filler: Any, beyond: Any) -> Values:
        """The maps with padding, and with what windows reach beyond that."""
        sides = values.shape[2:]
        ends = [(0, 0), (0, 0), *zip(self.before, self.after, strict=True)]
        inside = np.pad(values, ends, constant_values=filler)
        needed = [
            (o - 1) * s + (k - 1) * d + 1
            for o, s, k, d in zip(self.outputs, self.stride, self.kernel, self.dilation, strict=True)
        ]
        more = [max(0, n - side - b - a) for n, side, b, a in zip(needed, sides, self.before, self.after, strict=True)]
        return np.pad(inside, [(0, 0), (0, 0), *((0, each) for each in more)], constant_values=beyond)

    def taps(self, padded: Values) -> Iterator[Values]:
        """What each tap of the windows sees, [image, channel, *outputs]."""
        for tap in np.ndindex(*self.kernel):
            firsts = [at * step for at, step in zip(tap, self.dilation, strict=True)]
            cut = (
                slice(first, first + (o - 1) * s + 1, s)
                for first, o, s in zip(firsts, self.outputs, self.stride, strict=True)
            )
            yield padded[(slice(None), slice(None), *cut)]


def _count(call: Call, room: int, stride: int, side: int, before: int) -> int:
    """Windows along an axis; with `ceil_mode` one that sticks out, if it begins on the map or its padding before."""
    if not call.get("ceil_mode", 0):
        return room // stride + 1
    outputs = -(-room // stride) + 1
    return outputs - 1 if (outputs - 1) * stride >= side + before else outputs


def _max_pool(call: Call, values: Values) -> Values:
    if call.results > 1:
        raise InputError("MaxPool with the places of what is largest")
    windows = _Windows.of(call, values.shape[2:])
    low = -np.inf if np.issubdtype(values.dtype, np.floating) else np.iinfo(values.dtype).min
    taps = windows.taps(windows.padded(values, low, low))
    most = next(taps).copy()
    for each in taps:
        np.maximum(most, each, out=most)
    return most


def _average_pool(call: Call, values: Values) -> Values:
    """Over what a window has of the map; with `count_include_pad` of its padding, too."""
    windows, counted = _Windows.of(call, values.shape[2:]), call.get("count_include_pad", 0)
    ones = np.ones((1, 1, *values.shape[2:]), values.dtype)
    counts = sum(windows.taps(windows.padded(ones, counted, 0)))
    return as_real(np.divide(sum(windows.taps(windows.padded(values, 0, 0))), counts), values)


def _lp_pool(call: Call, values: Values) -> Values:
    windows, order = _Windows.of(call, values.shape[2:]), call.get("p", 2)
    return as_real(np.power(sum(windows.taps(windows.padded(abs(values) ** order, 0, 0))), 1 / order), values)


def _over_maps(function: Any) -> Function:
    """Over all axes after image and channel."""
    return lambda _, values: as_real(function(values, axis=tuple(range(2, values.ndim)), keepdims=True), values)


def _global_lp(call: Call, values: Values) -> Values:
    order, axes = call.get("p", 2), tuple(range(2, values.ndim))
    return as_real((abs(values) ** order).sum(axis=axes, keepdims=True) ** (1 / order), values)


def _resize(
    call: Call, values: Values, region: Values | None = None, scales: Values | None = None, sizes: Values | None = None
) -> Values:
    """Axis by axis; by `scales` or to `sizes`. Before opset 11, scales stood where regions do."""
    mode = call.get("mode", "nearest")
    if mode not in ("nearest", "linear") or call.get("antialias", 0):
        raise InputError(f"Resize by {mode}{' with antialias' if call.get('antialias', 0) else ''}")
    if call.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise InputError("Resize that keeps the ratio of the sides")
    given = region if call.opset < 11 else scales
    resized = values
    for number, axis in enumerate(call.ints("axes") or range(values.ndim)):
        old = values.shape[axis]
        if sizes is not None and sizes.size:
            extent, factor = int(sizes[number]), float(sizes[number]) / old
        else:
            factor = float(np.asarray(given)[number])
            extent = int(np.floor(old * factor))
        if extent != old or factor != 1:
            resized = _resized(call, resized, axis, extent, factor)
    return as_real(resized, values)


def _resized(call: Call, values: Values, axis: int, extent: int, factor: float) -> Values:
    size = values.shape[axis]
    places = _places(call, size, extent, factor)
    if call.get("mode", "nearest") == "nearest":
        return values.take(np.clip(_nearest(call, places), 0, size - 1), axis)
    places = np.clip(places, 0, size - 1)
    low = np.floor(places).astype(int)
    share = (places - low).reshape(-1, *[1] * (values.ndim - 1 - axis))
    here, there = (np.take(values, np.minimum(low + more, size - 1), axis) for more in (0, 1))
    return np.asarray(here * (1 - share) + there * share)


def _places(call: Call, size: int, extent: int, factor: float) -> Values:
    """Where the new elements stand among the old."""
    at, by = np.arange(extent), call.get("coordinate_transformation_mode", "half_pixel")
    if call.opset < 11 or by == "asymmetric":
        return at / factor
    if by == "align_corners":
        return at * ((size - 1) / (factor * size - 1)) if extent > 1 else np.zeros(1)
    if by == "half_pixel" or (by == "pytorch_half_pixel" and extent > 1):
        return (at + 0.5) / factor - 0.5
    if by == "pytorch_half_pixel":
        return np.zeros(1)
    raise InputError(f"Resize with {by}, which is not known")


def _nearest(call: Call, places: Values) -> Values:
    rounding = "floor" if call.opset < 11 else call.get("nearest_mode", "round_prefer_floor")
    functions: dict[str, Any] = {
        "floor": np.floor, "ceil": np.ceil, "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    }  # fmt: skip
    return np.asarray(functions[rounding](places)).astype(int)


def _upsample(call: Call, values: Values, scales: Values | None = None) -> Values:
    """What Resize was called once."""
    given = np.array(call.get("scales"), np.float32) if scales is None else scales
    return _resize(Call({"mode": call.get("mode", "nearest")}, opset=10), values, given)


NODES: dict[str, Function] = {
    "ArgMax": _farthest(np.argmax), "ArgMin": _farthest(np.argmin), "BatchNormalization": _batch_normalization,
    "CumSum": _cumulative, "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization, "LRN": _local_response, "LpNormalization": _lp_normalization,
    "LayerNormalization": _layer_normalization, "LogSoftmax": lambda call, values: np.log(_softmax(call, values)),
    "MeanVarianceNormalization": _mean_variance_normalization, "RMSNormalization": _rms_normalization,
    "ReduceL1": _reduced(lambda x, **along: abs(x).sum(**along)),
    "ReduceL2": _reduced(lambda x, **along: np.sqrt((x**2).sum(**along))),
    "ReduceLogSum": _reduced(lambda x, **along: np.log(x.sum(**along))), "ReduceLogSumExp": _reduced(_log_sum_exp),
    "ReduceMax": _reduced(np.max), "ReduceMean": _reduced(np.mean), "ReduceMin": _reduced(np.min),
    "ReduceProd": _reduced(np.prod), "ReduceSum": _reduced(np.sum),
    "ReduceSumSquare": _reduced(lambda x, **along: (x**2).sum(**along)), "Softmax": _softmax,
    "AveragePool": _average_pool, "GlobalAveragePool": _over_maps(np.mean), "GlobalLpPool": _global_lp,
    "GlobalMaxPool": _over_maps(np.max), "LpPool": _lp_pool, "MaxPool": _max_pool, "Resize": _resize,
    "Upsample": _upsample,
}  # fmt: skip
"""By the name of the operator."""
