"""A network as a graph: nodes in an order in which each reads what is there by then, and what they read by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tpusim.numerics.element_types import Values

IMAGES = 3
"""The axis of a layer's tensor along which images stand; of a filter, that of the channels of a group."""


@dataclass(frozen=True)
class TensorView:
    """A value of a graph as a tensor of a layer, of four axes: an operand is read as it, a result is made of it.

    Attributes:
        axes: for each axis of the tensor the axes of the value that run along it, the outermost first; none where the
            tensor has one element. Each axis of the value stands in one place.
        shape: of the value, for as many images as the graph is for; of an operand, where `axes` count others than it
            has; (): they are those that it has.
        spread: the shape to which an operand is broadcast; (): it is not.
        mirrored: the axes of the tensor along which the value stands the other way round.
        images: the axis of the tensor along which the images are.
    """

    axes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...] = ()
    spread: tuple[int, ...] = ()
    mirrored: tuple[int, ...] = ()
    images: int = IMAGES

    def tensor(self, value: Values) -> Values:
        """The tensor that a value is. Raises ValueError for a value of another number of axes."""
        told = value.reshape(self.shape) if self.shape else value
        whole = np.broadcast_to(told, self.spread) if self.spread else told
        return np.flip(whole.transpose(self._order).reshape(self.sizes(whole.shape)), self.mirrored)

    def value(self, tensor: Values) -> Values:
        """The value that a tensor is. Raises ValueError for a tensor of another number of elements."""
        apart = np.flip(tensor, self.mirrored).reshape([self.shape[axis] for axis in self._order])
        return apart.transpose(np.argsort(self._order))

    def sizes(self, shape: Sequence[int]) -> tuple[int, int, int, int]:
        """The shape of the tensor, where the axes that are counted are as long as `shape` says."""
        first, rows, cols, images = (prod(shape[axis] for axis in axes) for axes in self.axes)
        return first, rows, cols, images

    @property
    def _order(self) -> list[int]:
        return [axis for axes in self.axes for axis in axes]


@dataclass(frozen=True)
class OperandView:
    """What a tensor that a layer reads is in the graph.

    Attributes:
        at: which operand of the node.
        view: how the operand is seen.
        shared: what all images have in common, in words: the tensor is the same for all of them, and for all layers of
            the node; "": each image has its own, and each layer those of its images.
    """

    at: int
    view: TensorView
    shared: str = ""


@dataclass(frozen=True)
class NodeViews:
    """A node as its layers see it.

    Attributes:
        sources: by tensor what the layers read; a number where there is no operand, which all of the tensor is then.
            None at all: they read what no value of the graph is.
        result: the outputs of all layers, one behind the other along the images, as the node's first result.
    """

    sources: Mapping[str, OperandView | float]
    result: TensorView


UNSEEN = NodeViews({}, TensorView(()))
"""The views of a node that no layers compute, or that they compute of other values."""


@dataclass(frozen=True)
class Node:
    """An operator of ONNX, with what it reads and makes, by name; what is left out has none ("").

    Attributes:
        op: the operator.
        name: what people know it by.
        inputs, outputs: the values.
        attributes: numbers, text, lists and arrays.
        layer: the entry of the workload that computes it, perhaps as several layers; "": none does.
        views: what its values are to those layers.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    layer: str = ""
    views: NodeViews = UNSEEN


@dataclass(frozen=True)
class GivenInput:
    """What is given from outside: its type and its shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """A network with its weights.

    Attributes:
        label: the file that it is from.
        inputs: by name, for `images` images.
        outputs: by name the type of their numbers; None: as it comes.
        constants: the weights, by name.
        images: for how many images at once the graph is. More of them go through it one after another, but together
            through the layers of a machine.
        opset: the version of its operators.
    """

    label: str
    inputs: Mapping[str, GivenInput]
    outputs: Mapping[str, np.dtype[Any] | None]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Values]
    images: int
    opset: int

    def producers(self) -> dict[str, str]:
        """By value the name of the node that makes it, of those that depend on inputs; inputs are their own."""
        made = {name: name for name in self.inputs}
        for node in self.nodes:
            if any(name in made for name in node.inputs):
                made |= dict.fromkeys(node.outputs, node.name)
        return made

    def ops(self) -> Counter[str]:
        """How often each operator comes that no layer computes."""
        return Counter(node.op for node in self.nodes if not node.layer)
