"""A node that stands for several, and the nodes that are written in the place of others: in order, with names of their
own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from tpusim.base.words import free_name
from tpusim.network.formats.layer_of_node import UnfitNode
from tpusim.network.formats.onnx_model.file import said

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
    found = free_name(name, taken)
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


# ---- what they are written for

_Value = TypeVar("_Value", int, float, bytes)
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


class UnknownShape(UnfitNode):
    """A node whose operands have to have a shape before it is written out."""


class SeveralOps(NamedTuple):
    """A node that stands for several, and is written out.

    Attributes:
        names: of all operands; empty where one is left out.
        outputs: of all results; empty where one is not wanted.
        attributes: by name.
        shapes: of values, as far as they are known.
        reals: the values that are real numbers.
        lists: constants of a few whole numbers, or of one, which may be axes or lengths.
    """

    names: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Any]
    shapes: Shapes
    reals: Set[str]
    lists: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, node: NodeProto, shapes: Shapes, reals: Set[str], lists: Mapping[str, Sequence[int]]) -> SeveralOps:
        """Take a node apart."""
        return cls([*node.input], [*node.output], said(node), shapes, reals, lists)

    def name(self, at: int) -> str:
        """Return the name of an operand; empty where there is none."""
        return self.names[at] if at < len(self.names) else ""

    def output(self, at: int = 0) -> str:
        """Return the name of a result; empty where it is not wanted."""
        return self.outputs[at] if at < len(self.outputs) else ""

    def get(self, name: str, default: _Value) -> _Value:
        """Return an attribute. Raises UnfitNode where it is of another kind than its default."""
        value = self.attributes.get(name, default)
        if not isinstance(value, type(default)):
            raise UnfitNode(f"{name} is of a kind that the operator does not have there")
        return value

    def shape(self, at: int) -> tuple[int, ...]:
        """Return the shape of an operand. Raises UnknownShape."""
        name = self.name(at)
        if name not in self.shapes:
            raise UnknownShape(f"the shape of {name or f'operand {at}'} is not known")
        return self.shapes[name]

    def refuse(self, operands: Mapping[int, str] | None = None, attributes: Sequence[str] = ()) -> None:
        """Raise UnfitNode for operands that are there, or attributes that are not zero."""
        if there := [what for at, what in (operands or {}).items() if self.name(at)]:
            raise UnfitNode(f"it has {', '.join(there)}")
        if given := [name for name in attributes if self.attributes.get(name)]:
            raise UnfitNode(f"it has {', '.join(given)}")


Expansion: TypeAlias = Callable[[SeveralOps, NewNodes], None]
"""Adds the nodes that an operator is written out as. Raises UnfitNode."""
