"""Several primitives that are one node, as one layer computes them: means, clamps, gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import jax.numpy as jnp
import numpy as np
from jax import lax

from tpusim.network.formats.jax_function.nodes import FlatGraph, Pattern, node_by_node, scope_of
from tpusim.network.graph import Node

ENDLESS = frozenset({"div", "integer_pow", "log", "log1p", "pow", "rsqrt", "sqrt", "tan"})
"""Primitives that may make what is no number, which a choice leaves out, and a product with zero would not."""


def with_means(flat: FlatGraph) -> list[Node]:
    """Put means in the place of sums that are divided by the number of what they sum up."""
    nodes: list[Node | None] = [*flat.nodes]
    for at, node in enumerate(flat.nodes):
        if node.op != "div" or flat.shapes[node.outputs[0]] != flat.shapes[node.inputs[0]]:
            continue
        chain, value = list[int](), node.inputs[0]
        while flat.uses[value] == 1 and value in flat.makers:
            chain.append(flat.order[value])
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


def _clamped(flat: FlatGraph, node: Node) -> Node | None:
    """Return a clamp in the place of the smaller of a number and of the larger of another and a value."""

    def parts(node: Node) -> tuple[str, str] | None:
        """Return the value and the number that a node compares."""
        one, other = node.inputs
        return (
            (one, other) if flat.number(other) is not None else (other, one) if flat.number(one) is not None else None
        )

    upper = parts(node)
    inner = flat.made_by(upper[0], "max") if upper and flat.uses[upper[0]] == 1 else None
    lower = parts(inner) if inner else None
    if not upper or not lower:
        return None
    return replace(node, op="clamp", name=f"{scope_of(node)}clamp", inputs=(lower[1], lower[0], upper[1]))


def _gradient(flat: FlatGraph, node: Node) -> Node | None:
    """Return the gradient of a relu in the place of a choice between zero and a value where another is above zero, or a
    weighted sum in the place of a difference from a value times a number, as an update of weights is.
    """
    shape, made = flat.shapes[node.outputs[0]], [flat.makers.get(name) for name in node.inputs]
    scope = scope_of(node)
    which = made[0] if node.op == "select_n" and len(made) == 3 else None
    if which and which.op == "gt" and flat.number(which.inputs[1]) == 0 and flat.number(node.inputs[1]) == 0:
        pair = node.inputs[2], which.inputs[0]
        endless = made[2] and made[2].op in ENDLESS
        if all(flat.shapes[name] == shape for name in pair) and not endless:
            return replace(node, op="relu_gradient", name=f"{scope}relu_gradient", inputs=pair, attributes={})
    step = made[1] if node.op == "sub" else None
    if step and step.op == "mul" and flat.uses[node.inputs[1]] == 1:
        # The rate stands on either side of its product.
        for rate, value in (step.inputs, step.inputs[::-1]):
            number = flat.number(rate)
            if number is not None and flat.shapes[value] == shape == flat.shapes[node.inputs[0]]:
                inputs, factors = (node.inputs[0], value), {"factor": 1.0, "other_factor": -number}
                name = f"{scope}weighted_sum"
                return replace(node, op="weighted_sum", name=name, inputs=inputs, attributes=factors)
    return None


def _turned_product(flat: FlatGraph, node: Node) -> Node | None:
    """Return a product with its factors exchanged where its result is turned, so that it need not be: gradients by
    weights are such products, and in a training step the input is the first factor.
    """
    (value,) = node.inputs
    if not (product := flat.made_by(value, "dot_general")) or flat.uses[value] > 1:
        return None
    rank = len(flat.shapes[value])
    (one, other), shared = product.attributes["dimension_numbers"]
    rows = len(flat.shapes[product.inputs[0]]) - len(one)
    if any(shared) or [*node.attributes["permutation"]] != [*range(rows, rank), *range(rows)]:
        return None
    attributes = {**product.attributes, "dimension_numbers": ((other, one), shared)}
    return replace(product, inputs=product.inputs[::-1], outputs=node.outputs, attributes=attributes)


def with_choices(flat: FlatGraph) -> Iterator[Node]:
    """Yield the nodes, with two in the place of the gradient of a largest window: which tap was the largest, and what
    goes to it.
    """
    for node in flat.nodes:
        if node.op != "select_and_scatter_add" or str(node.attributes["select_prim"]) != "ge":
            yield node
            continue
        (slopes, maps), (made,), scope = node.inputs, node.outputs, scope_of(node)
        names = ("window_dimensions", "window_strides", "padding")
        attributes = {name: node.attributes[name] for name in names}
        attributes |= dict.fromkeys(("window_dilation", "base_dilation"), (1,) * len(flat.shapes[maps]))
        # Of equals both choose the first.
        choice = flat.know(f"{made}.choice", flat.shapes[slopes], flat.types[slopes], made)
        yield Node("window_choice", f"{scope}window_choice", (maps,), (choice,), attributes)
        yield Node("max_pool_gradient", f"{scope}max_pool_gradient", (slopes, choice), (made,),
                   {**attributes, "shape": flat.shapes[maps]})  # fmt: skip


def _mean(node: Node, divisor: str, flat: FlatGraph) -> Node | None:
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


PATTERNS: Sequence[Pattern] = (
    with_means, node_by_node(_clamped, "min"), node_by_node(_gradient, "select_n", "sub"),
    node_by_node(_turned_product, "transpose"), with_choices,
)  # fmt: skip
"""What makes fewer, or other, nodes of some, in this order."""
