"""The share of a function that each chip of a mesh computes: its jaxpr with local shapes, and exchanges between chips.

Bodies of `shard_map` are such shares already. What stands around them, or has sharded types, is made local primitive by
primitive: each value has a placement, the axes of the mesh that part each of its axes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax import lax
from jax.extend import core, source_info_util
from jax.sharding import AxisType

from tpusim.base.errors import InputError, Problem
from tpusim.network.formats.jax_function.local_rules import ALONG, ELEMENTWISE, RULES, elementwise, whole_along
from tpusim.network.formats.jax_function.local_values import LocalValue, LocalValues
from tpusim.network.formats.jax_function.placements import nowhere, placement_of
from tpusim.network.formats.jax_function.source_lines import line_of, of_a_library
from tpusim.network.graph import Placement

SHARE = "share"
"""The primitive that stands for the body of a `shard_map`."""
_SHARE = core.Primitive(SHARE)
_SHARE.multiple_results = True


def _results(*operands: Any, jaxpr: Any) -> Any:
    return [jax.core.ShapedArray(var.aval.shape, var.aval.dtype) for var in jaxpr.outvars]


_SHARE.def_abstract_eval(_results)


_CALLS = frozenset({
    SHARE, "checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
    "jit", "pjit", "remat", "remat2",
})  # fmt: skip
"""Primitives that only call a function."""


def body_of(eqn: Any) -> Any:
    """Return the function that a primitive only calls; None for other primitives."""
    bodies = (eqn.params[name] for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in eqn.params)
    return next(bodies, None) if eqn.primitive.name in _CALLS else None


def localized(closed: Any, label: str) -> tuple[Any, tuple[tuple[str, int], ...], Sequence[Placement]]:
    """Return a jaxpr of what a chip computes, for a function that has sharded parts; the axes of the mesh, each with
    its number of chips; and the placements of the whole function's inputs and outputs. Without sharded parts there is
    no mesh, and the function is as it was.

    Inputs without a sharded type are placed as the first that reads them wants it.

    Raises InputError where it has several meshes, or a primitive of which nobody knows how chips share it.
    """
    meshes = [*dict.fromkeys(_meshes(closed.jaxpr))]
    if not meshes:
        return closed, (), ()
    if len(meshes) > 1:
        told = " and ".join(", ".join(f"{name}={many}" for name, many in each) for each in meshes[:2])
        raise InputError(Problem(f"it has several meshes, {told}; give its parts one by one", label))
    (mesh,) = meshes
    learned: dict[int, Placement] = {}
    while True:
        work = _Localizing(dict(mesh), label, dict(learned))
        places = [_typed(var) or learned.get(at) or nowhere(var.aval) for at, var in enumerate(closed.jaxpr.invars)]
        shapes = [
            jax.ShapeDtypeStruct(work.local(var.aval.shape, place), var.aval.dtype)
            for var, place in zip(closed.jaxpr.invars, places, strict=True)
        ]
        ends: list[Placement] = []

        def share(*values: Any, work: Any = work, places: Any = places, ends: Any = ends) -> Any:
            given = [
                LocalValue(value, place, at if _typed(var) is None else None)
                for at, (value, place, var) in enumerate(zip(values, places, closed.jaxpr.invars, strict=True))
            ]
            made = work.run(closed, given)
            ends.extend(part.place for part in made)
            return [part.value for part in made]

        # The axes are known by name alone: no device is asked for.
        found = jax.make_jaxpr(share, axis_env=[*mesh])(*shapes)
        # What a reader wants is known when it reads, which is behind the start: then all begins again.
        if work.learned == learned:
            return found, mesh, (*places, *ends)
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
    return None if found is None else placement_of(found.spec, len(var.aval.shape))


class _Localizing(LocalValues):
    """The interpreter of a jaxpr of whole values that makes local ones; it runs while JAX traces."""

    def run(self, closed: Any, given: Sequence[LocalValue], traceback: Any = None) -> list[LocalValue]:
        """Compute the local values of a body; `traceback` stands for those of its primitives."""
        jaxpr = getattr(closed, "jaxpr", closed)
        held = [LocalValue(each, nowhere(var.aval))
                for each, var in zip(getattr(closed, "consts", ()), jaxpr.constvars, strict=True)]  # fmt: skip
        env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*held, *given), strict=True))

        def read(var: Any) -> LocalValue:
            return LocalValue(var.val, nowhere(var.aval)) if hasattr(var, "val") else env[var]

        uses = Counter(var for eqn in jaxpr.eqns for var in eqn.invars if not hasattr(var, "val"))
        uses.update(var for var in jaxpr.outvars if not hasattr(var, "val"))
        for eqn in jaxpr.eqns:
            info = eqn.source_info
            told = traceback or info.traceback
            stack = source_info_util.current_name_stack() + info.name_stack
            outer = self.line
            with source_info_util.user_context(told, name_stack=stack):
                self.line = line_of(eqn) if traceback is None else outer
                made = self._equation(eqn, [*map(read, eqn.invars)], told)
                self.line = outer
            # A sum that several read is made once, whole.
            each = zip(eqn.outvars, made, strict=True)
            env |= {var: part._replace(again=None) if part.sum and uses[var] > 1 else part for var, part in each}
        return [*map(read, jaxpr.outvars)]

    # ---- one primitive

    def _equation(self, eqn: Any, given: Sequence[LocalValue], traceback: Any) -> Sequence[LocalValue]:
        op, said = eqn.primitive.name, eqn.params
        if op == "shard_map":
            return self._share(eqn, given)
        if (body := body_of(eqn)) is not None:
            placed = self._asked(said.get("in_shardings", ()), given)
            # JAX traces a function of a library once, for all who call it.
            made = self.run(body, placed, traceback if self.line and of_a_library(body) else None)
            return self._asked(said.get("out_shardings", ()), made)
        targets = [_typed(var) for var in eqn.outvars]
        if op in ("reshard", "sharding_constraint"):
            (part,), wanted = given, said.get("dst_sharding") or said.get("sharding")
            if not isinstance(wanted, jax.sharding.NamedSharding):
                self.refuse(eqn, given, "its sharding names no axes of a mesh")
            return [self.placed(part, placement_of(wanted.spec, len(part.place)))]
        if op in ("scan", "cond") and (any(part.parted for part in given) or _has_shares(said)):
            return (self._scan if op == "scan" else self._cond)(eqn, given)
        if op in RULES:
            made = [RULES[op](self, eqn, given, targets[0])]
        elif op in ELEMENTWISE:
            made = [elementwise(self, eqn, given, targets[0])]
        elif op in ALONG:
            made = whole_along(self, eqn, given)
        elif op == "optimization_barrier":
            return given
        elif any(part.parted for part in given):
            self.refuse(eqn, given, "nobody knows how chips share it; write it in a shard_map")
        else:
            made = [LocalValue(each, nowhere(var.aval))
                    for each, var in zip(self.bound(eqn, given), eqn.outvars, strict=True)]  # fmt: skip
        pairs = zip(made, targets, strict=True)
        return [part if target in (None, part.place) else self.placed(part, target or ()) for part, target in pairs]

    def _share(self, eqn: Any, given: Sequence[LocalValue]) -> list[LocalValue]:
        """Put the body of a `shard_map` here, which has local shapes."""
        said, ranks = eqn.params, [len(var.aval.shape) for var in eqn.outvars]
        manual = {str(name) for name in said.get("manual_axes", said.get("newly_manual_axes", self.mesh))}
        others = {name for name, many in self.mesh.items() if many > 1} - manual
        if others and others & {name for part in given for axes in part.place for name in axes}:
            self.refuse(eqn, given, f"along {', '.join(sorted(others))} XLA decides how its body is shared")
        specs = said["in_specs"]
        placed = [
            self.placed(part, placement_of(spec, len(part.place))) for part, spec in zip(given, specs, strict=True)
        ]
        # Types inside say along which axes values vary, which a second trace would not repeat: the body stays as it is.
        made = _SHARE.bind(*(part.value for part in placed), jaxpr=said["jaxpr"])
        outs = zip(made, said["out_specs"], ranks, strict=True)
        return [LocalValue(value, placement_of(spec, rank)) for value, spec, rank in outs]

    def _asked(self, shardings: Sequence[Any], given: Sequence[LocalValue]) -> list[LocalValue]:
        """Return parts placed as a call's shardings say, where they say it."""
        asked = [*shardings] + [None] * (len(given) - len(shardings))
        return [
            self.placed(part, placement_of(each.spec, len(part.place)))
            if isinstance(each, jax.sharding.NamedSharding) and not each.mesh.empty else part
            for part, each in zip(given, asked, strict=True)
        ]  # fmt: skip

    # ---- loops and branches

    def _scan(self, eqn: Any, given: Sequence[LocalValue]) -> list[LocalValue]:
        """Trace a scan anew, of local values; what it carries stays placed as it is."""
        said = eqn.params
        fixed, kept = said["num_consts"], said["num_carry"]
        shared, carried, parts = given[:fixed], given[fixed : fixed + kept], given[fixed + kept :]
        if any(part.place[0] for part in parts):
            self.refuse(eqn, given, "its steps go along an axis that chips have parts of")
        ends: list[Placement] = []

        def step(carry: Any, each: Any) -> Any:
            now = [LocalValue(value, part.place) for value, part in zip(carry, carried, strict=True)]
            own = [LocalValue(value, part.place[1:]) for value, part in zip(each, parts, strict=True)]
            made = self.run(said["jaxpr"], [*(part._replace(origin=None) for part in shared), *now, *own])
            ends[:] = [part.place for part in made[kept:]]
            after = [self.placed(part, other.place).value for part, other in zip(made[:kept], carried, strict=True)]
            return after, [part.value for part in made[kept:]]

        first, each = [part.value for part in carried], [part.value for part in parts]
        last, stacked = lax.scan(step, first, each, length=said["length"], reverse=said["reverse"])
        return [*(LocalValue(value, part.place) for value, part in zip(last, carried, strict=True)),
                *(LocalValue(value, ((), *place)) for value, place in zip(stacked, ends, strict=True))]  # fmt: skip

    def _cond(self, eqn: Any, given: Sequence[LocalValue]) -> list[LocalValue]:
        """Trace a choice between branches anew; all place their results as the first does."""
        which, *operands = given
        ends: list[Placement] = []

        def branch(body: Any) -> Callable[..., Any]:
            def traced(*values: Any) -> Any:
                own = [LocalValue(value, part.place) for value, part in zip(values, operands, strict=True)]
                made = self.run(body, own)
                ends[:] = ends or [part.place for part in made]
                return [self.placed(part, place).value for part, place in zip(made, ends, strict=True)]

            return traced

        values = [part.value for part in operands]
        if not isinstance(which.value, jax.core.Tracer):
            index = min(max(int(which.value), 0), len(eqn.params["branches"]) - 1)
            return self.run(eqn.params["branches"][index], operands)
        made = lax.switch(which.value, [*map(branch, eqn.params["branches"])], *values)
        return [LocalValue(value, place) for value, place in zip(made, ends, strict=True)]


def _has_shares(said: Mapping[str, Any]) -> bool:
    """Return whether a body among parameters has a `shard_map` inside."""
    return any(any(_meshes(getattr(inner, "jaxpr", inner))) for inner in core.jaxprs_in_params(said))


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
