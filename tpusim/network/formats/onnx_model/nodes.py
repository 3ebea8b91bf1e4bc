"""What the array computes of a node of a model: a layer's sizes, from the shapes of its operands."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto

from tpusim.base.words import counted
from tpusim.network.entries import BIASES
from tpusim.network.formats.onnx_model.folding import Shape
from tpusim.network.formats.onnx_model.shapes import Values

Sizes = dict[str, Any]
"""A layer as a file has it, without its name; `images` is how many its input holds."""


ON_BATCH = "depends on the batch"
"""What to say of what differs from one number of images to another."""
_BIAS_OPERANDS = {"Conv": 2, "ConvTranspose": 2, "DeformConv": 3, "Gemm": 2}
"""Which operand of a node its biases are."""
MIRRORED = "mirrored"
"""Beside sizes: of a transposed convolution, the axes along which its layer is written the other way round."""


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


def layer(node: NodeProto, values: Values) -> Sizes:
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
    sizes = ARRAY_OPS[node.op_type](there)
    return {**sizes, BIASES: True} if _has_biases(node, there, values) else sizes


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


def _conv(node: Node) -> Sizes:
    (images, channels, *sides), (outputs, _, *kernel) = _maps(node)
    sizes = {"images": images, "in_channels": channels, "out_channels": outputs, "groups": _groups(node)}
    axes = len(sides)
    steps: Sizes = {
        "kernel": kernel,
        "stride": node.ints("strides", axes, 1),
        "padding": padding_of(node, axes),
        "dilation": node.ints("dilations", axes, 1),
    }
    if axes == 2:
        return {"op": "conv2d", **sizes, "in_height": sides[0], "in_width": sides[1], **steps}
    one = {key: value[0] for key, value in steps.items() if key != "padding"}
    return {"op": "conv1d", **sizes, "in_length": sides[0], "padding": steps["padding"], **one}


def _deform_conv(node: Node) -> Sizes:
    """Where it samples is an operand, which the file does not tell: offsets are drawn."""
    (images, channels, *sides), (outputs, _, *kernel) = _maps(node)
    if len(sides) != 2:
        raise UnfitNode("it has 1 axis; 2 are known")
    *before, below, right = node.ints("pads", 4, 0)
    if before != [below, right]:
        raise UnfitNode("other numbers are added ahead of its axes than behind them")
    return {
        "op": "deform_conv2d", "images": images, "in_channels": channels, "out_channels": outputs,
        "groups": _groups(node), "in_height": sides[0], "in_width": sides[1], "kernel": kernel,
        "stride": node.ints("strides", 2, 1), "padding": before, "dilation": node.ints("dilations", 2, 1),
        "offset_groups": node.whole("offset_group", 1), "modulated": any(node.given[_MASK:]),
    }  # fmt: skip


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


def _conv_transpose(node: Node) -> Sizes:
    """One axis becomes two, the first of one element."""
    (images, channels, *sides), (_, outputs, *kernel) = _maps(node)
    axes, groups = len(sides), _groups(node)
    strides, dilations = node.ints("strides", axes, 1), node.ints("dilations", axes, 1)
    reaches = ((side - 1) * stride for side, stride in zip(sides, strides, strict=True))
    spread = [reach + dilations[axis] * (kernel[axis] - 1) + 1 for axis, reach in enumerate(reaches)]
    cut = [_cut(node, axis, each) for axis, each in enumerate(spread)]
    one, none = [1] * (2 - axes), [0] * (2 - axes)
    height, width = (*one, *sides)
    return {
        "op": "conv_transpose2d", "images": images, "in_channels": channels, "out_channels": outputs * groups,
        "groups": groups, "in_height": height, "in_width": width, "kernel": [*one, *kernel],
        "stride": [*one, *strides], "padding": [*none, *(start for start, _, _ in cut)],
        "output_padding": [*none, *(more for _, more, _ in cut)], "dilation": [*one, *dilations],
        MIRRORED: [*(bool(each) for each in none), *(mirrored for _, _, mirrored in cut)],
    }  # fmt: skip


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


def _gemm(node: Node) -> Sizes:
    first, second = node.shapes
    if len(first) != 2 or len(second) != 2:
        raise UnfitNode("its operands are no matrices")
    m, k = first[::-1] if node.whole("transA", 0) else first
    return {"op": "gemm", "m": m, "n": second[0 if node.whole("transB", 0) else 1], "k": k}


def _matmul(node: Node) -> Sizes:
    """One product where one factor is the same for all, else a product for each pair."""
    first, second = ((1, *node.shapes[0]) if len(node.shapes[0]) == 1 else node.shapes[0]), node.shapes[1]
    second = (*second, 1) if len(second) == 1 else second
    m, k, n = first[-2], first[-1], second[-1]
    if _shared(second, node.constant[1]):
        return {"op": "gemm", "m": prod(first[:-1]), "n": n, "k": k}
    if _shared(first, node.constant[0]):
        return {"op": "gemm", "m": prod(second[:-2]) * n, "n": m, "k": k}
    return {"op": "gemm", "m": m, "n": n, "k": k, "count": _pairs(first[:-2], second[:-2])}


def _shared(factor: Shape, constant: bool) -> bool:
    """Whether it is one matrix for all images: an operand of one image may be one of each."""
    return len(factor) == 2 or (constant and prod(factor[:-2]) == 1)


def _pairs(first: Shape, second: Shape) -> int:
    """How many there are, the axes before the matrices being broadcast."""
    longest = max(len(first), len(second))
    both = zip(((1,) * longest + first)[-longest:], ((1,) * longest + second)[-longest:], strict=True)
    return prod(max(pair) for pair in both)


ARRAY_OPS: dict[str, Callable[[Node], Sizes]] = {
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
    """The same layer for one image and for two, of what it is for `images`."""
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
