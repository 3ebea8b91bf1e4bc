"""What the vector unit computes of a node of a model: a layer's sizes and views, from the shapes of its operands.

A map is [channel, row, col, image] here. Behind a convolution, axis 1 of a value are the channels; behind a product the
last; what takes an element at a time leaves that as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from onnx import ModelProto, NodeProto

from tpusim.network.formats.onnx_model import move_nodes, row_nodes
from tpusim.network.formats.onnx_model.facts import Lists, Numbers, channels_first_of, lists_of, merged_of, numbers_of
from tpusim.network.formats.onnx_model.file import opset_of
from tpusim.network.formats.onnx_model.nodes import (
    AsLayer,
    Node,
    Sizes,
    UnfitNode,
    map_axes,
    maps_of,
    matrix,
    padding_of,
)
from tpusim.network.formats.onnx_model.shapes import Values
from tpusim.network.graph import NodeViews, OperandView, TensorView
from tpusim.network.ops.elementwise import ROWS
from tpusim.network.ops.moves import AXES
from tpusim.network.ops.op import Shape

_LONGEST_MATRIX = 3
"""Axes up to which a value of which nothing is known has its channels last."""


class Place(NamedTuple):
    """A node among those of its model.

    Attributes:
        node: its shapes and attributes; of all operands.
        names: of the operands.
        numbers: constants of one element.
        first: whether axis 1 of its values are the channels, not the last.
        lists: constants of a few whole numbers.
        results: how many of its results are wanted.
        opset: the version of its operator.
    """

    node: Node
    names: Sequence[str]
    numbers: Numbers
    first: bool
    lists: Lists
    results: int
    opset: int


class VectorNodes(NamedTuple):
    """What is known of a model beyond shapes.

    Attributes:
        numbers: constants of one element.
        first: by value, whether its channels are axis 1; of what comes of convolutions or products.
        merged: the results of batch normalizations that become part of the weights before them.
        lists: constants of a few whole numbers.
        opset: the version of its operators.
    """

    numbers: Numbers
    first: Mapping[str, bool]
    merged: frozenset[str]
    lists: Lists
    opset: int

    @classmethod
    def of(cls, model: ModelProto) -> VectorNodes:
        """What there is to know of the nodes of a model."""
        graph = model.graph
        return cls(numbers_of(graph), channels_first_of(graph), merged_of(graph), lists_of(graph), opset_of(model))

    def is_folded(self, node: NodeProto) -> bool:
        """Whether nothing is left of it to do."""
        return node.output[0] in self.merged

    def layer(self, node: NodeProto, values: Values) -> AsLayer:
        """The layer that a node of VECTOR_OPS is. Raises UnfitNode where there is none."""
        names = [*node.input]
        lost = next((name for name in (*names, *node.output[:1]) if name and name not in values.shapes), None)
        if lost is not None or not names or not names[0]:
            raise UnfitNode(f"the shape of {lost} is not known" if lost else "an operand is missing")
        if node.output[0] not in values.reals:
            raise UnfitNode("it works on whole numbers")
        shapes = [values.shape(name) if name else () for name in names]
        result, attributes = values.shape(node.output[0]), {each.name: each for each in node.attribute}
        constant, given = [name in values.constants for name in names], [*map(bool, names)]
        there = Node(shapes, result, constant, attributes, given)
        known = [self.first[name] for name in names if name in self.first]
        first = known[0] if known else max(len(shapes[0]), len(result)) > _LONGEST_MATRIX
        results = sum(map(bool, node.output))
        place = Place(there, names, self.numbers, first, self.lists, results, self.opset)
        return VECTOR_OPS[node.op_type](place, node.op_type)


# ---- pooling


def _pool(place: Place, op: str) -> AsLayer:
    node, kind = place.node, "max" if "Max" in op else "average"
    images, channels, *sides = node.shapes[0]
    axes = len(sides)
    if axes not in (1, 2):
        raise UnfitNode(f"it has {axes} axes; 1 and 2 are known")
    views = maps_of(node)
    sizes = {"op": "pool2d", "kind": kind, "images": images, "channels": channels}
    height, width = [1] * (2 - axes) + sides
    sizes |= {"in_height": height, "in_width": width}
    if op.startswith("Global"):
        return AsLayer({**sizes, "kernel": [height, width]}, views)
    one = [1] * (2 - axes)
    kernel = node.ints("kernel_shape", axes, 1)
    pads = padding_of(node, axes)
    if isinstance(pads, list) and axes == 1:
        pads = [0, pads[0], 0, pads[1]]
    steps = {
        "kernel": [*one, *kernel],
        "stride": [*one, *node.ints("strides", axes, 1)],
        "padding": pads,
        "dilation": [*one, *node.ints("dilations", axes, 1)],
        "ceil_mode": bool(node.whole("ceil_mode", 0)),
        "count_include_pad": bool(node.whole("count_include_pad", 0)),
    }
    return AsLayer({**sizes, **steps}, views)


# ---- element by element


def _map(place: Place, op: str, channels_first: bool | None = None, **fields: Any) -> AsLayer:
    """A layer of one operand that makes as many elements; with `channels_first`, whatever is known of its place."""
    node, first = place.node, place.first if channels_first is None else channels_first
    if len(node.result) < 2:
        raise UnfitNode(f"it works on values of {len(node.result)} axes; maps have two or more")
    maps = TensorView(map_axes(len(node.result), first))
    sizes = dict(zip(AXES, maps.sizes(node.result), strict=True))
    views = NodeViews({"ifmap": OperandView(0, maps)}, replace(maps, shape=node.result))
    return AsLayer({"op": op, **sizes, **fields}, views)


def _arithmetic(place: Place, op: str) -> AsLayer:
    node, name = place.node, "add" if op == "Sum" else op.lower()
    whole = [index for index, shape in enumerate(node.shapes[:2]) if shape == node.result]
    if not whole or len(node.shapes) != 2:
        raise UnfitNode("neither operand is as large as what it makes")
    main = next((index for index in whole if not node.constant[index]), whole[0])
    if main == 1 and op in ("Sub", "Div"):
        name = f"r{name}"
    sizes, views = _map(place, name)
    result = views.result
    # The other operand may have fewer axes than the result.
    fewer = len(node.result) - len(node.shapes[1 - main])
    other = TensorView(tuple(tuple(axis - fewer for axis in each if axis >= fewer) for each in result.axes))
    sources = {
        "ifmap": OperandView(main, TensorView(result.axes)),
        "other": OperandView(1 - main, other, "numbers" if node.constant[1 - main] else ""),
    }
    kind = _kind(other.sizes(node.shapes[1 - main]), result.sizes(node.result), node.constant[1 - main])
    return AsLayer({**sizes, "other": kind}, NodeViews(sources, result))


def _kind(mine: Shape, result: Shape, constant: bool) -> str:
    """Along which axes the other operand has elements of its own. A constant is the same for all images."""
    if prod(mine) == 1 and constant:
        return "number"
    for kind, kept in _KINDS.items():
        alike = all(a == b if keep else a == 1 for a, b, keep in zip(mine[:3], result[:3], kept[:3], strict=True))
        if alike and kept[3] != constant and mine[3] == (result[3] if kept[3] else 1):
            return kind
    raise UnfitNode("its operands are spread over one another as no layer here knows it")


_KINDS: Mapping[str, tuple[bool, bool, bool, bool]] = {
    "each": (True, True, True, True),
    "map": (True, True, True, False),
    "channel": (True, False, False, False),
    "image": (True, False, False, True),
    "pixel": (False, True, True, True),
}
"""Axes [channel, row, col, image] along which an operand has elements of its own."""


def _scale_shift(place: Place, _: str) -> AsLayer:
    """What its statistics make of an element: a number a channel that it is multiplied by, and one that is added."""
    if place.node.whole("training_mode", 0):
        raise UnfitNode("it is for training")
    sizes, views = _map(place, "scale_shift", channels_first=True)
    numbers = {name: OperandView(at, matrix(1, [0]), "numbers") for at, name in enumerate(("scale", "shift"), start=1)}
    return AsLayer(sizes, NodeViews({**views.sources, **numbers}, views.result))


def _plain(name: str) -> Callable[[Place, str], AsLayer]:
    return lambda place, _: _map(place, name)


def _leaky_relu(place: Place, _: str) -> AsLayer:
    return _map(place, "leaky_relu", slope=place.node.number("alpha", 0.01))


def _power(place: Place, _: str) -> AsLayer:
    """A square, a cube, or a root."""
    exponent = place.numbers.get(place.names[1])
    if exponent in (2, 3) and exponent:
        return _map(place, "power", exponent=int(exponent))
    if exponent != 1 / 2:
        raise UnfitNode("its exponent is none of 2, 3 and a half")
    return _map(place, "sqrt")


def _slice(place: Place, _: str) -> AsLayer:
    """What is cut off is an operand; in old models an attribute, and then nothing is left out in between."""
    starts, ends, axes, steps = (place.lists.get(name, ()) for name in [*place.names, "", "", "", ""][1:5])
    return move_nodes.strided(place.node, list(zip(axes, starts, ends, steps, strict=False)), place.first)


def _gelu(place: Place, _: str) -> AsLayer:
    given = place.node.attributes.get("approximate")
    return _map(place, "gelu", approximate=given.s.decode() if given else "none")


def _swish(place: Place, _: str) -> AsLayer:
    if place.node.number("alpha", 1.0) != 1:
        raise UnfitNode("its alpha is not 1")
    return _map(place, "silu")


def _clip(place: Place, _: str) -> AsLayer:
    """Its ends are attributes in old models, operands in others."""
    ends: Sizes = {}
    for at, key in enumerate(("min", "max"), start=1):
        name = place.names[at] if len(place.names) > at else ""
        if name and name not in place.numbers:
            raise UnfitNode(f"its {key} is worked out by the model")
        if name or key in place.node.attributes:
            ends[key] = place.numbers[name] if name else place.node.number(key, 0.0)
    return _map(place, "clip", **ends)


def _softmax(place: Place, _: str) -> AsLayer:
    return row_nodes.softmax(place.node, place.opset)


def _layer_norm(place: Place, _: str) -> AsLayer:
    if place.results > 1:
        raise UnfitNode("its mean is wanted, too")
    return row_nodes.layer_norm(place.node)


def _reduce_mean(place: Place, _: str) -> AsLayer:
    given = place.node.attributes.get("axes")
    named = place.lists.get(place.names[1], ()) if len(place.names) > 1 else ()
    return row_nodes.reduce_mean(place.node, given.ints if given else named, place.first)


def _lrn(place: Place, _: str) -> AsLayer:
    node = place.node
    numbers = {"alpha": node.number("alpha", 1e-4), "beta": node.number("beta", 0.75), "bias": node.number("bias", 1.0)}
    return _map(place, "lrn", channels_first=True, size=node.whole("size", 1), **numbers)


def _transpose(place: Place, _: str) -> AsLayer:
    return move_nodes.transpose(place.node, place.first)


def _pad(place: Place, _: str) -> AsLayer:
    """What it adds is an attribute in old models, an operand in others."""
    names = [*place.names, "", "", ""][1:4]
    given = place.node.attributes.get("pads")
    if names[1] and names[1] not in place.numbers:
        raise UnfitNode("what it adds is worked out by the model")
    value = place.numbers[names[1]] if names[1] else place.node.number("value", 0.0)
    pads = given.ints if given else place.lists.get(names[0], ())
    return move_nodes.pad(place.node, pads, value, place.lists.get(names[2], ()))


def _upsample(place: Place, op: str) -> AsLayer:
    return move_nodes.upsample(place.node, op)


def _hard_sigmoid(place: Place, _: str) -> AsLayer:
    return _map(place, "hard_sigmoid", alpha=place.node.number("alpha", 0.2), beta=place.node.number("beta", 0.5))


VECTOR_OPS: dict[str, Callable[[Place, str], AsLayer]] = {
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), _pool),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Sum"), _arithmetic),
    "BatchNormalization": _scale_shift,
    "LeakyRelu": _leaky_relu,
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain("hard_swish"),
    **{row.onnx: _plain(op) for op, row in ROWS.items() if row.onnx},
    "Pow": _power,
    "Gelu": _gelu,
    "Softmax": _softmax,
    "LayerNormalization": _layer_norm,
    "ReduceMean": _reduce_mean,
    "Swish": _swish,
    "LRN": _lrn,
    "Transpose": _transpose,
    "Pad": _pad,
    "Slice": _slice,
    **dict.fromkeys(("Resize", "Upsample"), _upsample),
}
"""What the vector unit computes, of ONNX's own operators."""
