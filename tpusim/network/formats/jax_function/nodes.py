"""The nodes of a function as a graph: what makes each value, and who reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

from tpusim.network.formats.jax_function.layers import ValueShape
from tpusim.network.formats.jax_function.patterns import FlatGraph
from tpusim.network.graph import Node

_MOVES = frozenset({"broadcast_in_dim", "expand_dims", "reshape", "squeeze"})
"""Primitives that hand on elements in their order."""


class NodesByValue:
    """The nodes as a graph: what makes each value, and who reads it."""

    def __init__(self, flat: FlatGraph) -> None:
        self.flat = flat
        self.makers = {name: node for node in flat.nodes for name in node.outputs}
        self.uses = Counter(name for node in flat.nodes for name in node.inputs)
        self.uses.update(flat.outputs)

    @cached_property
    def order(self) -> Mapping[str, int]:
        """The place of each node, by its values."""
        return {name: at for at, node in enumerate(self.flat.nodes) for name in node.outputs}

    def made_by(self, name: str, *ops: str) -> Node | None:
        """Return the node that makes a value, if it is one of these primitives."""
        node = self.makers.get(name)
        return node if node and node.op in ops else None

    def number(self, name: str) -> float | None:
        return self.flat.number(name)

    def shape(self, name: str) -> ValueShape:
        return self.flat.shapes[name]

    def behind_moves(self, name: str) -> str:
        """Return a value before it was moved, spread, or taken for another type of reals, all its elements in order."""
        while (node := self.makers.get(name)) and (
            (node.op in _MOVES and not node.attributes.get("dimensions", ()))
            or (node.op == "squeeze")
            or (node.op == "convert_element_type" and self._is_real(node.inputs[0]) and self._is_real(name))
        ):
            name = node.inputs[0]
        return name

    def same(self, one: str, other: str) -> bool:
        """Return whether two values are one, of whatever type."""
        return self._of_type(one) == self._of_type(other)

    def _of_type(self, name: str) -> str:
        while node := self.made_by(name, "convert_element_type"):
            if not self._is_real(node.inputs[0]):
                break
            name = node.inputs[0]
        return name

    def _is_real(self, name: str) -> bool:
        return is_real(self.flat, name)

    def closed(self, last: Node, ends: Sequence[str]) -> bool:
        """Return whether nothing but the last node is read outside, of those between it and the values `ends`."""
        inside, waiting = {id(last): last}, [*last.inputs]
        while waiting:
            name = waiting.pop()
            node = self.makers.get(name)
            if name in ends or node is None or id(node) in inside:
                continue
            inside[id(node)] = node
            waiting += node.inputs
        reads = Counter(name for node in inside.values() for name in node.inputs)
        within = (name for node in inside.values() if node is not last for name in node.outputs)
        return all(reads[name] == self.uses[name] for name in within)


def is_real(flat: FlatGraph, name: str) -> bool:
    return flat.types[name].kind == "f" or flat.types[name].name == "bfloat16"


def scope_of(node: Node) -> str:
    return node.name.removesuffix(node.op)


def of_reals(nodes: NodesByValue, name: str) -> str:
    """Return a value before it was taken for another type of reals."""
    while (node := nodes.made_by(name, "convert_element_type")) and is_real(nodes.flat, node.inputs[0]):
        name = node.inputs[0]
    return name
