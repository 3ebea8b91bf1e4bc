"""Nodes of a model that are replaced by others, before any becomes a layer.

An If whose condition is known before the network runs gives way to what is in its branch; conditions follow from
weights, from shapes, and from inputs that were given as arrays. An LSTM, GRU or RNN gives way, step by step, to
products, sums and functions that layers know: the products of all inputs are one; each step has one of the state before
it. What is cut apart or joined moves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import isclose
from pathlib import Path
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tpusim.base.errors import InputError
from tpusim.base.words import counted
from tpusim.network.formats import printable
from tpusim.network.formats.layer_of_node import UnfitNode
from tpusim.network.formats.onnx_model.array_nodes import ON_BATCH
from tpusim.network.formats.onnx_model.bodies import WITH_BODIES, body_of
from tpusim.network.formats.onnx_model.dims import ModelBatch, inputs
from tpusim.network.formats.onnx_model.expansions import DYNAMIC_LSTM, EXPANSIONS, OF_ALL, OF_MANY
from tpusim.network.formats.onnx_model.facts import NOT_TIMED, lists_of
from tpusim.network.formats.onnx_model.file import called, operator, opset_of, said
from tpusim.network.formats.onnx_model.new_nodes import NewNodes, SeveralOps, UnknownShape, free, names_in
from tpusim.network.formats.onnx_model.shapes import InferredGraph, ValueShape, inferred
from tpusim.network.formats.onnx_model.standard import GATES, refuse_forbidden
from tpusim.numerics.element_types import Values

_IF = "If"
_CONSTANT = "Constant"


@dataclass
class RewrittenModel:
    """A model for a run of `images`, some of whose nodes are replaced by others.

    Attributes:
        taken: which branches were taken, in words.
        expanded: operators that were written out as others.
        steps: recurrent networks, and of how many steps they are, in words.
        left: the nodes that could not be replaced, and why.
        why: the reason why one was not written out, by its first result.
    """

    model: ModelProto
    batch: ModelBatch
    images: int
    path: Path
    taken: list[str] = field(default_factory=list)
    expanded: Counter[str] = field(default_factory=Counter)
    steps: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)

    def inferred(self, enough: Callable[[InferredGraph], bool], more: int = 0) -> InferredGraph:
        """Infer shapes for the run, or one of `more` images, until `enough` is known. Raises InputError."""
        return inferred(self.model, self.batch, self.images + more, enough, self.path)

    def put(self, nodes: Sequence[NodeProto]) -> None:
        """Put nodes in the place of those that there are."""
        changed = ModelProto()
        changed.CopyFrom(self.model)
        del changed.graph.node[:]
        changed.graph.node.extend(nodes)
        self.model = changed


def rewritten(model: ModelProto, batch: ModelBatch, images: int, path: Path) -> RewrittenModel:
    """Replace what is not as layers know it, for a run of `images`. Raises InputError."""
    found = RewrittenModel(model, batch, images, path)
    for replace_some in (_take_branches, _write_out, _unroll):
        replace_some(found)
    return found


def _take_branches(found: RewrittenModel) -> None:
    """Replace each If whose condition can be settled by its branch, also inside of branches."""
    while ifs := [node for node in found.model.graph.node if node.op_type == _IF]:
        graph, known = found.model.graph, _conditions(found, ifs)
        ready = [node for node in ifs if node.input[0] in known]
        if not ready:
            found.left += [_undecided(graph, node) for node in ifs]
            return
        found.taken += [f"{called(node)} {'then' if known[node.input[0]] else 'else'}" for node in ready]
        nodes, names = list[NodeProto](), names_in(graph)
        for node in graph.node:
            known_now = node.op_type == _IF and node.input[0] in known
            nodes += _branch(node, known[node.input[0]], names) if known_now else [node]
        # Nodes that computed the conditions are dropped, as nothing reads them any more.
        found.put(_behind(nodes, {each.name for each in graph.output})[0])


def _behind(nodes: Sequence[NodeProto], values: set[str]) -> tuple[list[NodeProto], set[str]]:
    """Return the nodes that values are made by, and all names read on the way, these values included."""
    read, kept = {*values}, list[NodeProto]()
    for node in reversed(nodes):
        if read & {*node.output}:
            read |= {*read_by(node)}
            kept.append(node)
    return kept[::-1], read


def _conditions(found: RewrittenModel, ifs: Iterable[NodeProto]) -> dict[str, bool]:
    """Return the conditions that are known, by name."""
    wanted = {node.input[0] for node in ifs}

    known = found.inferred(lambda now: wanted <= {each.name for each in now.graph.initializer}).graph.initializer
    values = {each.name: numpy_helper.to_array(each) for each in known if each.name in wanted}
    return {name: bool(each.reshape(-1)[0]) for name, each in values.items() if each.size == 1}


def _undecided(graph: GraphProto, node: NodeProto) -> str:
    """Say why it is unknown which branch is taken, and what would settle it."""
    name = called(node)
    _, behind = _behind(graph.node, {node.input[0]})
    by = [each.name for each in inputs(graph) if each.name in behind]
    if not by:
        return f"If {name}: what decides it is worked out in ways that are not known here"
    decides = f"{' and '.join(by)} {'decides' if len(by) == 1 else 'decide'} it"
    return f"If {name}: {decides}; tpusim run --input FILE.npz with {' and '.join(by)} in it settles that"


def read_by(node: NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, the graphs inside it included; names made in those graphs, too."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (each.name for each in graph.output)
            yield from chain.from_iterable(map(read_by, graph.node))


# ---- putting a branch in the place of its If


def _branch(node: NodeProto, condition: bool, taken: set[str]) -> Iterator[NodeProto]:
    """Yield the nodes of the branch, its weights as constants, and nodes that pass its results on.

    Results whose name is in `taken` get another; all names are added to `taken`.
    """
    wanted = "then_branch" if condition else "else_branch"
    graph = next(each.g for each in node.attribute if each.name == wanted)
    own = [*(each.name for each in graph.initializer), *(name for each in graph.node for name in each.output if name)]
    renamed = {name: free(name, taken) for name in own}
    for tensor in graph.initializer:
        yield helper.make_node(_CONSTANT, [], [renamed[tensor.name]], value=tensor)
    for each in graph.node:
        copy = NodeProto()
        copy.CopyFrom(each)
        _rename(copy, lambda name: renamed.get(name, name))
        yield copy
    for made, name in zip(graph.output, node.output, strict=True):
        if name:
            yield helper.make_node("Identity", [renamed.get(made.name, made.name)], [name], name=called(node))


def _rename(node: NodeProto, name_of: Callable[[str], str]) -> None:
    """Rename the values of a node, also in the graphs inside it."""
    for names in (node.input, node.output):
        changed = [*map(name_of, names)]
        del names[:]
        names.extend(changed)
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            for inner in attribute.g.node:
                _rename(inner, name_of)
            for made in attribute.g.output:
                made.name = name_of(made.name)


# ---- operators that are written out as others


_SEVERAL = EXPANSIONS.keys() | WITH_BODIES | OF_ALL.keys()
_MOST_OPERANDS = 2
"""Most operands of a layer that works element by element."""


def _write_out(found: RewrittenModel) -> None:
    """Write operators out that are several others; what is written out may be in what is."""
    names = names_in(found.model.graph)
    while made := _written_out(found, names):
        nodes = [*enumerate(found.model.graph.node)]
        found.expanded.update(operator(node) for at, node in nodes if at in made)
        found.put([each for at, node in nodes for each in made.get(at, [node])])
    why = found.why
    found.left += [f"{operator(node)} {called(node)}: {why[node.output[0]]}" for node in found.model.graph.node
                   if _is_several(node) and node.output[0] in why and operator(node) not in NOT_TIMED]  # fmt: skip
    joined, kept = _gated(found.model.graph)
    if joined:
        found.expanded.update(joined)
        found.put(kept)


def _is_several(node: NodeProto) -> bool:
    """Return whether a node stands for several others."""
    of_many = operator(node) in OF_MANY and len(node.input) > _MOST_OPERANDS
    return (operator(node) in _SEVERAL or of_many) and len(node.output) > 0


def _written_out(found: RewrittenModel, names: set[str]) -> dict[int, list[NodeProto]]:
    """Return the nodes that operators become, by their place; those whose shapes are not known yet wait. New values get
    names outside `names`.
    """
    nodes = enumerate(found.model.graph.node)
    several = {at: node for at, node in nodes if _is_several(node) and node.output[0] not in found.why}
    if not several:
        return {}
    wanted = {name for node in several.values() for name in node.input if name}
    now = found.inferred(lambda now: wanted <= now.shapes.keys())
    opset, made, lists = opset_of(found.model), dict[int, list[NodeProto]](), lists_of(now.graph)
    refuse_forbidden(several.values(), now, opset, found.path)
    for at, node in several.items():
        try:
            if operator(node) in WITH_BODIES:
                made[at] = body_of(node, opset, now.kinds, now.shapes, names)
            else:
                new = NewNodes(called(node), opset, names)
                op = operator(node)
                expand = EXPANSIONS.get(op) or OF_MANY.get(op) or OF_ALL[op]
                expand(SeveralOps.of(node, now.shapes, now.reals, lists), new)
                made[at] = new.made
        except UnknownShape:
            continue
        except (UnfitNode, ValueError, IndexError) as error:
            found.why[node.output[0]] = str(error)
    return made


def _gated(graph: GraphProto) -> tuple[list[str], list[NodeProto]]:
    """Return the operators that are one with the product behind them, and the nodes with one in the place of two: an
    element times its own sigmoid is what is called swish, or SiLU.
    """
    readers = Counter([name for node in graph.node for name in read_by(node)] + [each.name for each in graph.output])
    gates = {node.output[0]: node for node in graph.node if operator(node) in _GATES and readers[node.output[0]] == 1}
    joined, gone, nodes = list[str](), set[str](), list[NodeProto]()
    for node in graph.node:
        gate = next((gates[name] for name in node.input if name in gates), None)
        if operator(node) != "Mul" or gate is None or gate.input[0] not in node.input or not _usual_gate(gate):
            nodes.append(node)
            continue
        made = _GATES[operator(gate)]
        nodes.append(helper.make_node(made, gate.input[:1], node.output, name=called(node)))
        joined.append(operator(gate))
        gone.add(gate.output[0])
    return joined, [node for node in nodes if not {*node.output} & gone]


_GATES = {"Sigmoid": "Swish", "HardSigmoid": "HardSwish"}
"""Operators that, times what they read, are another."""


def _usual_gate(gate: NodeProto) -> bool:
    """Return whether a gate has the slope and the shift that the product is named for."""
    # An attribute that is no number reads as zero here, and the gate's own layer refuses it.
    numbers = {each.name: each.f for each in gate.attribute}
    hard = numbers.get("alpha", 0.2), numbers.get("beta", 0.5)
    return operator(gate) == "Sigmoid" or all(map(partial(isclose, rel_tol=1e-6), hard, (1 / 6, 0.5)))


# ---- recurrent networks, step by step

MOST_STEPS = 1000
"""Most steps: longer sequences make more layers than anybody reads, or waits for."""
_LENGTHS, _PEEPHOLES = 4, 7
"""The operands that hold the lengths of sequences, and an LSTM's weights from its cell to its gates."""
_CELLS = {**{op: op for op in GATES}, DYNAMIC_LSTM: "LSTM"}
"""By operator the recurrent network that it is."""
_SCALES = {1: 8, 2: 10}
"""By operand of weights of bytes the operand that holds their scales; the zero points are the next one."""
_USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
"""By the name of a direction, whether each of its passes begins with the last input."""
_OLDEST = 7
"""Before this opset, adding a row to a matrix needs an attribute."""


def _unroll(found: RewrittenModel) -> None:
    """Replace the recurrent networks of the model by their steps, and say how many there are.

    Steps that follow the batch show that it is none: a second number of images tells.
    """
    graph, opset = found.model.graph, opset_of(found.model)
    cells = [node for node in graph.node if operator(node) in _CELLS]
    # The shapes of these values give the number of steps and the sizes of inputs and states.
    wanted = {name for node in cells for name in (node.input[0], *node.input[2:3])}
    if not wanted:
        return
    lengths = {name for node in cells for name in node.input[_LENGTHS : _LENGTHS + 1] if name}

    def enough(now: InferredGraph) -> bool:
        return wanted <= now.shapes.keys() and lengths <= {each.name for each in now.graph.initializer}

    now = found.inferred(enough)
    known = {each.name: numpy_helper.to_array(each) for each in now.graph.initializer if each.name in lengths}
    refuse_forbidden([node for node in cells if operator(node) in GATES], now, opset, found.path)
    shapes = [now.shapes]
    if found.batch.names:
        # A model may be sound for this number alone.
        with suppress(InputError):
            shapes.append(found.inferred(lambda now: wanted <= now.shapes.keys(), more=1).shapes)
    steps, nodes, taken = dict[str, int](), list[NodeProto](), names_in(graph)
    for node in graph.node:
        try:
            made = _Steps(node, shapes, opset, taken, known) if operator(node) in _CELLS else None
        except UnfitNode as reason:
            found.left.append(f"{operator(node)} {called(node)}: {reason}")
            made = None
        if made:
            steps[called(node)] = made.count
        nodes += made.nodes() if made else [node]
    if steps:
        found.steps += [f"{name} {count:,}" for name, count in steps.items()]
        found.put(nodes)


_SAID: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"), ()),
    **dict.fromkeys(("Elu", "LeakyRelu", "ThresholdedRelu"), ("alpha",)), "HardSigmoid": ("alpha", "beta"),
}  # fmt: skip
"""By activation that is an operator the attributes that it has."""


def _activations(attributes: Mapping[str, Any], op: str, ways: int) -> list[list[tuple[str, dict[str, Any]]]]:
    """Return the activations of each direction, with what is said of them. Raises UnfitNode."""
    usual = _USUAL[op]
    names = [_text(each) for each in attributes.get("activations", [])] or usual * ways
    if len(names) != len(usual) * ways or any(name not in _SAID for name in names):
        raise UnfitNode(
            f"its activations are {', '.join(names)}; {', '.join(_SAID)} are known, {len(usual) * ways} of them"
        )
    # Numbers are for the activations that take some, one after another.
    given = {key: attributes.get(f"activation_{key}", []) for key in ("alpha", "beta")}
    left = {key: iter(each if isinstance(each, list) else [each]) for key, each in given.items()}
    every = [
        (name, {key: number for key in _SAID[name] if (number := next(left[key], None)) is not None}) for name in names
    ]
    return [every[at : at + len(usual)] for at in range(0, len(every), len(usual))]


def _text(given: object) -> str:
    """Return what an attribute says in words, whatever it holds."""
    return printable(given.decode(errors="replace") if isinstance(given, bytes) else str(given))


class _Steps:
    """The steps of a recurrent node, as nodes."""

    def __init__(
        self, node: NodeProto, shapes: Sequence[Mapping[str, ValueShape]], opset: int, taken: set[str],
        known: Mapping[str, Values],
    ) -> None:  # fmt: skip
        """Prepare the steps; their values get names outside `taken`. `known` has lengths of sequences, by name.

        Raises UnfitNode.
        """
        self._node, self._opset, self._label = node, opset, called(node)
        self._op = _CELLS[operator(node)]
        self._bytes = operator(node) == DYNAMIC_LSTM
        # By weights of bytes their scale and their zero point.
        self._scales = dict[str, tuple[str, str]]()
        self._new = NewNodes(self._label, opset, taken)
        attributes = said(node)
        direction = _text(attributes.get("direction", b"forward"))
        if direction not in _DIRECTIONS:
            raise UnfitNode(f"there is no direction {direction}")
        self._turns = _DIRECTIONS[direction]
        self._after = attributes.get("linear_before_reset", 0)
        self._operands = {at: name for at, name in enumerate(node.input) if name}
        self._activations = _activations(attributes, self._op, len(self._turns))
        self._way = 0
        if attributes.get("clip") or attributes.get("input_forget") or attributes.get("layout"):
            raise UnfitNode("it clips, couples its gates, or has its images first")
        if self._opset < _OLDEST:
            raise UnfitNode(f"it is of an opset before {_OLDEST}")
        self.count, self._inputs, self._size = self._sizes(shapes)
        # Lengths that are all full say nothing new.
        if name := self._operands.get(_LENGTHS):
            if name not in known:
                raise UnfitNode(f"how long its sequences are is not known; an array {name} in --input may tell it")
            if (known[name] != self.count).any():
                raise UnfitNode(f"its sequences are not all of {counted(self.count, 'step')}")

    def _sizes(self, shapes: Sequence[Mapping[str, ValueShape]]) -> tuple[int, int, int]:
        """Return the number of steps, and the elements of an input and of a state."""
        sequence, states = (self._operands.get(at, "") for at in (0, 2))
        if any(sequence not in each or states not in each for each in shapes):
            raise UnfitNode("the shapes of its operands are not known")
        lengths = {each[sequence][0] for each in shapes}
        if len(lengths) > 1:
            raise UnfitNode(f"how many steps it has {ON_BATCH}")
        (steps,) = lengths
        if not 0 < steps <= MOST_STEPS:
            raise UnfitNode(f"it has {steps:,} steps; {MOST_STEPS:,} at most are layers")
        # Weights of bytes stand the other way round.
        return steps, shapes[0][sequence][-1], shapes[0][states][1 if self._bytes else -1]

    def nodes(self) -> list[NodeProto]:
        """Return all nodes of the steps, in order."""
        ways = [self._direction(at, turned) for at, turned in enumerate(self._turns)]
        outputs = dict(enumerate(self._node.output))
        if every := outputs.get(0):
            # [step, direction, image, output]
            apart = [[self._new.shaped(each, [1, 1, -1, self._size]) for each in told] for told, _ in ways]
            together = [self._new.add("Concat", [*each], axis=1) for each in zip(*apart, strict=True)]
            self._new.add("Concat", together, every, axis=0)
        for at, name in list(outputs.items())[1:]:
            if name:
                ends = [self._new.shaped(state[at - 1], [1, -1, self._size]) for _, state in ways]
                self._new.add("Concat", ends, name, axis=0)
        return self._new.made

    # ---- one direction

    def _direction(self, at: int, turned: bool) -> tuple[list[str], tuple[str, ...]]:
        """Return the outputs, by step, and the state behind the last."""
        label, op, self._way = self._label, self._op, at
        gates = GATES[op] * self._size
        peepholes = self._own(_PEEPHOLES, at, [-1]) if op == "LSTM" else ""
        self._peepholes = self._new.cut(peepholes, [self._size] * 3, 0)
        before, behind = self._new.cut(self._own(3, at, [-1]), [gates, gates], 0)
        if before and op != "GRU":
            # With both biases known the sum is one constant; a reset gate that acts behind the bias keeps them apart.
            before, behind = self._new.add("Add", [before, behind]), ""
        rows = self._new.shaped(self._operands[0], [-1, self._inputs])
        entering = self._new.shaped(self._product(rows, self._weights(1, at, gates), before), [self.count, -1, gates])
        parts = [self._new.shaped(each, [-1, gates]) for each in self._new.cut(entering, [1] * self.count, 0)]
        states = (5, 6) if op == "LSTM" else (5,)
        state = tuple(self._own(operand, at, [-1, self._size]) for operand in states)
        backs = self._weights(2, at, gates)
        told = dict[int, str]()
        for when in [*range(self.count)][:: -1 if turned else 1]:
            self._new.label = f"{label}.{when}"
            state = _STEPS[op](self, parts[when], state, backs, behind)
            told[when] = state[0]
        self._new.label = label
        return [told[when] for when in range(self.count)], state

    def _own(self, operand: int, at: int, shape: Sequence[int]) -> str:
        """Return an operand's part for a direction; an empty name where the operand is left out: no zeros are made."""
        name = self._operands.get(operand, "")
        return self._new.shaped(self._new.cut(name, [1] * len(self._turns), 0)[at], shape) if name else ""

    def _weights(self, operand: int, at: int, gates: int) -> str:
        """Return the weights of a direction, [output, input], or of bytes [input, output], with their scale."""
        if not self._bytes:
            return self._own(operand, at, [gates, -1])
        name, scale = self._own(operand, at, [-1, gates]), _SCALES[operand]
        self._scales[name] = self._own(scale, at, [-1]), self._own(scale + 1, at, [-1])
        return name

    # ---- the steps

    def lstm(self, given: str, state: tuple[str, ...], backs: str, _: str) -> tuple[str, ...]:
        """Add a step of an LSTM. Gates in ONNX's order: in, out, forget, and the new content of the cell."""
        output, cell = state
        every = self._plus(given, self._product(output, backs))
        if not any(self._peepholes):
            gates, new = self._new.cut(every, [3 * self._size, self._size])
            enters, leaves, stays = self._new.cut(self._active(0, gates), [self._size] * 3)
            cell = self._plus(self._times(enters, self._active(1, new)), self._times(stays, cell))
            return self._times(leaves, self._active(2, cell)), cell
        of_in, of_out, of_forget = self._peepholes
        enters, leaves, stays, new = self._new.cut(every, [self._size] * 4)
        enters, stays = (
            self._active(0, self._plus(gate, self._times(cell, by)))
            for gate, by in ((enters, of_in), (stays, of_forget))
        )
        cell = self._plus(self._times(enters, self._active(1, new)), self._times(stays, cell))
        # The way out looks at the cell as it is now.
        leaves = self._active(0, self._plus(leaves, self._times(cell, of_out)))
        return self._times(leaves, self._active(2, cell)), cell

    def gru(self, given: str, state: tuple[str, ...], backs: str, behind: str) -> tuple[str, ...]:
        """Add a step of a GRU. Gates in ONNX's order: keep, reset, and the new content, to which the kept difference is
        added.
        """
        (output,), two = state, [2 * self._size, self._size]
        for_gates, for_new = self._new.cut(given, two)
        if self._after:
            of_gates, of_new = self._new.cut(self._product(output, backs, behind), two)
        else:
            (weights, weights_new), (added, added_new) = self._new.cut(backs, two, 0), self._new.cut(behind, two)
            of_gates = self._product(output, weights, added)
        keeps, resets = self._new.cut(self._active(0, self._plus(for_gates, of_gates)), [self._size] * 2)
        if self._after:
            of_new = self._times(resets, of_new)
        else:
            of_new = self._product(self._times(resets, output), weights_new, added_new)
        new = self._active(1, self._plus(for_new, of_new))
        if not output:
            return (self._new.add("Sub", [new, self._times(keeps, new)]),)
        return (self._plus(new, self._times(keeps, self._new.add("Sub", [output, new]))),)

    def rnn(self, given: str, state: tuple[str, ...], backs: str, _: str) -> tuple[str, ...]:
        """Add a step of a simple recurrent cell: the activation of the input's part plus the state's part."""
        return (self._active(0, self._plus(given, self._product(state[0], backs))),)

    # ---- nodes

    def _active(self, which: int, name: str) -> str:
        """Add one of the activations of this direction."""
        op, numbers = self._activations[self._way][which]
        return self._new.add(op, [name], **numbers)

    def _plus(self, one: str, other: str) -> str:
        return self._new.add("Add", [one, other]) if one and other else one or other

    def _times(self, one: str, other: str) -> str:
        return self._new.add("Mul", [one, other]) if one and other else ""

    def _product(self, rows: str, weights: str, bias: str = "") -> str:
        """Add the product of rows and weights [output, input], and the bias; where there are no rows, the
        bias alone.
        """
        if not rows:
            return bias
        if weights in self._scales:
            return self._plus(self._product_of_bytes(rows, weights), bias)
        return self._new.add("Gemm", [rows, weights, *([bias] if bias else [])], transB=1)

    def _product_of_bytes(self, rows: str, weights: str) -> str:
        """Add the product of rows, which are rounded to bytes between their least and their largest, and weights."""
        names = [self._new.named(each) for each in ("bytes", "scale", "zero")]
        self._new.made.append(helper.make_node("DynamicQuantizeLinear", [rows], names, name=names[0]))
        scale, zero = self._scales[weights]
        sums = self._new.add("MatMulInteger", [names[0], weights, names[2], zero])
        reals = self._new.add("Cast", [sums], to=TensorProto.FLOAT)
        return self._new.add("Mul", [reals, self._new.add("Mul", [names[1], scale])])


_Step = Callable[[_Steps, str, tuple[str, ...], str, str], tuple[str, ...]]
"""A step's nodes: from a part of the inputs, the state before, its weights and biases, to the state behind, outputs
first.
"""
_STEPS: dict[str, _Step] = {"LSTM": _Steps.lstm, "GRU": _Steps.gru, "RNN": _Steps.rnn}
