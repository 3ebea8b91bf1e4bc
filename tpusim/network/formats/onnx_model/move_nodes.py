"""Nodes of a model that only move elements, as layers. What is cut off is read where it lies, as what is joined is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from tpusim.network.formats.onnx_model.nodes import AsLayer, Node, UnfitNode, maps_of
from tpusim.network.graph import NodeViews, OperandView, TensorView
from tpusim.network.ops.moves import AXES

_FIRST = "images", "channels", "height", "width"
_LAST = {1: ("channels",), 2: ("images", "channels"), 3: ("images", "height", "channels"),
         4: ("images", "height", "width", "channels")}  # fmt: skip
"""By how many axes there are."""
_SHUFFLE = [0, 2, 1, 3, 4]
_NEAREST = {
    ("asymmetric", "floor"), *((pixel, mode) for pixel in ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
                               for mode in ("round_prefer_floor", "round_prefer_ceil")),
}  # fmt: skip
"""Ways to name the nearest element that are all the same where maps grow by whole factors."""


def transpose(node: Node, channels_first: bool) -> AsLayer:
    """A turn of up to four axes, or such that stay together; groups of channels that change places are shuffled.

    Axes are images, channels, height and width where channels come first, else images, height, width and channels.
    """
    shape = node.shapes[0]
    given = node.attributes.get("perm")
    order = [*given.ints] if given else [*range(len(shape))][::-1]
    if sorted(order) != [*range(len(shape))]:
        raise UnfitNode("perm does not name every axis once")
    if _stays(shape, order):
        raise UnfitNode("elements keep their order")
    if order == _SHUFFLE:
        images, groups, each, height, width = shape
        maps = TensorView(((1, 2), (3,), (4,), (0,)))
        sizes = {"op": "channel_shuffle", "channels": groups * each, "height": height, "width": width,
                 "images": images, "groups": groups}  # fmt: skip
        return AsLayer(sizes, NodeViews({"ifmap": OperandView(0, maps)}, replace(maps, shape=node.result)))
    runs = _together(order) if len(order) > len(AXES) else [(axis,) for axis in order]
    read = sorted(runs)
    if len(read) > len(AXES):
        raise UnfitNode("more than four axes change places")
    names = _FIRST[: len(read)] if channels_first else _LAST[len(read)]
    maps = TensorView(tuple(dict(zip(names, read, strict=True)).get(name, ()) for name in AXES))
    ends = (*accumulate(map(len, runs)),)
    made = {name: (*range(end - len(run), end),) for name, run, end in zip(names, runs, ends, strict=True)}
    places = {name: names[read.index(run)] for name, run in zip(names, runs, strict=True)}
    turned = [places.get(axis, axis) for axis in AXES]
    result = TensorView(tuple(made.get(name, ()) for name in AXES), node.result, images=turned.index("images"))
    sizes = dict(zip(AXES, maps.sizes(shape), strict=True))
    return AsLayer({"op": "transpose", **sizes, "order": turned}, NodeViews({"ifmap": OperandView(0, maps)}, result))


def _stays(shape: Sequence[int], order: Sequence[int]) -> bool:
    """Whether elements keep their order, whatever the number of images, which axis 0 may be."""
    moved = [axis for axis in order if shape[axis] != 1 or axis == 0]
    return moved == sorted(moved)


def _together(order: Sequence[int]) -> list[tuple[int, ...]]:
    """Axes that stay neighbours; the first may be the images, and stays alone."""
    runs: list[tuple[int, ...]] = []
    for axis in order:
        if runs and runs[-1][-1] == axis - 1 != 0:
            runs[-1] = *runs[-1], axis
        else:
            runs.append((axis,))
    return runs


def pad(node: Node, pads: Sequence[int], value: float, axes: Sequence[int]) -> AsLayer:
    """Padding by zeros, around rows and columns."""
    shape = node.shapes[0]
    mode = node.text("mode", "constant")
    if mode != "constant" or value or len(shape) not in (3, 4):
        raise UnfitNode("it adds other elements than zeros around a map")
    around = [*(axis % len(shape) for axis in axes)] or [*range(len(shape))]
    if len(pads) != 2 * len(around) or min(pads, default=0) < 0:
        raise UnfitNode("what it adds is worked out by the model, or less than nothing")
    ends = dict(zip(around, zip(pads[: len(around)], pads[len(around) :], strict=True), strict=True))
    if any(ends.get(axis, (0, 0)) != (0, 0) for axis in (0, 1)):
        raise UnfitNode("it adds images or channels")
    rows, cols = (ends.get(axis, (0, 0)) for axis in _sides(shape))
    return _map(node, "pad", padding=[rows[0], cols[0], rows[1], cols[1]])


def strided(node: Node, cuts: Sequence[tuple[int, int, int, int]], channels_first: bool) -> AsLayer:
    """Every so many elements along one axis, of `cuts`, each of an axis from, to, and by so many elements."""
    shape = node.shapes[0]
    kept = {
        axis % len(shape): range(*slice(start, stop, step).indices(shape[axis])) for axis, start, stop, step in cuts
    }
    cut = [(axis, part) for axis, part in kept.items() if part != range(shape[axis])]
    if len(shape) not in (3, 4) or not channels_first or len(cut) != 1 or cut[0][0] == 0:
        raise UnfitNode("it is not along channels, rows or columns alone")
    ((axis, part),) = cut
    if part.step < 2 or len(part) < 2:
        raise UnfitNode("what is left is read where it lies")
    along = "channels" if axis == 1 else ("height", "width")[axis - len(shape)]
    return _map(node, "slice", axis=along, start=part[0], stop=part[-1] + 1, step=part.step)


def upsample(node: Node, op: str) -> AsLayer:
    """By whole factors, along rows and columns, of the nearest element."""
    shape, result = node.shapes[0], node.result
    how = node.text("coordinate_transformation_mode", "half_pixel"), node.text("nearest_mode", "round_prefer_floor")
    if node.text("mode", "nearest") != "nearest" or (op == "Resize" and how not in _NEAREST):
        raise UnfitNode("it does not take the nearest element")
    if len(shape) not in (3, 4) or len(result) != len(shape) or shape[:2] != result[:2]:
        raise UnfitNode("it is not along the rows and columns of a map")
    if any(not size or more % size for size, more in zip(shape, result, strict=True)):
        raise UnfitNode("it does not grow by whole factors")
    rows, cols = (result[axis] // shape[axis] if axis >= 0 else 1 for axis in _sides(shape))
    return _map(node, "upsample", scale=[rows, cols])


def _sides(shape: Sequence[int]) -> tuple[int, int]:
    """The axes of rows and of columns; of a map of one row that of rows is none."""
    return (2, 3) if len(shape) == 4 else (-1, 2)


def _map(node: Node, op: str, **fields: Any) -> AsLayer:
    images, channels, *sides = node.shapes[0]
    height, width = [1] * (2 - len(sides)) + sides
    sizes = {"channels": channels, "height": height, "width": width, "images": images}
    return AsLayer({"op": op, **sizes, **fields}, maps_of(node))
