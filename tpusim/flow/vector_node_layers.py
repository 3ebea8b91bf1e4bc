"""Nodes of a graph that a vector unit computes: pooling, what makes each element of a map of those at its place, moves.

A value of a graph is such a map with its channels as axis 1, or as the last: whichever gives what the layer has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from tpusim.base.errors import InputError
from tpusim.flow.parts import Parts, Values, together
from tpusim.network.graph import Node
from tpusim.network.ops.elementwise import Rdiv, Rsub
from tpusim.network.ops.moves import AXES, Move, Transpose
from tpusim.network.ops.op import Op
from tpusim.network.transposition import Transposition, transposition

Shape = tuple[int, ...]


class Pooling:
    """A layer has so many images, one layer after the other."""

    def __init__(self, node: Node, operands: Sequence[Parts]) -> None:
        self.maps, self.flat = operands[0], not _keeps(node)

    def operands(self, number: int, layer: Op, batch: int) -> dict[str, Values]:
        maps = together(self.maps)[number * batch : (number + 1) * batch]
        return {"ifmap": np.moveaxis(maps, 0, -1).reshape(layer.sources(batch)["ifmap"])}

    def results(self, ofmaps: Sequence[Values]) -> Parts:
        maps = together([np.moveaxis(each, -1, 0) for each in ofmaps])
        if self.flat:
            maps = maps[:, :, 0, 0]
        return np.split(maps[:, :, 0] if self.maps[0].ndim == 3 and not self.flat else maps, len(self.maps))


class Elementwise:
    """One layer for all images."""

    def __init__(self, node: Node, operands: Sequence[Parts]) -> None:
        self.node, self.values = node, _sources(node, operands)
        self.shape = np.broadcast_shapes(*(each[0].shape for each in self.values.values()))
        self.first = True

    def operands(self, number: int, layer: Op, batch: int) -> dict[str, Values]:
        """Raises InputError where neither axis can be the channels."""
        wanted = layer.sources(batch)
        for self.first in (True, False):
            for values in self._orders(wanted, layer):
                found = {name: self._together(parts) for name, parts in values.items()}
                if {name: each.shape for name, each in found.items()} == wanted:
                    return found
        raise InputError(f"its operands, {', '.join(str(each[0].shape) for each in self.values.values())}, give no map")

    def _orders(self, wanted: Mapping[str, Shape], layer: Op) -> Iterator[dict[str, Parts]]:
        """As they stand, the other way round, or, where that makes no difference, both."""
        turned = isinstance(layer, Rsub | Rdiv)
        if not turned:
            yield dict(zip(wanted, self.values.values(), strict=True))
        if len(wanted) == 2 and (turned or self.node.op not in ("Sub", "Div")):
            yield dict(zip(wanted, reversed(self.values.values()), strict=True))

    def _together(self, parts: Parts) -> Values:
        if parts[0].ndim == len(self.shape) > 1:
            return self._as_map(together(parts))
        return np.concatenate([self._as_map(each) for each in parts], axis=-1)

    def _as_map(self, values: Values) -> Values:
        """[channel, row, col, image]; all axes but two are rows, or images."""
        shape = (*[1] * (len(self.shape) - values.ndim), *values.shape)
        if self.first:
            images, channels, *sides = (*shape, 1) if len(shape) == 2 else shape
            return np.moveaxis(values.reshape(images, channels, prod(sides[:-1]), sides[-1]), 0, -1)
        *outer, channels = shape
        rows = outer[-1] if len(outer) > 1 else 1
        return values.reshape(-1, rows, 1, channels).transpose(3, 1, 2, 0)

    def results(self, ofmaps: Sequence[Values]) -> Parts:
        parts = max(map(len, self.values.values()))
        order = (3, 0, 1, 2) if self.first else (3, 1, 2, 0)
        return [each.transpose(order).reshape(self.shape) for each in np.split(ofmaps[0], parts, axis=-1)]


class Rows:
    """One layer for the rows of all images: what the last axes of a value hold."""

    def __init__(self, node: Node, operands: Sequence[Parts]) -> None:
        self.node, (self.values, *self.shared) = node, operands
        self.along = -1

    def _inner(self, channels: int) -> int:
        """The axis that is a row, where others are behind it: of a softmax. Else the last."""
        shape, axis = self.values[0].shape, self.node.attributes.get("axis", -1)
        alone = self.node.op == "Softmax" and channels == shape[axis] != prod(shape[axis:])
        return axis if alone else -1

    def operands(self, number: int, layer: Op, batch: int) -> dict[str, Values]:
        channels = layer.sources(batch)["ifmap"][0]
        self.along = self._inner(channels)
        rows = np.concatenate([np.moveaxis(each, self.along, -1).reshape(-1, channels) for each in self.values])
        sources = {"ifmap": rows.T[:, None, None]}
        for name, default, given in zip(("scale", "shift"), (1, 0), (*self.shared, [], []), strict=False):
            if name in layer.sources(batch):
                numbers = given[0].reshape(-1) if given else np.full(channels, default, np.float32)
                sources[name] = np.broadcast_to(numbers, channels).reshape(-1, 1, 1, 1)
        return sources

    def results(self, ofmaps: Sequence[Values]) -> Parts:
        """As large as what came in; of means, one number in the place of all axes that they are along."""
        shape = self.values[0].shape
        if self.node.op == "ReduceMean":
            axes = self.node.attributes.get("axes") or self.shared[0][0]
            first = min(int(axis) % len(shape) for axis in axes)
            shape = shape[:first] + (1,) * (len(shape) - first) * _keeps(self.node)
        parts = np.split(ofmaps[0][:, 0, 0].T, len(self.values))
        if self.along == -1:
            return [each.reshape(shape) for each in parts]
        turned = (*np.delete(shape, self.along).tolist(), shape[self.along])
        return [np.moveaxis(each.reshape(turned), -1, self.along) for each in parts]


class Transposing:
    """One layer for all images, which may be any axis of what it makes."""

    def __init__(self, node: Node, operands: Sequence[Parts], layer: Transpose) -> None:
        self.values, self.layer = operands[0], layer
        shape = self.values[0].shape
        self.order = [int(axis) for axis in node.attributes.get("perm") or [*range(len(shape))][::-1]]
        self.turned = self._turned(shape)

    def _turned(self, shape: Shape) -> Transposition:
        """Raises InputError where neither order of the axes gives the layer."""
        for first in (True, False):
            found = transposition(shape, self.order, first)
            wanted = tuple(getattr(self.layer, axis) for axis in AXES[:3])
            if found and found.order == self.layer.order and tuple(map(found.size, AXES[:3])) == wanted:
                return found
        raise InputError(f"its operand, {shape}, gives no map")

    def operands(self, number: int, layer: Op, batch: int) -> dict[str, Values]:
        axes = [self.turned.axes.index(axis) for axis in AXES if axis in self.turned.axes]
        shape = [self.turned.size(axis) for axis in AXES]
        maps = [each.reshape(self.turned.sizes).transpose(axes).reshape(shape) for each in self.values]
        return {"ifmap": np.concatenate(maps, axis=-1)}

    def results(self, ofmaps: Sequence[Values]) -> Parts:
        known = [AXES.index(axis) for axis in self.turned.axes]
        order = [*known, *(axis for axis in range(len(AXES)) if axis not in known)]
        shape = [self.values[0].shape[axis] for axis in self.order]
        parts = np.split(ofmaps[0], len(self.values), axis=self.layer.order.index("images"))
        return [each.transpose(order).reshape(shape) for each in parts]


class Moving:
    """One layer for all images, of maps that have their channels first."""

    def __init__(self, node: Node, operands: Sequence[Parts]) -> None:
        self.values, self.shuffled = operands[0], node.op == "Transpose"

    def operands(self, number: int, layer: Op, batch: int) -> dict[str, Values]:
        *shape, images = layer.sources(batch)["ifmap"]
        return {"ifmap": np.moveaxis(together(self.values).reshape(images, *shape), 0, -1)}

    def results(self, ofmaps: Sequence[Values]) -> Parts:
        """Groups of channels are an axis of their own; maps of one row may have none."""
        maps, shape = np.moveaxis(ofmaps[0], -1, 0), self.values[0].shape
        if self.shuffled:
            _, groups, each, *sides = shape
            maps = maps.reshape(-1, each, groups, *sides)
        elif len(shape) == 3:
            maps = maps[:, :, 0]
        return np.split(maps, len(self.values))


def _keeps(node: Node) -> bool:
    """Whether what is reduced to nothing stays as an axis."""
    return bool(node.attributes.get("keepdims", 1))


def _sources(node: Node, operands: Sequence[Parts]) -> dict[str, Parts]:
    """What a layer reads of the operands; limits and slopes are its own."""
    if node.op == "BatchNormalization":
        maps, *statistics = operands
        scale, shift, mean, variance = (each[0] for each in statistics)
        with np.errstate(all="ignore"):
            factor = (scale / np.sqrt(variance + np.float32(node.attributes.get("epsilon", 1e-5)))).astype(np.float32)
        sides = [1] * (maps[0].ndim - 2)
        moved = (shift - mean * factor).astype(np.float32)
        return {"ifmap": maps, "scale": [factor.reshape(-1, *sides)], "shift": [moved.reshape(-1, *sides)]}
    if node.op in ("Add", "Sub", "Mul", "Div", "Sum"):
        return {"ifmap": operands[0], "other": operands[1]}
    return {"ifmap": operands[0]}


def vector_layers(
    node: Node, operands: Sequence[Parts], layer: Op
) -> Pooling | Elementwise | Rows | Transposing | Moving:
    """The node as such layers, of which this is the first."""
    if isinstance(layer, Transpose):
        return Transposing(node, operands, layer)
    if isinstance(layer, Move):
        return Moving(node, operands)
    if layer.whole_rows:
        return Rows(node, operands)
    return Pooling(node, operands) if "kernel" in type(layer).__dataclass_fields__ else Elementwise(node, operands)
