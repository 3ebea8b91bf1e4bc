"""The share of a function that each chip of a mesh computes: its jaxpr with local shapes, and exchanges between chips.

Bodies of `shard_map` are such shares already. What stands around them, or has sharded types, is made local primitive by
primitive: each value has a placement, the axes of the mesh that part each of its axes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple, NoReturn

import jax
from jax import lax
from jax.extend import core, source_info_util
from jax.sharding import AxisType

from tpusim.base.errors import InputError, Problem
from tpusim.network.formats.jax_function.source_lines import line_of, of_a_library
from tpusim.network.graph import Placement

SHARE = "share"
"""The primitive that stands for the body of a `shard_map`."""
_SHARE = core.Primitive(SHARE)
_SHARE.multiple_results = True


def _results(*operands: Any, jaxpr: Any) -> Any:
    return [jax.core.ShapedArray(var.aval.shape, var.aval.dtype) for var in jaxpr.outvars]


_SHARE.def_abstract_eval(_results)


_CALLS = {
    "checkpoint": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr", "jit": "jaxpr", "pjit": "jaxpr",
    "remat": "jaxpr", "remat2": "jaxpr",
}  # fmt: skip
"""Primitives that only call a function, and the parameter that is its body."""
_ELEMENTWISE = frozenset({
    "abs", "add", "add_any", "and", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "copy_p", "cos", "div",
    "eq", "erf", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p",
    "logistic", "lt", "max", "min", "mul", "name", "ne", "neg", "not", "or", "pow", "reduce_precision", "rem", "round",
    "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
})  # fmt: skip
_REDUCED: Mapping[str, Callable[..., Any]] = {"reduce_sum": lax.psum, "reduce_max": lax.pmax, "reduce_min": lax.pmin}
"""How chips join what each has reduced of its part."""
_ALONG: Mapping[str, Callable[[Any], Sequence[int]]] = {
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
"""Primitives of `_ALONG` whose results do not have the axes that they work along."""


class LocalFunction(NamedTuple):
    """A jaxpr of local shapes.

    Attributes:
        closed: what a chip computes.
        mesh: the axes of the mesh, each with its number of chips.
        inputs, outputs: placements of the whole function's.
    """

    closed: Any
    mesh: tuple[tuple[str, int], ...]
    inputs: Sequence[Placement]
    outputs: Sequence[Placement]


def localized(closed: Any, label: str) -> LocalFunction | None:
    """Return the share of a function that has sharded parts; None for one that has none.

    Inputs without a sharded type are placed as the first that reads them wants it.

    Raises InputError where it has several meshes, or a primitive of which nobody knows how chips share it.
    """
    meshes = [*dict.fromkeys(_meshes(closed.jaxpr))]
    if not meshes:
        return None
    if len(meshes) > 1:
        told = " and ".join(", ".join(f"{name}={many}" for name, many in each) for each in meshes[:2])
        raise InputError(Problem(f"it has several meshes, {told}; give its parts one by one", label))
    (mesh,) = meshes
    learned: dict[int, Placement] = {}
    while True:
        work = _Localizing(dict(mesh), label, dict(learned))
        places = [_typed(var) or learned.get(at) or _nowhere(var.aval) for at, var in enumerate(closed.jaxpr.invars)]
        shapes = [
            jax.ShapeDtypeStruct(work.local(var.aval.shape, place), var.aval.dtype)
            for var, place in zip(closed.jaxpr.invars, places, strict=True)
        ]
        ends: list[Placement] = []

        def share(*values: Any, work: Any = work, places: Any = places, ends: Any = ends) -> Any:
            given = [
                _Part(value, place, at if _typed(var) is None else None)
                for at, (value, place, var) in enumerate(zip(values, places, closed.jaxpr.invars, strict=True))
            ]
            made = work.run(closed, given)
            ends.extend(part.place for part in made)
            return [part.value for part in made]

        # The axes are known by name alone: no device is asked for.
        found = jax.make_jaxpr(share, axis_env=[*mesh])(*shapes)
        # What a reader wants is known when it reads, which is behind the start: then all begins again.
        if work.learned == learned:
            return LocalFunction(found, mesh, places, ends)
        learned = work.learned


def _meshes(jaxpr: Any) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield the meshes that a jaxpr and those inside of it name."""
    for var in (*jaxpr.invars, *jaxpr.constvars):
        if (typed := _explicit(var)) is not None:
            yield _axes(typed.mesh)
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "shard_map":
            yield _axes(eqn.params["mesh"])
            continue
        for each in (*eqn.params.get("in_shardings", ()), eqn.params.get("dst_sharding"), eqn.params.get("sharding")):
            if isinstance(each, jax.sharding.NamedSharding) and not each.mesh.empty:
                yield _axes(each.mesh)
        for inner in core.jaxprs_in_params(eqn.params):
            yield from _meshes(getattr(inner, "jaxpr", inner))


def _axes(mesh: Any) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(many)) for name, many in mesh.shape.items())


def _explicit(var: Any) -> Any:
    """Return the sharding of a value's type, if its mesh has explicit axes."""
    found = getattr(var.aval, "sharding", None)
    mesh = getattr(found, "mesh", None)
    if mesh is None or mesh.empty or AxisType.Explicit not in mesh.axis_types:
        return None
    return found


def _typed(var: Any) -> Placement | None:
    """Return the placement that a value's type says; None: it says none."""
    found = _explicit(var)
    return None if found is None else _placement(found.spec, len(var.aval.shape))


def _placement(spec: Any, rank: int) -> Placement:
    """Return a PartitionSpec as a placement of a value of `rank` axes."""
    each = [() if entry is None else entry if isinstance(entry, tuple) else (entry,) for entry in spec]
    return tuple(tuple(map(str, entry)) for entry in each) + ((),) * (rank - len(each))


def _nowhere(aval: Any) -> Placement:
    return ((),) * len(aval.shape)


def _windowed(said: Mapping[str, Any]) -> list[int]:
    around = said["padding"]
    return [axis for axis, size in enumerate(said["window_dimensions"])
            if size > 1 or said["window_strides"][axis] > 1 or any(around[axis])]  # fmt: skip


class _Part(NamedTuple):
    """A chip's part of a value.

    Attributes:
        value: what is traced.
        place: how the whole is parted.
        origin: the input that it is, of which nothing has told yet how it is placed.
        again: what makes it placed otherwise at less cost: the same number in fewer places, or a sum that is
            scattered; None where it cannot.
        zero: whether it is zero everywhere.
        sum: whether it is a sum over chips, which `again` scatters, so that it should be read once.
    """

    value: Any
    place: Placement
    origin: int | None = None
    again: Callable[[Placement], Any] | None = None
    zero: bool = False
    sum: bool = False


class _Localizing:
    """The interpreter of a jaxpr of whole values that makes local ones; it runs while JAX traces."""

    def __init__(self, mesh: Mapping[str, int], label: str, learned: dict[int, Placement]) -> None:
        self._mesh, self._label, self.learned = mesh, label, learned
        self._line = ""

    def along(self, axes: Sequence[str]) -> int:
        return prod(self._mesh[name] for name in axes)

    def local(self, shape: Sequence[int], place: Placement) -> tuple[int, ...]:
        """Return the shape of a chip's part. Raises InputError where it cannot be parted evenly."""
        for size, axes in zip(shape, place, strict=True):
            if size % self.along(axes):
                where = f" at {self._line}" if self._line else ""
                says = f"an axis of {size:,} elements{where} cannot be parted evenly along {', '.join(axes)}"
                raise InputError(Problem(says, self._label))
        return tuple(size // self.along(axes) for size, axes in zip(shape, place, strict=True))

    def run(self, closed: Any, given: Sequence[_Part], traceback: Any = None) -> list[_Part]:
        """Compute the local values of a body; `traceback` stands for those of its primitives."""
        jaxpr = getattr(closed, "jaxpr", closed)
        held = [_Part(each, _nowhere(var.aval))
                for each, var in zip(getattr(closed, "consts", ()), jaxpr.constvars, strict=True)]  # fmt: skip
        env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*held, *given), strict=True))

        def read(var: Any) -> _Part:
            return _Part(var.val, _nowhere(var.aval)) if hasattr(var, "val") else env[var]

        uses = Counter(var for eqn in jaxpr.eqns for var in eqn.invars if not hasattr(var, "val"))
        uses.update(var for var in jaxpr.outvars if not hasattr(var, "val"))
        for eqn in jaxpr.eqns:
            info = eqn.source_info
            told = traceback or info.traceback
            stack = source_info_util.current_name_stack() + info.name_stack
            outer = self._line
            with source_info_util.user_context(told, name_stack=stack):
                self._line = line_of(eqn) if traceback is None else outer
                made = self._equation(eqn, [*map(read, eqn.invars)], told)
                self._line = outer
            # A sum that several read is made once, whole.
            each = zip(eqn.outvars, made, strict=True)
            env |= {var: part._replace(again=None) if part.sum and uses[var] > 1 else part for var, part in each}
        return [*map(read, jaxpr.outvars)]

    # ---- one primitive

    def _equation(self, eqn: Any, given: Sequence[_Part], traceback: Any) -> Sequence[_Part]:
        op, said = eqn.primitive.name, eqn.params
        if op == "shard_map":
            return self._share(eqn, given)
        if op in _CALLS and (body := said.get(_CALLS[op]) or said.get("jaxpr") or said.get("call_jaxpr")):
            placed = self._asked(said.get("in_shardings", ()), given)
            # JAX traces a function of a library once, for all who call it.
            made = self.run(body, placed, traceback if self._line and of_a_library(body) else None)
            return self._asked(said.get("out_shardings", ()), made)
        targets = [_typed(var) for var in eqn.outvars]
        if op in ("reshard", "sharding_constraint"):
            (part,), wanted = given, said.get("dst_sharding") or said.get("sharding")
            if not isinstance(wanted, jax.sharding.NamedSharding):
                self._refuse(eqn, given, "its sharding names no axes of a mesh")
            return [self._placed(part, _placement(wanted.spec, len(part.place)))]
        if op in ("scan", "cond") and (any(map(_is_parted, given)) or _has_shares(said)):
            return (self._scan if op == "scan" else self._cond)(eqn, given)
        if op in _RULES:
            made = [_RULES[op](self, eqn, given, targets[0])]
        elif op in _ELEMENTWISE:
            made = [self._elementwise(eqn, given, targets[0])]
        elif op in _ALONG:
            made = self._whole_along(eqn, given)
        elif op == "optimization_barrier":
            return given
        elif any(map(_is_parted, given)):
            self._refuse(eqn, given, "nobody knows how chips share it; write it in a shard_map")
        else:
            made = [_Part(each, _nowhere(var.aval))
                    for each, var in zip(self._bound(eqn, given), eqn.outvars, strict=True)]  # fmt: skip
        pairs = zip(made, targets, strict=True)
        return [part if target in (None, part.place) else self._placed(part, target or ()) for part, target in pairs]

    def _refuse(self, eqn: Any, given: Sequence[_Part], why: str) -> NoReturn:
        told = ", ".join(f"{var.aval.dtype}[{_shown(var.aval.shape, part.place)}]"
                         for var, part in zip(eqn.invars, given, strict=True))  # fmt: skip
        where = f" at {self._line}" if self._line else ""
        raise InputError(Problem(f"lax.{eqn.primitive.name} of {told}{where}: {why}", self._label))

    def _bound(self, eqn: Any, given: Sequence[_Part], **other: Any) -> list[Any]:
        """Apply a primitive to chips' parts, with other parameters."""
        said = {**eqn.params, **other}
        # A local value has no sharding.
        said |= {name: None for name in ("sharding", "out_sharding") if name in said}
        found = eqn.primitive.bind(*(part.value for part in given), **said)
        return [*found] if eqn.primitive.multiple_results else [found]

    def _share(self, eqn: Any, given: Sequence[_Part]) -> list[_Part]:
        """Put the body of a `shard_map` here, which has local shapes."""
        said, ranks = eqn.params, [len(var.aval.shape) for var in eqn.outvars]
        manual = {str(name) for name in said.get("manual_axes", said.get("newly_manual_axes", self._mesh))}
        others = {name for name, many in self._mesh.items() if many > 1} - manual
        if others and others & {name for part in given for axes in part.place for name in axes}:
            self._refuse(eqn, given, f"along {', '.join(sorted(others))} XLA decides how its body is shared")
        specs = said["in_specs"]
        placed = [
            self._placed(part, _placement(spec, len(part.place))) for part, spec in zip(given, specs, strict=True)
        ]
        # Types inside say along which axes values vary, which a second trace would not repeat: the body stays as it is.
        made = _SHARE.bind(*(part.value for part in placed), jaxpr=said["jaxpr"])
        outs = zip(made, said["out_specs"], ranks, strict=True)
        return [_Part(value, _placement(spec, rank)) for value, spec, rank in outs]

    def _asked(self, shardings: Sequence[Any], given: Sequence[_Part]) -> list[_Part]:
        """Return parts placed as a call's shardings say, where they say it."""
        asked = [*shardings] + [None] * (len(given) - len(shardings))
        return [
            self._placed(part, _placement(each.spec, len(part.place)))
            if isinstance(each, jax.sharding.NamedSharding) and not each.mesh.empty else part
            for part, each in zip(given, asked, strict=True)
        ]  # fmt: skip

    # ---- placed otherwise

    def _placed(self, part: _Part, wanted: Placement) -> _Part:
        """Return a part that is placed as is wanted: chips gather, or exchange, or cut, which is free."""
        if part.origin is not None and part.origin not in self.learned and any(wanted):
            self.learned[part.origin] = wanted
        if part.place == wanted:
            return part
        if part.again is not None and (made := part.again(wanted)) is not None:
            return _Part(made, wanted)
        value, place = part.value, [*part.place]
        # What cannot be parted is told in words, before JAX tells of it in its own.
        whole = [size * self.along(axes) for size, axes in zip(value.shape, place, strict=True)]
        self.local(whole, wanted)
        while tuple(place) != wanted:
            if (move := _next_exchange(place, wanted)) is not None:
                axis, to, axes = move
                value = lax.all_to_all(value, axes if len(axes) > 1 else axes[0], to, axis, tiled=True)
                place[axis], place[to] = place[axis][: -len(axes)], (*place[to], *axes)
                continue
            value = self._cut_or_gathered(value, place, wanted)
        return _Part(value, wanted)

    def _cut_or_gathered(self, value: Any, place: list[tuple[str, ...]], wanted: Placement) -> Any:
        # Axes are free for others once they are gathered, so gathers go before cuts.
        for axis, (own, other) in enumerate(zip(place, wanted, strict=True)):
            kept = _common(own, other)
            if len(kept) < len(own):
                place[axis] = kept
                return lax.all_gather(value, own[len(kept) :], axis=axis, tiled=True)
        used = {name for axes in place for name in axes}
        for axis, (own, other) in enumerate(zip(place, wanted, strict=True)):
            if len(own) < len(other) and other[len(own)] not in used:
                name = other[len(own)]
                place[axis] = (*own, name)
                return self._own_part(value, axis, name)
        raise AssertionError("no way from one placement to the other")

    def _own_part(self, value: Any, axis: int, name: str) -> Any:
        size = value.shape[axis] // self._mesh[name]
        return lax.dynamic_slice_in_dim(value, lax.axis_index(name) * size, size, axis)

    def _joined(self, value: Any, place: Placement, partial: Sequence[str], target: Placement | None) -> _Part:
        """Return the sum of what chips have along the axes `partial`, scattered where it is wanted in parts."""
        left, made, parts = [*partial], [*place], value
        for axis, wanted in enumerate(target or ()):
            own = made[axis]
            names = tuple(name for name in wanted[len(own) :] if name in left) if wanted[: len(own)] == own else ()
            # A scatter costs half of a sum that all have whole.
            if names and wanted[len(own) : len(own) + len(names)] == names:
                parts = lax.psum_scatter(parts, names, scatter_dimension=axis, tiled=True)
                made[axis] = (*own, *names)
                left = [name for name in left if name not in names]
        if not left:
            return _Part(parts, tuple(made))

        def scattered(wanted: Placement) -> Any:
            again = self._joined(value, place, partial, wanted)
            return again.value if again.place == wanted and again.place != place else None

        return _Part(lax.psum(parts, tuple(left)), tuple(made), None, scattered, sum=True)

    # ---- rules

    def _elementwise(self, eqn: Any, given: Sequence[_Part], target: Placement | None) -> _Part:
        (out,) = eqn.outvars
        shape = out.aval.shape
        whole = [part for part in given if len(part.place) == len(shape)]
        wanted = target if target is not None else _together([part.place for part in whole], len(shape))
        placed = [
            self._placed(part, _narrow(wanted, var.aval.shape, shape)) if len(part.place) == len(shape) else part
            for part, var in zip(given, eqn.invars, strict=True)
        ]
        (made,) = self._bound(eqn, placed)
        # Of one value, beside numbers, the result wants to be placed as that does.
        origin = whole[0].origin if len(whole) == 1 and shape else None
        return _Part(made, wanted, origin)

    def _whole_along(self, eqn: Any, given: Sequence[_Part]) -> list[_Part]:
        """Apply a primitive along axes that no chip has a part of."""
        op, rank = eqn.primitive.name, max((len(part.place) for part in given), default=0)
        axes = [axis % rank for axis in _ALONG[op](eqn.params)]
        wide = [part for part in given if len(part.place) == rank]
        place = _together([part.place for part in wide], rank)
        if any(place[axis] for axis in axes):
            self._refuse(eqn, given, "it works along an axis that chips have parts of")
        placed = [self._placed(part, place) if len(part.place) == rank else part for part in given]
        kept = tuple(each for axis, each in enumerate(place) if op not in _GONE or axis not in axes)
        return [_Part(each, kept) for each in self._bound(eqn, placed)]

    def _reduced(self, eqn: Any, given: Sequence[_Part], target: Placement | None) -> _Part:
        (part,), axes, op = given, eqn.params["axes"], eqn.primitive.name
        (made,) = self._bound(eqn, given)
        place = tuple(each for axis, each in enumerate(part.place) if axis not in axes)
        partial = tuple(name for axis in axes for name in part.place[axis])
        if op == "reduce_sum":
            return self._joined(made, place, partial, target)
        return _Part(_REDUCED[op](made, partial) if partial else made, place)

    def _product(self, eqn: Any, given: Sequence[_Part], target: Placement | None) -> _Part:
        (mine, theirs), (outer, more) = eqn.params["dimension_numbers"]
        first, second = given
        one, other = [*first.place], [*second.place]
        for at, to in (*zip(mine, theirs, strict=True), *zip(outer, more, strict=True)):
            one[at] = other[to] = one[at] or other[to]
        rows = [axis for axis in range(len(one)) if axis not in (*mine, *outer)]
        cols = [axis for axis in range(len(other)) if axis not in (*theirs, *more)]
        used = {name for axes in one for name in axes}
        for axis in cols:
            # What both factors have parts of along one axis of the mesh, the second must have whole.
            other[axis] = () if used & {*other[axis]} else other[axis]
        used = {name for axis in cols for name in other[axis]}
        placed = [self._placed(first, tuple(one)), self._placed(second, tuple(other))]
        (made,) = self._bound(eqn, placed)
        place = (*(one[axis] for axis in outer), *(one[axis] for axis in rows), *(other[axis] for axis in cols))
        return self._joined(made, place, [name for axis in mine for name in one[axis]], target)

    def _convolution(self, eqn: Any, given: Sequence[_Part], target: Placement | None) -> _Part:
        said, (maps, weights) = eqn.params, given
        spec = said["dimension_numbers"]
        sides = [maps.place[axis] for axis in spec.lhs_spec[2:]] + [weights.place[axis] for axis in spec.rhs_spec[2:]]
        images, summed = (maps.place[axis] for axis in spec.lhs_spec[:2])
        outputs, inner = (weights.place[axis] for axis in spec.rhs_spec[:2])
        grouped = said["feature_group_count"] * said["batch_group_count"] > 1
        if any(sides) or (grouped and (summed or outputs or inner or said["batch_group_count"] > 1)):
            self._refuse(eqn, given, "chips share a convolution by images and channels alone, without groups")
        summed = inner = summed or inner
        outputs = () if {*outputs} & {*images, *summed} else outputs
        one, other = [*maps.place], [*weights.place]
        one[spec.lhs_spec[1]] = other[spec.rhs_spec[1]] = summed
        other[spec.rhs_spec[0]] = outputs
        (made,) = self._bound(eqn, [self._placed(maps, tuple(one)), self._placed(weights, tuple(other))])
        place: list[tuple[str, ...]] = [()] * len(one)
        place[spec.out_spec[0]], place[spec.out_spec[1]] = images, outputs
        return self._joined(made, tuple(place), summed, target)

    def _spread(self, eqn: Any, given: Sequence[_Part], target: Placement | None) -> _Part:
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
                return self._bound(eqn, [part], shape=self.local(shape, wanted))[0]

        wanted = tuple(kept.get(axis, each) for axis, each in enumerate(target)) if target is not None else own
        zero = bool(getattr(eqn.invars[0], "val", 1) == 0)
        return _Part(placed(wanted), wanted, None, placed, zero)

    def _numbered(self, eqn: Any, given: Sequence[_Part], target: Placement | None) -> _Part:
        """Number the elements along an axis: those of a part begin where it begins."""
        said, shape = eqn.params, eqn.outvars[0].aval.shape

        def placed(wanted: Placement) -> Any:
            (made,) = self._bound(eqn, given, shape=self.local(shape, wanted))
            size, rank = made.shape[said["dimension"]], 0
            for name in wanted[said["dimension"]]:
                rank = rank * self._mesh[name] + lax.axis_index(name)
            return made + lax.convert_element_type(rank * size, made.dtype) if wanted[said["dimension"]] else made

        wanted = target if target is not None else _nowhere(eqn.outvars[0].aval)
        return _Part(placed(wanted), wanted, None, placed)

    def _transposed(self, eqn: Any, given: Sequence[_Part], target: Placement | None) -> _Part:
        (part,), order = given, eqn.params["permutation"]

        def placed(wanted: Placement) -> Any:
            assert part.again is not None
            made = part.again(tuple(wanted[order.index(axis)] for axis in range(len(order))))
            return None if made is None else self._bound(eqn, [part._replace(value=made)])[0]

        place = tuple(part.place[axis] for axis in order)
        return _Part(self._bound(eqn, given)[0], place, None, placed if part.again else None,
                     part.zero, part.sum)  # fmt: skip

    def _with_axes(self, eqn: Any, given: Sequence[_Part], target: Placement | None) -> _Part:
        """Add axes of one element, or leave them out."""
        (part,), rank = given, len(eqn.outvars[0].aval.shape)
        if eqn.primitive.name == "squeeze":
            gone = [axis % len(part.place) for axis in eqn.params["dimensions"]]
            return _Part(self._bound(eqn, given)[0], tuple(e for axis, e in enumerate(part.place) if axis not in gone))
        new, own = [axis % rank for axis in eqn.params["dimensions"]], iter(part.place)
        return _Part(self._bound(eqn, given)[0], tuple(() if axis in new else next(own) for axis in range(rank)))

    def _reshaped(self, eqn: Any, given: Sequence[_Part], target: Placement | None) -> _Part:
        part, before, after = given[0], eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        place = _reshaped(before, after, part.place, self.along)
        if place is None or (_is_parted(part) and eqn.params.get("dimensions") is not None):
            self._refuse(eqn, given, f"as [{', '.join(map(str, after))}] parts of chips would not lie together")
        return _Part(self._bound(eqn, given, new_sizes=self.local(after, place))[0], place)

    def _sliced(self, eqn: Any, given: Sequence[_Part], target: Placement | None) -> _Part:
        said, part, shape = eqn.params, given[0], eqn.invars[0].aval.shape
        made = eqn.outvars[0].aval.shape
        if any(axes and made[axis] != shape[axis] for axis, axes in enumerate(part.place)):
            self._refuse(eqn, given, "it cuts an axis that chips have parts of")
        each = zip(said["limit_indices"], part.value.shape, part.place, strict=True)
        ends = [size if axes else end for end, size, axes in each]
        return _Part(self._bound(eqn, [part], limit_indices=tuple(ends))[0], part.place)

    def _sliced_by_values(self, eqn: Any, given: Sequence[_Part], target: Placement | None) -> _Part:
        part, shape, made = given[0], eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        if eqn.primitive.name == "dynamic_update_slice":
            part, update, *starts = given
            cut = eqn.invars[1].aval.shape
            if any(axes and cut[axis] != shape[axis] for axis, axes in enumerate(part.place)):
                self._refuse(eqn, given, "it changes a part of an axis that chips have parts of")
            return _Part(self._bound(eqn, [part, self._placed(update, part.place), *starts])[0], part.place)
        if any(axes and made[axis] != shape[axis] for axis, axes in enumerate(part.place)):
            self._refuse(eqn, given, "it cuts an axis that chips have parts of")
        return _Part(self._bound(eqn, given, slice_sizes=self.local(made, part.place))[0], part.place)

    def _taken(self, eqn: Any, given: Sequence[_Part], target: Placement | None) -> _Part:
        """Take parts of a table at places that other values tell: each chip for its part of these, of axes that all
        places have whole.
        """
        (table, places), said, shape = given, eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
        sizes, rank = eqn.params["slice_sizes"], len(eqn.outvars[0].aval.shape)
        shared = dict(zip(said.operand_batching_dims, said.start_indices_batching_dims, strict=True))
        rows = [*places.place]
        for axis, row in shared.items():
            rows[row] = table.place[axis] or rows[row]
        places = self._placed(places, tuple(rows))
        wanted = tuple(rows[shared[axis]] if axis in shared else axes for axis, axes in enumerate(table.place))
        cut = [axis for axis, axes in enumerate(wanted) if axes and axis not in shared and sizes[axis] < shape[axis]]
        if cut or places.place[-1] or _twice(wanted, places.place, shared):
            self._refuse(eqn, given, "chips take whole rows alone, of a table that is not parted by rows")
        kept = [axis for axis in range(len(shape)) if axis not in (*said.collapsed_slice_dims, *shared)]
        local = [size // self.along(wanted[axis]) if axis not in shared else size for axis, size in enumerate(sizes)]
        made = self._bound(eqn, [self._placed(table, wanted), places], slice_sizes=tuple(local))[0]
        each, own = iter(rows), iter(kept)
        place = tuple(wanted[next(own)] if axis in said.offset_dims else next(each) for axis in range(rank))
        return _Part(made, place)

    def _added_at_places(self, eqn: Any, given: Sequence[_Part], target: Placement | None) -> _Part:
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
            self._refuse(eqn, given, "chips add whole rows alone, to zeros")
        placed = self._placed(places, (*rows, ()))
        (made,) = self._bound(eqn, [self._placed(table, tuple(own)), placed, parts])
        return self._joined(made, tuple(own), partial, target)

    # ---- loops and branches

    def _scan(self, eqn: Any, given: Sequence[_Part]) -> list[_Part]:
        """Trace a scan anew, of local values; what it carries stays placed as it is."""
        said = eqn.params
        fixed, kept = said["num_consts"], said["num_carry"]
        shared, carried, parts = given[:fixed], given[fixed : fixed + kept], given[fixed + kept :]
        if any(part.place[0] for part in parts):
            self._refuse(eqn, given, "its steps go along an axis that chips have parts of")
        ends: list[Placement] = []

        def step(carry: Any, each: Any) -> Any:
            now = [_Part(value, part.place) for value, part in zip(carry, carried, strict=True)]
            own = [_Part(value, part.place[1:]) for value, part in zip(each, parts, strict=True)]
            made = self.run(said["jaxpr"], [*(part._replace(origin=None) for part in shared), *now, *own])
            ends[:] = [part.place for part in made[kept:]]
            after = [self._placed(part, other.place).value for part, other in zip(made[:kept], carried, strict=True)]
            return after, [part.value for part in made[kept:]]

        first, each = [part.value for part in carried], [part.value for part in parts]
        last, stacked = lax.scan(step, first, each, length=said["length"], reverse=said["reverse"])
        return [*(_Part(value, part.place) for value, part in zip(last, carried, strict=True)),
                *(_Part(value, ((), *place)) for value, place in zip(stacked, ends, strict=True))]  # fmt: skip

    def _cond(self, eqn: Any, given: Sequence[_Part]) -> list[_Part]:
        """Trace a choice between branches anew; all place their results as the first does."""
        which, *operands = given
        ends: list[Placement] = []

        def branch(body: Any) -> Callable[..., Any]:
            def traced(*values: Any) -> Any:
                own = [_Part(value, part.place) for value, part in zip(values, operands, strict=True)]
                made = self.run(body, own)
                ends[:] = ends or [part.place for part in made]
                return [self._placed(part, place).value for part, place in zip(made, ends, strict=True)]

            return traced

        values = [part.value for part in operands]
        if not isinstance(which.value, jax.core.Tracer):
            index = min(max(int(which.value), 0), len(eqn.params["branches"]) - 1)
            return self.run(eqn.params["branches"][index], operands)
        made = lax.switch(which.value, [*map(branch, eqn.params["branches"])], *values)
        return [_Part(value, place) for value, place in zip(made, ends, strict=True)]


_RULES: Mapping[str, Callable[[_Localizing, Any, Sequence[_Part], Placement | None], _Part]] = {
    **dict.fromkeys(_REDUCED, _Localizing._reduced), "dot_general": _Localizing._product,
    "conv_general_dilated": _Localizing._convolution, "broadcast_in_dim": _Localizing._spread,
    "iota": _Localizing._numbered, "transpose": _Localizing._transposed, "squeeze": _Localizing._with_axes,
    "expand_dims": _Localizing._with_axes, "reshape": _Localizing._reshaped, "slice": _Localizing._sliced,
    "dynamic_slice": _Localizing._sliced_by_values, "dynamic_update_slice": _Localizing._sliced_by_values,
    "gather": _Localizing._taken, "scatter-add": _Localizing._added_at_places,
}  # fmt: skip


def _twice(table: Placement, places: Placement, shared: Mapping[int, int]) -> bool:
    """Return whether one axis of the mesh parts a table and the places in it, but where these go together."""
    rows = {name for row, axes in enumerate(places) if row not in shared.values() for name in axes}
    return bool(rows & {name for axes in table for name in axes})


def _is_parted(part: _Part) -> bool:
    return any(part.place)


def _has_shares(said: Mapping[str, Any]) -> bool:
    """Return whether a body among parameters has a `shard_map` inside."""
    return any(any(_meshes(getattr(inner, "jaxpr", inner))) for inner in core.jaxprs_in_params(said))


def _shown(shape: Sequence[int], place: Placement) -> str:
    """Write a shape with the axes that part it, as JAX does: 16@x, 64."""
    return ", ".join(f"{size}@{'@'.join(axes)}" if axes else str(size) for size, axes in zip(shape, place, strict=True))


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes that both begin with."""
    many = 0
    while many < min(len(one), len(other)) and one[many] == other[many]:
        many += 1
    return one[:many]


def _together(places: Sequence[Placement], rank: int) -> Placement:
    """Return the placement of a result of values that are placed so: axes of the first go before those of others."""
    made: list[tuple[str, ...]] = [()] * rank
    for place in places:
        used = {name for axes in made for name in axes}
        for axis, axes in enumerate(place):
            if not made[axis] and not used & {*axes}:
                made[axis] = axes
    return tuple(made)


def _narrow(place: Placement, own: Sequence[int], shape: Sequence[int]) -> Placement:
    """Return the placement of an operand that has one element where the result has more."""
    return tuple(() if size < whole else axes for axes, size, whole in zip(place, own, shape, strict=True))


def _next_exchange(place: Sequence[tuple[str, ...]], wanted: Placement) -> tuple[int, int, tuple[str, ...]] | None:
    """Return an axis of a value whose last axes of the mesh another axis wants next, that other axis, and these."""
    for axis, own in enumerate(place):
        for many in range(len(own) - len(_common(own, wanted[axis])), 0, -1):
            axes = own[-many:]
            for to, other in enumerate(wanted):
                if to != axis and other[: len(place[to]) + many] == (*place[to], *axes):
                    return axis, to, axes
    return None


def _reshaped(
    before: Sequence[int], after: Sequence[int], place: Placement, along: Callable[[Sequence[str]], int]
) -> Placement | None:
    """Return the placement behind a reshape: axes that become one are parted along the first, and so are those that one
    becomes. None where parts would not lie together.
    """
    made: list[tuple[str, ...]] = [()] * len(after)
    own, new = 0, 0
    while own < len(before) or new < len(after):
        first, other = own, new
        own, new = own + (own < len(before)), new + (new < len(after))
        sizes = prod(before[first:own]), prod(after[other:new])
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1] and own < len(before):
                own += 1
            elif new < len(after):
                new += 1
            else:
                own += 1
            sizes = prod(before[first:own]), prod(after[other:new])
        mine = [axis for axis in range(first, own) if before[axis] > 1]
        theirs = [axis for axis in range(other, new) if after[axis] > 1]
        # Parts along an inner axis are apart from one another in the whole.
        if any(place[axis] for axis in mine[1:]):
            return None
        if mine and place[mine[0]]:
            if after[theirs[0]] % along(place[mine[0]]):
                return None
            made[theirs[0]] = place[mine[0]]
    return tuple(made)


@contextmanager
def mesh_of(arguments: Any) -> Iterator[None]:
    """Trace in here under the mesh that the types of arguments name, if there is none around."""
    for each in jax.tree_util.tree_leaves(arguments):
        mesh = getattr(getattr(each, "sharding", None), "mesh", None)
        if mesh is not None and not mesh.empty and AxisType.Explicit in mesh.axis_types:
            with jax.sharding.use_abstract_mesh(getattr(mesh, "abstract_mesh", mesh)):
                yield
            return
    yield
