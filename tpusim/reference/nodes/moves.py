"""Operators that only move values, or make them of shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import numpy as np

from tpusim.base.errors import InputError
from tpusim.reference.nodes.node import Call, Function, Values

TYPES = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 9: np.bool_,
    10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64,
}  # fmt: skip
"""NumPy's types by ONNX's numbers."""


def _cast(call: Call, values: Values) -> Values:
    number = call.get("to")
    if number not in TYPES:
        raise InputError(f"a Cast to ONNX's type {number}, which NumPy has not")
    return values.astype(TYPES[number])


def _dropout(
    call: Call, values: Values, _: Values | None = None, training: Values | None = None
) -> Values | Sequence[Values]:
    """As networks are used, nothing is dropped."""
    if training is not None and training:
        raise InputError("Dropout as it is in training")
    return (values, np.ones(values.shape, np.bool_)) if call.results > 1 else values


def _constant(call: Call) -> Values:
    """The only attribute; a text, too."""
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    ((name, value),) = call.attributes.items()
    return np.asarray(value, kinds.get(name))


def _filled(call: Call, shape: Values) -> Values:
    value = call.get("value", np.zeros(1, np.float32))
    return np.full(shape.tolist(), value.reshape(-1)[0], value.dtype)


def _shape(call: Call, values: Values) -> Values:
    return np.array(values.shape[call.get("start", 0) : call.get("end", values.ndim)], np.int64)


def _reshape(call: Call, values: Values, shape: Values | None = None) -> Values:
    """A zero keeps the size that stands there."""
    wanted = call.ints("shape", shape) or []
    kept = wanted if call.get("allowzero", 0) else [size or values.shape[at] for at, size in enumerate(wanted)]
    return values.reshape(kept)


def _flatten(call: Call, values: Values) -> Values:
    axis = call.get("axis", 1)
    return values.reshape(prod(values.shape[: axis if axis >= 0 else values.ndim + axis]), -1)


def _squeeze(call: Call, values: Values, axes: Values | None = None) -> Values:
    which = call.ints("axes", axes)
    return np.squeeze(values, None if which is None else tuple(which))


def _unsqueeze(call: Call, values: Values, axes: Values | None = None) -> Values:
    return np.expand_dims(values, tuple(call.ints("axes", axes) or ()))


def _range(_: Call, start: Values, stop: Values, step: Values) -> Values:
    count = max(0, ceil((stop.item() - start.item()) / step.item()))
    return np.asarray(start + np.arange(count, dtype=start.dtype) * step, start.dtype)


def _split(call: Call, values: Values, sizes: Values | None = None) -> Sequence[Values]:
    """Into equal parts, the last perhaps smaller, unless sizes are given."""
    axis, parts = call.get("axis", 0), call.results
    given = call.ints("split", sizes)
    each = ceil(values.shape[axis] / parts)
    return np.split(values, np.cumsum(given)[:-1] if given else [each * at for at in range(1, parts)], axis)


def _slice(
    call: Call, values: Values, starts: Values | None = None, ends: Values | None = None, axes: Values | None = None,
    steps: Values | None = None,
) -> Values:  # fmt: skip
    first, stop = call.ints("starts", starts) or [], call.ints("ends", ends) or []
    which = call.ints("axes", axes) or [*range(len(first))]
    step = [1] * len(first) if steps is None else steps.ravel().tolist()
    cut = [slice(None)] * values.ndim
    for at, axis in enumerate(which):
        # Before the first element, going down, is what a slice calls None.
        end = None if step[at] < 0 and stop[at] < -values.shape[axis] else stop[at]
        cut[axis] = slice(first[at], end, step[at])
    return values[tuple(cut)]


def _pad(
    call: Call, values: Values, pads: Values | None = None, value: Values | None = None, axes: Values | None = None
) -> Values:
    """Negative ones cut off."""
    sizes, mode = call.ints("pads", pads) or call.ints("paddings") or [], call.get("mode", "constant")
    which = [*range(values.ndim)] if axes is None else axes.ravel().tolist()
    ends = [(0, 0)] * values.ndim
    for at, axis in enumerate(which):
        ends[axis] = sizes[at], sizes[at + len(which)]
    cut = tuple(slice(max(0, -low), size - max(0, -high)) for (low, high), size in zip(ends, values.shape, strict=True))
    more = [(max(0, low), max(0, high)) for low, high in ends]
    if mode == "constant":
        return np.pad(values[cut], more, constant_values=call.get("value", 0.0) if value is None else value.item())
    pad: Any = np.pad
    return np.asarray(pad(values[cut], more, mode))


def _gather_elements(call: Call, values: Values, indices: Values) -> Values:
    axis = call.get("axis", 0)
    return np.take_along_axis(values, np.where(indices < 0, indices + values.shape[axis], indices), axis)


def _gather_nd(call: Call, values: Values, indices: Values) -> Values:
    batch = call.get("batch_dims", 0)
    outer = np.indices(indices.shape[:-1], sparse=True)[:batch]
    return np.asarray(values[(*outer, *np.moveaxis(indices, -1, 0))])


def _depth_to_space(call: Call, values: Values) -> Values:
    images, channels, height, width = values.shape
    size = call.get("blocksize")
    if call.get("mode", "DCR") == "DCR":
        parts = values.reshape(images, size, size, -1, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = values.reshape(images, -1, size, size, height, width).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(images, channels // size**2, height * size, width * size)


def _space_to_depth(call: Call, values: Values) -> Values:
    images, channels, height, width = values.shape
    size = call.get("blocksize")
    order = (0, 3, 5, 1, 2, 4) if call.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    parts = values.reshape(images, channels, height // size, size, width // size, size).transpose(order)
    return parts.reshape(images, channels * size**2, height // size, width // size)


def _triangle(call: Call, values: Values, diagonal: Values | None = None) -> Values:
    at = 0 if diagonal is None else int(diagonal.item())
    return np.triu(values, at) if call.get("upper", 1) else np.tril(values, at)


NODES: dict[str, Function] = {
    "Cast": _cast, "Constant": _constant, "ConstantOfShape": _filled, "DepthToSpace": _depth_to_space,
    "Dropout": _dropout, "Flatten": _flatten, "GatherElements": _gather_elements, "GatherND": _gather_nd, "Pad": _pad,
    "Range": _range, "Reshape": _reshape, "Shape": _shape, "Slice": _slice, "SpaceToDepth": _space_to_depth,
    "Split": _split, "Squeeze": _squeeze, "Trilu": _triangle, "Unsqueeze": _unsqueeze,
    "Size": lambda _, values: np.array(values.size, np.int64),
    "CastLike": lambda _, values, like: values.astype(like.dtype),
    "Concat": lambda call, *operands: np.concatenate(operands, call.get("axis", 1)),
    "Expand": lambda _, x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist()))),
    "Gather": lambda call, values, indices: np.take(values, indices, call.get("axis", 0)),
    "Identity": lambda _, values, *__: values,
    "Tile": lambda _, values, repeats: np.tile(values, repeats.tolist()),
    "Transpose": lambda call, values: np.transpose(values, call.get("perm")),
}  # fmt: skip
"""By the name of the operator."""
