"""What the vector unit computes of a node of a model: a layer's sizes, from the shapes of its operands.

A map is [channel, row, col, image] here. Behind a convolution, axis 1 of a value are the channels; behind a product the
last; what takes an element at a time leaves that as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from onnx import ModelProto, NodeProto

from tpusim.network.formats.onnx_model import move_nodes, row_nodes
from tpusim.network.formats.onnx_model.facts import Lists, Numbers, channels_first_of, lists_of, merged_of, numbers_of
from tpusim.network.formats.onnx_model.file import opset_of
from tpusim.network.formats.onnx_model.folding import Shape
from tpusim.network.formats.onnx_model.nodes import Node, Sizes, UnfitNode, padding_of
from tpusim.network.formats.onnx_model.shapes import Values
from tpusim.network.ops.elementwise import ROWS

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

    def layer(self, node: NodeProto, values: Values) -> Sizes:
        """The layer that a node of VECTOR_OPS is. Raises UnfitNode where there is none."""
        names = [*node.input]
        lost = next((name for name in (*names, *node.output[:1]) if name and name not in values.shapes), None)
        if lost is not None or not names or not names[0]:
            raise UnfitNode(f"the shape of {lost} is not known" if lost else "an operand is missing")
        if node.output[0] not in values.reals:
            raise UnfitNode("it works on whole numbers")
        shapes = [values.shape(name) if name else () for name in names]
        result, attributes = values.shape(node.output[0]), {each.name: each for each in node.attribute}
        there = Node(shapes, result, [name in values.constants for name in names], attributes)
        known = [self.first[name] for name in names if name in self.first]
        first = known[0] if known else max(len(shapes[0]), len(result)) > _LONGEST_MATRIX
        results = sum(map(bool, node.output))
        place = Place(there, names, self.numbers, first, self.lists, results, self.opset)
        return VECTOR_OPS[node.op_type](place, node.op_type)


# ---- pooling


def _pool(place: Place, op: str) -> Sizes:
    node, kind = place.node, "max" if "Max" in op else "average"
    images, channels, *sides = node.shapes[0]
    axes = len(sides)
    if axes not in (1, 2):
        raise UnfitNode(f"it has {axes} axes; 1 and 2 are known")
    sizes = {"op": "pool2d", "kind": kind, "images": images, "channels": channels}
    height, width = [1] * (2 - axes) + sides
    sizes |= {"in_height": height, "in_width": width}
    if op.startswith("Global"):
        return {**sizes, "kernel": [height, width]}
    one = [1] * (2 - axes)
    kernel = node.ints("kernel_shape", axes, 1)
    pads = padding_of(node, axes)
    if isinstance(pads, list) and axes == 1:
        pads = [0, pads[0], 0, pads[1]]
    return {
        **sizes,
        "kernel": [*one, *kernel],
        "stride": [*one, *node.ints("strides", axes, 1)],
        "padding": pads,
        "dilation": [*one, *node.ints("dilations", axes, 1)],
        "ceil_mode": bool(node.whole("ceil_mode", 0)),
        "count_include_pad": bool(node.whole("count_include_pad", 0)),
    }


# ---- element by element


def _map(shape: Shape, first: bool) -> tuple[int, int, int, int]:
    """[channel, row, col, image] of a value: further axes are rows together, or images."""
    if len(shape) < 2:
        raise UnfitNode(f"it works on values of {len(shape)} axes; maps have two or more")
    if first:
        images, channels, *sides = shape
        return channels, prod(sides[:-1]), sides[-1] if sides else 1, images
    *outer, channels = shape
    return channels, outer[-1] if len(outer) > 1 else 1, 1, prod(outer[:-1]) if len(outer) > 1 else outer[0]


def _sizes(op: str, place: Place) -> Sizes:
    channels, height, width, images = _map(place.node.result, place.first)
    return {"op": op, "channels": channels, "height": height, "width": width, "images": images}


def _arithmetic(place: Place, op: str) -> Sizes:
    node, sizes = place.node, _sizes("add" if op == "Sum" else op.lower(), place)
    whole = [index for index, shape in enumerate(node.shapes[:2]) if shape == node.result]
    if not whole or len(node.shapes) != 2:
        raise UnfitNode("neither operand is as large as what it makes")
    main = next((index for index in whole if not node.constant[index]), whole[0])
    if main == 1 and op in ("Sub", "Div"):
        sizes["op"] = f"r{op.lower()}"
    return {**sizes, "other": _other(node, 1 - main, place.first)}


def _other(node: Node, which: int, first: bool) -> str:
    """Along which axes the other operand has elements of its own. A constant is the same for all images."""
    shape, constant = node.shapes[which], node.constant[which]
    filled = (1,) * (len(node.result) - len(shape)) + tuple(shape)
    if prod(filled) == 1 and constant:
        return "number"
    mine, result = _map(filled, first), _map(node.result, first)
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


def _scale_shift(place: Place, _: str) -> Sizes:
    if place.node.whole("training_mode", 0):
        raise UnfitNode("it is for training")
    return _sizes("scale_shift", place._replace(first=True))


def _plain(name: str) -> Callable[[Place, str], Sizes]:
    return lambda place, _: _sizes(name, place)


def _leaky_relu(place: Place, _: str) -> Sizes:
    return {**_sizes("leaky_relu", place), "slope": place.node.number("alpha", 0.01)}


def _power(place: Place, _: str) -> Sizes:
    """A square, a cube, or a root."""
    exponent = place.numbers.get(place.names[1])
    if exponent in (2, 3) and exponent:
        return {**_sizes("power", place), "exponent": int(exponent)}
    if exponent != 1 / 2:
        raise UnfitNode("its exponent is none of 2, 3 and a half")
    return _sizes("sqrt", place)


def _slice(place: Place, _: str) -> Sizes:
    """What is cut off is an operand; in old models an attribute, and then nothing is left out in between."""
    starts, ends, axes, steps = (place.lists.get(name, ()) for name in [*place.names, "", "", "", ""][1:5])
    return move_nodes.strided(place.node, list(zip(axes, starts, ends, steps, strict=False)), place.first)


def _gelu(place: Place, _: str) -> Sizes:
    given = place.node.attributes.get("approximate")
    return {**_sizes("gelu", place), "approximate": given.s.decode() if given else "none"}


def _swish(place: Place, _: str) -> Sizes:
    if place.node.number("alpha", 1.0) != 1:
        raise UnfitNode("its alpha is not 1")
    return _sizes("silu", place)


def _clip(place: Place, _: str) -> Sizes:
    """Its ends are attributes in old models, operands in others."""
    sizes = _sizes("clip", place)
    for at, key in enumerate(("min", "max"), start=1):
        name = place.names[at] if len(place.names) > at else ""
        if name and name not in place.numbers:
            raise UnfitNode(f"its {key} is worked out by the model")
        if name or key in place.node.attributes:
            sizes[key] = place.numbers[name] if name else place.node.number(key, 0.0)
    return sizes


def _softmax(place: Place, _: str) -> Sizes:
    return row_nodes.softmax(place.node, place.opset)


def _layer_norm(place: Place, _: str) -> Sizes:
    if place.results > 1:
        raise UnfitNode("its mean is wanted, too")
    return row_nodes.layer_norm(place.node)


def _reduce_mean(place: Place, _: str) -> Sizes:
    given = place.node.attributes.get("axes")
    named = place.lists.get(place.names[1], ()) if len(place.names) > 1 else ()
    return row_nodes.reduce_mean(place.node, given.ints if given else named, place.first)


def _lrn(place: Place, _: str) -> Sizes:
    node = place.node
    numbers = {"alpha": node.number("alpha", 1e-4), "beta": node.number("beta", 0.75), "bias": node.number("bias", 1.0)}
    return {**_sizes("lrn", place._replace(first=True)), "size": node.whole("size", 1), **numbers}


def _transpose(place: Place, _: str) -> Sizes:
    return move_nodes.transpose(place.node, place.first)


def _pad(place: Place, _: str) -> Sizes:
    """What it adds is an attribute in old models, an operand in others."""
    names = [*place.names, "", "", ""][1:4]
    given = place.node.attributes.get("pads")
    if names[1] and names[1] not in place.numbers:
        raise UnfitNode("what it adds is worked out by the model")
    value = place.numbers[names[1]] if names[1] else place.node.number("value", 0.0)
    pads = given.ints if given else place.lists.get(names[0], ())
    return move_nodes.pad(place.node, pads, value, place.lists.get(names[2], ()))


def _upsample(place: Place, op: str) -> Sizes:
    return move_nodes.upsample(place.node, op)


def _hard_sigmoid(place: Place, _: str) -> Sizes:
    return {
        **_sizes("hard_sigmoid", place),
        "alpha": place.node.number("alpha", 0.2),
        "beta": place.node.number("beta", 0.5),
    }


VECTOR_OPS: dict[str, Callable[[Place, str], Sizes]] = {
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
