"""What a node of a network becomes: the sizes of a layer, and the views that it has of the node's values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from tpusim.network.graph import NodeViews, OperandView, TensorView
from tpusim.network.ops.moves import AXES

LayerSizes: TypeAlias = dict[str, Any]
"""A layer as a file has it, without its name; `images` is how many its input holds."""


class LayerOfNode(NamedTuple):
    """A node as a layer: its sizes, and the views of its values."""

    sizes: LayerSizes
    views: NodeViews

    def reading(self, sizes: LayerSizes | None = None, **more: OperandView | float) -> LayerOfNode:
        """Return the layer with further operands, and perhaps other `sizes` besides its own."""
        views = replace(self.views, sources={**self.views.sources, **more})
        return LayerOfNode({**self.sizes, **(sizes or {})}, views)


class UnfitNode(Exception):
    """A node that no layer computes; the message gives the reason."""


def on_map(
    op: str, maps: TensorView, result: TensorView, sized: Sequence[int], at: int = 0, **more: Any
) -> LayerOfNode:
    """Return the layer of an op on maps, which operand `at` is, for a value as long as `sized` says; `more` are its
    other fields.
    """
    sizes = dict(zip(AXES, maps.sizes(sized), strict=True))
    return LayerOfNode({"op": op, **sizes, **more}, NodeViews({"ifmap": OperandView(at, maps)}, result))


def on_rows(op: str, rows: TensorView, result: TensorView, sized: Sequence[int], **more: Any) -> LayerOfNode:
    """Return the layer of an op on rows, for a value as long as `sized` says."""
    channels, _, _, images = rows.sizes(sized)
    sizes = {"op": op, "channels": channels, "images": images, **more}
    return LayerOfNode(sizes, NodeViews({"ifmap": OperandView(0, rows)}, result))


def pooled(kind: str, maps: TensorView, result: TensorView, sized: Sequence[int], **steps: Any) -> LayerOfNode:
    """Return the layer of a pooling, for a value as long as `sized` says; without `steps` of all of each map."""
    channels, height, width, images = maps.sizes(sized)
    sizes = {"op": "pool2d", "kind": kind, "images": images, "channels": channels, "in_height": height,
             "in_width": width, **(steps or {"kernel": [height, width]})}  # fmt: skip
    return LayerOfNode(sizes, NodeViews({"ifmap": OperandView(0, maps)}, result))
