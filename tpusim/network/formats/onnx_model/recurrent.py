"""Recurrent networks, step by step: an LSTM, GRU or RNN gives way to products, sums and functions that layers know.

The products of all inputs are one; each step has one of the state before it. What is cut apart or joined moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from tpusim.network.formats.onnx_model.branches import free, names_in
from tpusim.network.formats.onnx_model.file import called
from tpusim.network.formats.onnx_model.folding import Shape
from tpusim.network.formats.onnx_model.nodes import ON_BATCH

MOST_STEPS = 1000
"""Longer sequences make more layers than anybody reads, or waits for."""
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_USUAL = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
"""By name, whether each begins with the last input."""
_SIZES_AS_OPERAND = 13
"""From this opset on, how Split cuts is an operand."""
_OLDEST = 7
"""Before this opset, who adds a row to a matrix has to say so."""


class Unrolled(NamedTuple):
    """A model without those that could be unrolled, how many steps each of these has, and why others could not."""

    model: ModelProto
    steps: Mapping[str, int]
    left: Sequence[str]


class _Unfit(Exception):
    """Such a node cannot be unrolled; says what of it is the reason."""


def sequences(graph: GraphProto) -> set[str]:
    """The values whose shapes say how many steps there are, and of how many elements."""
    nodes = (node for node in graph.node if node.op_type in _GATES)
    return {name for node in nodes for name in (node.input[0], *node.input[2:3])}


def unrolled(model: ModelProto, shapes: Sequence[Mapping[str, Shape]], opset: int) -> Unrolled:
    """The model, its recurrent networks as their steps; `shapes` are those for some numbers of images."""
    steps, left, nodes, taken = dict[str, int](), list[str](), list[NodeProto](), names_in(model.graph)
    for node in model.graph.node:
        try:
            made = _Steps(node, shapes, opset, taken) if node.op_type in _GATES and not node.domain else None
        except _Unfit as reason:
            left.append(f"{node.op_type} {called(node)}: {reason}")
            made = None
        if made:
            steps[called(node)] = made.count
        nodes += made.nodes() if made else [node]
    if not steps:
        return Unrolled(model, {}, left)
    changed = ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    return Unrolled(changed, steps, left)


class _Steps:
    """The steps of a node, as nodes."""

    def __init__(self, node: NodeProto, shapes: Sequence[Mapping[str, Shape]], opset: int, taken: set[str]) -> None:
        """Its values have names that are not `taken`. Raises _Unfit."""
        self._node, self._opset, self._made = node, opset, list[NodeProto]()
        self._taken, self._label = taken, called(node)
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        direction = attributes.get("direction", b"forward").decode()
        if direction not in _DIRECTIONS:
            raise _Unfit(f"there is no direction {direction}")
        self._turns = _DIRECTIONS[direction]
        self._after = attributes.get("linear_before_reset", 0)
        self._operands = {at: name for at, name in enumerate(node.input) if name}
        self._check(attributes)
        self.count, self._inputs, self._size = self._sizes(shapes)

    def _check(self, attributes: Mapping[str, Any]) -> None:
        usual = _USUAL[self._node.op_type] * len(self._turns)
        if [each.decode() for each in attributes.get("activations", [])] not in ([], usual):
            raise _Unfit("it has activations of its own")
        if attributes.get("clip") or attributes.get("input_forget") or attributes.get("layout"):
            raise _Unfit("it clips, couples its gates, or has its images first")
        if self._opset < _OLDEST:
            raise _Unfit(f"it is of an opset before {_OLDEST}")
        if 4 in self._operands or 7 in self._operands:
            raise _Unfit("its sequences are of several lengths, or it has peepholes")

    def _sizes(self, shapes: Sequence[Mapping[str, Shape]]) -> tuple[int, int, int]:
        """How many steps it has, and the elements of an input and of a state."""
        sequence, states = (self._operands.get(at, "") for at in (0, 2))
        if any(sequence not in each or states not in each for each in shapes):
            raise _Unfit("the shapes of its operands are not known")
        lengths = {each[sequence][0] for each in shapes}
        if len(lengths) > 1:
            raise _Unfit(f"how many steps it has {ON_BATCH}")
        (steps,) = lengths
        if not 0 < steps <= MOST_STEPS:
            raise _Unfit(f"it has {steps:,} steps; {MOST_STEPS:,} at most are layers")
        return steps, shapes[0][sequence][-1], shapes[0][states][-1]

    def nodes(self) -> list[NodeProto]:
        """All of them, in order."""
        ways = [self._direction(at, turned) for at, turned in enumerate(self._turns)]
        outputs = dict(enumerate(self._node.output))
        if every := outputs.get(0):
            self._join([[self._shaped(each, [1, 1, -1, self._size]) for each in told] for told, _ in ways], every)
        for at, name in list(outputs.items())[1:]:
            if name:
                ends = [self._shaped(state[at - 1], [1, -1, self._size]) for _, state in ways]
                self._add("Concat", ends, name, axis=0)
        return self._made

    def _join(self, ways: Sequence[Sequence[str]], name: str) -> None:
        """The outputs of each direction, step by step: [step, direction, image, output]."""
        together = [self._add("Concat", [*each], axis=1) for each in zip(*ways, strict=True)]
        self._add("Concat", together, name, axis=0)

    # ---- one direction

    def _direction(self, at: int, turned: bool) -> tuple[list[str], tuple[str, ...]]:
        """Its outputs, by step, and the state behind the last."""
        label, gates = self._label, _GATES[self._node.op_type] * self._size
        before, behind = self._biases(at)
        rows = self._shaped(self._operands[0], [-1, self._inputs])
        entering = self._shaped(self._product(rows, self._of(1, at), before), [self.count, -1, gates])
        parts = [self._shaped(each, [-1, gates]) for each in self._cut(entering, [1] * self.count, 0)]
        state = tuple(self._initial(operand, at) for operand in (5, 6)[: self._states])
        backs, step = self._of(2, at), _STEPS[self._node.op_type]
        order = [*range(self.count)][:: -1 if turned else 1]
        told = dict[int, str]()
        for when in order:
            self._label = f"{label}.{when}"
            state = step(self, parts[when], state, backs, behind)
            told[when] = state[0]
        self._label = label
        return [told[when] for when in range(self.count)], state

    @property
    def _states(self) -> int:
        return 2 if self._node.op_type == "LSTM" else 1

    def _of(self, operand: int, at: int) -> str:
        """The part of an operand that is of one direction, [output, input]."""
        name = self._operands[operand]
        parts = self._cut(name, [1] * len(self._turns), 0)
        gates = _GATES[self._node.op_type] * self._size
        return self._shaped(parts[at], [gates, -1])

    def _biases(self, at: int) -> tuple[str, str]:
        """Biases of what comes in, and of the state; biases that can be added before the network runs are."""
        if 3 not in self._operands:
            return "", ""
        gates = _GATES[self._node.op_type] * self._size
        both = self._shaped(self._cut(self._operands[3], [1] * len(self._turns), 0)[at], [-1])
        before, behind = self._cut(both, [gates, gates], 0)
        if self._node.op_type == "GRU":
            return before, behind
        return self._add("Add", [before, behind]), ""

    def _initial(self, operand: int, at: int) -> str:
        """The state before the first step; where there is none, no name: nothing is made of zeros."""
        if operand not in self._operands:
            return ""
        parts = self._cut(self._operands[operand], [1] * len(self._turns), 0)
        return self._shaped(parts[at], [-1, self._size])

    # ---- the steps

    def lstm(self, given: str, state: tuple[str, ...], backs: str, _: str) -> tuple[str, ...]:
        """Gates in ONNX's order: in, out, forget, and the new content of the cell."""
        output, cell = state
        every = self._plus(given, self._product(output, backs))
        gates, new = self._cut(every, [3 * self._size, self._size])
        enters, leaves, stays = self._cut(self._add("Sigmoid", [gates]), [self._size] * 3)
        cell = self._plus(self._times(enters, self._add("Tanh", [new])), self._times(stays, cell))
        return self._times(leaves, self._add("Tanh", [cell])), cell

    def gru(self, given: str, state: tuple[str, ...], backs: str, behind: str) -> tuple[str, ...]:
        """Gates in ONNX's order: keep, reset, and the new content; what is kept is added to it as its difference."""
        (output,), two = state, [2 * self._size, self._size]
        for_gates, for_new = self._cut(given, two)
        if self._after:
            of_gates, of_new = self._cut(self._product(output, backs, behind), two)
        else:
            (weights, weights_new), (added, added_new) = self._cut(backs, two, 0), self._cut(behind, two)
            of_gates = self._product(output, weights, added)
        keeps, resets = self._cut(self._add("Sigmoid", [self._plus(for_gates, of_gates)]), [self._size] * 2)
        if self._after:
            of_new = self._times(resets, of_new)
        else:
            of_new = self._product(self._times(resets, output), weights_new, added_new)
        new = self._add("Tanh", [self._plus(for_new, of_new)])
        if not output:
            return (self._add("Sub", [new, self._times(keeps, new)]),)
        return (self._plus(new, self._times(keeps, self._add("Sub", [output, new]))),)

    def rnn(self, given: str, state: tuple[str, ...], backs: str, _: str) -> tuple[str, ...]:
        """A simple recurrent cell: the tanh of what comes in and what was there, added."""
        return (self._add("Tanh", [self._plus(given, self._product(state[0], backs))]),)

    # ---- nodes

    def _add(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        name = output or self._named(op)
        self._made.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def _named(self, op: str) -> str:
        return free(f"{self._label}.{op.lower()}", self._taken)

    def _plus(self, one: str, other: str) -> str:
        return self._add("Add", [one, other]) if one and other else one or other

    def _times(self, one: str, other: str) -> str:
        return self._add("Mul", [one, other]) if one and other else ""

    def _product(self, rows: str, weights: str, bias: str = "") -> str:
        """The product of rows and weights [output, input], and the bias; where there are no rows, the bias alone."""
        if not rows:
            return bias
        return self._add("Gemm", [rows, weights, *([bias] if bias else [])], transB=1)

    def _shaped(self, name: str, shape: Sequence[int]) -> str:
        return self._add("Reshape", [name, self._numbers(shape)])

    def _numbers(self, values: Sequence[int]) -> str:
        return self._add("Constant", [], value=numpy_helper.from_array(np.array(values, np.int64)))

    def _cut(self, name: str, sizes: Sequence[int], axis: int = -1) -> list[str]:
        if len(sizes) == 1 or not name:
            return [name] * len(sizes)
        names = [self._named("Split") for _ in sizes]
        later = self._opset >= _SIZES_AS_OPERAND
        operands = [name, self._numbers(sizes)] if later else [name]
        more: dict[str, Any] = {} if later else {"split": [*sizes]}
        self._made.append(helper.make_node("Split", operands, names, name=names[0], axis=axis, **more))
        return names


_Step = Callable[[_Steps, str, tuple[str, ...], str, str], tuple[str, ...]]
"""From a part of the inputs, the state before, its weights and biases, to the state behind, outputs first."""
_STEPS: dict[str, _Step] = {"LSTM": _Steps.lstm, "GRU": _Steps.gru, "RNN": _Steps.rnn}
