"""Ops of whole rows, as nodes of a model: a row is what the last axes of a value hold."""

from __future__ import annotations

from collections.abc import Sequence

from tpusim.network.formats.onnx_model.nodes import AsLayer, Node, UnfitNode, maps_of, matrix
from tpusim.network.graph import NodeViews, OperandView

FLAT_SOFTMAX = 13
"""Before this opset all axes from one on count as one, and that is the second unless something is said."""


def softmax(node: Node, opset: int) -> AsLayer:
    """Along one axis, or, in old models, all from one on."""
    axes, flat = len(node.result), opset < FLAT_SOFTMAX
    axis = node.whole("axis", 1 if flat else -1) % max(1, axes)
    return _rows(node, "softmax", range(axis, axes) if flat else [axis])


def layer_norm(node: Node) -> AsLayer:
    """Along all axes from one on. What it is scaled by and shifted by may have fewer; without, these are numbers."""
    axes = range(node.whole("axis", -1) % max(1, len(node.result)), len(node.result))
    sizes, views = _rows(node, "layer_norm", axes)
    sources: dict[str, OperandView | float] = {"scale": 1.0, "shift": 0.0}
    row = tuple(node.result[axis] for axis in axes)
    for at, name in enumerate(sources, start=1):
        if any(node.given[at : at + 1]):
            own = node.shapes[at][-len(row) :]
            sources[name] = OperandView(at, matrix(len(row), range(len(row)), own, row), "numbers")
    sizes["epsilon"] = node.number("epsilon", 1e-5)
    return AsLayer(sizes, NodeViews({**views.sources, **sources}, views.result))


def reduce_mean(node: Node, axes: Sequence[int], channels_first: bool) -> AsLayer:
    """Along the last axes; of maps, whose channels are before them, that is pooling all of the map."""
    shape = node.shapes[0]
    along = sorted(axis % max(1, len(shape)) for axis in axes)
    if not along or along != [*range(along[0], len(shape))] or along[0] == 0:
        raise UnfitNode("it is not along the last axes")
    if channels_first and along[0] == 2 and len(shape) in (3, 4):
        sides = [1] * (4 - len(shape)) + [*shape[2:]]
        sizes = {"op": "pool2d", "kind": "average", "images": shape[0], "channels": shape[1], "in_height": sides[0],
                 "in_width": sides[1], "kernel": sides}  # fmt: skip
        return AsLayer(sizes, maps_of(node))
    return _rows(node, "reduce_mean", along)


def _rows(node: Node, op: str, along: Sequence[int]) -> AsLayer:
    """Rows of all that is along some axes, however many others there are."""
    axes, result = len(node.shapes[0]), node.result
    if axes < 2:
        raise UnfitNode(f"it works on values of {axes} axes; rows have two or more")
    rows = matrix(axes, along)
    channels, _, _, images = rows.sizes(node.shapes[0])
    left = [axis for axis in along if axis < len(result)]
    views = NodeViews({"ifmap": OperandView(0, rows)}, matrix(len(result), left, result))
    return AsLayer({"op": op, "channels": channels, "images": images}, views)
