"""Nodes of a graph that ride on the results of another: which they are, and what the layers read for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from math import prod
from typing import Any

import numpy as np

from tpusim.base.errors import InputError
from tpusim.flow.node_layers import NodeLayers, node_layers
from tpusim.flow.numbers import Numbers
from tpusim.flow.parts import Parts, Values
from tpusim.network.graph import Node
from tpusim.network.ops.fused import BIAS, OTHER, Fused
from tpusim.network.ops.op import OFMAP, Op
from tpusim.numerics.element_types import EXACT_FLOAT32, LEAST, MOST_SUM

BESIDE = frozenset({BIAS, OTHER})
"""What a layer of an array adds to its sums: as wide as they are."""
_FOLDED = "BatchNormalization"
_ADDING = frozenset({"Add", "Sum"})
_SAME = frozenset({"Identity", "Dropout"})
"""What hands on what it reads."""
_OWN = 2
"""Which operand of a convolution or product is what it adds by itself."""
_LEAVE_OUT = "leave sequencer.fusion out"


@dataclass(frozen=True)
class Carried:
    """The nodes that the layers of `bearer` compute as well, in order; of what they add, the names of the values: one
    number for each channel, and a map, where there are any.
    """

    bearer: Node
    nodes: tuple[Node, ...] = ()
    bias: str = ""
    other: str = ""

    @property
    def every(self) -> tuple[Node, ...]:
        """With the one that carries them."""
        return self.bearer, *self.nodes

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that must be there, beside those of the bearer."""
        folded = (name for node in self.nodes if node.op == _FOLDED for name in node.inputs[1:])
        return *folded, *filter(None, (self.bias, self.other))


def carried_by(
    bearer: Node, layer: Op, riders: Collection[str], readers: Mapping[str, Sequence[Node | None]],
    given: Collection[str],
) -> Carried:  # fmt: skip
    """What the layers of a node, such as `layer`, carry: entries of the names `riders`, what is folded into weights.

    `readers` are the nodes that read each value, None whoever takes it out of the graph; the values `given` depend on
    the network's inputs, as no bias does.

    Raises:
        InputError: something lies between the node and what rides that is not done by the machine.
    """
    left, found, value, bias, other = {*riders}, list[Node](), bearer.outputs[0], "", ""
    while len(readers.get(value, ())) == 1 and (node := readers[value][0]) is not None:
        if node.layer in left:
            left.discard(node.layer)
            added = next((name for name in node.inputs if name != value), "") if node.op in _ADDING else ""
            bias, other = (bias, added) if added in given else (added or bias, other)
        elif node.layer or not _vanishes(node, layer, begun=len(left) < len(riders)):
            break
        found.append(node)
        value = node.outputs[0]
    if left:
        says = f"between {bearer.name} and {', '.join(sorted(left))}, which rides on it, is what others read as well"
        raise InputError(f"{says}, or what is done outside the machine; {_LEAVE_OUT}")
    return Carried(bearer, tuple(found), bias, other)


def most_added(layer: Op, batch: int, numbers: Numbers) -> int:
    """What may be added to sums of bytes, all of it together, so that they stay exact."""
    most = MOST_SUM if numbers.needs_doubles(layer, batch) else EXACT_FLOAT32
    return most - layer.terms(batch) * LEAST * LEAST


def _vanishes(node: Node, layer: Op, begun: bool) -> bool:
    """Whether nothing is left of a node that is no layer; of a normalization, unless riders have `begun`."""
    folded = node.op == _FOLDED and isinstance(layer, Fused) and layer.bias and not begun
    return folded or (node.op in _SAME and len(node.outputs) == 1)


class FusedLayers:
    """The layers of a node, whose results are those of the last node that they carry."""

    def __init__(
        self, carried: Carried, operands: Sequence[Parts], values: Mapping[str, Parts], layers: Sequence[Op], batch: int
    ) -> None:
        """`operands` are those of the bearer, `values` those that it reads besides.

        Raises InputError where the bearer adds what the machine does not.
        """
        bearer, own = carried.bearer, [each[0] for each in operands[_OWN:] if each]
        first = layers[0]
        if own and not (isinstance(first, Fused) and first.bias and prod(own[0].shape[:-1]) == 1):
            raise InputError(f"what it adds is added outside the machine, and others ride on it; {_LEAVE_OUT}")
        plain = {name: each for name, each in bearer.attributes.items() if name not in ("alpha", "beta")}
        core = replace(bearer, attributes=plain, inputs=bearer.inputs[:_OWN])
        self._made: NodeLayers = node_layers(core, operands[:_OWN], layers, batch)
        self._carried, self._values = carried, values
        self._scale, self._shift = self._folded(own)

    def operands(self, number: int, layer: Op, batch: int) -> dict[str, Values]:
        found, shapes = self._made.operands(number, layer, batch), layer.shapes(batch)
        channels = shapes[OFMAP][0]
        scale = np.broadcast_to(self._scale, channels).reshape(-1, 1, 1, 1)
        found["filter"] = (found["filter"] * scale).astype(np.float32)
        if BIAS in shapes:
            shift = np.broadcast_to(self._shift, channels)
            if self._carried.bias:
                shift = shift + self._as_map(self._values[self._carried.bias], shapes[OFMAP])[:, 0, 0, 0]
            found[BIAS] = shift.astype(np.float32).reshape(-1, 1, 1, 1)
        if OTHER in shapes:
            found[OTHER] = self._as_map(self._values[self._carried.other], shapes[OFMAP])
        return found

    def results(self, ofmaps: Sequence[Values]) -> Parts:
        """With as many axes as what is added has."""
        parts, added = self._made.results(ofmaps), (self._carried.bias, self._carried.other)
        most = max([parts[0].ndim, *(self._values[name][0].ndim for name in added if name)])
        return [each.reshape((1,) * (most - each.ndim) + each.shape) for each in parts]

    def _folded(self, own: Sequence[Values]) -> tuple[Values, Values]:
        """By channel, or for all of them, what weights are multiplied by, and what is added."""
        call: Mapping[str, Any] = self._carried.bearer.attributes
        scale = np.full(1, call.get("alpha", 1.0), np.float64)
        shift = own[0].reshape(-1) * np.float64(call.get("beta", 1.0)) if own else np.zeros(1)
        for node in self._carried.nodes:
            if node.op == _FOLDED:
                factor, bias, mean, variance = (self._values[name][0].astype(np.float64) for name in node.inputs[1:])
                factor = factor / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
                scale, shift = scale * factor, (shift - mean) * factor + bias
        return scale, shift

    def _as_map(self, parts: Parts, shape: tuple[int, ...]) -> Values:
        """What is added to results, as the map [channel, row, col, image] that the ofmap is."""
        places = self._made.results([np.arange(prod(shape), dtype=np.float64).reshape(shape)])
        found = np.empty(prod(shape), np.float32)
        for place, part in zip(places, cycle(parts), strict=False):
            values = part.reshape(place.shape) if part.size == place.size else np.broadcast_to(part, place.shape)
            found[place.astype(np.int64)] = values
        return found.reshape(shape)
