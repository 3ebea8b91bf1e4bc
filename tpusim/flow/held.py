"""What the reference expects of a tensor, and a tensor held against that part by part, as it is written.

A byte an element stays, not the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tpusim import reference
from tpusim.flow.boxes import alone, in_order, indices, merged, outline, straight
from tpusim.flow.numbers import Numbers
from tpusim.machines.lowered import Held as InMemory
from tpusim.machines.lowered import Part, WrittenTensor
from tpusim.network.ops.op import OFMAP, Index, Op
from tpusim.network.ops.rows import RowOp
from tpusim.numerics.element_types import Values
from tpusim.numerics.equality import BOUNDED, Verdict, agreement, bounded, difference, gamma, larger, moved
from tpusim.reference import Box, Operands, Tensor, rows
from tpusim.reference.rounding import magnitudes, roundings

BOX_BYTES = 1 << 22
"""The reference computes parts that follow one another together, while inputs or outputs as it has them take no more.
"""

Told = Callable[[int], None]
"""Told how many elements have been written."""


def unheard(_: int) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Expectation:
    """What the reference has for a tensor of a layer: numbers, or BOUNDED ones where sums are rounded."""

    layer: Op
    tensor: str
    operands: Operands
    numbers: Numbers

    @property
    def number(self) -> np.dtype[Any]:
        """What is expected of an element: a number, or a BOUNDED one."""
        return BOUNDED if self.bounded else np.dtype(np.float64 if self._doubles else np.float32)

    def of(self, box: Box) -> Values:
        """What is expected of the elements in a box of the tensor."""
        true = reference.TENSORS[self.tensor].compute(self.layer, self._exact, box)
        if not self.bounded:
            return true
        if not self.roundings:
            return moved(true)
        return bounded(true, self._magnitudes(box, true), self.roundings)

    def _magnitudes(self, box: Box, true: Values) -> Values:
        if isinstance(self.layer, RowOp):
            return rows.magnitudes(self.layer, self._exact, box, true, gamma(self.roundings))
        return magnitudes(self.layer, self._sizes, box, true)

    @cached_property
    def bounded(self) -> bool:
        """Whether its elements are BOUNDED."""
        return self.numbers.of(self.layer).bounded

    @cached_property
    def _doubles(self) -> bool:
        """Whether the reference works in float64: float32 rounds, or would lose what the machine holds in float64."""
        return self.bounded or self.numbers.needs_doubles(self.layer, self._batch)

    @property
    def _batch(self) -> int:
        return int(self.operands["ifmap"].shape[-1])

    @cached_property
    def _exact(self) -> Operands:
        """The operands as what the sums are computed in; that is float64 where one of them is."""
        if not self._doubles:
            return self.operands
        if "filter" in self.operands:
            return {**self.operands, "filter": self.operands["filter"].astype(np.float64)}
        return {name: each.astype(np.float64) for name, each in self.operands.items()}

    @cached_property
    def _sizes(self) -> Operands:
        """Their magnitudes."""
        return {name: np.abs(each) for name, each in self.operands.items()}

    @cached_property
    def roundings(self) -> int:
        """How often a sum is rounded at most, in whatever order; what is only moved never is."""
        return roundings(self.layer, self._batch) if self.tensor == OFMAP else 0


class Held:
    """What a Program writes to one of its tensors. An element that is written again counts as it was written last."""

    def __init__(self, layer: Op, tensor: WrittenTensor, expectation: Expectation, told: Told) -> None:
        self._layer, self._tensor, self._expectation, self._told = layer, tensor, expectation, told
        self._share: float | None = None
        self._oracle, self._written = reference.TENSORS[expectation.tensor], 0
        self._known = tensor.filled(np.False_)
        self._wrong: InMemory | None = None
        strided = layer.op in reference.STRIDED
        outlines = [outline(each, tensor.shape, strided) for part in tensor.parts for each in straight(part)]
        self._outlines = iter(outlines)
        self._ahead = iter(merged((box for each in outlines for _, box in each.boxes), self._fits))
        self._left = 0

    def write(self, part: Part, values: Tensor) -> None:
        """Compare `values` [lane, *items] of the next part with what the reference computes for it."""
        expected = [self._expected() for _ in straight(part)]
        together = expected[0] if len(expected) == 1 else np.concatenate(expected).reshape(values.shape)
        right, share = agreement(values, together)
        self._share = larger(self._share, share)
        self._known.write(part, right)
        if self._wrong is None and not right.all():
            # Only now: of what was right before, nobody asks for the value.
            self._wrong = self._tensor.filled(np.float32(np.nan))
        if self._wrong is not None:
            self._wrong.write(part, values)
        self._written += values.size
        self._told(self._written)

    def verdict(self) -> Verdict:
        """Count the elements that are not as the reference has them, those never written among them."""
        known = self._known.values
        right = int(np.count_nonzero(known))
        if right == known.size:
            return Verdict(known.size, 0, None, error_share=self._share)
        channel = next(index for index, each in enumerate(known) if not each.all())
        inside = np.unravel_index(int(known[channel].argmin()), known.shape[1:])
        at = (channel, *map(int, inside))
        expected = self._expectation.of(alone(at))
        actual = np.nan if self._wrong is None else self._wrong.values[at]
        first = difference(at, float(actual), expected, self._element_name, self._expectation.tensor)
        return Verdict(known.size, known.size - right, first, error_share=self._share)

    def _expected(self) -> Values:
        """What the reference has for the next straight part, [lane, *items]; anything outside the tensor."""
        lengths, counts, order, boxes = next(self._outlines)
        if len(boxes) == 1 and tuple(map(len, boxes[0][1])) == lengths and in_order(boxes[0][0]):
            values = self._next(boxes[0][1])
        else:
            values = np.zeros(lengths, self._expectation.number)
            for place, box in boxes:
                values[indices(place, lengths)] = self._next(box)
        return values.reshape(counts).transpose(order)

    def _next(self, box: Box) -> Values:
        """What the reference has for the next box, computed together with those that follow."""
        if not self._left:
            self._cover, self._left = next(self._ahead)
            self._computed = self._expectation.of(self._cover)
        self._left -= 1
        place = (slice(a.start - b.start, a.stop - b.start) for a, b in zip(box, self._cover, strict=True))
        return self._computed[tuple(place)]

    def _element_name(self, at: Index) -> tuple[tuple[str, ...], Index]:
        return self._oracle.element_name(self._layer, at)

    def _fits(self, box: Box) -> bool:
        channels, rows, cols, images = map(len, box)
        elements = rows * cols * images * max(channels, len(self._expectation.operands["ifmap"]))
        return elements * self._expectation.number.itemsize <= BOX_BYTES
