"""Pooling, and maps that are resized."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpusim.base.errors import InputError
from tpusim.reference.nodes.node import Call, Function, Values, as_real


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
        """Those of a pooling node."""
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
    "AveragePool": _average_pool, "GlobalAveragePool": _over_maps(np.mean), "GlobalLpPool": _global_lp,
    "GlobalMaxPool": _over_maps(np.max), "LpPool": _lp_pool, "MaxPool": _max_pool, "Resize": _resize,
    "Upsample": _upsample,
}  # fmt: skip
"""By the name of the operator."""
