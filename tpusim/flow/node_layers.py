"""A node of a graph as layers: their operands among the graph's values, and the node's result from their outputs.

The graph says how layers view its values (`network.graph.TensorView`). A value is a list: an array for each part of the
batch that goes through the graph by itself, or one array that all parts share.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tpusim.base.errors import InputError
from tpusim.network.graph import IMAGES, Node, OperandView
from tpusim.network.ops.fused import BIAS, OTHER, Fused
from tpusim.network.ops.op import OFMAP, Op
from tpusim.numerics.element_types import Values
from tpusim.reference.nodes import Call
from tpusim.reference.nodes.quantized import CENTRED
from tpusim.reference.nodes.reductions import with_bias

BatchParts = list[Values]

_NORMALIZATION = "BatchNormalization"
_EPSILON = 1e-5
"""Default of ONNX for the number that is added to variances."""
_SAME = frozenset({"Identity", "Dropout"})
"""Ops whose result is their operand."""
_OWN = 2
"""Index of the operand that a convolution or product adds by itself, its bias."""
_LEAVE_OUT = "leave sequencer.fusion out"


def together(parts: Sequence[Values], axis: int = 0) -> Values:
    """The parts one behind another along an axis; a view, if they are neighbouring views of one array."""
    if len(parts) == 1:
        return parts[0]
    apart = _apart(parts, axis)
    if apart is None:
        return np.concatenate(parts, axis)
    first = parts[0]
    shape, strides = [*first.shape], [*first.strides]
    strides[axis] = apart // shape[axis]
    shape[axis] *= len(parts)
    return as_strided(first, shape, strides)


def _apart(parts: Sequence[Values], axis: int) -> int | None:
    """Bytes from each part to the next, if together they are a view of their common base; else None."""
    first, starts = parts[0], [each.__array_interface__["data"][0] for each in parts]

    def like(part: Values) -> tuple[Any, ...]:
        return part.dtype, part.shape, [stride for at, stride in enumerate(part.strides) if at != axis]

    alike = all(each.base is not None and each.base is first.base and like(each) == like(first) for each in parts)
    bytes_apart = {other - one for one, other in pairwise(starts)}
    if not alike or not first.size or len(bytes_apart) != 1:
        return None
    (apart,) = bytes_apart
    return apart if first.shape[axis] == 1 or apart == first.strides[axis] * first.shape[axis] else None


def _shared(parts: BatchParts, what: str) -> Values:
    """A value that is the same for all images. Raises InputError if it differs."""
    if len(parts) > 1:
        says = f"its {what} differ from image to image, so that images cannot go through it together"
        raise InputError(f"{says}; give the batch that the model was made for")
    return parts[0]


class NodeLayers:
    """A node that some layers compute, one after another, and the outputs of the layers that are done."""

    def __init__(self, node: Node, operands: Sequence[BatchParts], layers: int) -> None:
        """Raises InputError if none of the node's operands is read by its layers."""
        if not node.views.sources:
            raise InputError("what its layers read is drawn, and none of its operands")
        self.node, self._layers, self._views = node, layers, node.views
        self._sources = {name: each for name, each in node.views.sources.items() if isinstance(each, OperandView)}
        self._operands = _prepared(node, operands)
        self._parts = max(len(operands[each.at]) for each in self._sources.values() if not each.shared)
        self._whole = dict[str, Values]()
        """By tensor, the operands of all layers; those that differ from layer to layer are one behind another along the
        axis of their images.
        """
        self._ofmaps: list[Values] = []

    def operands(self, layer: Op, batch: int) -> dict[str, Values]:
        """Operands of the next layer, by name."""
        given = {name: self._read(name, source) for name, source in self._sources.items()}
        numbers = {name: each for name, each in self._views.sources.items() if not isinstance(each, OperandView)}
        shapes = layer.sources(batch)
        return given | {name: np.full(shapes[name], each, np.float32) for name, each in numbers.items()}

    def took(self, ofmap: Values) -> bool:
        """Take the outputs of that layer; return whether it was the last."""
        self._ofmaps.append(ofmap)
        return len(self._ofmaps) == self._layers

    def _read(self, name: str, source: OperandView) -> Values:
        if name not in self._whole:
            parts = self._operands[source.at]
            if source.shared:
                self._whole[name] = np.ascontiguousarray(source.view.tensor(_shared(parts, source.shared)))
            else:
                every = [parts[at % len(parts)] for at in range(self._parts)]
                self._whole[name] = together([source.view.tensor(each) for each in every], source.view.images)
        return self._whole[name] if source.shared else self._next(self._whole[name])

    def _next(self, whole: Values) -> Values:
        """The next layer's share of a tensor for all layers."""
        images, number = whole.shape[IMAGES] // self._layers, len(self._ofmaps)
        return whole[..., number * images : (number + 1) * images]

    def results(self) -> BatchParts:
        """The node's result from the outputs of all its layers."""
        parts = self._values()
        bias = self._operands[_OWN] if len(self._operands) > _OWN else []
        if self.node.op == "Gemm":
            call = Call(self.node.attributes)
            return [with_bias(call, each, bias[at % len(bias)] if bias else None) for at, each in enumerate(parts)]
        if self.node.views.whole:
            return [np.rint(each).astype(np.int32) for each in parts]
        if self.node.op in ("Conv", "ConvTranspose") and bias:
            added = _shared(bias, "biases")
            return [each + added.reshape(-1, *[1] * (each.ndim - 2)) for each in parts]
        return parts

    def _values(self) -> BatchParts:
        """Outputs of the layers as values of the graph."""
        view = self._views.result
        return [view.value(each) for each in np.split(together(self._ofmaps, IMAGES), self._parts, view.images)]


def _prepared(node: Node, operands: Sequence[BatchParts]) -> Sequence[BatchParts]:
    """The operands as the layers of a node read them."""
    if node.op == _NORMALIZATION:
        return _normalizing(node, operands)
    if node.views.whole and node.op in CENTRED:
        centred = CENTRED[node.op]
        zeros = [*operands[2:], [], []][:2]
        return [
            [centred(each, zero[at % len(zero)] if zero else None, which) for at, each in enumerate(parts)]
            for which, (parts, zero) in enumerate(zip(operands, zeros, strict=False))
        ]
    return operands


def _normalizing(node: Node, operands: Sequence[BatchParts]) -> list[BatchParts]:
    """The map of a BatchNormalization, with the factor and the addend of each channel."""
    maps, *statistics = operands
    scale, shift, mean, variance = (each[0] for each in statistics)
    with np.errstate(all="ignore"):
        spread = np.sqrt(variance + np.float32(node.attributes.get("epsilon", _EPSILON)))
        factor = (scale / spread).astype(np.float32)
        return [maps, [factor], [(shift - mean * factor).astype(np.float32)]]


# ---- layers that carry others


@dataclass(frozen=True)
class RiderNodes:
    """Nodes that the layers of `bearer` also compute, in order; and the names of the values that they add: a number for
    each channel (`bias`), and a map (`other`), if there are any.
    """

    bearer: Node
    nodes: tuple[Node, ...] = ()
    bias: str = ""
    other: str = ""

    @property
    def every(self) -> tuple[Node, ...]:
        """The bearer and the nodes that it carries."""
        return self.bearer, *self.nodes

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the values that must be there, beside those of the bearer."""
        folded = (name for node in self.nodes if node.op == _NORMALIZATION for name in node.inputs[1:])
        return *folded, *filter(None, (self.bias, self.other))


def carried_by(
    bearer: Node, layer: Op, riders: Collection[str], readers: Mapping[str, Sequence[Node | None]]
) -> RiderNodes:
    """Nodes that the layers of a node, such as `layer`, carry: entries named `riders`, and normalizations folded into
    weights.

    `readers` has the nodes that read each value, with None for an output of the graph.

    Raises:
        InputError: between the node and a rider there is work that the machine does not do.
    """
    left, found, value, bias, other = {*riders}, list[Node](), bearer.outputs[0], "", ""
    folds = isinstance(layer, Fused) and layer.bias
    while len(readers.get(value, ())) == 1 and (node := readers[value][0]) is not None:
        if node.layer in left:
            left.discard(node.layer)
            if isinstance(added := node.views.sources.get(OTHER), OperandView):
                name = next((each for each in node.inputs if each != value), "")
                # What all images share is a bias.
                shared = added.shared and node.inputs[added.at] == name
                bias, other = (name, other) if shared else (bias, name)
        else:
            # Nodes that only hand on their operand disappear; so does a normalization, unless a rider comes before it.
            same = node.op in _SAME and len(node.outputs) == 1
            if node.layer or not (same or (node.op == _NORMALIZATION and folds and len(left) == len(riders))):
                break
        found.append(node)
        value = node.outputs[0]
    if left:
        says = f"between {bearer.name} and {', '.join(sorted(left))}, which rides on it, is what others read as well"
        raise InputError(f"{says}, or what is done outside the machine; {_LEAVE_OUT}")
    return RiderNodes(bearer, tuple(found), bias, other)


class BearerLayers(NodeLayers):
    """Layers of a node that carry others; their results are those of the last node that they carry."""

    def __init__(
        self,
        carried: RiderNodes,
        operands: Sequence[BatchParts],
        values: Mapping[str, BatchParts],
        layers: Sequence[Op],
    ) -> None:
        """`operands` are the bearer's, `values` those of the nodes that it carries.

        Raises InputError if the bearer adds values that the machine does not.
        """
        own, first = [each[0] for each in operands[_OWN:] if each], layers[0]
        if own and not (isinstance(first, Fused) and first.bias and prod(own[0].shape[:-1]) == 1):
            raise InputError(f"what it adds is added outside the machine, and others ride on it; {_LEAVE_OUT}")
        super().__init__(carried.bearer, operands, len(layers))
        self._carried, self._beside = carried, values
        self._scale, self._shift = self._folded(own)

    def operands(self, layer: Op, batch: int) -> dict[str, Values]:
        """Operands of the bearer with the folded scale in its weights, and the operands that are added to results."""
        found, shapes = super().operands(layer, batch), layer.shapes(batch)
        channels = shapes[OFMAP][0]
        scale = np.broadcast_to(self._scale, channels).reshape(-1, 1, 1, 1)
        found["filter"] = (found["filter"] * scale).astype(np.float32)
        if BIAS in shapes:
            shift = np.broadcast_to(self._shift, channels)
            if self._carried.bias:
                shift = shift + self._added(self._carried.bias)[:, 0, 0, 0].astype(np.float32)
            found[BIAS] = shift.astype(np.float32).reshape(-1, 1, 1, 1)
        if OTHER in shapes:
            found[OTHER] = self._next(self._added(self._carried.other)).astype(np.float32)
        return found

    def results(self) -> BatchParts:
        """Results with as many axes as the values that are added."""
        parts, added = self._values(), (self._carried.bias, self._carried.other)
        most = max([parts[0].ndim, *(self._beside[name][0].ndim for name in added if name)])
        return [each.reshape((1,) * (most - each.ndim) + each.shape) for each in parts]

    def _folded(self, own: Sequence[Values]) -> tuple[Values, Values]:
        """(factor, addend) of the weights' channels, or of all channels, from everything that is folded into them."""
        call: Mapping[str, Any] = self.node.attributes
        scale = np.full(1, call.get("alpha", 1.0), np.float64)
        shift = own[0].reshape(-1) * np.float64(call.get("beta", 1.0)) if own else np.zeros(1)
        for node in self._carried.nodes:
            if node.op == _NORMALIZATION:
                factor, bias, mean, variance = (self._beside[name][0].astype(np.float64) for name in node.inputs[1:])
                factor = factor / np.sqrt(variance + node.attributes.get("epsilon", _EPSILON))
                scale, shift = scale * factor, (shift - mean) * factor + bias
        return scale, shift

    def _added(self, name: str) -> Values:
        """A value that is added to results, in the shape of the map that all layers make together."""
        view, parts = self._views.result, self._beside[name]
        size = prod(view.shape)
        every = (parts[at % len(parts)] for at in range(self._parts))
        wide = [each.reshape(view.shape) if each.size == size else np.broadcast_to(each, view.shape) for each in every]
        return together([view.tensor(each) for each in wide], view.images)
