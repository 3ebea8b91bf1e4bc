"""Primitives of JAX on chips' parts of values: by primitive how the result is placed, and what chips do for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import lax
from jax.extend import source_info_util

from tpusim.network.formats.jax_function.local_values import LocalValue, LocalValues
from tpusim.network.formats.jax_function.placements import narrow, nowhere, reshaped, together
from tpusim.network.graph import Placement

ELEMENTWISE = frozenset({
    "abs", "add", "add_any", "and", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "copy_p", "cos", "div",
    "eq", "erf", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p",
    "logistic", "lt", "max", "min", "mul", "name", "ne", "neg", "not", "or", "pow", "reduce_precision", "rem", "round",
    "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
})  # fmt: skip
_REDUCED: Mapping[str, Callable[..., Any]] = {"reduce_sum": lax.psum, "reduce_max": lax.pmax, "reduce_min": lax.pmin}
"""How chips join what each has reduced of its part."""
ALONG: Mapping[str, Callable[[Any], Sequence[int]]] = {
    "argmax": lambda said: said["axes"], "argmin": lambda said: said["axes"], "reduce_and": lambda said: said["axes"],
    "reduce_or": lambda said: said["axes"], "reduce_prod": lambda said: said["axes"],
    "cumsum": lambda said: [said["axis"]], "cummax": lambda said: [said["axis"]],
    "sort": lambda said: [said["dimension"]],
    "rev": lambda said: said["dimensions"], "concatenate": lambda said: [said["dimension"]],
    "split": lambda said: [said["axis"]], "top_k": lambda said: [said.get("axis", -1)],
    "pad": lambda said: [axis for axis, each in enumerate(said["padding_config"]) if any(each)],
    "reduce_window_max": lambda said: _windowed(said), "reduce_window_sum": lambda said: _windowed(said),
    "select_and_scatter_add": lambda said: _windowed(said),
}  # fmt: skip
"""By primitive the axes of its operands that it works along, which must be whole; the others stay as they are."""
_GONE = frozenset({"argmax", "argmin", "reduce_and", "reduce_or", "reduce_prod"})
"""Primitives of `ALONG` whose results do not have the axes that they work along."""


def _windowed(said: Mapping[str, Any]) -> list[int]:
    around = said["padding"]
    return [axis for axis, size in enumerate(said["window_dimensions"])
            if size > 1 or said["window_strides"][axis] > 1 or any(around[axis])]  # fmt: skip


def elementwise(work: LocalValues, eqn: Any, given: Sequence[LocalValue], target: Placement | None) -> LocalValue:
    (out,) = eqn.outvars
    shape = out.aval.shape
    whole = [part for part in given if len(part.place) == len(shape)]
    wanted = target if target is not None else together([part.place for part in whole], len(shape))
    placed = [
        work.placed(part, narrow(wanted, var.aval.shape, shape)) if len(part.place) == len(shape) else part
        for part, var in zip(given, eqn.invars, strict=True)
    ]
    (made,) = work.bound(eqn, placed)
    # Of one value, beside numbers, the result wants to be placed as that does.
    origin = whole[0].origin if len(whole) == 1 and shape else None
    return LocalValue(made, wanted, origin)


def whole_along(work: LocalValues, eqn: Any, given: Sequence[LocalValue]) -> list[LocalValue]:
    """Apply a primitive along axes that no chip has a part of."""
    op, rank = eqn.primitive.name, max((len(part.place) for part in given), default=0)
    axes = [axis % rank for axis in ALONG[op](eqn.params)]
    wide = [part for part in given if len(part.place) == rank]
    place = together([part.place for part in wide], rank)
    if any(place[axis] for axis in axes):
        work.refuse(eqn, given, "it works along an axis that chips have parts of")
    placed = [work.placed(part, place) if len(part.place) == rank else part for part in given]
    kept = tuple(each for axis, each in enumerate(place) if op not in _GONE or axis not in axes)
    return [LocalValue(each, kept) for each in work.bound(eqn, placed)]


def _reduced(work: LocalValues, eqn: Any, given: Sequence[LocalValue], target: Placement | None) -> LocalValue:
    (part,), axes, op = given, eqn.params["axes"], eqn.primitive.name
    (made,) = work.bound(eqn, given)
    place = tuple(each for axis, each in enumerate(part.place) if axis not in axes)
    partial = tuple(name for axis in axes for name in part.place[axis])
    if op == "reduce_sum":
        return work.joined(made, place, partial, target)
    return LocalValue(_REDUCED[op](made, partial) if partial else made, place)


def _product(work: LocalValues, eqn: Any, given: Sequence[LocalValue], target: Placement | None) -> LocalValue:
    (mine, theirs), (outer, more) = eqn.params["dimension_numbers"]
    first, second = given
    one, other = [*first.place], [*second.place]
    for at, to in (*zip(mine, theirs, strict=True), *zip(outer, more, strict=True)):
        # Along an axis of the mesh that parts rows already, weights are gathered.
        free = not {*other[to]} & {name for axes in one for name in axes}
        one[at] = other[to] = one[at] or (other[to] if free else ())
    rows = [axis for axis in range(len(one)) if axis not in (*mine, *outer)]
    cols = [axis for axis in range(len(other)) if axis not in (*theirs, *more)]
    used = {name for axes in one for name in axes}
    for axis in cols:
        # What both factors have parts of along one axis of the mesh, the second must have whole.
        other[axis] = () if used & {*other[axis]} else other[axis]
    placed = [work.placed(first, tuple(one)), work.placed(second, tuple(other))]
    (made,) = work.bound(eqn, placed)
    place = (*(one[axis] for axis in outer), *(one[axis] for axis in rows), *(other[axis] for axis in cols))
    return work.joined(made, place, [name for axis in mine for name in one[axis]], target)


def _convolution(work: LocalValues, eqn: Any, given: Sequence[LocalValue], target: Placement | None) -> LocalValue:
    said, (maps, weights) = eqn.params, given
    spec = said["dimension_numbers"]
    sides = [maps.place[axis] for axis in spec.lhs_spec[2:]] + [weights.place[axis] for axis in spec.rhs_spec[2:]]
    images, summed = (maps.place[axis] for axis in spec.lhs_spec[:2])
    outputs, inner = (weights.place[axis] for axis in spec.rhs_spec[:2])
    grouped = said["feature_group_count"] * said["batch_group_count"] > 1
    if any(sides) or (grouped and (summed or outputs or inner or said["batch_group_count"] > 1)):
        work.refuse(eqn, given, "chips share a convolution by images and channels alone, without groups")
    summed = summed or (() if {*inner} & {*images} else inner)
    outputs = () if {*outputs} & {*images, *summed} else outputs
    one, other = [*maps.place], [*weights.place]
    one[spec.lhs_spec[1]] = other[spec.rhs_spec[1]] = summed
    other[spec.rhs_spec[0]] = outputs
    (made,) = work.bound(eqn, [work.placed(maps, tuple(one)), work.placed(weights, tuple(other))])
    place: list[tuple[str, ...]] = [()] * len(one)
    place[spec.out_spec[0]], place[spec.out_spec[1]] = images, outputs
    return work.joined(made, tuple(place), summed, target)


def _spread(work: LocalValues, eqn: Any, given: Sequence[LocalValue], target: Placement | None) -> LocalValue:
    said, part = eqn.params, given[0]
    shape = eqn.outvars[0].aval.shape
    mapped = {int(axis): own for own, axis in enumerate(said["broadcast_dimensions"])}
    kept = {axis: part.place[own] for axis, own in mapped.items()
            if eqn.invars[0].aval.shape[own] == shape[axis]}  # fmt: skip
    own = tuple(kept.get(axis, ()) for axis in range(len(shape)))

    def placed(wanted: Placement) -> Any:
        if any(wanted[axis] != each for axis, each in kept.items()):
            return None
        with source_info_util.user_context(eqn.source_info.traceback):
            return work.bound(eqn, [part], shape=work.local(shape, wanted))[0]

    wanted = tuple(kept.get(axis, each) for axis, each in enumerate(target)) if target is not None else own
    zero = bool(getattr(eqn.invars[0], "val", 1) == 0)
    return LocalValue(placed(wanted), wanted, None, placed, zero)


def _numbered(work: LocalValues, eqn: Any, given: Sequence[LocalValue], target: Placement | None) -> LocalValue:
    """Number the elements along an axis: those of a part begin where it begins."""
    said, shape = eqn.params, eqn.outvars[0].aval.shape

    def placed(wanted: Placement) -> Any:
        (made,) = work.bound(eqn, given, shape=work.local(shape, wanted))
        size, rank = made.shape[said["dimension"]], 0
        for name in wanted[said["dimension"]]:
            rank = rank * work.mesh[name] + lax.axis_index(name)
        return made + lax.convert_element_type(rank * size, made.dtype) if wanted[said["dimension"]] else made

    wanted = target if target is not None else nowhere(eqn.outvars[0].aval)
    return LocalValue(placed(wanted), wanted, None, placed)


def _transposed(work: LocalValues, eqn: Any, given: Sequence[LocalValue], target: Placement | None) -> LocalValue:
    (part,), order = given, eqn.params["permutation"]

    def placed(wanted: Placement) -> Any:
        assert part.again is not None
        made = part.again(tuple(wanted[order.index(axis)] for axis in range(len(order))))
        return None if made is None else work.bound(eqn, [part._replace(value=made)])[0]

    place = tuple(part.place[axis] for axis in order)
    return LocalValue(work.bound(eqn, given)[0], place, None, placed if part.again else None,
                 part.zero, part.sum)  # fmt: skip


def _with_axes(work: LocalValues, eqn: Any, given: Sequence[LocalValue], target: Placement | None) -> LocalValue:
    """Add axes of one element, or leave them out."""
    (part,), rank = given, len(eqn.outvars[0].aval.shape)
    if eqn.primitive.name == "squeeze":
        gone = [axis % len(part.place) for axis in eqn.params["dimensions"]]
        return LocalValue(work.bound(eqn, given)[0], tuple(e for axis, e in enumerate(part.place) if axis not in gone))
    new, own = [axis % rank for axis in eqn.params["dimensions"]], iter(part.place)
    return LocalValue(work.bound(eqn, given)[0], tuple(() if axis in new else next(own) for axis in range(rank)))


def _changed_shape(work: LocalValues, eqn: Any, given: Sequence[LocalValue], target: Placement | None) -> LocalValue:
    part, before, after = given[0], eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    place = reshaped(before, after, part.place, work.along)
    if place is None or (part.parted and eqn.params.get("dimensions") is not None):
        work.refuse(eqn, given, f"as [{', '.join(map(str, after))}] parts of chips would not lie together")
    return LocalValue(work.bound(eqn, given, new_sizes=work.local(after, place))[0], place)


def _sliced(work: LocalValues, eqn: Any, given: Sequence[LocalValue], target: Placement | None) -> LocalValue:
    said, part, shape = eqn.params, given[0], eqn.invars[0].aval.shape
    made = eqn.outvars[0].aval.shape
    if any(axes and made[axis] != shape[axis] for axis, axes in enumerate(part.place)):
        work.refuse(eqn, given, "it cuts an axis that chips have parts of")
    each = zip(said["limit_indices"], part.value.shape, part.place, strict=True)
    ends = [size if axes else end for end, size, axes in each]
    return LocalValue(work.bound(eqn, [part], limit_indices=tuple(ends))[0], part.place)


def _sliced_by_values(work: LocalValues, eqn: Any, given: Sequence[LocalValue], target: Placement | None) -> LocalValue:
    part, shape, made = given[0], eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if eqn.primitive.name == "dynamic_update_slice":
        part, update, *starts = given
        cut = eqn.invars[1].aval.shape
        if any(axes and cut[axis] != shape[axis] for axis, axes in enumerate(part.place)):
            work.refuse(eqn, given, "it changes a part of an axis that chips have parts of")
        return LocalValue(work.bound(eqn, [part, work.placed(update, part.place), *starts])[0], part.place)
    if any(axes and made[axis] != shape[axis] for axis, axes in enumerate(part.place)):
        work.refuse(eqn, given, "it cuts an axis that chips have parts of")
    return LocalValue(work.bound(eqn, given, slice_sizes=work.local(made, part.place))[0], part.place)


def _taken(work: LocalValues, eqn: Any, given: Sequence[LocalValue], target: Placement | None) -> LocalValue:
    """Take parts of a table at places that other values tell: each chip for its part of these, of axes that all
    places have whole.
    """
    (table, places), said, shape = given, eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    sizes, rank = eqn.params["slice_sizes"], len(eqn.outvars[0].aval.shape)
    shared = dict(zip(said.operand_batching_dims, said.start_indices_batching_dims, strict=True))
    rows = [*places.place]
    for axis, row in shared.items():
        rows[row] = table.place[axis] or rows[row]
    places = work.placed(places, tuple(rows))
    wanted = tuple(rows[shared[axis]] if axis in shared else axes for axis, axes in enumerate(table.place))
    cut = [axis for axis, axes in enumerate(wanted) if axes and axis not in shared and sizes[axis] < shape[axis]]
    if cut or places.place[-1] or _twice(wanted, places.place, shared):
        work.refuse(eqn, given, "chips take whole rows alone, of a table that is not parted by rows")
    kept = [axis for axis in range(len(shape)) if axis not in (*said.collapsed_slice_dims, *shared)]
    local = [size // work.along(wanted[axis]) if axis not in shared else size for axis, size in enumerate(sizes)]
    made = work.bound(eqn, [work.placed(table, wanted), places], slice_sizes=tuple(local))[0]
    each, own = iter(rows), iter(kept)
    place = tuple(wanted[next(own)] if axis in said.offset_dims else next(each) for axis in range(rank))
    return LocalValue(made, place)


def _added_at_places(work: LocalValues, eqn: Any, given: Sequence[LocalValue], target: Placement | None) -> LocalValue:
    """Add parts to a table of zeros at places that other values tell: of parts that chips share, they add up."""
    (table, places, parts), said = given, eqn.params["dimension_numbers"]
    shape, rank = eqn.invars[0].aval.shape, len(eqn.invars[2].aval.shape)
    shared = dict(zip(said.operand_batching_dims, said.scatter_indices_batching_dims, strict=True))
    others = [axis for axis in range(rank) if axis not in said.update_window_dims]
    kept = [axis for axis in range(len(shape)) if axis not in (*said.inserted_window_dims, *shared)]
    own: list[tuple[str, ...]] = [()] * len(shape)
    for axis, row in shared.items():
        own[axis] = parts.place[others[row]]
    for axis, at in zip(kept, said.update_window_dims, strict=True):
        own[axis] = parts.place[at]
    rows = tuple(parts.place[axis] for axis in others)
    partial = [name for row, axes in enumerate(rows) for name in axes if row not in shared.values()]
    cut = any(own[axis] and eqn.invars[2].aval.shape[at] < shape[axis]
              for axis, at in zip(kept, said.update_window_dims, strict=True))  # fmt: skip
    if cut or (partial and not table.zero):
        work.refuse(eqn, given, "chips add whole rows alone, to zeros")
    placed = work.placed(places, (*rows, ()))
    (made,) = work.bound(eqn, [work.placed(table, tuple(own)), placed, parts])
    return work.joined(made, tuple(own), partial, target)


RULES: Mapping[str, Callable[[LocalValues, Any, Sequence[LocalValue], Placement | None], LocalValue]] = {
    **dict.fromkeys(_REDUCED, _reduced), "dot_general": _product,
    "conv_general_dilated": _convolution, "broadcast_in_dim": _spread,
    "iota": _numbered, "transpose": _transposed, "squeeze": _with_axes,
    "expand_dims": _with_axes, "reshape": _changed_shape, "slice": _sliced,
    "dynamic_slice": _sliced_by_values, "dynamic_update_slice": _sliced_by_values,
    "gather": _taken, "scatter-add": _added_at_places,
}  # fmt: skip


def _twice(table: Placement, places: Placement, shared: Mapping[int, int]) -> bool:
    """Return whether one axis of the mesh parts a table and the places in it, but where these go together."""
    rows = {name for row, axes in enumerate(places) if row not in shared.values() for name in axes}
    return bool(rows & {name for axes in table for name in axes})
