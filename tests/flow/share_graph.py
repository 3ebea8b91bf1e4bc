"""The graph of a workload that is the share of one chip of its mesh: a check of shares by the values of all chips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tpusim.base.errors import InputError, Problem
from tpusim.flow.shard_values import Shards
from tpusim.network.graph import (
    PART,
    GivenInput,
    Graph,
    Node,
    NodeViews,
    OperandView,
    Placement,
    TensorView,
    ValueExchange,
    after,
)
from tpusim.network.ops.op import OFMAP, Op
from tpusim.network.workload import Source, Workload

_AS_IT_LIES = TensorView(((0,), (1,), (2,), (3,)))
_TURNED = TensorView(((3,), (1,), (2,), (0,)))
_TURNED_READS = ("dw", "ifmap"), ("dx", "filter")
"""Tensors, by the ends of the names of layers, that products of a training step read turned (`network/backward.py`)."""


def graph_of_share(
    work: Workload,
    exchanges: Mapping[str, ValueExchange] | None = None,
    places: Mapping[str, Placement] | None = None,
) -> Graph:
    """Return the graph of a workload that is the share of one chip of its mesh: its values are tensors of layers,
    [channel, row, col, image], or as filters have their axes.

    Values have the names of the layers and collectives that make them. Inputs are those that edges name, and what no
    layer makes: LAYER.TENSOR, such as fc.filter, and COLLECTIVE.operand. Outputs are what nothing reads.

    Args:
        work: with its mesh, edges and collectives, not fused yet.
        exchanges: by collective what it does with values, along which of their axes.
        places: by input and output how the whole of it is parted among chips.

    Raises:
        InputError: a layer reads what it cannot be told of, such as a part of a value; or a collective has no exchange.
    """
    return _ShareGraph(work, exchanges or {}).graph(places or {})


class _ShareGraph:
    """The nodes of a share, one after another, each behind what it reads."""

    def __init__(self, work: Workload, exchanges: Mapping[str, ValueExchange]) -> None:
        self._work, self._exchanges = work, exchanges
        self._left = {each.name: each for each in work.collectives}
        self._nodes: list[Node] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._inputs: dict[str, GivenInput] = {}

    def graph(self, places: Mapping[str, Placement]) -> Graph:
        self._places, sources = places, self._work.sources()
        for layer in self._work.layers:
            self._add_layer(layer, sources.get(layer.name, ()))
        for name in [*self._left]:
            self._collective(name)
        read = {name for node in self._nodes for name in node.inputs}
        made = [name for node in self._nodes for name in node.outputs if name not in read]
        outputs = dict.fromkeys(made, np.dtype(np.float32))
        shards = Shards(self._work.mesh)
        parted = {name: each for name, each in places.items() if name in {*self._inputs, *outputs}}
        return Graph(self._work.name, self._inputs, outputs, tuple(self._nodes), {}, self._work.batch, 0,
                     shards.mesh, parted)  # fmt: skip

    def _add_layer(self, layer: Op, sources: Sequence[Source]) -> None:
        views: dict[str, OperandView | float] = {}
        inputs: list[str] = []
        for at, (tensor, shape) in enumerate(layer.reads(self._work.batch).items()):
            source = sources[at] if at < len(sources) else Source(())
            turned = self._is_turned(layer.name, tensor, source)
            wanted = (shape[3], *shape[1:3], shape[0]) if turned else tuple(shape)
            inputs.append(self._value(source, wanted, f"{layer.name}.{tensor}", layer.name))
            views[tensor] = OperandView(at, replace(_TURNED if turned else _AS_IT_LIES, shape=wanted))
        made = layer.shapes(self._work.batch)[OFMAP]
        view = NodeViews(views, replace(_AS_IT_LIES, shape=tuple(made)))
        self._nodes.append(Node(layer.op, layer.name, tuple(inputs), (layer.name,), {}, layer.name, view))
        self._shapes[layer.name] = tuple(made)

    def _is_turned(self, layer: str, tensor: str, source: Source) -> bool:
        """Return whether a layer of a training step reads what others have made, or weights, with images and channels
        exchanged: a product that makes a gradient.
        """
        gathered = any(each.weights and each.name in source.names for each in self._work.collectives)
        return not source.direct and not gathered and (layer.rpartition(".")[2], tensor) in _TURNED_READS

    def _value(self, source: Source, shape: Sequence[int], given: str, reader: str) -> str:
        """Return the value that a tensor is: what another makes, of as many elements, or an input."""
        for name in source.names:
            if name in self._left:
                self._collective(name)
        made = [name for name in source.names if name in self._shapes]
        if not made:
            name = source.names[0] if source.names else given
            self._inputs.setdefault(name, GivenInput(np.dtype(np.float32), tuple(shape)))
            return name
        if len(made) < len(source.names):
            raise self._refused(reader, f"reads {' and '.join(source.names)} together")
        name = made[0]
        if len(made) > 1:
            name = f"{given}.joined"
            channels = sum(self._shapes[each][0] for each in made)
            self._shapes[name] = (channels, *self._shapes[made[0]][1:])
            self._nodes.append(Node("lax.concatenate", name, tuple(made), (name,), {"dimension": 0}))
        return name if prod(self._shapes[name]) == prod(shape) else self._part(name, shape, given, reader)

    def _part(self, name: str, shape: Sequence[int], given: str, reader: str) -> str:
        """Return the part of a value that a chip takes of what all chips have."""
        whole = self._shapes[name]
        sides = [side for side, sizes in enumerate(zip(whole, shape, strict=True)) if sizes[0] != sizes[1]]
        part = f"{given}.part"
        if len(sides) == 1 and given in self._places:
            (side,), shards = sides, Shards(self._work.mesh)
            axes = self._places[given][side]
            for at in range(len(axes)):
                if whole[side] == shape[side] * shards.along(axes[at:]):
                    self._shapes[part] = tuple(shape)
                    taken = ValueExchange(PART, axes[at:], side)
                    self._nodes.append(Node(PART, part, (name,), (part,), {}, exchange=taken))
                    return part
        raise self._refused(reader, f"reads a part of {name}")

    def _collective(self, name: str) -> None:
        """Add a collective, behind those that it reads."""
        each = self._left.pop(name)
        exchange = self._exchanges.get(name, ValueExchange(each.op, each.over, each.axis, each.to))
        if (exchange.op, exchange.over) != (each.op, each.over):
            raise self._refused(name, f"is a {each.op} over {', '.join(each.over)} of an unknown axis")
        for other in each.reads:
            if other in self._left:
                self._collective(other)
        if len(each.reads) > 1 or (each.reads and each.reads[0] not in self._shapes):
            raise self._refused(name, f"reads {' and '.join(each.reads)}")
        operand = each.reads[0] if each.reads else f"{name}.operand"
        chips = Shards(self._work.mesh).along(exchange.over)
        if not each.reads:
            wanted = self._read_as(name)
            self._shapes[operand] = after(exchange, wanted, chips, back=True)
            self._inputs[operand] = GivenInput(np.dtype(np.float32), self._shapes[operand])
        self._shapes[name] = after(exchange, self._shapes[operand], chips)
        self._nodes.append(Node(each.op, name, (operand,), (name,), {}, exchange=exchange))

    def _read_as(self, name: str) -> tuple[int, ...]:
        """Return the shape in which the first reader of a collective's outcome reads it."""
        sources = self._work.sources()
        for layer in self._work.layers:
            tensors = layer.reads(self._work.batch).values()
            for source, shape in zip(sources.get(layer.name, ()), tensors, strict=False):
                if name in source.names:
                    return tuple(shape)
        raise self._refused(name, "reads what nobody makes, and no layer reads it")

    def _refused(self, name: str, why: str) -> InputError:
        return InputError(Problem(f"{name} {why}, of which no values are known", self._work.name))
