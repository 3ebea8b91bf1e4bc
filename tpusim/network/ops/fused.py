"""An op of the array with operations of a vector unit: on operands while they are loaded, on results before they are
stored.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import attrgetter
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias

from tpusim.network.ops.array_op import ArrayOp, Conv2d, Tensors
from tpusim.network.ops.elementwise import Pointwise
from tpusim.network.ops.op import OFMAP, Index, Shape

OTHER, BIAS = "other", "bias"
"""The tensors that are added: one as large as the ofmap, one with a number for each channel."""
TALLIES = "tallies"
"""The tensor of sums over all results of a channel: [channel, number of the tally, 1, 1]."""
Tally: TypeAlias = Literal["sum", "squares", "products"]
"""Terms of a sum over the results of a channel: the results, their squares, or their products with a map that `behind`
reads: several such sums take the last maps in turn.
"""
GROWS = {
    **dict.fromkeys(("copy", "relu", "clip", "relu_gradient", "masked"), 1),
    **{"add": 2, "sub": 2, "rsub": 2, "mul": 2, "scale_shift": 4, "batch_norm_gradient": 8, "weighted_sum": 4},
}
"""Ops on the way, and how many times larger they may make a number, if factors are from -2 to 2."""
MULTIPLY = frozenset({"mul", "scale_shift", "batch_norm_gradient"})
"""Ops that multiply by numbers of channels or, `mul`, by another map."""
Way: TypeAlias = Literal["ahead", "ahead_filter", "behind"]
"""Where ops on the way stand: ahead of the ifmap, ahead of the filter, or behind the results."""
_WAYS: Mapping[Way, str] = {"ahead": "ifmap", "ahead_filter": "filter", "behind": OFMAP}
"""By place the tensor that the ops there work on."""


class ExtraOperand(NamedTuple):
    """A further operand of an op on the way.

    Attributes:
        source: name of the operand in the op.
        name: name of the tensor in the fused layer.
        shape: shape of the tensor.
        is_map: whether it is as large as the map; otherwise it has a number for each channel.
    """

    source: str
    name: str
    shape: Shape
    is_map: bool


@dataclass(frozen=True)
class Fused(ArrayOp):
    """An `inner` op, what is done to its operands before, and what follows it.

    `ahead` computes the ifmap from tensors while they are loaded, and `ahead_filter` the filter. With `adds`, the
    tensor `other` is added to the results; with `bias`, the bias of the channel is added next; then `finish` follows.
    Ops `behind` change results while they are spilled, and may read a second map or numbers of channels. `tallies` are
    sums over the spilled results, channel by channel: a second result of the layer.

    Raises TypeError for an inner op that is itself fused, and ValueError for no op at all, for an op that cannot be
    done on the way, and for a sum of products without a second map.
    """

    op: ClassVar[str] = "fused"
    grammar: ClassVar[str] = "as without what is fused, + what is done to results"

    name: str
    inner: ArrayOp
    adds: bool = False
    finish: tuple[Pointwise, ...] = ()
    bias: bool = False
    ahead: tuple[Pointwise, ...] = ()
    ahead_filter: tuple[Pointwise, ...] = ()
    behind: tuple[Pointwise, ...] = ()
    tallies: tuple[Tally, ...] = ()

    def __post_init__(self) -> None:
        if self.inner.core is not self.inner:
            raise TypeError(f"{self.inner.name} is fused already")
        if not (self.adds or self.finish or self.bias or self.on_the_way):
            raise ValueError(f"nothing is done to the results of {self.inner.name}")
        for each, _ in self.chain(1):
            if each.op not in GROWS or getattr(each, "other", "each") not in ("each", "channel"):
                raise ValueError(f"{each.op} {each.text} cannot be done on the way; it can be {', '.join(GROWS)}")
        if self.inner.turned_ifmap and getattr(self.inner, "groups", 1) > 1 and self.ahead:
            raise ValueError(f"the channels of {self.inner.name} are in groups, whose numbers would differ")
        if self.tallies.count("products") > sum(each.is_map for _, more in self.chain(1, "behind") for each in more):
            raise ValueError(f"{self.inner.name} has no other map to take products with")

    @property
    def on_the_way(self) -> bool:
        """Whether the layer has work on the way."""
        return bool(self.ahead or self.ahead_filter or self.behind or self.tallies)

    # What the inner op says of itself.
    core = property(attrgetter("inner"))
    filter_stored = property(attrgetter("inner.filter_stored"))
    counted_by = property(attrgetter("inner.counted_by"))
    spatial = property(attrgetter("inner.spatial"))
    sample_parts = property(attrgetter("inner.sample_parts"))
    folded = property(attrgetter("inner.folded"))

    @property
    def shape_key(self) -> Hashable:
        every = self.finish, self.ahead, self.ahead_filter, self.behind
        ways = (tuple(each.shape_key for each in some) for some in every)
        return self.op, self.inner.shape_key, self.bias, self.adds, self.tallies, *ways

    @property
    def text(self) -> str:
        """The shape in short: "relu + 56x56x64>64 3x3 + bias + add + relu"."""
        return " + ".join([*(each.op for each in (*self.ahead, *self.ahead_filter)), self.inner.text, *self.fused])

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """Whether no op rounds; sums of squares of results are more than a float32 holds exactly."""
        return self.inner.exact and not self.tallies and all(op.exact for op, _ in self.chain(1))

    @property
    def fused(self) -> tuple[str, ...]:
        """Name the operations on the results, in order."""
        added = {BIAS: self.bias, "add": self.adds}
        named = (*self.finish, *self.behind)
        return *(name for name, there in added.items() if there), *(each.op for each in named), *self.tallies

    def tensors(self, batch: int) -> Tensors:
        return self.inner.tensors(batch)

    def chain(self, batch: int, *where: Way) -> Iterator[tuple[Pointwise, tuple[ExtraOperand, ...]]]:
        """Yield the ops on the way in order, those of some places or else all, each with its further operands."""
        for way in where or _WAYS:
            for number, op in enumerate(getattr(self, way)):
                whole = self.inner.shapes(batch)[_WAYS[way]]
                # Channels stand along the last axis where the ifmap is turned.
                turned = way == "ahead" and self.inner.turned_ifmap
                numbers = (1, 1, 1, whole[3]) if turned else (whole[0], 1, 1, 1)
                yield (
                    op,
                    tuple(
                        ExtraOperand(
                            name, f"{way}_{number}_{name}", whole if kind == "each" else numbers, kind == "each"
                        )
                        for name, kind in op.beside.items()
                    ),
                )

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return the tensors of the core, and the added ones."""
        shapes = dict(self.inner.shapes(batch))
        ofmap = shapes.pop(OFMAP)
        other = {OTHER: ofmap} if self.adds else {}
        bias = {BIAS: (ofmap[0], 1, 1, 1)} if self.bias else {}
        given = {each.name: each.shape for _, more in self.chain(batch) for each in more}
        return {**shapes, **other, **bias, **given, OFMAP: ofmap}

    def reads(self, batch: int) -> dict[str, Shape]:
        """Return the tensors read: the ifmap, operands of ops on it, the added map, a filter that another layer
        has made, and operands of ops on the results.
        """
        read = self.inner.reads(batch)
        added = {OTHER: self.shapes(batch)[OTHER]} if self.adds else {}
        first = next(iter(read))
        ahead, filters, behind = (
            {each.name: each.shape for _, more in self.chain(batch, way) for each in more} for way in _WAYS
        )
        return {first: read[first], **ahead, **added, **read, **filters, **behind}

    def batch_of(self, shapes: Mapping[str, Sequence[int]]) -> int:
        return self.inner.batch_of(shapes)

    def factors(self, batch: int) -> frozenset[str]:
        multiply = ((op, more) for op, more in self.chain(batch) if op.op in MULTIPLY)
        return frozenset(each.name for op, more in multiply for each in more if op.op == "mul" or not each.is_map)

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        return self.inner.convolution(batch)

    def terms(self, batch: int) -> int:
        """Return how many products of two operands are as large as an output may be."""
        grown = prod(GROWS[each.op] for each in (*self.ahead, *self.ahead_filter))
        sums = self.inner.terms(batch) * grown + self.adds + self.bias
        return sums * prod(GROWS[each.op] for each in self.behind)

    def macs(self, batch: int) -> int:
        return self.inner.macs(batch)

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        return self.inner.element_name(index)

    def with_more_input(self, batch: int) -> tuple[Self, int, str]:
        core, images, text = self.inner.with_more_input(batch)
        return replace(self, inner=core), images, text

    def with_less_input(self, batch: int) -> tuple[Self, int, str] | None:
        less = self.inner.with_less_input(batch)
        return None if less is None else (replace(self, inner=less[0]), *less[1:])

    def filled(self, rows: int, cols: int) -> tuple[Self, str]:
        core, text = self.inner.filled(rows, cols)
        return replace(self, inner=core), text
