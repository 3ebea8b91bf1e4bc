"""What the array computes of a node of a model: a layer's sizes and views, from the shapes of its operands."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto

from tpusim.base.words import counted
from tpusim.network.entries import BIASES
from tpusim.network.formats.onnx_model.folding import Shape
from tpusim.network.formats.onnx_model.shapes import Values
from tpusim.network.graph import UNSEEN, NodeViews, OperandView, TensorView

Sizes = dict[str, Any]
"""A layer as a file has it, without its name; `images` is how many its input holds."""


ON_BATCH = "depends on the batch"
"""What to say of what differs from one number of images to another."""
_BIAS_OPERANDS = {"Conv": 2, "ConvTranspose": 2, "DeformConv": 3, "Gemm": 2}
"""Which operand of a node its biases are."""


class AsLayer(NamedTuple):
    """A node as a layer: its sizes, and what the node's values are to it."""

    sizes: Sizes
    views: NodeViews


class UnfitNode(Exception):
    """No layer computes such a node; says what of it is the reason."""


class Node(NamedTuple):
    """A node with the shapes of its operands and of its first result; which of all its operands are `given`."""

    shapes: Sequence[Shape]
    result: Shape
    constant: Sequence[bool]
    attributes: Mapping[str, AttributeProto]
    given: Sequence[bool] = ()

    def ints(self, name: str, count: int, default: int) -> list[int]:
        """An attribute of `count` whole numbers. Raises UnfitNode where it has another number of them."""
        given = self._of(name, AttributeProto.INTS)
        numbers = [*given.ints] if given else [default] * count
        if len(numbers) != count:
            raise UnfitNode(f"{name} has {counted(len(numbers), 'number')} instead of {count}")
        return numbers

    def whole(self, name: str, default: int) -> int:
        """An attribute of one whole number."""
        given = self._of(name, AttributeProto.INT)
        return given.i if given else default

    def number(self, name: str, default: float) -> float:
        """An attribute of one number, as short as float32 tells it."""
        given = self._of(name, AttributeProto.FLOAT)
        return float(str(np.float32(given.f))) if given else default

    def text(self, name: str, default: str) -> str:
        """An attribute of text."""
        given = self._of(name, AttributeProto.STRING)
        return given.s.decode(errors="replace") if given else default

    @property
    def auto_pad(self) -> str:
        """How padding is said: by NOTSET, in numbers. Raises UnfitNode for what ONNX does not have."""
        said = self.text("auto_pad", "NOTSET")
        if said not in _AUTO_PADS:
            raise UnfitNode(f"auto_pad is none of {', '.join(_AUTO_PADS)}")
        return said

    def _of(self, name: str, kind: int) -> AttributeProto | None:
        given = self.attributes.get(name)
        if given is not None and given.type != kind:
            raise UnfitNode(f"{name} is of a kind that ONNX does not have there")
        return given


def layer(node: NodeProto, values: Values) -> AsLayer:
    """The layer that a node of ARRAY_OPS is. Raises UnfitNode where there is none."""
    names = [name for name in node.input if name]
    lost = next((name for name in (*names[:2], *node.output[:1]) if name not in values.shapes), None)
    if lost is not None or len(names) < 2:
        raise UnfitNode(f"the shape of {lost} is not known" if lost else "an operand is missing")
    shapes = [values.shape(name) for name in names[:2]]
    attributes = {each.name: each for each in node.attribute}
    constant = [name in values.constants for name in names[:2]]
    given = [*map(bool, node.input)]
    there = Node(shapes, values.shape(node.output[0]), constant, attributes, given)
    made = ARRAY_OPS[node.op_type](there)
    return made._replace(sizes={**made.sizes, BIASES: True}) if _has_biases(node, there, values) else made


def _has_biases(node: NodeProto, there: Node, values: Values) -> bool:
    """Whether it adds a number of the model for each output channel; a Gemm may add anything else as well."""
    at = _BIAS_OPERANDS.get(node.op_type)
    if at is None or not any(there.given[at : at + 1]) or node.input[at] not in values.constants:
        return False
    name = node.input[at]
    return node.op_type != "Gemm" or (name in values.shapes and prod(values.shape(name)[:-1]) == 1)


def needed(graph: GraphProto, ops: Container[str]) -> set[str]:
    """The values whose shapes say what the layers of a graph are that such ops become."""
    nodes = (node for node in graph.node if node.op_type in ops)
    return {name for node in nodes for name in (*node.input[:2], *node.output[:1]) if name}


Axes = tuple[tuple[int, ...], ...]
"""For each axis of a layer's tensor the axes of a value that it is: those of a TensorView."""


def map_axes(axes: int, channels_first: bool) -> Axes:
    """The axes of a value of `axes` axes as [channel, row, col, image]; further ones are rows together, or images."""
    if channels_first:
        return (1,), (*range(2, axes - 1),), (*range(2, axes)[-1:],), (0,)
    outer = range(axes - 1)
    return (axes - 1,), (*outer[1:][-1:],), (), (*(outer[:-1] or outer),)


def maps_of(node: Node) -> NodeViews:
    """A node of one operand whose values have their channels first."""
    maps, result = (map_axes(len(shape), channels_first=True) for shape in (node.shapes[0], node.result))
    return NodeViews({"ifmap": OperandView(0, TensorView(maps))}, TensorView(result, node.result))


def _conv(node: Node) -> AsLayer:
    (images, channels, *sides), (outputs, _, *kernel) = _maps(node)
    sizes = {"images": images, "in_channels": channels, "out_channels": outputs, "groups": _groups(node)}
    axes = len(sides)
    views = _views(node, TensorView(((0,), *_taps(2, axes), (1,))))
    steps: Sizes = {
        "kernel": kernel,
        "stride": node.ints("strides", axes, 1),
        "padding": padding_of(node, axes),
        "dilation": node.ints("dilations", axes, 1),
    }
    if axes == 2:
        return AsLayer({"op": "conv2d", **sizes, "in_height": sides[0], "in_width": sides[1], **steps}, views)
    one = {key: value[0] for key, value in steps.items() if key != "padding"}
    return AsLayer({"op": "conv1d", **sizes, "in_length": sides[0], "padding": steps["padding"], **one}, views)


def _taps(first: int, axes: int) -> Axes:
    """Rows and columns of a filter whose taps have `axes` axes, from the value's axis `first` on."""
    return (*((),) * (2 - axes), *((first + axis,) for axis in range(axes)))


def _views(node: Node, weights: TensorView) -> NodeViews:
    """Maps that are convolved by such weights, mirrored as these are."""
    maps = TensorView(map_axes(len(node.result), channels_first=True), mirrored=weights.mirrored)
    sources = {"ifmap": OperandView(0, maps), "filter": OperandView(1, weights, "weights")}
    return NodeViews(sources, replace(maps, shape=node.result))


def _deform_conv(node: Node) -> AsLayer:
    """Where it samples is an operand, which the file does not tell: offsets are drawn."""
    (images, channels, *sides), (outputs, _, *kernel) = _maps(node)
    if len(sides) != 2:
        raise UnfitNode("it has 1 axis; 2 are known")
    *before, below, right = node.ints("pads", 4, 0)
    if before != [below, right]:
        raise UnfitNode("other numbers are added ahead of its axes than behind them")
    sizes = {
        "op": "deform_conv2d", "images": images, "in_channels": channels, "out_channels": outputs,
        "groups": _groups(node), "in_height": sides[0], "in_width": sides[1], "kernel": kernel,
        "stride": node.ints("strides", 2, 1), "padding": before, "dilation": node.ints("dilations", 2, 1),
        "offset_groups": node.whole("offset_group", 1), "modulated": any(node.given[_MASK:]),
    }  # fmt: skip
    return AsLayer(sizes, UNSEEN)


_MASK = 4
"""The operand of a DeformConv that has masks, if it is there."""


def padding_of(node: Node, axes: int) -> list[int] | str:
    """As files write it: what stands before both axes, then after them, is ONNX's order too."""
    return _AUTO_PADS[node.auto_pad] or node.ints("pads", 2 * axes, 0)


def _maps(node: Node) -> tuple[Shape, Shape]:
    """The shapes of a map and a filter. Raises UnfitNode for those of other than one or two axes."""
    (image, weights), axes = node.shapes, len(node.shapes[0]) - 2
    if axes not in (1, 2) or len(weights) != axes + 2:
        raise UnfitNode(f"it has {axes} axes; 1 and 2 are known")
    return image, weights


def _groups(node: Node) -> int:
    return node.whole("group", 1)


def _conv_transpose(node: Node) -> AsLayer:
    """A transposed convolution; maps of one axis have a row. Weights: [channel, out_channel of the group, *taps]."""
    (images, channels, *sides), (_, outputs, *kernel) = _maps(node)
    axes, groups = len(sides), _groups(node)
    strides, dilations = node.ints("strides", axes, 1), node.ints("dilations", axes, 1)
    reaches = ((side - 1) * stride for side, stride in zip(sides, strides, strict=True))
    spread = [reach + dilations[axis] * (kernel[axis] - 1) + 1 for axis, reach in enumerate(reaches)]
    cut = [_cut(node, axis, each) for axis, each in enumerate(spread)]
    one, none = [1] * (2 - axes), [0] * (2 - axes)
    height, width = (*one, *sides)
    mirrored = tuple(3 - axes + axis for axis, (_, _, turned) in enumerate(cut) if turned)
    weights = TensorView(((0, 2), *_taps(3, axes), (1,)), (groups, -1, outputs, *kernel), mirrored=mirrored)
    sizes = {
        "op": "conv_transpose2d", "images": images, "in_channels": channels, "out_channels": outputs * groups,
        "groups": groups, "in_height": height, "in_width": width, "kernel": [*one, *kernel],
        "stride": [*one, *strides], "padding": [*none, *(start for start, _, _ in cut)],
        "output_padding": [*none, *(more for _, more, _ in cut)], "dilation": [*one, *dilations],
    }  # fmt: skip
    return AsLayer(sizes, _views(node, weights))


def _cut(node: Node, axis: int, spread: int) -> tuple[int, int, bool]:
    """What is cut off at both ends of an axis of `spread` elements, what is then added at its far end, and whether the
    layer is mirrored.

    Where more is cut off there than before, the layer is written mirrored, as it takes as long.
    """
    axes = len(node.result) - 2
    size, added = node.result[2 + axis], node.ints("output_padding", axes, 0)[axis]
    pads, auto = node.ints("pads", 2 * axes, 0), node.auto_pad
    before, after = pads[axis], pads[axes + axis]
    if _AUTO_PADS[auto] or "output_shape" in node.attributes:
        less, more = (whole := spread + added - size) // 2, -(-whole // 2)
        before, after = (less, more) if auto == "SAME_UPPER" else (more, less)
    fitting = (start for start in (before, after) if start >= 0 and size - spread + 2 * start >= 0)
    if (start := next(fitting, None)) is None:
        raise UnfitNode(f"{before} and {after} are cut off its ends, of {spread} elements, and {size} are left")
    return start, size - spread + 2 * start, start != before


def _gemm(node: Node) -> AsLayer:
    first, second = node.shapes
    if len(first) != 2 or len(second) != 2:
        raise UnfitNode("its operands are no matrices")
    inner, cols = 1 - node.whole("transA", 0), 1 - node.whole("transB", 0)
    sizes = {"op": "gemm", "m": first[1 - inner], "n": second[cols], "k": first[inner]}
    maps, weights = OperandView(0, matrix(2, [inner])), OperandView(1, matrix(2, [cols]), _FACTORS)
    return AsLayer(sizes, NodeViews({"ifmap": maps, "filter": weights}, matrix(2, [1], node.result)))


_FACTORS = "factors"


def matrix(axes: int, channels: Sequence[int], shape: Shape = (), spread: Shape = ()) -> TensorView:
    """A value of `axes` axes as rows of `channels`: images run along all its other axes."""
    images = tuple(axis for axis in range(axes) if axis not in channels)
    return TensorView((tuple(channels), (), (), images), shape, spread)


def _matmul(node: Node) -> AsLayer:
    """A product where a factor is common to all images, transposed where that is the first; else a product for each
    pair.
    """
    (first, second), result = node.shapes, node.result
    one, other, made = len(first), len(second), len(result)
    rows, cols = first[:-1][-1:], second[1:][-1:]
    m, n, k = prod(rows), prod(cols), first[-1]
    sizes: Sizes = {"op": "gemm", "m": m, "n": n, "k": k}
    if _shared(second, node.constant[1]) and not _by_columns(node, m, n):
        sizes["m"], along = prod(first[:-1]), [made - 1] if cols else []
        maps = OperandView(0, matrix(one, [one - 1]))
        weights = OperandView(1, matrix(other, [other - 1] if cols else []), _FACTORS)
    elif _shared(first, node.constant[0]):
        sizes["m"], sizes["n"], along = prod(second[:-2]) * n, m, [made - 2] if rows else []
        maps = OperandView(1, matrix(other, [other - 2]))
        weights = OperandView(0, matrix(one, range(one - 1)), _FACTORS)
    else:
        outer, along = result[:-2], [made - 1]
        sizes["count"] = prod(outer)
        maps = OperandView(0, matrix(made, along, spread=(*outer, m, k)))
        weights = OperandView(1, matrix(made, along, spread=(*outer, k, n)))
    return AsLayer(sizes, NodeViews({"ifmap": maps, "filter": weights}, matrix(made, along, result)))


def _by_columns(node: Node, m: int, n: int) -> bool:
    """Whether the transposed product is as large a layer as the product, and only the second factor has images."""
    return m == n and len(node.shapes[1]) == 2 and _shared(node.shapes[0], True) and node.constant == [True, False]


def _shared(factor: Shape, constant: bool) -> bool:
    """Whether it is one matrix for all images: an operand of one image may be one of each."""
    return len(factor) <= 2 or (constant and prod(factor[:-2]) == 1)


ARRAY_OPS: dict[str, Callable[[Node], AsLayer]] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "DeformConv": _deform_conv, "Gemm": _gemm, "MatMul": _matmul,
}  # fmt: skip
"""What the array computes, of ONNX's own operators."""

_AUTO_PADS = {"NOTSET": "", "SAME_UPPER": "same", "SAME_LOWER": "same_lower", "VALID": ""}
"""What ONNX calls paddings, and what they are here; empty where numbers say it."""

_OF_BATCH = ("m", "count", "images")
"""Sizes that may follow the batch."""


def for_any_batch(one: Sizes, two: Sizes) -> Sizes:
    """A layer as it is for every batch, from what it is for one image and for two. Raises UnfitNode."""
    merged: Sizes = {}
    for key, value in one.items():
        if value == two.get(key):
            merged[key] = value
        elif key in _OF_BATCH:
            merged[key] = _line(value, two[key])
        else:
            raise UnfitNode(f"its {key} {ON_BATCH}")
    return _without_images(merged)


def doubled(sizes: Sizes, images: int) -> tuple[Sizes, Sizes]:
    """Sizes of a layer for one image and for two, worked out from its sizes for `images`."""
    follows = "count" if sizes.get("count") else "images" if "images" in sizes else "m"
    value = sizes[follows]
    if value % images:
        return sizes, sizes
    return {**sizes, follows: value // images}, {**sizes, follows: 2 * value // images}


def _line(one: int, two: int) -> str | int:
    """ "batch*197", where there are 197 for an image."""
    slope, more = two - one, 2 * one - two
    text = "batch" if slope == 1 else f"batch*{slope}"
    return text if not more else f"{text}{more:+d}"


def _without_images(sizes: Sizes) -> Sizes:
    """A layer is run for the batch; where its input holds more images, as many layers stand for it.

    One that works element by element can be told how many there are.
    """
    images = sizes.pop("images", "batch")
    if images == "batch":
        return sizes
    if "channels" in sizes and "kernel" not in sizes:
        return {**sizes, "images": images}
    times = str(images).removeprefix("batch*")
    if not str(images).startswith("batch*") or not times.isdigit():
        raise UnfitNode(f"its input holds {images} images, which is no multiple of the batch")
    return {**sizes, "count": int(times)}
