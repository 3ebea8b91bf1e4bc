"""A network as a graph: nodes in an order in which each reads values that exist by then, and reads them by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tpusim.numerics.element_types import Values

IMAGES = 3
"""The axis of a layer's tensor along which images stand; in a filter, the axis of the channels of a group."""
Axes: TypeAlias = tuple[tuple[int, ...], ...]
"""For each axis of a tensor of a layer the axes of a value that run along it."""


@dataclass(frozen=True)
class TensorView:
    """A value of a graph as a tensor of a layer, of four axes: the layer reads an operand, and writes its result, as
    this.

    Attributes:
        axes: for each axis of the tensor the axes of the value that run along it, the outermost first; none where the
            tensor has one element. Each axis of the value stands in one place.
        shape: shape of the value, for the batch of the graph. An operand has one only if `axes` count the axes of
            another shape than its own; () stands for its own.
        spread: shape to which an operand is broadcast; () if it is not.
        mirrored: the axes of the tensor along which the value stands the other way round.
        images: the axis of the tensor along which the images are.
    """

    axes: Axes
    shape: tuple[int, ...] = ()
    spread: tuple[int, ...] = ()
    mirrored: tuple[int, ...] = ()
    images: int = IMAGES

    def tensor(self, value: Values) -> Values:
        """Return the tensor of a value. Raises ValueError for a value of another number of axes."""
        told = value.reshape(self.shape) if self.shape else value
        whole = np.broadcast_to(told, self.spread) if self.spread else told
        return np.flip(whole.transpose(self._order).reshape(self.sizes(whole.shape)), self.mirrored)

    def value(self, tensor: Values) -> Values:
        """Return the value of a tensor. Raises ValueError for a tensor of another number of elements."""
        apart = np.flip(tensor, self.mirrored).reshape([self.shape[axis] for axis in self._order])
        return apart.transpose(np.argsort(self._order))

    def sizes(self, shape: Sequence[int]) -> tuple[int, int, int, int]:
        """Return the shape of the tensor, for axes as long as `shape` says."""
        first, rows, cols, images = (prod(shape[axis] for axis in axes) for axes in self.axes)
        return first, rows, cols, images

    def places(self, shape: Sequence[int]) -> Axes:
        """Return `axes` without those of one element, for axes as long as `shape` says.

        Two views of a value with the same places, as tensors of one size, have each element at the same place.
        """
        return tuple(tuple(axis for axis in axes if shape[axis] != 1) for axes in self.axes)

    @property
    def _order(self) -> list[int]:
        return [axis for axes in self.axes for axis in axes]


@dataclass(frozen=True)
class OperandView:
    """The operand of a node behind a tensor that a layer reads.

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
    """The views of a node's values that its layers have.

    Attributes:
        sources: by tensor what the layers read; a number where there is no operand, which all of the tensor is then.
            None at all: they read what no value of the graph is.
        result: the outputs of all layers, one behind the other along the images, as the node's first result.
        whole: whether the layers multiply whole numbers of a byte, whatever the type of the run, and their sums are
            whole numbers of the graph.
    """

    sources: Mapping[str, OperandView | float]
    result: TensorView
    whole: bool = False


UNSEEN = NodeViews({}, TensorView(()))
"""The views of a node that no layers compute, or that they compute of other values."""


PART = "part"
"""The exchange in which nothing is sent: a chip takes its part of a value that all chips along some axes have."""


@dataclass(frozen=True)
class ValueExchange:
    """An op of several chips on a value that each of them has.

    Attributes:
        op: all_reduce, all_gather, reduce_scatter, all_to_all or permute.
        over: axes of the mesh along which chips take part; their ranks count along the last of these first.
        axis: the axis of the value along which parts are gathered, scattered or split.
        to: of an all_to_all the axis along which parts are joined.
        combine: how an op that reduces combines elements: sum, max or min.
        pairs: of a permute the ranks that send, and those that receive; who receives nothing has zeros. None: each
            sends to the next, and the last to the first.
    """

    op: str
    over: tuple[str, ...]
    axis: int = 0
    to: int = 0
    combine: str = "sum"
    pairs: tuple[tuple[int, int], ...] | None = None


def after(exchange: ValueExchange, shape: Sequence[int], chips: int, back: bool = False) -> tuple[int, ...]:
    """Return the shape of a value after an exchange among `chips`; `back`: before one that leaves this shape."""
    made = [*shape]
    if exchange.op in ("all_gather", "all_to_all"):
        longer = exchange.axis if exchange.op == "all_gather" else exchange.to
        made[longer] = made[longer] // chips if back else made[longer] * chips
    if exchange.op in ("reduce_scatter", "all_to_all", PART):
        made[exchange.axis] = made[exchange.axis] * chips if back else made[exchange.axis] // chips
    return tuple(made)


Placement: TypeAlias = tuple[tuple[str, ...], ...]
"""For each axis of a value the axes of a mesh that part it, the outermost first; along others all chips have the
same. An axis that is not named, at the end, is whole.
"""


@dataclass(frozen=True)
class Node:
    """An operator of ONNX, with what it reads and makes, by name; an operand left out has an empty name.

    Attributes:
        op: the operator.
        name: what people know it by.
        inputs, outputs: the values.
        attributes: numbers, text, lists and arrays.
        layer: the entry of the workload that computes it, perhaps as several layers; "": none does.
        views: what its values are to those layers.
        exchange: what chips of a mesh do with one another's values, if that is what makes the result.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    layer: str = ""
    views: NodeViews = UNSEEN
    exchange: ValueExchange | None = None


@dataclass(frozen=True)
class GivenInput:
    """An input from outside: its type and its shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """A network with its weights; or the share of it that each chip of a mesh has, all of them alike.

    Attributes:
        label: the file that it is from.
        inputs: by name, for `images` images.
        outputs: by name the type of their numbers; None: as it comes.
        constants: the weights, by name.
        images: for how many images at once the graph is. More of them go through it one after another, but together
            through the layers of a machine.
        opset: the version of its operators.
        mesh: the chips that have a share each, by axes and how many stand along each; none: it is no share.
        places: by input and output how the whole of it is parted among chips; of others each chip has the whole.
    """

    label: str
    inputs: Mapping[str, GivenInput]
    outputs: Mapping[str, np.dtype[Any] | None]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Values]
    images: int
    opset: int
    mesh: tuple[tuple[str, int], ...] = ()
    places: Mapping[str, Placement] = field(default_factory=dict)

    def producers(self) -> dict[str, str]:
        """By value the name of the node that makes it, for values that depend on inputs; inputs are their own."""
        made = {name: name for name in self.inputs}
        for node in self.nodes:
            if any(name in made for name in node.inputs):
                made |= dict.fromkeys(node.outputs, node.name)
        return made

    def ops(self) -> Counter[str]:
        """Count the operators that no layer computes, and no chips by an exchange."""
        return Counter(node.op for node in self.nodes if not node.layer and not node.exchange)
