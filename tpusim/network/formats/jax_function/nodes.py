"""A function as a flat graph: its nodes, what is known of each value, what makes it, and who reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from tpusim.network.formats.jax_function.layers import ValueShape
from tpusim.network.graph import Node
from tpusim.numerics.element_types import Values

_MOVES = frozenset({"broadcast_in_dim", "expand_dims", "reshape", "squeeze"})
"""Primitives that hand on elements in their order."""


@dataclass
class FlatGraph:
    """Nodes in order, and what is known of their values.

    Attributes:
        shapes, types: by value.
        constants: by name.
        lines: source lines of values, by name; "" where there is none.
        inputs, outputs: names of values.
        refused: by value the reason why what makes it is not known.
    """

    shapes: dict[str, ValueShape] = field(default_factory=dict)
    types: dict[str, np.dtype[Any]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    refused: dict[str, str] = field(default_factory=dict)
    _alike: dict[str, float | None] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """Return the number that all elements of a constant are; None for other values."""
        if name not in self.constants or self.types[name].kind == "O":
            return None
        if name not in self._alike:
            every = unspread(np.asarray(self.constants[name])).reshape(-1)
            self._alike[name] = float(every[0]) if every.size and (every == every[0]).all() else None
        return self._alike[name]

    def is_real(self, name: str) -> bool:
        return self.types[name].kind == "f" or self.types[name].name == "bfloat16"

    def know(self, name: str, shape: ValueShape, dtype: np.dtype[Any], like: str) -> str:
        """Note a value that stands beside another, and return its name."""
        self.shapes[name], self.types[name], self.lines[name] = shape, dtype, self.lines.get(like, "")
        return name

    # ---- what makes a value, and who reads it

    def put(self, nodes: Iterable[Node]) -> None:
        """Put nodes in the place of those that there are: of these, the ones that outputs are made by."""
        wanted, kept = {*self.outputs}, list[Node]()
        for node in reversed([*nodes]):
            if wanted & {*node.outputs}:
                wanted |= {*node.inputs}
                kept.append(node)
        self.nodes = kept[::-1]
        for name in ("makers", "uses", "order"):
            self.__dict__.pop(name, None)

    @cached_property
    def makers(self) -> Mapping[str, Node]:
        """The node of each value."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def uses(self) -> Counter[str]:
        """How often each value is read, by nodes or as an output."""
        return Counter([*(name for node in self.nodes for name in node.inputs), *self.outputs])

    @cached_property
    def order(self) -> Mapping[str, int]:
        """The place of each node, by its values."""
        return {name: at for at, node in enumerate(self.nodes) for name in node.outputs}

    def made_by(self, name: str, *ops: str) -> Node | None:
        """Return the node that makes a value, if it is one of these primitives."""
        node = self.makers.get(name)
        return node if node and node.op in ops else None

    def of_reals(self, name: str) -> str:
        """Return a value before it was taken for another type of reals."""
        while (node := self.made_by(name, "convert_element_type")) and self.is_real(node.inputs[0]):
            name = node.inputs[0]
        return name

    def behind_moves(self, name: str) -> str:
        """Return a value before it was moved, spread, or taken for another type of reals, all its elements in order."""
        while (node := self.makers.get(name)) and (
            (node.op in _MOVES and not node.attributes.get("dimensions", ()))
            or (node.op == "squeeze")
            or (node.op == "convert_element_type" and self.is_real(node.inputs[0]) and self.is_real(name))
        ):
            name = node.inputs[0]
        return name

    def same(self, one: str, other: str) -> bool:
        """Return whether two values are one, of whatever type."""
        return self.of_reals(one) == self.of_reals(other)

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


Pattern: TypeAlias = Callable[[FlatGraph], Iterable[Node]]
"""Gives the nodes of a graph, some of them replaced."""


def node_by_node(read: Callable[[FlatGraph, Node], Node | None], *ops: str) -> Pattern:
    """A pattern that reads nodes of these operators one by one; where nothing is found, the node stays."""
    return lambda flat: ((read(flat, node) if node.op in ops else None) or node for node in flat.nodes)


def unspread(values: Values) -> Values:
    """Return values without the axes along which they are only spread, and one element tells all: these have one."""
    return values[tuple(slice(None if step else 1) for step in values.strides)]


def scope_of(node: Node) -> str:
    """Return the scopes that a node's name begins with."""
    return node.name.removesuffix(node.op)
