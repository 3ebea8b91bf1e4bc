"""An op of the array with the operations of a vector unit on its results before they are stored."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from tpusim.network.ops.array_op import ArrayOp, Conv2d, Tensors
from tpusim.network.ops.elementwise import Pointwise
from tpusim.network.ops.op import OFMAP, Index, Shape

OTHER, BIAS = "other", "bias"
"""The tensors that are added: one as large as the ofmap, one with a number for each channel."""


@dataclass(frozen=True)
class Fused(ArrayOp):
    """An `inner` op and what follows it: the tensor `other` is added where it `adds` one, then the channel's bias where
    it has a `bias`, and then comes `finish`.

    Raises TypeError for an inner op that is fused itself, and ValueError where nothing is done to its results.
    """

    op: ClassVar[str] = "fused"
    grammar: ClassVar[str] = "as without what is fused, + what is done to results"

    name: str
    inner: ArrayOp
    adds: bool = False
    finish: tuple[Pointwise, ...] = ()
    bias: bool = False

    def __post_init__(self) -> None:
        if self.inner.core is not self.inner:
            raise TypeError(f"{self.inner.name} is fused already")
        if not self.adds and not self.finish and not self.bias:
            raise ValueError(f"nothing is done to the results of {self.inner.name}")

    @property
    def core(self) -> ArrayOp:
        return self.inner

    @property
    def counted_by(self) -> Literal["image", "row"]:  # type: ignore[override]
        return self.inner.counted_by

    @property
    def spatial(self) -> bool:  # type: ignore[override]
        return self.inner.spatial

    @property
    def shape_key(self) -> Hashable:
        return self.op, self.inner.shape_key, self.bias, self.adds, tuple(each.shape_key for each in self.finish)

    @property
    def sample_parts(self) -> int:
        return self.inner.sample_parts

    @property
    def text(self) -> str:
        """The shape in short: "56x56x64>64 3x3 + bias + add + relu"."""
        return " + ".join([self.inner.text, *self.fused])

    @property
    def fused(self) -> tuple[str, ...]:
        """Name the operations on the results, in order."""
        added = {BIAS: self.bias, "add": self.adds}
        return *(name for name, there in added.items() if there), *(each.op for each in self.finish)

    @property
    def folded(self) -> tuple[str, str]:
        return self.inner.folded

    def tensors(self, batch: int) -> Tensors:
        return self.inner.tensors(batch)

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """Return the tensors of the core, and the added ones."""
        shapes = dict(self.inner.shapes(batch))
        ofmap = shapes.pop(OFMAP)
        other = {OTHER: ofmap} if self.adds else {}
        bias = {BIAS: (ofmap[0], 1, 1, 1)} if self.bias else {}
        return {**shapes, **other, **bias, OFMAP: ofmap}

    def reads(self, batch: int) -> dict[str, Shape]:
        """Return what is read: the added map comes behind the ifmap, ahead of a filter that another layer has made."""
        read = self.inner.reads(batch)
        added = {OTHER: self.shapes(batch)[OTHER]} if self.adds else {}
        first = next(iter(read))
        return {first: read[first], **added, **read}

    def convolution(self, batch: int) -> tuple[Conv2d, int]:
        return self.inner.convolution(batch)

    def terms(self, batch: int) -> int:
        return self.inner.terms(batch) + self.adds + self.bias

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
