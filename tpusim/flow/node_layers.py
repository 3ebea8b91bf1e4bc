"""Nodes of a graph as layers: what of the graph's values a layer reads, and what its outputs are in the graph.

In a graph maps are [image, channel, row, col]; a layer has [channel, row, col, image], and a filter of [out_channel,
tap_row, tap_col, channel of the group]. A value of the graph is a list: of an array for each part of the batch that
goes through the graph by itself, or of one that all of them share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import ClassVar, Protocol

import numpy as np

from tpusim.base.errors import InputError
from tpusim.flow.parts import Parts, Values, together
from tpusim.flow.vector_node_layers import vector_layers
from tpusim.network.graph import Node
from tpusim.network.ops.op import Op
from tpusim.reference.nodes import Call
from tpusim.reference.nodes.products import with_bias


class NodeLayers(Protocol):
    """A node that some layers compute, one after another."""

    def operands(self, number: int, layer: Op, batch: int) -> dict[str, Values]:
        """The operands of the layer of that number, by name."""

    def results(self, ofmaps: Sequence[Values]) -> Parts:
        """The node's result, from the outputs of all its layers."""


def _shared(parts: Parts, what: str) -> Values:
    """What is the same for all images. Raises InputError where it is not."""
    if len(parts) > 1:
        raise InputError(f"its {what} differ from image to image, so that images cannot go through it together")
    return parts[0]


class Convolution:
    """Conv: the layers have so many images each, one after the other."""

    def __init__(self, node: Node, operands: Sequence[Parts]) -> None:
        maps, filters, *bias = operands
        self.node, self.maps, self.filter = node, maps, _shared(filters, "weights")
        self.bias = _shared(bias[0], "biases") if bias and bias[0] else None

    def operands(self, number: int, layer: Op, batch: int) -> dict[str, Values]:
        maps = np.moveaxis(together(self.maps)[number * batch : (number + 1) * batch], 0, -1)
        sources = layer.sources(batch)
        return {"ifmap": maps.reshape(sources["ifmap"]), "filter": self.weights(layer).reshape(sources["filter"])}

    def weights(self, layer: Op) -> Values:
        """[out_channel, *taps, channel of the group]."""
        return np.ascontiguousarray(np.moveaxis(self.filter, 1, -1))

    def results(self, ofmaps: Sequence[Values]) -> Parts:
        maps = together([np.moveaxis(each, -1, 0) for each in ofmaps])
        if self.maps[0].ndim == 3:
            maps = maps[:, :, 0]
        if self.bias is not None:
            maps = maps + self.bias.reshape(-1, *[1] * (maps.ndim - 2))
        return np.split(maps, len(self.maps))


class TransposedConvolution(Convolution):
    """ConvTranspose; a layer may be written mirrored along an axis."""

    def operands(self, number: int, layer: Op, batch: int) -> dict[str, Values]:
        found = super().operands(number, layer, batch)
        return {name: np.flip(each, self._mirrored) for name, each in found.items()}

    def weights(self, layer: Op) -> Values:
        groups = self.node.attributes.get("group", 1)
        channels, outputs, *taps = self.filter.shape
        apart = self.filter.reshape(groups, channels // groups, outputs, *taps)
        return np.moveaxis(apart, 1, -1).reshape(groups * outputs, *taps, channels // groups)

    def results(self, ofmaps: Sequence[Values]) -> Parts:
        return super().results([np.flip(each, self._mirrored) for each in ofmaps])

    @property
    def _mirrored(self) -> tuple[int, ...]:
        """Axes of a layer's map, and of its filter."""
        axes = self.node.attributes.get("mirrored", ())
        return tuple(1 + axis for axis, mirrored in enumerate(axes) if mirrored)


class Product:
    """Gemm, and MatMul where the second factor is the same for all: that is the filter."""

    filter: ClassVar[int] = 1

    def __init__(self, node: Node, operands: Sequence[Parts]) -> None:
        self.call = Call(node.attributes)
        first, second, *bias = operands
        transposed = [node.op == "Gemm" and self.call.get(name, 0) for name in ("transA", "transB")]
        self.factors = [
            [each.T if turned else each for each in parts]
            for parts, turned in zip((first, second), transposed, strict=True)
        ]
        self.bias = bias[0] if bias and bias[0] else None

    def fits(self, sources: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether one layer of these operands computes it."""
        one, other = self.factors[self.filter], self.factors[1 - self.filter]
        elements = prod(sources["ifmap"]), prod(sources["filter"])
        return (
            len(one) == 1
            and (sum(each.size for each in other), one[0].size) == elements
            and prod(one[0].shape[:-2]) == 1
        )

    def operands(self, number: int, layer: Op, batch: int) -> dict[str, Values]:
        rows = np.concatenate([each.reshape(-1, each.shape[-1]) for each in self.factors[0]])
        weights = _shared(self.factors[1], "factors")
        weights = weights.reshape(weights.shape[-2:]) if weights.ndim > 1 else weights[:, None]
        return {"ifmap": rows.T[:, None, None], "filter": weights.T[:, None, None]}

    def results(self, ofmaps: Sequence[Values]) -> Parts:
        first = self.factors[0]
        rows = np.split(ofmaps[0][:, 0, 0].T, len(first))
        return [
            with_bias(self.call, each.reshape(self.shape), bias)
            for each, bias in zip(rows, self._biases(len(first)), strict=True)
        ]

    def _biases(self, parts: int) -> list[Values | None]:
        """One for each part of the batch."""
        return [None] * parts if self.bias is None else [self.bias[at % len(self.bias)] for at in range(parts)]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the product, of one part of the batch."""
        first, second = (each[0].shape for each in self.factors)
        one, other = first if len(first) > 1 else (1, *first), second if len(second) > 1 else (*second, 1)
        rows, cols = one[-2:-1] if len(first) > 1 else (), other[-1:] if len(second) > 1 else ()
        return (*np.broadcast_shapes(one[:-2], other[:-2]), *rows, *cols)


class TurnedProduct(Product):
    """MatMul whose first factor is the same for all: the transposed product, of columns."""

    filter: ClassVar[int] = 0

    def operands(self, number: int, layer: Op, batch: int) -> dict[str, Values]:
        weights = _shared(self.factors[0], "factors")
        weights = weights.reshape((1, *weights.shape)[-2:])
        columns = np.concatenate([np.moveaxis(each, -2, -1).reshape(-1, each.shape[-2]) for each in self.factors[1]])
        return {"ifmap": columns.T[:, None, None], "filter": weights[:, None, None]}

    def results(self, ofmaps: Sequence[Values]) -> Parts:
        second = self.factors[1]
        *outer, _, cols = second[0].shape
        parts = np.split(ofmaps[0][:, 0, 0].T, len(second))
        return [np.moveaxis(each.reshape(*outer, cols, -1), -2, -1).reshape(self.shape) for each in parts]


class Products(Product):
    """MatMul of pairs: a layer for each."""

    def operands(self, number: int, layer: Op, batch: int) -> dict[str, Values]:
        first, second = self._pair(number)
        return {"ifmap": first.T[:, None, None], "filter": second.T[:, None, None]}

    def _pair(self, number: int) -> tuple[Values, Values]:
        """The matrices of a layer, axes before them broadcast."""
        part, at = divmod(number, prod(self._outer))
        one, other = self._both(part)
        place = np.unravel_index(at, self._outer)
        first, second = (np.broadcast_to(each, (*self._outer, *each.shape[-2:]))[place] for each in (one, other))
        return first, second

    def _both(self, part: int) -> tuple[Values, Values]:
        one, other = (each[part % len(each)] for each in self.factors)
        return one if one.ndim > 1 else one[None], other if other.ndim > 1 else other[:, None]

    @property
    def _outer(self) -> tuple[int, ...]:
        one, other = self._both(0)
        return np.broadcast_shapes(one.shape[:-2], other.shape[:-2])

    def results(self, ofmaps: Sequence[Values]) -> Parts:
        parts = max(map(len, self.factors))
        return [*np.stack([each[:, 0, 0].T for each in ofmaps]).reshape(parts, *self.shape)]


def node_layers(node: Node, operands: Sequence[Parts], layers: Sequence[Op], batch: int) -> NodeLayers:
    """The node as these layers."""
    if layers[0].unit == "vector":
        return vector_layers(node, operands, layers[0])
    if node.op == "Conv":
        return Convolution(node, operands)
    if node.op == "ConvTranspose":
        return TransposedConvolution(node, operands)
    kind: type[Product] = Products
    if len(layers) == 1:
        sources = layers[0].sources(batch)
        kind = next((each for each in (Product, TurnedProduct) if each(node, operands).fits(sources)), Products)
    return kind(node, operands)
