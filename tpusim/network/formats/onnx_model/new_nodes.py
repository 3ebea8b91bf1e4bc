"""Nodes that are written in the place of others: in order, with names of their own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

_SIZES_AS_OPERAND = 13
"""From this opset on, the sizes of a Split are an operand."""

_AXES_AS_OPERAND = {True: 13, False: 18}
"""From these opsets on, axes are an operand: of a sum, and of other reductions."""


def names_in(graph: GraphProto) -> set[str]:
    """Return the names of all values of a graph."""
    given = chain((each.name for each in graph.input), (each.name for each in graph.initializer))
    return {*given, *(name for node in graph.node for name in node.output)}


def free(name: str, taken: set[str]) -> str:
    """Return the name, with a number where it is in `taken`, and add it there."""
    found = next(each for each in chain([name], (f"{name}_{at}" for at in count(2))) if each not in taken)
    taken.add(found)
    return found


class NewNodes:
    """Nodes in order, as an opset has them.

    Attributes:
        made: the nodes so far.
        label: what names of values begin with.
        opset: the version of the operators.
    """

    def __init__(self, label: str, opset: int, taken: set[str]) -> None:
        """Begin; values get names outside `taken`, which are added there."""
        self.made = list[NodeProto]()
        self.label, self.opset, self._taken = label, opset, taken

    def add(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node of one result, and return the name of that."""
        name = output or self.named(op)
        self.made.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def named(self, op: str) -> str:
        """Return a new name for a result of an operator."""
        return free(f"{self.label}.{op.lower()}", self._taken)

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        """Add a constant."""
        return self.add("Constant", [], value=numpy_helper.from_array(np.array(values, dtype)))

    def numbers(self, values: Sequence[int]) -> str:
        """Add whole numbers, such as sizes."""
        return self.constant(values, np.int64)

    def shaped(self, name: str, shape: Sequence[int], output: str = "") -> str:
        """Add a Reshape: -1 is what is left, 0 the size that was there."""
        return self.add("Reshape", [name, self.numbers(shape)], output)

    def reduced(self, op: str, name: str, axes: Sequence[int], output: str = "", keepdims: int = 1) -> str:
        """Add a reduction along some axes, of which there is one at least."""
        if self.opset >= _AXES_AS_OPERAND[op == "ReduceSum"]:
            return self.add(op, [name, self.numbers(axes)], output, keepdims=keepdims)
        return self.add(op, [name], output, axes=[*axes], keepdims=keepdims)

    def cut(self, name: str, sizes: Sequence[int], axis: int = -1) -> list[str]:
        """Add a Split into parts of some sizes, and return their names; one part is the value itself."""
        if len(sizes) == 1 or not name:
            return [name] * len(sizes)
        names = [self.named("Split") for _ in sizes]
        later = self.opset >= _SIZES_AS_OPERAND
        operands = [name, self.numbers(sizes)] if later else [name]
        more: dict[str, Any] = {} if later else {"split": [*sizes]}
        self.made.append(helper.make_node("Split", operands, names, name=names[0], axis=axis, **more))
        return names
