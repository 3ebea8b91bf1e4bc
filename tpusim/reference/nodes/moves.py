"""Operators that only move values, or make values from shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import numpy as np

from tpusim.base.errors import InputError
from tpusim.reference.nodes.node import Call, Function, Values, ints

TYPES = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 9: np.bool_,
    10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64,
}  # fmt: skip
"""NumPy's types by ONNX's numbers."""


def _dropout(
    values: Values, _: Values | None = None, training: Values | None = None, *, call: Call
) -> Values | Sequence[Values]:
    """Return the values unchanged, as networks in use drop nothing."""
    if training is not None and training:
        raise InputError("Dropout as it is in training")
    return (values, np.ones(values.shape, np.bool_)) if call.results > 1 else values


def _constant(*, call: Call) -> Values:
    """Return the only attribute, which may be text."""
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    ((name, value),) = call.attributes.items()
    return np.asarray(value, kinds.get(name))


def _filled(shape: Values, *, value: Any = None) -> Values:
    held = np.zeros(1, np.float32) if value is None else value
    return np.full(shape.tolist(), held.reshape(-1)[0], held.dtype)


def _reshape(values: Values, shape: Any = None, *, allowzero: int = 0) -> Values:
    """Reshape; a zero keeps the size at its place."""
    wanted = ints(shape) or []
    return values.reshape(wanted if allowzero else [size or values.shape[at] for at, size in enumerate(wanted)])


def _range(start: Values, stop: Values, step: Values) -> Values:
    count = max(0, ceil((stop.item() - start.item()) / step.item()))
    return np.asarray(start + np.arange(count, dtype=start.dtype) * step, start.dtype)


def _split(values: Values, split: Any = None, *, call: Call, axis: int = 0) -> Sequence[Values]:
    """Split into equal parts, the last perhaps smaller, unless sizes are given."""
    given, each = ints(split), ceil(values.shape[axis] / call.results)
    return np.split(values, np.cumsum(given)[:-1] if given else [each * at for at in range(1, call.results)], axis)


def _slice(values: Values, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Values:
    begin, stop = ints(starts) or [], ints(ends) or []
    step, cut = ints(steps) or [1] * len(begin), [slice(None)] * values.ndim
    for at, axis in enumerate(ints(axes) or range(len(begin))):
        # A slice that goes down to the first element has no number for its stop: -1 would be the last element.
        end = None if step[at] < 0 and stop[at] < -values.shape[axis] else stop[at]
        cut[axis] = slice(begin[at], end, step[at])
    return values[tuple(cut)]


def _pad(
    values: Values,
    pads: Any = None,
    value: Any = 0.0,
    axes: Any = None,
    *,
    mode: str = "constant",
    paddings: Any = None,
) -> Values:
    """Pad; negative amounts are cut off."""
    sizes, which = ints(pads) or ints(paddings) or [], ints(axes) or [*range(values.ndim)]
    ends = [(0, 0)] * values.ndim
    for at, axis in enumerate(which):
        ends[axis] = sizes[at], sizes[at + len(which)]
    cut = tuple(slice(max(0, -low), size - max(0, -high)) for (low, high), size in zip(ends, values.shape, strict=True))
    more = [(max(0, low), max(0, high)) for low, high in ends]
    if mode == "constant":
        return np.pad(values[cut], more, constant_values=0.0 if value is None else np.asarray(value).item())
    pad: Any = np.pad
    return np.asarray(pad(values[cut], more, mode))


def _depth_to_space(values: Values, *, blocksize: Any = None, mode: str = "DCR") -> Values:
    images, channels, height, width = values.shape
    if mode == "DCR":
        parts = values.reshape(images, blocksize, blocksize, -1, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        parts = values.reshape(images, -1, blocksize, blocksize, height, width).transpose(0, 1, 4, 2, 5, 3)
    return parts.reshape(images, channels // blocksize**2, height * blocksize, width * blocksize)


def _space_to_depth(values: Values, *, blocksize: Any = None, mode: str = "DCR") -> Values:
    images, channels, height, width = values.shape
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    parts = values.reshape(images, channels, height // blocksize, blocksize, width // blocksize, blocksize)
    shape = images, channels * blocksize**2, height // blocksize, width // blocksize
    return parts.transpose(order).reshape(shape)


NODES: dict[str, Function] = {
    "Cast": lambda x, *, to=None: x.astype(TYPES[to]), "Constant": _constant, "ConstantOfShape": _filled,
    "DepthToSpace": _depth_to_space, "Dropout": _dropout, "Pad": _pad, "Range": _range, "Reshape": _reshape,
    "Slice": _slice, "SpaceToDepth": _space_to_depth, "Split": _split,
    "Shape": lambda x, *, start=0, end=None: np.array(x.shape[start:end], np.int64),
    "Size": lambda x: np.array(x.size, np.int64),
    "CastLike": lambda x, like: x.astype(like.dtype),
    "Concat": lambda *operands, axis=1: np.concatenate(operands, axis),
    "Expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist()))),
    "Gather": lambda x, indices, *, axis=0: np.take(x, indices, axis),
    "GatherElements": lambda x, indices, *, axis=0: (
        np.take_along_axis(x, np.where(indices < 0, indices + x.shape[axis], indices), axis)
    ),
    "GatherND": lambda x, indices, *, batch_dims=0: np.asarray(
        x[(*np.indices(indices.shape[:-1], sparse=True)[:batch_dims], *np.moveaxis(indices, -1, 0))]
    ),
    "Identity": lambda x, *_: x,
    "Flatten": lambda x, *, axis=1: x.reshape(prod(x.shape[: axis if axis >= 0 else x.ndim + axis]), -1),
    "Squeeze": lambda x, axes=None: np.squeeze(x, None if axes is None else tuple(ints(axes) or ())),
    "Trilu": lambda x, diagonal=0, *, upper=1: (np.triu if upper else np.tril)(x, int(np.asarray(diagonal).item())),
    "Tile": lambda x, repeats: np.tile(x, repeats.tolist()),
    "Transpose": lambda x, *, perm=None: np.transpose(x, perm),
    "Unsqueeze": lambda x, axes=None: np.expand_dims(x, tuple(ints(axes) or ())),
}  # fmt: skip
"""The functions by the name of the operator."""
