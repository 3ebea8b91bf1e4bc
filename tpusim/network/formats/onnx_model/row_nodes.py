"""Ops of whole rows, as nodes of a model: a row is what the last axes of a value hold."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tpusim.network.formats.onnx_model.folding import Shape
from tpusim.network.formats.onnx_model.nodes import Node, Sizes, UnfitNode

FLAT_SOFTMAX = 13
"""Before this opset all axes from one on count as one, and that is the second unless something is said."""


def softmax(node: Node, opset: int) -> Sizes:
    """Along one axis, or, in old models, all from one on."""
    shape, flat = node.result, opset < FLAT_SOFTMAX
    axis = node.whole("axis", 1 if flat else -1) % max(1, len(shape))
    if flat:
        return {"op": "softmax", **_rows(shape, axis)}
    return {"op": "softmax", **_rows((*shape[:axis], *shape[axis + 1 :], *shape[axis : axis + 1]), len(shape) - 1)}


def layer_norm(node: Node) -> Sizes:
    """Along all axes from one on."""
    axis = node.whole("axis", -1) % max(1, len(node.result))
    return {"op": "layer_norm", **_rows(node.result, axis), "epsilon": node.number("epsilon", 1e-5)}


def reduce_mean(node: Node, axes: Sequence[int], channels_first: bool) -> Sizes:
    """Along the last axes; of maps, whose channels are before them, that is pooling all of the map."""
    shape = node.shapes[0]
    along = sorted(axis % max(1, len(shape)) for axis in axes)
    if not along or along != [*range(along[0], len(shape))] or along[0] == 0:
        raise UnfitNode("it is not along the last axes")
    if channels_first and along[0] == 2 and len(shape) in (3, 4):
        sides = [1] * (4 - len(shape)) + [*shape[2:]]
        return {"op": "pool2d", "kind": "average", "images": shape[0], "channels": shape[1], "in_height": sides[0],
                "in_width": sides[1], "kernel": sides}  # fmt: skip
    return {"op": "reduce_mean", **_rows(shape, along[0])}


def _rows(shape: Shape, axis: int) -> Sizes:
    """Rows of all that is behind an axis, however many axes are before it."""
    if len(shape) < 2:
        raise UnfitNode(f"it works on values of {len(shape)} axes; rows have two or more")
    return {"channels": prod(shape[axis:]), "images": prod(shape[:axis])}
