"""Primitives of JAX, each straight from the definition of `jax.lax`, by their names there; and the few functions that
take the place of several of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from tpusim.reference import pointwise
from tpusim.reference.nodes.node import Call, Function, Values, as_real, div, in_doubles, like_first

# ---- element by element


def _to_bfloat16(values: Values) -> Values:
    """Round to 8 significant bits, ties to even, by arithmetic in float64: the simulator does it on bits."""
    exact = values.astype(np.float64)
    unit = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - 8, -133))
    with np.errstate(over="ignore", invalid="ignore"):
        rounded: Values = (np.rint(exact / unit) * unit).astype(np.float32)
    return rounded


def _converted(values: Values, *, new_dtype: str = "") -> Values:
    """Convert numbers; bfloat16 is held as float32."""
    if new_dtype == "bfloat16":
        return _to_bfloat16(values)
    return values.astype(np.dtype(new_dtype))


def _select(which: Values, *cases: Values) -> Values:
    return np.choose(which.astype(np.int64), [np.broadcast_to(each, np.broadcast_shapes(*(c.shape for c in cases)))
                                              for each in cases], mode="clip")  # fmt: skip


# ---- along axes


def _over(function: Any) -> Function:
    return lambda values, *, axes=(): np.asarray(function(values, axis=tuple(axes)))


def _farthest(function: Any) -> Function:
    def compute(values: Values, *, axes: Sequence[int] = (), index_dtype: Any = None) -> Values:
        (axis,) = axes
        return np.asarray(function(values, axis=axis)).astype(np.dtype(index_dtype or np.int32))

    return compute


def _cumulative(values: Values, *, axis: int = 0, reverse: bool = False) -> Values:
    ordered = np.flip(values, axis) if reverse else values
    sums = np.cumsum(ordered, axis, dtype=values.dtype)
    return np.flip(sums, axis) if reverse else sums


def _dot(one: Values, other: Values, *, dimension_numbers: Any = None) -> Values:
    """Multiply and sum up over axes; those that both share come first in the result, then the first one's."""
    (summed, their), (outer, more) = dimension_numbers
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    first = [next(letters) for _ in range(one.ndim)]
    second = [next(letters) for _ in range(other.ndim)]
    for mine, theirs in (*zip(summed, their, strict=True), *zip(outer, more, strict=True)):
        second[theirs] = first[mine]
    shared = [first[axis] for axis in outer]
    gone = {first[axis] for axis in summed}
    left = [*shared, *(each for each in (*first, *second) if each not in gone and each not in shared)]
    return np.asarray(np.einsum(f"{''.join(first)},{''.join(second)}->{''.join(left)}", one, other), one.dtype)


# ---- moves


def _spread(values: Values, *, shape: Sequence[int] = (), broadcast_dimensions: Sequence[int] = ()) -> Values:
    places = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, values.shape, strict=True):
        places[int(axis)] = size
    return np.broadcast_to(values.reshape(places), tuple(shape))


def _slice(
    values: Values, *, start_indices: Sequence[int] = (), limit_indices: Sequence[int] = (), strides: Any = None
) -> Values:
    steps = strides or [1] * values.ndim
    return values[tuple(map(slice, start_indices, limit_indices, steps))]


def _pad(values: Values, filler: Values, *, padding_config: Sequence[tuple[int, int, int]] = ()) -> Values:
    """Pad each axis before, behind, and between elements; less than nothing cuts off."""
    spread = [
        max(0, (size - 1) * (inner + 1) + 1) for size, (_, _, inner) in zip(values.shape, padding_config, strict=True)
    ]
    made = np.full(spread, filler, values.dtype)
    made[tuple(slice(None, None, inner + 1) for _, _, inner in padding_config)] = values
    more = [(max(0, before), max(0, behind)) for before, behind, _ in padding_config]
    wide = np.pad(made, more, constant_values=filler.item())
    return wide[tuple(slice(max(0, -before), size - max(0, -behind))
                      for size, (before, behind, _) in zip(wide.shape, padding_config, strict=True))]  # fmt: skip


def _first(values: Values, starts: Sequence[Values], sizes: Sequence[int]) -> tuple[slice, ...]:
    """Return the part of some sizes that begins at `starts`, moved so that it lies within the values."""
    at = (int(np.clip(start, 0, whole - size)) for start, whole, size in zip(starts, values.shape, sizes, strict=True))
    return tuple(slice(first, first + size) for first, size in zip(at, sizes, strict=True))


def _updated(values: Values, update: Values, *starts: Values) -> Values:
    made = values.copy()
    made[_first(values, starts, update.shape)] = update
    return made


def _places(
    shape: Sequence[int], indices: Values, axes: Sequence[int], sizes: Sequence[int], dropped: Sequence[int],
    batching: Sequence[int], of_indices: Sequence[int], inside: bool,
) -> tuple[tuple[Values, ...], Values]:  # fmt: skip
    """Return where parts of these sizes lie in an array, by its axes: index arrays of the shape [*parts, *sizes of a
    part]; and which places lie within it.

    `indices` say where each begins along `axes`. Parts beyond the ends are moved where all have to be `inside`.
    """
    parts, kept = indices.shape[:-1], [axis for axis in range(len(shape)) if axis not in (*dropped, *batching)]
    starts = [np.zeros(parts, np.int64) for _ in shape]
    for number, axis in enumerate(axes):
        starts[axis] = indices[..., number].astype(np.int64)
    for axis, own in zip(batching, of_indices, strict=True):
        starts[axis] = starts[axis] + np.arange(parts[own]).reshape(
            [-1 if at == own else 1 for at in range(len(parts))]
        )
    within = np.ones(parts, np.bool_)
    for axis, start in enumerate(starts):
        last = shape[axis] - sizes[axis]
        starts[axis] = np.clip(start, 0, last)
        within &= (start == starts[axis]) | inside
    places = []
    for axis, start in enumerate(starts):
        wide = start.reshape(*parts, *[1] * len(kept))
        if axis in kept:
            at = kept.index(axis)
            wide = wide + np.arange(sizes[axis]).reshape([-1 if each == at else 1 for each in range(len(kept))])
        places.append(wide)
    return tuple(np.broadcast_arrays(*places)), within.reshape(*parts, *[1] * len(kept))


def _inside(mode: str) -> bool:
    """Return whether parts beyond the ends are moved, not left out."""
    return not mode.endswith("FILL_OR_DROP")


def _order(rank: int, window: Sequence[int]) -> list[int]:
    """Return for each axis its place among [*parts, *axes of a part]."""
    others = [axis for axis in range(rank) if axis not in window]
    return [*np.argsort([*others, *window])]


def _gather(
    values: Values, indices: Values, *, dimension_numbers: Any = None, slice_sizes: Sequence[int] = (), mode: str = "",
    fill_value: Any = None,
) -> Values:  # fmt: skip
    said = dimension_numbers
    at, within = _places(values.shape, indices, said.start_index_map, slice_sizes, said.collapsed_slice_dims,
                         said.operand_batching_dims, said.start_indices_batching_dims, _inside(mode))  # fmt: skip
    real = np.issubdtype(values.dtype, np.floating)
    filler = fill_value if fill_value is not None else np.nan if real else np.iinfo(values.dtype).min
    found = np.where(within, values[at], np.asarray(filler, values.dtype))
    return found.transpose(_order(found.ndim, said.offset_dims))


def _scattered(add: bool) -> Function:
    def compute(
        values: Values, indices: Values, updates: Values, *, dimension_numbers: Any = None, mode: str = ""
    ) -> Values:
        said = dimension_numbers
        window = said.update_window_dims
        gone = {*said.inserted_window_dims, *said.operand_batching_dims}
        kept = iter(updates.shape[axis] for axis in window)
        sizes = [1 if axis in gone else next(kept) for axis in range(values.ndim)]
        at, within = _places(values.shape, indices, said.scatter_dims_to_operand_dims, sizes, said.inserted_window_dims,
                             said.operand_batching_dims, said.scatter_indices_batching_dims, _inside(mode))  # fmt: skip
        others = [axis for axis in range(updates.ndim) if axis not in window]
        chosen = np.broadcast_to(within, at[0].shape)
        parts, places = updates.transpose(*others, *window)[chosen], tuple(each[chosen] for each in at)
        made = values.copy()
        if add:
            np.add.at(made, places, parts)
        else:
            made[places] = parts
        return made

    return compute


# ---- windows


def _taps(
    values: Values, sizes: Sequence[int], strides: Sequence[int], padding: Sequence[tuple[int, int]],
    dilation: Sequence[int], filler: Any,
) -> Iterator[Values]:  # fmt: skip
    """Yield the values below each tap of a window."""
    padded = np.pad(values, [(before, behind) for before, behind in padding], constant_values=filler)
    spans = [step * (size - 1) + 1 for size, step in zip(sizes, dilation, strict=True)]
    outputs = [(whole - span) // step + 1 for whole, span, step in zip(padded.shape, spans, strides, strict=True)]
    for tap in np.ndindex(*sizes):
        firsts = [at * step for at, step in zip(tap, dilation, strict=True)]
        yield padded[tuple(slice(first, first + (many - 1) * step + 1, step)
                           for first, many, step in zip(firsts, outputs, strides, strict=True))]  # fmt: skip


def _window(function: Any, start: Callable[[Values], Any]) -> Callable[..., Values]:
    def compute(
        values: Values, *, window_dimensions: Sequence[int] = (), window_strides: Sequence[int] = (), padding: Any = (),
        window_dilation: Sequence[int] = (), base_dilation: Sequence[int] = (),
    ) -> Values:  # fmt: skip
        if prod(base_dilation) > 1:
            apart = tuple((0, 0, step - 1) for step in base_dilation)
            values = _pad(values, np.asarray(start(values), values.dtype), padding_config=apart)
        taps = _taps(values, window_dimensions, window_strides, padding, window_dilation, start(values))
        made = next(taps).copy()
        for each in taps:
            function(made, each, out=made)
        return made

    return compute


def _least(values: Values) -> Any:
    return -np.inf if np.issubdtype(values.dtype, np.floating) else np.iinfo(values.dtype).min


def _average(values: Values, *, call: Call) -> Values:
    """Average the elements below a window: with `include_pad` zeros around the map count as well."""
    sums, window = _window(np.add, lambda _: 0), {**call.attributes}
    if window.pop("include_pad"):
        return as_real(sums(values, **window) / prod(window["window_dimensions"]), values)
    return as_real(sums(values, **window) / sums(np.ones_like(values), **window), values)


def _below(values: Values, filler: float, call: Call) -> Values:
    """Return the values below each tap of the windows that a node has; the first axis counts taps."""
    said = call.attributes
    window = said["window_dimensions"], said["window_strides"], said["padding"], said["window_dilation"]
    return np.array([*_taps(values, *window, filler)])


def _choice(values: Values, *, call: Call) -> Values:
    """Return the number of the first largest tap below each window."""
    return as_real(np.argmax(_below(values, -np.inf, call), axis=0), values)


def _given_back(slopes: Values, choice: Values, *, call: Call) -> Values:
    """Add each element to the place of the tap that its window has chosen."""
    shape = call.attributes["shape"]
    places = _below(np.arange(prod(shape)).reshape(shape), -1, call)
    where = np.take_along_axis(places, choice[None].astype(np.int64), 0)
    made = np.zeros(prod(shape), slopes.dtype)
    np.add.at(made, where.reshape(-1), slopes.reshape(-1))
    return made.reshape(shape)


def _chosen_add(
    source: Values, values: Values, *, window_dimensions: Sequence[int] = (), window_strides: Sequence[int] = (),
    padding: Any = (), select_prim: Any = None,
) -> Values:  # fmt: skip
    """Add each element of the source to the first largest (or smallest) element below its window."""
    least = str(select_prim) == "le"
    window = window_dimensions, window_strides, padding, [1] * values.ndim
    sign = -1 if least else 1
    own = np.arange(values.size).reshape(values.shape)
    best, where = np.full(source.shape, -np.inf), np.full(source.shape, -1)
    for each, place in zip(_taps(sign * values, *window, -np.inf), _taps(own, *window, -1), strict=True):
        better = (each > best) & (place >= 0)
        best, where = np.where(better, each, best), np.where(better, place, where)
    made = np.zeros(values.size, source.dtype)
    np.add.at(made, where.reshape(-1), source.reshape(-1))
    return made.reshape(values.shape)


def _largest(values: Values, *, k: Any = 1, axis: int = -1) -> Sequence[Values]:
    """Return the largest elements along an axis, in falling order, and their places; of equals the first come first."""
    ordered = np.argsort(-values.astype(np.float64), axis=axis, kind="stable")
    places = np.take(ordered, np.arange(k), axis=axis)
    return [np.take_along_axis(values, places, axis), places.astype(np.int32)]


def _softmax(values: Values, *, axis: int = -1) -> Values:
    raised = np.exp(values - values.max(axis=axis, keepdims=True))
    return np.asarray(raised / raised.sum(axis=axis, keepdims=True))


def _masked_softmax(values: Values, *, axis: int = -1, queries_axis: int = -2, window: int = 0) -> Values:
    """Softmax of scores in which the last query sees all keys, and each one before it one less."""
    queries, keys = values.shape[queries_axis], values.shape[axis]
    last = np.arange(keys - queries, keys)[:, None]
    place = np.arange(keys)[None]
    seen = (place <= last) & (place > last - (window or keys))
    shape = [1] * values.ndim
    shape[queries_axis], shape[axis] = seen.shape
    return _softmax(np.where(seen.reshape(shape), values, -np.inf), axis=axis)


def _norm(centred: bool) -> Function:
    """Make a norm of rows: of their elements, or of what is left of these without the mean."""

    def compute(values: Values, *weights: Values, epsilon: float = 1e-6, operands: Sequence[str] = ()) -> Values:
        wide, given = values.astype(np.float64), dict(zip(operands, weights, strict=True))
        wide = wide - wide.mean(axis=-1, keepdims=True) if centred else wide
        made = wide / np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + epsilon)
        return as_real(made * given.get("scale", 1.0) + given.get("shift", 0.0), values)

    return compute


def _turn_table(*tables: Values, signs: Sequence[int] = (), pairs: bool = False, channels: int = 0) -> Values:
    """Put the tables of two coordinates side by side; one for all channels has a number for each of them."""
    parts = []
    for coordinate in range(2):
        at = min(coordinate, len(tables) - 1)
        table, half = tables[at], channels // 2
        if table.shape[-1] == channels:
            table = table[..., coordinate::2] if pairs else table[..., coordinate * half : (coordinate + 1) * half]
        parts.append(signs[at] * table)
    return np.concatenate(np.broadcast_arrays(*parts), axis=-1).astype(tables[0].dtype)


def _turned(values: Values, cos: Values, sin: Values, *, pairs: bool = False) -> Values:
    """Turn points whose coordinates are halves of the channels, or stand in pairs, and then have an axis in the result;
    tables have them as halves.
    """
    wide = values.astype(np.float64)
    one, other = (wide[..., ::2], wide[..., 1::2]) if pairs else np.split(wide, 2, axis=-1)
    made = np.concatenate([one, other], -1) * cos + np.concatenate([other, one], -1) * sin
    return as_real(np.stack(np.split(made, 2, axis=-1), -1) if pairs else made, values)


NODES: dict[str, Function] = {
    "abs": np.abs, "add": np.add, "add_any": np.add, "and": np.bitwise_and, "ceil": np.ceil, "cos": np.cos,
    "eq": np.equal, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "floor": np.floor, "ge": np.greater_equal,
    "gt": np.greater, "is_finite": np.isfinite, "le": np.less_equal, "log": np.log, "log1p": np.log1p, "lt": np.less,
    "max": np.maximum, "min": np.minimum, "mul": np.multiply, "ne": np.not_equal, "neg": np.negative,
    "not": np.invert, "or": np.bitwise_or, "pow": like_first(np.power), "rem": np.fmod, "sign": np.sign, "sin": np.sin,
    "sqrt": np.sqrt, "sub": np.subtract, "tan": np.tan, "xor": np.bitwise_xor, "cbrt": np.cbrt,
    "axis_index": lambda *, place=0: np.asarray(place, np.int32),
    "erfc": in_doubles(lambda x: 1 - pointwise.erf_of(x)), "erf": in_doubles(pointwise.erf_of),
    "logistic": in_doubles(pointwise.sigmoid), "tanh": in_doubles(pointwise.tanh),
    "softplus": in_doubles(pointwise.softplus), "silu": in_doubles(lambda x: x * pointwise.sigmoid(x)),
    "gelu": in_doubles(lambda x: pointwise.gelu(x, "none")),
    "gelu_tanh": in_doubles(lambda x: pointwise.gelu(x, "tanh")),
    "rsqrt": like_first(lambda x: 1 / np.sqrt(x)), "square": lambda x: np.multiply(x, x),
    "integer_pow": like_first(lambda x, *, y=2: np.power(x.astype(np.float64), y)),
    "round": lambda x, *, rounding_method=None: (
        np.rint(x) if "EVEN" in str(rounding_method) else as_real(np.trunc(x + np.copysign(0.5, x)), x)
    ),
    "div": div, "convert_element_type": _converted, "select_n": _select, "copy": lambda x: x,
    "clamp": lambda low, x, high: np.clip(x, low, high), "reduce_precision": lambda x: x,
    "reduce_sum": lambda x, *, axes=(): np.asarray(x.sum(axis=tuple(axes), dtype=x.dtype)),
    "reduce_max": _over(np.max), "reduce_min": _over(np.min), "reduce_prod": _over(np.prod),
    "reduce_and": _over(np.all), "reduce_or": _over(np.any), "argmax": _farthest(np.argmax),
    "argmin": _farthest(np.argmin), "cumsum": _cumulative, "dot_general": _dot,
    "mean": like_first(lambda x, *, axes=(): x.mean(axis=tuple(axes))), "softmax": _softmax,
    "masked_softmax": _masked_softmax, "rms_norm": _norm(False), "layer_norm": _norm(True),
    "rotary": _turned, "turn_table": _turn_table,
    "broadcast_in_dim": _spread, "reshape": lambda x, *, new_sizes=(), dimensions=None: (
        (x if dimensions is None else x.transpose(dimensions)).reshape(tuple(new_sizes))
    ),
    "transpose": lambda x, *, permutation=(): x.transpose(permutation),
    "squeeze": lambda x, *, dimensions=(): np.squeeze(x, tuple(dimensions)),
    "expand_dims": lambda x, *, dimensions=(): np.expand_dims(x, tuple(dimensions)),
    "rev": lambda x, *, dimensions=(): np.flip(x, tuple(dimensions)),
    "concatenate": lambda *operands, dimension=0: np.concatenate(operands, dimension),
    "slice": _slice, "pad": _pad, "dynamic_update_slice": _updated,
    "dynamic_slice": lambda x, *starts, slice_sizes=(): x[_first(x, starts, slice_sizes)],
    "split": lambda x, *, sizes=(), axis=0: np.split(x, np.cumsum(sizes)[:-1], axis),
    "gather": _gather, "scatter": _scattered(False), "scatter-add": _scattered(True),
    "reduce_window_max": _window(np.maximum, _least), "reduce_window_sum": _window(np.add, lambda _: 0),
    "top_k": _largest, "average_pool": _average, "select_and_scatter_add": _chosen_add, "window_choice": _choice,
    "max_pool_gradient": _given_back, "relu_gradient": lambda dy, x: np.where(x > 0, dy, np.zeros_like(dy)),
    "weighted_sum": lambda one, other, *, factor=1.0, other_factor=1.0: one * factor + other * other_factor,
}  # fmt: skip
"""The functions by the name of the primitive."""
