"""Values of a network on one chip, node by node: each layer reads the values ahead of it, and hands on the machine's
outputs.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from math import prod

import numpy as np

from tpusim import reference
from tpusim.base.errors import InputError, Problem
from tpusim.base.memory import free_bytes
from tpusim.base.words import counted
from tpusim.flow.node_layers import BatchParts, BearerLayers, NodeLayers, RiderNodes, carried_by, together
from tpusim.flow.numbers import Numbers
from tpusim.network.graph import Graph, Node
from tpusim.network.ops.elementwise import Clip
from tpusim.network.ops.fused import BIAS, OTHER, Fused
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.numerics.element_types import EXACT_FLOAT32, F32, LEAST, MOST_SUM, OFFSETS, ElementType, Values, all_finite
from tpusim.reference import Operand
from tpusim.reference.nodes import IMAGE_BY_IMAGE, NODES, Call, compute, refusal

_BESIDE = frozenset({BIAS, OTHER})
"""Tensors that a layer of the array adds to its sums; they are as wide as the sums."""
MOST_TOLD = 8
STAY_WITHIN = "give inputs, and a model, whose values stay within float32"
"""Advice for values beyond float32."""
_FAILURES = ArithmeticError, AttributeError, InputError, LookupError, MemoryError, TypeError, ValueError
"""Exceptions of NumPy and Python for operands and attributes that do not fit one another."""


class ChipValues:
    """Values of a graph on one chip, for one run of a workload's layers in order.

    Nodes without a layer are computed by the reference alone, biases too, unless they ride on results. An exchange is
    made by whoever has the values of all chips, from `until_exchange` to `put`.
    """

    def __init__(self, graph: Graph, work: Workload, inputs: Mapping[str, Values], numbers: Numbers) -> None:
        """`inputs` are the graph's inputs for the whole batch.

        Raises:
            InputError: there are operators or attributes of which no values can be computed, or results of layers that
                are not worked out are read, or layers of the graph are left out.
        """
        self.graph, self.work, self._numbers, self._batch = graph, work, numbers, work.batch
        self._parts = work.batch // graph.images
        if unknown := [f"{op} {count:,}" for op, count in graph.ops().items() if op not in NODES]:
            says = f"values of {', '.join(unknown)} cannot be computed"
            also = "leave --input and --save-outputs out to time the layers alone"
            raise InputError(Problem(f"{says}; {also}", graph.label))
        self._layers = _by_node(graph, work)
        # Bytes are multiplied as bytes in a run of any type.
        whole = (self._layers[node.layer] for node in graph.nodes if node.views.whole and node.layer in self._layers)
        self._whole = {layer.name for layers in whole for layer in layers}
        self._carried = _carried(graph, work, self._layers, numbers)
        # Nodes that the layers of another node compute, or that were computed ahead of their turn.
        self._done = {id(node) for each in self._carried.values() for node in each.nodes}
        if problems := [*_not_computable(graph, self._done)]:
            also = "leave --input and --save-outputs out to time the layers alone"
            raise InputError(Problem(f"{each}; {also}") for each in problems[:MOST_TOLD])
        self._values = {name: _split(each, self._parts) for name, each in inputs.items()}
        self._values |= {name: [each] for name, each in graph.constants.items()}
        self._constant = {*graph.constants, ""}
        alone = (node for node in graph.nodes if not (node.layer or node.exchange or id(node) in self._done))
        self._makers = {name: node for node in alone for name in node.outputs}
        self._reads = Counter(name for node in graph.nodes for name in node.inputs)
        self._reads.update([*graph.outputs])
        self._wanted = frozenset(self._reads)
        self._ahead = iter(graph.nodes)
        self._next: Node | None = None
        self._current: NodeLayers | None = None
        self._scale = 1.0

    def operands(self, layer: Op) -> dict[str, Operand]:
        """Operands of the next layer of the workload, once `until_exchange` has come to it.

        Raises:
            InputError: the values before it cannot be computed, or are of other sizes than the layer.
        """
        if self._current is None:
            self._current = self._begun()
        with _failures_of(self._current.node):
            # Tables that the graph has, such as cosines of other angles, go before those of the op.
            given = {name: made(self._batch) for name, made in layer.fixed.items()}
            given |= self._current.operands(layer, self._batch)
        wanted, found = layer.sources(self._batch), {name: each.shape for name, each in given.items()}
        if wanted != found:
            says = f"it reads {found}, where the layer has {wanted}"
            raise InputError(Problem(f"{says}; give the batch that the model was made for", f"layer {layer.name}"))
        if problems := [Problem(f"{says}; {STAY_WITHIN}", f"layer {layer.name}") for says in _unfit(layer, given)]:
            raise InputError(problems)
        self._scale, kind = 1.0, self.numbers_of(layer).kind
        assert kind is not None
        if kind.exact and layer.name not in self._whole:
            return self._as_bytes(layer, given, kind)
        return {name: (F32 if name in _BESIDE else kind).rounded(each) for name, each in given.items()}

    def numbers_of(self, layer: Op) -> Numbers:
        """The numbers of a layer: the vector unit works with float32, whatever goes into the array."""
        if layer.name in self._whole:
            return replace(self._numbers, kind=OFFSETS)
        return replace(self._numbers, kind=F32) if layer.unit == "vector" else self._numbers

    def take(self, ofmap: Values) -> None:
        """Take the outputs of the layer, [out_channel, row, col, image]."""
        assert self._current is not None
        # Sums of bytes may be larger than what float32 holds exactly.
        scaled = ofmap if self._scale == 1.0 else ofmap * self._scale
        whole = self._current.node.views.whole
        if self._current.took(scaled if whole else scaled.astype(np.float32, copy=False)):
            node = self._current.node
            with _failures_of(node):
                results = self._current.results()
            nodes = self._carried[node.layer].every if node.layer in self._carried else (node,)
            self._put(nodes, [results, *self._further(node)])
            self._current = None

    def until_exchange(self) -> Node | None:
        """Compute what stands before the next layer, or the next exchange, and return that; None: it is a layer, or the
        end.
        """
        while self._next is None and self._current is None and (node := next(self._ahead, None)):
            if node.exchange:
                return node
            if node.layer and id(node) not in self._done:
                self._next = node
            else:
                self._pass(node)
        return None

    def operand_of(self, node: Node) -> BatchParts:
        """The value that an exchange takes."""
        with _failures_of(node):
            return self._value(node.inputs[0])

    def put(self, node: Node, made: BatchParts) -> None:
        """Take the result of an exchange."""
        self._put([node], [made])

    def outputs(self) -> dict[str, Values]:
        """The graph's outputs for the whole batch, in their types, once every layer and exchange is done."""
        with np.errstate(over="ignore"):
            made = {name: self._joined(self._value(name)) for name in self.graph.outputs}
            return {
                name: each.astype(self.graph.outputs[name] or each.dtype, copy=False) for name, each in made.items()
            }

    @cached_property
    def reference_only(self) -> dict[str, int]:
        """Number of each operator whose values no layer computes, among those that depend on the inputs."""
        given = self.graph.producers()
        within = {id(node) for each in self._carried.values() for node in each.nodes}
        live = (node for node in self.graph.nodes if any(name in given for name in node.inputs))
        alone = (
            node for node in live if not (node.layer or node.exchange) or self._wanted.intersection(node.outputs[1:])
        )
        return dict(Counter(node.op for node in alone if id(node) not in within))

    # ---- node by node

    def _as_bytes(self, layer: Op, given: Mapping[str, Values], kind: ElementType) -> dict[str, Operand]:
        """Operands as bytes, in units of a fraction of each tensor's largest number; addends in the unit of the sums.

        Raises InputError if addends may be too large for exact sums.
        """
        multiplied = {name: each for name, each in given.items() if name not in _BESIDE}
        units = {name: float(np.abs(each).max(initial=0.0)) / 127 or 1.0 for name, each in multiplied.items()}
        self._scale = prod(units.values())
        added = {name: np.rint(each / self._scale) for name, each in given.items() if name in _BESIDE}
        most = MOST_SUM if self._numbers.needs_doubles(layer, self._batch) else EXACT_FLOAT32
        # The sum itself may reach the product of the least bytes in every term; addends have what is left.
        most -= layer.terms(self._batch) * LEAST * LEAST
        if sum(np.abs(each).max(initial=0.0) for each in added.values()) > most:
            assert self._current is not None
            says = "what is added to its sums of bytes is so large that they are lost beside it"
            where = f"{self._current.node.op} {self._current.node.name}"
            raise InputError(f"{where}: {says}; leave sequencer.fusion out")
        bytes_ = {name: kind.rounded(each / units[name]) for name, each in multiplied.items()}
        return {**bytes_, **{name: each.astype(np.int32) for name, each in added.items()}}

    def _begun(self) -> NodeLayers:
        """The next node that layers compute."""
        assert self._next is not None
        node, self._next = self._next, None
        operands = [self._value(name) if name else [] for name in node.inputs]
        layers, carried = self._layers[node.layer], self._carried.get(node.layer)
        beside = {name: self._value(name) for name in carried.reads} if carried else {}
        with _failures_of(node):
            if carried:
                return BearerLayers(carried, operands, beside, layers)
            return NodeLayers(node, operands, len(layers))

    def _further(self, node: Node) -> list[BatchParts]:
        """Results beside the first of a node that layers compute, such as the places of maxima."""
        if not self._wanted.intersection(node.outputs[1:]):
            return []
        operands = [self._value(name) if name else [] for name in node.inputs]
        return self._computed(node, operands, max(map(len, operands)))[1:]

    def _pass(self, node: Node) -> None:
        """Compute a node, unless it depends on constants alone and may wait until its result is read."""
        if all(name in self._constant for name in node.inputs):
            self._constant.update(node.outputs)
        elif id(node) not in self._done:
            self._work_out(node)

    def _work_out(self, node: Node) -> None:
        self._done.add(id(node))
        operands = [self._value(name) if name else [] for name in node.inputs]
        parts = max(map(len, operands), default=1)
        maps, *others = operands or [[]]
        if node.op in IMAGE_BY_IMAGE and maps and all(len(each) < 2 for each in others):
            alone = self._computed(node, [[together(maps)], *others], 1)
            self._put([node], [_split(whole, parts) for (whole,) in alone])
        else:
            self._put([node], self._computed(node, operands, parts))

    def _computed(self, node: Node, operands: Sequence[BatchParts], parts: int) -> list[BatchParts]:
        """Results of a node, part by part."""
        call = Call(node.attributes, len(node.outputs), self.graph.opset)
        with _failures_of(node):
            results = [
                compute(node.op, call, [each[part % len(each)] if each else None for each in operands])
                for part in range(parts)
            ]
            for each in (each for made in results for each in made):
                # A broadcast number takes no memory until it is read, and then it might take more than there is.
                if 0 in each.strides and each.nbytes > (free := free_bytes()):
                    says = f"they need about {each.nbytes / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free"
                    raise MemoryError(says)
        return [list(each) for each in zip(*results, strict=True)]

    def _put(self, nodes: Sequence[Node], results: Sequence[BatchParts]) -> None:
        """Store the results of the last of some nodes that are computed together; drop values that nobody reads any
        more.
        """
        made = zip(nodes[-1].outputs, results, strict=False)
        self._values |= {name: each for name, each in made if self._reads[name]}
        for name in (name for node in nodes for name in node.inputs):
            self._reads[name] -= 1
            if not self._reads[name]:
                self._values.pop(name, None)

    def _value(self, name: str) -> BatchParts:
        if name not in self._values:
            self._work_out(self._makers[name])
        return self._values[name]

    def _joined(self, parts: BatchParts) -> Values:
        """A value for the whole batch; a value that all images share stays as it is."""
        return together(parts) if len(parts) == 1 or parts[0].ndim else np.stack(parts)


@contextmanager
def _failures_of(node: Node) -> Iterator[None]:
    """Name the node in errors about its values."""
    try:
        yield
    except _FAILURES as error:
        says = " ".join(str(error).split()) or "too little memory"
        raise InputError(f"{node.op} {node.name}: its values cannot be computed: {says}") from None


def _not_computable(graph: Graph, carried: Collection[int]) -> Iterator[str]:
    """Yield what is known of a graph's values before any is computed: nodes that cannot be.

    `carried` are nodes, by their ids, that the layers of other nodes compute.
    """
    given, wanted, told = graph.producers(), {*graph.outputs}, list[str]()
    # What depends on constants alone is computed where somebody reads it.
    for node in reversed(graph.nodes):
        if node.exchange:
            wanted.update(node.inputs)
            continue
        if not node.layer and not any(name in given for name in node.inputs) and not wanted & {*node.outputs}:
            continue
        further = wanted.intersection(node.outputs[1:])
        called = Call(node.attributes, len(node.outputs), graph.opset)
        if further and node.op not in NODES:
            told.append(f"{', '.join(further)}: is a further result of {node.op}, and is not worked out")
        elif (further or not node.layer) and id(node) not in carried and (why := refusal(node.op, called)):
            told.append(f"{node.op} {node.name}: its values cannot be computed: {why}")
        wanted.update(node.inputs)
    yield from reversed(told)


def _by_node(graph: Graph, work: Workload) -> dict[str, tuple[Op, ...]]:
    """Layers of each entry that is a node, in order: one by its name, or several by numbered names."""
    layers, found = deque(work.layers), dict[str, tuple[Op, ...]]()
    riders = {name for _, names in work.riders for name in names}
    for entry in (node.layer for node in graph.nodes if node.layer and node.layer not in riders):
        mine: list[Op] = []
        # Numbered names come first: a node of several layers has no layer of the plain name.
        while layers and layers[0].name == f"{entry}_{len(mine) + 1}":
            mine.append(layers.popleft())
        if not mine and layers and layers[0].name == entry:
            mine.append(layers.popleft())
        if not mine:
            says = f"layer {entry} is left out, and what comes behind it has no values without it"
            raise InputError(Problem(f"{says}; run all layers", graph.label))
        found[entry] = tuple(mine)
    return found


def _carried(
    graph: Graph, work: Workload, layers: Mapping[str, Sequence[Op]], numbers: Numbers
) -> dict[str, RiderNodes]:
    """Nodes that the layers of an entry carry, if any. Raises InputError if values cannot go that way."""
    readers: dict[str, list[Node | None]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    for name in graph.outputs:
        # An output of the graph counts as a reader: a value that is asked for cannot stay inside a carried layer.
        readers.setdefault(name, []).append(None)
    riders, found = dict(work.riders), dict[str, RiderNodes]()
    for node in graph.nodes:
        first = layers[node.layer][0] if node.layer in layers else None
        if isinstance(first, Fused):
            if numbers.kind is not None and numbers.kind.exact and any(isinstance(each, Clip) for each in first.finish):
                says = "clips sums of bytes, whose unit is known when they are there; leave sequencer.fusion out"
                raise InputError(Problem(says, f"layer {first.name}"))
            found[node.layer] = carried_by(node, first, riders.get(first.name, ()), readers)
    return found


def _split(values: Values, parts: int) -> BatchParts:
    return [values] if parts == 1 or not values.ndim else [*np.split(values, parts)]


def _unfit(layer: Op, given: Mapping[str, Values]) -> Iterator[str]:
    """Sentences about operands for which no check of the layer's outputs is possible."""
    if layer.unit == "array":
        yield from not_finite(given)
    elif beyond := [name for name, each in given.items() if not all_finite(each)]:
        if not_numbers := [*_of_kind(given, np.isnan, "nan")]:
            yield from not_numbers
        elif layer.op == "softmax" and np.isneginf(given["ifmap"]).all(axis=0).any():
            yield "a row of 'ifmap' is -inf throughout, and its softmax nan"
        else:
            # Infinities are numbers of ONNX's, as masks and largest elements have them, but nan is equal to nothing.
            with np.errstate(all="ignore"):
                made = int(np.isnan(reference.compute(layer, given)).sum())
            if made:
                yield f"of the infinities in {' and '.join(beyond)} it makes nan, {counted(made, 'time')}"


def not_finite(arrays: Mapping[str, Values]) -> Iterator[str]:
    """Sentences about arrays with numbers that are infinite or NaN."""
    return _of_kind(arrays, lambda each: ~np.isfinite(each), "infinite or nan")


def _of_kind(arrays: Mapping[str, Values], found: Callable[[Values], Values], kind: str) -> Iterator[str]:
    """Sentences about arrays with numbers of a kind."""
    for name, each in arrays.items():
        if not all_finite(each) and (count := int(np.count_nonzero(found(each)))):
            yield f"{count:,} of the {counted(each.size, 'number')} of {name!r} are {kind}"
