"""The layer that a node of a model is on the array: its sizes and views, from the shapes of its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
from onnx import AttributeProto

from tpusim.base.words import counted
from tpusim.network.formats.layer_of_node import LayerOfNode, LayerSizes, UnfitNode
from tpusim.network.formats.onnx_model.facts import Facts
from tpusim.network.formats.onnx_model.shapes import ValueShape
from tpusim.network.graph import UNSEEN, Axes, NodeViews, OperandView, TensorView

ON_BATCH = "depends on the batch"
"""Message for a node of which something that is no size of a layer differs with the number of images."""


Attribute = TypeVar("Attribute", int, float, str)
_KINDS: Mapping[type, tuple[Any, Callable[[AttributeProto], Any]]] = {
    int: (AttributeProto.INT, lambda given: given.i),
    float: (AttributeProto.FLOAT, lambda given: float(str(np.float32(given.f)))),
    str: (AttributeProto.STRING, lambda given: given.s.decode(errors="replace")),
}
"""By the type of an attribute ONNX's word for it, and how it is read: a float32 by its shortest decimal."""


class KnownNode(NamedTuple):
    """A node of a model, and what is known of its operands and results.

    Attributes:
        op: its operator.
        names: of all operands; empty where one is left out.
        shapes: of the operands, as far as they are known.
        result: the shape of the first result.
        attributes: by name.
        first: whether axis 1 of its values are the channels, not the last.
        results: how many of its results are wanted.
        facts: of its model.
        runs: how many runs of the model go through its layer together, each with values of its own.
    """

    op: str
    names: Sequence[str]
    shapes: Sequence[ValueShape]
    result: ValueShape
    attributes: Mapping[str, AttributeProto]
    first: bool
    results: int
    facts: Facts
    runs: int = 1

    @property
    def constant(self) -> list[bool]:
        """By operand, whether it follows from weights and shapes alone."""
        return [name in self.facts.constants for name in self.names]

    def in_all_runs(self, at: int) -> bool:
        """Return whether an operand is the same for all that goes through the layer together."""
        return self.runs == 1 or self.names[at] in self.facts.constants

    def name(self, at: int) -> str:
        """Return the name of an operand; empty where there is none."""
        return self.names[at] if at < len(self.names) else ""

    def ints(self, name: str, count: int, default: int) -> list[int]:
        """Return an attribute of `count` whole numbers. Raises UnfitNode where it has another number of them."""
        given = self._of(name, AttributeProto.INTS)
        numbers = [*given.ints] if given else [default] * count
        if len(numbers) != count:
            raise UnfitNode(f"{name} has {counted(len(numbers), 'number')} instead of {count}")
        return numbers

    def get(self, name: str, default: Attribute) -> Attribute:
        """Return an attribute of one number, or of text, in the type of its default."""
        kind, read = _KINDS[type(default)]
        given = self._of(name, kind)
        return read(given) if given else default

    @property
    def auto_pad(self) -> str:
        """Return the word for the padding; NOTSET: numbers say it. Raises UnfitNode for a word unknown to ONNX."""
        said = self.get("auto_pad", "NOTSET")
        if said not in _AUTO_PADS:
            raise UnfitNode(f"auto_pad is none of {', '.join(_AUTO_PADS)}")
        return said

    def _of(self, name: str, kind: int) -> AttributeProto | None:
        given = self.attributes.get(name)
        if given is not None and given.type != kind:
            raise UnfitNode(f"{name} is of a kind that ONNX does not have there")
        return given


def map_axes(axes: int, channels_first: bool) -> Axes:
    """Map a value of `axes` axes to [channel, row, col, image]; further axes are rows together, or images."""
    if channels_first:
        return (1,), (*range(2, axes - 1),), (*range(2, axes)[-1:],), (0,)
    outer = range(axes - 1)
    return (axes - 1,), (*outer[1:][-1:],), (), (*(outer[:-1] or outer),)


def maps_of(node: KnownNode) -> tuple[TensorView, TensorView]:
    """View the first operand and the result of a node as maps whose channels come first."""
    maps, result = (map_axes(len(shape), channels_first=True) for shape in (node.shapes[0], node.result))
    return TensorView(maps), TensorView(result, node.result)


def _conv(node: KnownNode) -> LayerOfNode:
    (images, channels, *sides), (outputs, _, *kernel) = _maps(node)
    sizes = {"images": images, "in_channels": channels, "out_channels": outputs, "groups": node.get("group", 1)}
    axes = len(sides)
    views = _views(node, TensorView(((0,), *_taps(2, axes), (1,))))
    steps: LayerSizes = {
        "kernel": kernel,
        "stride": node.ints("strides", axes, 1),
        "padding": padding_of(node, axes),
        "dilation": node.ints("dilations", axes, 1),
    }
    if axes == 2:
        return LayerOfNode({"op": "conv2d", **sizes, "in_height": sides[0], "in_width": sides[1], **steps}, views)
    one = {key: value[0] for key, value in steps.items() if key != "padding"}
    return LayerOfNode({"op": "conv1d", **sizes, "in_length": sides[0], "padding": steps["padding"], **one}, views)


def _taps(first: int, axes: int) -> Axes:
    """Map rows and columns of a filter whose taps have `axes` axes, from the value's axis `first` on."""
    return (*((),) * (2 - axes), *((first + axis,) for axis in range(axes)))


def _views(node: KnownNode, weights: TensorView) -> NodeViews:
    """Return the views of maps convolved with these weights, mirrored as the weights are."""
    maps = TensorView(map_axes(len(node.result), channels_first=True), mirrored=weights.mirrored)
    sources = {"ifmap": OperandView(0, maps), "filter": OperandView(1, weights, "weights")}
    return NodeViews(sources, replace(maps, shape=node.result))


def _deform_conv(node: KnownNode) -> LayerOfNode:
    """Read a deformable convolution; its offsets are an operand that the file does not hold, so they are drawn."""
    (images, channels, *sides), (outputs, _, *kernel) = _maps(node)
    if len(sides) != 2:
        raise UnfitNode("it has 1 axis; 2 are known")
    *before, below, right = node.ints("pads", 4, 0)
    if before != [below, right]:
        raise UnfitNode("other numbers are added ahead of its axes than behind them")
    sizes = {
        "op": "deform_conv2d", "images": images, "in_channels": channels, "out_channels": outputs,
        "groups": node.get("group", 1), "in_height": sides[0], "in_width": sides[1], "kernel": kernel,
        "stride": node.ints("strides", 2, 1), "padding": before, "dilation": node.ints("dilations", 2, 1),
        "offset_groups": node.get("offset_group", 1), "modulated": any(node.names[_MASK:]),
    }  # fmt: skip
    return LayerOfNode(sizes, UNSEEN)


_MASK = 4
"""The operand of a DeformConv that holds masks, if it is there."""


def padding_of(node: KnownNode, axes: int) -> list[int] | str:
    """Return the padding as files write it: before both axes, then after them, which is ONNX's order too."""
    return _AUTO_PADS[node.auto_pad] or node.ints("pads", 2 * axes, 0)


def _maps(node: KnownNode) -> tuple[ValueShape, ValueShape]:
    """Return the shapes of a map and a filter. Raises UnfitNode for other than one or two axes, or no map as a
    result.
    """
    (image, weights), axes = node.shapes[:2], len(node.shapes[0]) - 2
    if axes not in (1, 2) or len(weights) != axes + 2:
        raise UnfitNode(f"it has {axes} axes; 1 and 2 are known")
    if len(node.result) != len(image):  # Of an output_shape below that of the map, onnx infers a number alone.
        raise UnfitNode("onnx infers no map of its result")
    return image, weights


def _conv_transpose(node: KnownNode) -> LayerOfNode:
    """Read a transposed convolution; maps of one axis get a row. Weights: [channel, out_channel of the group,
    *taps].
    """
    (images, channels, *sides), (_, outputs, *kernel) = _maps(node)
    axes, groups = len(sides), node.get("group", 1)
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
    return LayerOfNode(sizes, _views(node, weights))


def _cut(node: KnownNode, axis: int, spread: int) -> tuple[int, int, bool]:
    """Return how many elements are cut off at both ends of an axis of `spread` elements, what is then added at its
    far end, and whether the layer is mirrored.
    """
    axes = len(node.result) - 2
    size, added = node.result[2 + axis], node.ints("output_padding", axes, 0)[axis]
    pads, auto = node.ints("pads", 2 * axes, 0), node.auto_pad
    before, after = pads[axis], pads[axes + axis]
    if _AUTO_PADS[auto] or "output_shape" in node.attributes:
        less, more = (whole := spread + added - size) // 2, -(-whole // 2)
        before, after = (less, more) if auto == "SAME_UPPER" else (more, less)
    if min(before, after) < 0:
        raise UnfitNode(f"{before} and {after} are cut off its ends, and nothing below 0 can be")
    # What is added at the far end was cut off there, as far as that goes; the layer cuts off less there than ahead.
    after -= added
    start = max(before, after)
    return start, size - spread + 2 * start, after > before


def _gemm(node: KnownNode) -> LayerOfNode:
    first, second = node.shapes[:2]
    if len(first) != 2 or len(second) != 2:
        raise UnfitNode("its operands are no matrices")
    # Any number but zero turns a factor.
    inner, cols = (int(not node.get(name, 0)) for name in ("transA", "transB"))
    sizes = {"op": "gemm", "m": first[1 - inner], "n": second[cols], "k": first[inner]}
    views = matrix(2, [inner]), matrix(2, [cols]), matrix(2, [1], node.result)
    if not node.in_all_runs(1):
        # Each run has a second factor of its own: products stand side by side.
        sizes["groups"] = 1
        one, other, made = (replace(each, images=0) for each in views)
        return LayerOfNode(sizes, NodeViews({"ifmap": OperandView(0, one), "filter": OperandView(1, other)}, made))
    one, other, made = views
    sources = {"ifmap": OperandView(0, one), "filter": OperandView(1, other, _FACTORS)}
    return LayerOfNode(sizes, NodeViews(sources, made))


_FACTORS = "factors"


def matrix(axes: int, channels: Sequence[int], shape: ValueShape = (), spread: ValueShape = ()) -> TensorView:
    """View a value of `axes` axes as rows of `channels`: images run along all its other axes."""
    images = tuple(axis for axis in range(axes) if axis not in channels)
    return TensorView((tuple(channels), (), (), images), shape, spread)


def _matmul(node: KnownNode) -> LayerOfNode:
    """Read a product: rows of one matrix where a factor is common to all images (transposed if it is the first), else
    products side by side, one for each pair of matrices.
    """
    (first, second), result = node.shapes[:2], node.result
    one, other, made = len(first), len(second), len(result)
    rows, cols = first[:-1][-1:], second[1:][-1:]
    m, n, k = prod(rows), prod(cols), first[-1]
    sizes: LayerSizes = {"op": "gemm", "m": m, "n": n, "k": k}
    # If m == n, both ways are equally large: the transposed one is taken where only the second factor has images.
    by_columns = m == n and other == 2 and _shared(first, True) and node.constant[:2] == [True, False]
    if node.in_all_runs(1) and _shared(second, node.constant[1]) and not by_columns:
        sizes["m"], along = prod(first[:-1]), [made - 1] if cols else []
        maps = OperandView(0, matrix(one, [one - 1]))
        weights = OperandView(1, matrix(other, [other - 1] if cols else []), _FACTORS)
    elif node.in_all_runs(0) and _shared(first, node.constant[0]):
        sizes["m"], sizes["n"], along = prod(second[:-2]) * n, m, [made - 2] if rows else []
        maps = OperandView(1, matrix(other, [other - 2]))
        weights = OperandView(0, matrix(one, range(one - 1)), _FACTORS)
    else:
        outer = result[: made - len(rows) - len(cols)]
        sizes["groups"], axes = prod(outer), len(outer) + 2
        # Columns stand one product behind another, so the images are among the channels.
        pairs = replace(matrix(axes, [axis for axis in range(axes) if axis != axes - 2]), images=0)
        maps = OperandView(0, replace(pairs, shape=first if rows else (1, k), spread=(*outer, m, k)))
        weights = OperandView(1, replace(pairs, shape=second if cols else (k, 1), spread=(*outer, k, n)))
        of_rows = [len(outer)] * len(rows)
        every = matrix(made, [axis for axis in range(made) if axis not in of_rows], result)
        return LayerOfNode(sizes, NodeViews({"ifmap": maps, "filter": weights}, replace(every, images=0)))
    return LayerOfNode(sizes, NodeViews({"ifmap": maps, "filter": weights}, matrix(made, along, result)))


def _shared(factor: ValueShape, constant: bool) -> bool:
    """Return whether an operand is one matrix for all images: with one image, it may be one for each."""
    return len(factor) <= 2 or (constant and prod(factor[:-2]) == 1)


def _whole(node: KnownNode, read: Callable[[KnownNode], LayerOfNode]) -> LayerOfNode:
    """Read an operator that multiplies bytes, less their zero points."""
    sizes, views = read(node)
    return LayerOfNode(sizes, replace(views, whole=True))


ARRAY_OPS: dict[str, Callable[[KnownNode], LayerOfNode]] = {
    "Conv": _conv, "ConvInteger": partial(_whole, read=_conv), "ConvTranspose": _conv_transpose,
    "DeformConv": _deform_conv, "Gemm": _gemm, "MatMul": _matmul, "MatMulInteger": partial(_whole, read=_matmul),
}  # fmt: skip
"""The operators of ONNX that the array computes."""

_AUTO_PADS = {"NOTSET": "", "SAME_UPPER": "same", "SAME_LOWER": "same_lower", "VALID": ""}
"""ONNX's words for paddings, and the words here; empty where numbers give the padding."""

NO_MULTIPLE = "which is no multiple of the batch"
"""Message for a convolution or pool of other images than those of the batch."""
_STACKED = ("images", "groups", "m")
"""Sizes that grow with the runs of a model that go through a layer together: the first that a layer has."""


def in_run(sizes: LayerSizes, runs: int, batch: int) -> LayerSizes:
    """Return a layer's sizes for several runs of a model together, `batch` images in all. Raises UnfitNode.

    A layer is run for the batch; where its input holds more images, as many layers stand for it. One that works element
    by element can be told how many there are.
    """
    follows = next(each for each in _STACKED if each in sizes)
    made = {**sizes, follows: sizes[follows] * runs}
    images = made.pop("images", batch)
    if images == batch:
        return made
    if "channels" in made and "kernel" not in made:
        return {**made, "images": images}
    if images % batch or not images:
        raise UnfitNode(f"its input holds {counted(images, 'image')}, {NO_MULTIPLE} of {batch:,}")
    return {**made, "count": images // batch}
