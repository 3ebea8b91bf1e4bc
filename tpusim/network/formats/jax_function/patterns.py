"""Several primitives that are one node, as one layer computes them: functions of `jax.nn`, means, and clamps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tpusim.network.formats.jax_function.layers import ValueShape
from tpusim.network.graph import Node


@dataclass
class Flat:
    """Nodes in order, and what is known of their values.

    Attributes:
        shapes, types: by value.
        constants: by name.
        inputs, outputs: names of values.
    """

    shapes: dict[str, ValueShape] = field(default_factory=dict)
    types: dict[str, np.dtype[Any]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    _alike: dict[str, float | None] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """Return the number that all elements of a constant are; None for other values."""
        if name not in self.constants or self.types[name].kind == "O":
            return None
        if name not in self._alike:
            every = np.asarray(self.constants[name]).reshape(-1)
            self._alike[name] = float(every[0]) if every.size and (every == every[0]).all() else None
        return self._alike[name]


# ---- functions that JAX writes out

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "softmax": jax.nn.softmax,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
    "softplus": jax.nn.softplus,
}
"""Functions of `jax.nn` that are one layer."""


@cache
def _written_out(op: str, axis: int | None, shape: ValueShape, dtype: Any) -> Any:
    """Return the jaxpr of a function, of a softmax along an axis, for an operand."""
    along = {} if axis is None else {"axis": axis}
    return jax.make_jaxpr(lambda x: _FUNCTIONS[op](x, **along))(jax.ShapeDtypeStruct(shape, dtype)).jaxpr


def together(jaxpr: Any, at: int) -> tuple[str, Any, Mapping[str, Any], int] | None:
    """Return the function whose primitives stand in `jaxpr` from `at` on, if there is one: its node's operator, its
    operand, its attributes, and how many they are. Nothing else may read what is between.
    """
    first = jaxpr.eqns[at]
    axes = first.params["axes"] if first.primitive.name == "reduce_max" else ()
    for op in ["softmax"] if len(axes) == 1 else [*_FUNCTIONS][1:]:
        for given in first.invars:
            aval = given.aval
            if hasattr(given, "val") or not aval.shape or not jnp.issubdtype(aval.dtype, jnp.floating):
                continue
            wanted = _written_out(op, int(axes[0]) if axes else None, aval.shape, aval.dtype)
            part = jaxpr.eqns[at : at + len(wanted.eqns)]
            if len(part) == len(wanted.eqns) and _alike(wanted, part, given):
                inner = {var for eqn in part[:-1] for var in eqn.outvars}
                later = [var for eqn in jaxpr.eqns[at + len(part) :] for var in eqn.invars] + [*jaxpr.outvars]
                if not any(var in inner for var in later if not hasattr(var, "val")):
                    return op, given, {"axis": int(axes[0])} if axes else {}, len(part)
    return None


def _plain(params: Mapping[str, Any]) -> str:
    """Write parameters, in which axes may be numbers of Python or, behind vmap, of NumPy."""
    return re.sub(r"np\.int64\((-?\d+)\)", r"\1", str(params))


def _alike(wanted: Any, part: Sequence[Any], given: Any) -> bool:
    """Return whether some primitives are those of a function, its operand being `given`."""
    own = {wanted.invars[0]: given}
    for mine, theirs in zip(wanted.eqns, part, strict=True):
        if mine.primitive is not theirs.primitive or _plain(mine.params) != _plain(theirs.params):
            return False
        for one, other in zip(mine.invars, theirs.invars, strict=True):
            if hasattr(one, "val") != hasattr(other, "val"):
                return False
            if (one.val != other.val) if hasattr(one, "val") else (own.get(one) is not other):
                return False
        own.update(zip(mine.outvars, theirs.outvars, strict=True))
    return True


# ---- among the nodes


def with_means(flat: Flat) -> list[Node]:
    """Put means in the place of sums that are divided by the number of what they sum up."""
    makers = {name: at for at, node in enumerate(flat.nodes) for name in node.outputs}
    uses = Counter(name for node in flat.nodes for name in node.inputs)
    nodes: list[Node | None] = [*flat.nodes]
    for at, node in enumerate(flat.nodes):
        if node.op != "div" or flat.shapes[node.outputs[0]] != flat.shapes[node.inputs[0]]:
            continue
        chain, value = list[int](), node.inputs[0]
        while uses[value] == 1 and value in makers and value not in flat.outputs:
            chain.append(makers[value])
            # Axes of one element may be added before the division.
            if flat.nodes[chain[-1]].op not in ("broadcast_in_dim", "reshape"):
                break
            value = flat.nodes[chain[-1]].inputs[0]
        found = _mean(flat.nodes[chain[-1]], node.inputs[1], flat) if chain else None
        if found:
            nodes[chain[-1]] = found
            last = nodes[chain[0]]
            assert last is not None
            nodes[chain[0]], nodes[at] = replace(last, outputs=node.outputs), None
    return [each for each in nodes if each is not None]


def with_clamps(flat: Flat, nodes: Sequence[Node]) -> list[Node]:
    """Put a clamp in the place of the smaller of a number and of the larger of another and a value."""
    makers = {node.outputs[0]: node for node in nodes if node.op == "max"}
    uses = Counter(name for node in nodes for name in node.inputs)

    def parts(node: Node) -> tuple[str, str] | None:
        """Return the value and the number that a node compares."""
        one, other = node.inputs
        return (
            (one, other) if flat.number(other) is not None else (other, one) if flat.number(one) is not None else None
        )

    def clamped(node: Node) -> Node:
        upper = parts(node) if node.op == "min" else None
        inner = makers.get(upper[0]) if upper and uses[upper[0]] == 1 and upper[0] not in flat.outputs else None
        lower = parts(inner) if inner else None
        if not upper or not lower:
            return node
        name = f"{node.name.removesuffix(node.op)}clamp"
        return replace(node, op="clamp", name=name, inputs=(lower[1], lower[0], upper[1]))

    return [*map(clamped, nodes)]


def _mean(node: Node, divisor: str, flat: Flat) -> Node | None:
    """Return the mean that a sum over this constant is, if it is one."""
    number, shape = flat.number(divisor), flat.shapes[node.inputs[0]] if node.inputs else ()
    if node.op == "reduce_sum" and number == prod(shape[axis] for axis in node.attributes["axes"]):
        return replace(node, op="mean", name=node.name.replace(node.op, "mean"))
    if node.op != "reduce_window_sum" or divisor not in flat.constants:
        return None
    attributes, name = node.attributes, node.name.replace(node.op, "average_pool")
    if number == prod(attributes["window_dimensions"]):
        return replace(node, op="average_pool", name=name, attributes={**attributes, "include_pad": True})
    # Windows at the edge may be divided by what they hold of the map.
    held = lax.reduce_window(jnp.ones(shape), 0.0, lax.add, *(
        attributes[each] for each in ("window_dimensions", "window_strides", "padding", "base_dilation",
                                      "window_dilation")))  # fmt: skip
    same = np.shape(flat.constants[divisor]) == held.shape and bool((flat.constants[divisor] == held).all())
    return (
        replace(node, op="average_pool", name=name, attributes={**attributes, "include_pad": False}) if same else None
    )
