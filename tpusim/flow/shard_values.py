"""Shards: what each chip of a mesh has of a whole array, and what chips make of one another's values.

A chip has a number, which counts along the last axis of the mesh first. An exchange takes place in each group of
chips whose numbers differ along its axes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from tpusim.base.errors import InputError
from tpusim.base.words import counted
from tpusim.network.graph import PART, Graph, Node, Placement, ValueExchange
from tpusim.numerics.element_types import Values
from tpusim.reference.collectives import expected

AXIS_INDEX = "lax.axis_index"
"""The operator whose value is the place of a chip along an axis."""


@dataclass(frozen=True)
class Shards:
    """The chips of a mesh, and what each has of whole arrays; without axes, one chip has all.

    Attributes:
        mesh: by name the axes, each with its number of chips.
    """

    mesh: tuple[tuple[str, int], ...]

    @property
    def chips(self) -> int:
        """Return their number."""
        return prod(many for _, many in self.mesh)

    @cached_property
    def coordinates(self) -> tuple[Mapping[str, int], ...]:
        """The place of each chip along each axis."""
        names, sizes = [name for name, _ in self.mesh], [many for _, many in self.mesh]
        return tuple(dict(zip(names, at, strict=True)) for at in np.ndindex(*sizes))

    def along(self, axes: Sequence[str]) -> int:
        """Return how many chips stand along some axes."""
        sizes = dict(self.mesh)
        return prod(sizes[name] for name in axes)

    def rank(self, chip: int, axes: Sequence[str]) -> int:
        """Return the rank of a chip among those that stand along some axes."""
        sizes, found = dict(self.mesh), 0
        for name in axes:
            found = found * sizes[name] + self.coordinates[chip][name]
        return found

    def groups(self, axes: Sequence[str]) -> list[list[int]]:
        """Return the groups of chips that stand along some axes, each by rank."""
        apart: dict[tuple[int, ...], list[int]] = {}
        for chip, place in enumerate(self.coordinates):
            apart.setdefault(tuple(at for name, at in place.items() if name not in axes), []).append(chip)
        return [sorted(group, key=lambda chip: self.rank(chip, axes)) for group in apart.values()]

    def whole(self, shape: Sequence[int], placed: Placement) -> tuple[int, ...]:
        """Return the shape of an array of which a chip has a part of that shape."""
        parts = [self.along(axes) for axes in placed] + [1] * (len(shape) - len(placed))
        return tuple(size * many for size, many in zip(shape, parts, strict=True))

    def cut(self, array: Values, placed: Placement) -> list[Values]:
        """Return each chip's part of an array. Raises InputError where it cannot be parted evenly."""
        for axis, axes in enumerate(placed):
            if array.shape[axis] % self.along(axes):
                says = f"axis {axis} has {counted(array.shape[axis], 'element')}, which {self.along(axes)} chips part"
                raise InputError(f"{says} unevenly")
        if not any(placed):
            return [array] * self.chips
        return [array[self._part(array.shape, placed, chip)] for chip in range(self.chips)]

    def joined(self, parts: Sequence[Values], placed: Placement) -> Values:
        """Return the array that chips have parts of; of what several chips have, that of the first of them."""
        made = np.empty(self.whole(parts[0].shape, placed), parts[0].dtype)
        for chip in reversed(range(self.chips)):
            made[self._part(made.shape, placed, chip)] = parts[chip]
        return made

    def _part(self, shape: Sequence[int], placed: Placement, chip: int) -> tuple[slice, ...]:
        sizes = [size // self.along(axes) for size, axes in zip(shape, placed, strict=False)]
        ranks = [self.rank(chip, axes) for axes in placed]
        return tuple(slice(rank * size, (rank + 1) * size) for rank, size in zip(ranks, sizes, strict=True))

    def graph_of(self, graph: Graph, chip: int) -> Graph:
        """Return the graph of one chip, whose place along axes of the mesh its nodes know."""

        def own(node: Node) -> Node:
            if node.op != AXIS_INDEX:
                return node
            return replace(node, attributes={**node.attributes, "place": self.rank(chip, node.attributes["over"])})

        return replace(graph, nodes=tuple(map(own, graph.nodes))) if self.mesh else graph

    def exchanged(self, exchange: ValueExchange, operands: Sequence[Values]) -> list[Values]:
        """Return what each chip has after an exchange of the values of all of them.

        Raises InputError where a value cannot be parted evenly.
        """
        made = [*operands]
        for group in self.groups(exchange.over):
            for chip, each in zip(group, _among(exchange, [operands[chip] for chip in group]), strict=True):
                made[chip] = each.astype(operands[chip].dtype)
        return made


def _among(exchange: ValueExchange, operands: Sequence[Values]) -> Sequence[Values]:
    """Return the results of one group of chips, by rank."""
    op, ranks, first = exchange.op, len(operands), operands[0]
    if op == "permute":
        return _sent(exchange, operands)
    if op == PART:
        return [np.split(each, ranks, exchange.axis)[rank] for rank, each in enumerate(operands)]
    if op == "all_reduce":
        return [each.reshape(first.shape) for each in expected(op, [*map(_vector, operands)], exchange.combine)]
    if op != "all_gather" and first.shape[exchange.axis] % ranks:
        size = counted(first.shape[exchange.axis], "element")
        raise InputError(f"{op} over {', '.join(exchange.over)}: {size} cannot be parted among {ranks} chips")
    ahead = [np.moveaxis(each, exchange.axis, 0) for each in operands]
    size, *rest = ahead[0].shape
    if op == "all_gather":
        vectors = []
        for rank, each in enumerate(map(_vector, ahead)):
            # Of the parts of other chips a chip knows nothing.
            vectors.append(np.zeros(ranks * each.size, each.dtype))
            vectors[-1][rank * each.size : (rank + 1) * each.size] = each
        found = expected(op, vectors)
        return [np.moveaxis(each.reshape(ranks * size, *rest), 0, exchange.axis) for each in found]
    found = expected(op, [*map(_vector, ahead)], exchange.combine)
    if op == "reduce_scatter":
        return [np.moveaxis(each.reshape(size // ranks, *rest), 0, exchange.axis) for each in found]
    apart = [each.reshape(ranks, size // ranks, *rest) for each in found]
    return [np.concatenate([np.moveaxis(part, 0, exchange.axis) for part in each], exchange.to) for each in apart]


def _sent(exchange: ValueExchange, operands: Sequence[Values]) -> Sequence[Values]:
    if exchange.pairs is None:
        found = expected("permute", [*map(_vector, operands)])
        return [each.reshape(operands[0].shape) for each in found]
    got = {to: operands[rank] for rank, to in exchange.pairs}
    return [got.get(rank, np.zeros_like(each)) for rank, each in enumerate(operands)]


def _vector(values: Values) -> Values:
    """Return all elements in order, in a type in which sums are as exact as they can be."""
    wide = np.float64 if np.issubdtype(values.dtype, np.floating) else np.int64
    return values.astype(wide).reshape(-1)
