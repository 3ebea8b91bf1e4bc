"""Verification of a layer: every output that its Program computes is compared with the reference.

Parts are compared as they are written, so that until the first wrong value only marks of what is right are kept; or a
tensor as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count, product
from math import prod
from typing import Any

import numpy as np

from tpusim import reference
from tpusim.base.errors import CheckFailed, failures_named
from tpusim.flow.boxes import Coverage, Outline, alone, in_order, indices, merged, outline, places, straight, within
from tpusim.flow.numbers import SMALL, Numbers
from tpusim.machines.lowered import (
    LayerInParts,
    ReadyLayer,
    Taker,
    TensorInMemory,
    Told,
    WrittenPart,
    WrittenTensor,
    unheard,
)
from tpusim.network.ops.fused import Fused
from tpusim.network.ops.op import OFMAP, Index, Op
from tpusim.numerics import equality
from tpusim.numerics.element_types import Values, all_finite
from tpusim.numerics.equality import Verdict, agreement, larger
from tpusim.reference import Box, Operand, Operands, Tensor, pointwise, rows
from tpusim.reference.pointwise import prepared
from tpusim.reference.rounding import Screen, magnitudes, roundings, screen
from tpusim.result.records import Mismatch

BOX_BYTES = 1 << 22
"""Most bytes of inputs or outputs for which the reference computes consecutive parts together."""
MOST_ELEMENTS = 1 << 18
"""Most outputs in a box of a whole tensor, and most inputs of its pixels, so that the reference's arrays stay in the
cache.
"""
MOST_LEFT = 20
"""Most outputs of a box that are computed one by one, which takes less time than the whole box in float64."""

Take = Callable[[Tensor], None]
"""Called with the outputs of a layer."""


def check_values(
    layer: Op,
    ready: ReadyLayer,
    operands: Operands,
    numbers: Numbers = SMALL,
    told: Callable[[int, str], None] = unheard,
    take: Take | None = None,
) -> Verdict:
    """Compare every written element with the reference.

    Args:
        ready: the layer, for its machine.
        told: called now and then with the number of outputs done, and what was done to them.
        take: called with the ofmap [out_channel, row, col, image], if given.

    Raises:
        CheckFailed: when the Program asks for what the machine does not have; names the layer.
    """
    number = numbers.number(layer, reference.batch_of(layer, operands))
    # Overflow gives infinities on both sides; a message of ours tells of them where they matter.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"), failures_named(layer):
        if (program := ready.in_parts(number)) is not None:
            return _by_parts(layer, program, operands, numbers, lambda count: told(count, "checked"), take)
        written = ready.values(operands, number, lambda count: told(count, "computed"))
    if take:
        take(written[OFMAP])
    return verdict_of(layer, operands, written, numbers)


def _by_parts(
    layer: Op, program: LayerInParts, operands: Operands, numbers: Numbers, told: Told, take: Take | None
) -> Verdict:
    """The verdict on each part as it is written. An ofmap to be taken is compared at the end, and so is one of real
    numbers, as whole boxes of which are looked at in float32 first.
    """
    if unknown := {*program.written} - {*reference.TENSORS}:
        raise CheckFailed(f"the Program writes {', '.join(sorted(unknown))}, of which the reference knows nothing")

    def expectation(name: str) -> Expectation:
        return Expectation(layer, name, operands, numbers)

    ofmap = program.written[OFMAP]
    whole = take is not None or expectation(OFMAP).bounded
    kept = ofmap.filled(np.array(np.nan, program.number)) if whole else None
    held = {
        name: ComparedTensor(tensor, expectation(name))
        for name, tensor in program.written.items()
        if kept is None or name != OFMAP
    }
    takers: dict[str, Taker] = {name: each.write for name, each in held.items()}
    takers[OFMAP] = counted((kept or held[OFMAP]).write, len(ofmap.parts), prod(ofmap.shape), told)
    program.run(operands, takers, numbers.in_array_order)
    verdicts = {name: each.verdict() for name, each in held.items()}
    if kept:
        if take:
            take(kept.values)
        verdicts[OFMAP] = verdict_of_whole(expectation(OFMAP), kept.values)
    return _together(verdicts)


def operands_of(layer: Op, batch: int, seed: int) -> dict[str, Operand]:
    """The operands of a layer, small whole numbers, by the names of the tensors in its Program."""
    return SMALL.operands(layer, batch, seed)


def verdict_of(layer: Op, operands: Operands, written: Mapping[str, Tensor], numbers: Numbers = SMALL) -> Verdict:
    """The verdict on the written tensors that the reference knows."""
    known = {name: each for name, each in written.items() if name in reference.TENSORS}
    held = {name: (Expectation(layer, name, operands, numbers), each) for name, each in known.items()}
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return _together({name: verdict_of_whole(*each) for name, each in held.items()})


def _together(verdicts: Mapping[str, Verdict]) -> Verdict:
    """The verdict on the outputs, joined with the verdicts on intermediates."""
    verdict = verdicts[OFMAP]
    for name in sorted({*verdicts} - {OFMAP}):
        verdict = verdict.after(verdicts[name])
    return verdict


def expected(layer: Op, operands: Operands) -> Tensor:
    """The ofmap [out_channel, row, col, image] that the reference computes."""
    return reference.compute(layer, operands)


# ---- expected values


@dataclass(frozen=True)
class Expectation:
    """Expected values of a tensor of a layer: numbers, or BOUNDED ones if sums are rounded."""

    layer: Op
    tensor: str
    operands: Operands
    numbers: Numbers

    @property
    def number(self) -> np.dtype[Any]:
        """Type of an expected element: a number, or BOUNDED."""
        return equality.BOUNDED if self.bounded else np.dtype(np.float64 if self._doubles else np.float32)

    def of(self, box: Box) -> Values:
        """Expected values of the elements in a box of the tensor."""
        oracle = reference.TENSORS[self.tensor]
        true = oracle.compute(self.layer, self._exact, box)
        if not self.bounded:
            return true
        if not self.roundings:
            return equality.moved(true)
        if oracle.magnitudes:
            sizes = oracle.magnitudes(self.layer, self._sizes, box, true)
        elif self.layer.whole_rows:
            sizes = rows.magnitudes(self.layer, self._exact, box, true, equality.gamma(self.roundings))
        else:
            sizes = magnitudes(self.layer, self._sizes, box, true)
        return equality.bounded(true, sizes, self.roundings)

    def mismatch(self, at: Index, actual: float) -> Mismatch:
        """The description of a wrong element."""
        name = partial(reference.TENSORS[self.tensor].element_name, self.layer)
        return equality.difference(at, actual, self.of(alone(at)), name, self.tensor)

    @cached_property
    def bounded(self) -> bool:
        """Whether the elements are BOUNDED."""
        return self.numbers.of(self.layer).bounded

    @cached_property
    def _doubles(self) -> bool:
        """Whether the reference works in float64, because float32 would round, or lose digits that the
        machine keeps.
        """
        return self.bounded or self.numbers.needs_doubles(self.layer, self._batch)

    @property
    def _batch(self) -> int:
        return reference.batch_of(self.layer, self.operands)

    @cached_property
    def _exact(self) -> Operands:
        """Operands in the type of the sums, which is float64 if one operand is."""
        operands, layer = self.operands, self.layer
        made = isinstance(layer, Fused) and layer.on_the_way
        if self._doubles and "filter" in operands and not made:
            operands = {**operands, "filter": operands["filter"].astype(np.float64)}
        elif self._doubles:
            operands = {name: each.astype(np.float64) for name, each in operands.items()}
        return prepared(layer, operands) if isinstance(layer, Fused) else operands

    @cached_property
    def _sizes(self) -> Operands:
        """Magnitudes of the operands."""
        sizes = {name: np.abs(each) for name, each in self.operands.items()}
        return prepared(self.layer, sizes, pointwise.magnitudes) if isinstance(self.layer, Fused) else sizes

    @cached_property
    def roundings(self) -> int:
        """The most roundings of a sum, in any order; values that are only moved are not rounded."""
        own = roundings if self.tensor == OFMAP else reference.TENSORS[self.tensor].roundings
        return own(self.layer, self._batch)


# ---- part by part


def counted(take: Taker, parts: int, elements: int, told: Told) -> Taker:
    """Hand values on and report progress by parts, since parts reach beyond the tensor and overlap."""
    number = count(1)

    def taken(part: WrittenPart, values: Tensor) -> None:
        take(part, values)
        told(elements * next(number) // parts)

    return taken


class ComparedTensor:
    """Comparison of one written tensor. An element that is written again counts as it was written last."""

    def __init__(self, tensor: WrittenTensor, expectation: Expectation) -> None:
        self._tensor, self._expectation = tensor, expectation
        self._share: float | None = None
        strided = expectation.layer.op in reference.STRIDED
        outlines = [outline(each, tensor.shape, strided) for part in tensor.parts for each in straight(part)]
        boxes = [box for each in outlines for _, box in each.boxes]
        # From the first wrong element on, each has a mark and a value; values before that need not be shown.
        self._right = Coverage(boxes, tensor.shape)
        self._known: TensorInMemory | None = None
        self._wrong: TensorInMemory | None = None
        self._outlines = iter(outlines)
        self._ahead = iter(merged(boxes, self._fits))
        self._left = 0

    def write(self, part: WrittenPart, values: Tensor) -> None:
        """Compare `values` [lane, *items] of the next part with the reference."""
        outlines = [next(self._outlines) for _ in straight(part)]
        expected = [self._expected(each) for each in outlines]
        together = expected[0] if len(expected) == 1 else np.concatenate(expected).reshape(values.shape)
        right, share = agreement(values, together)
        self._share = larger(self._share, share)
        if self._wrong is None and (right.all() or self._right_inside(right, outlines)):
            for _, box in (each for one in outlines for each in one.boxes):
                self._right.add(box)
            return
        known, wrong = self._by_element()
        known.write(part, right)
        wrong.write(part, values)

    def _right_inside(self, right: Values, outlines: Sequence[Outline]) -> bool:
        """Whether all elements of a part that are in the tensor are right."""
        outside = []
        for lengths, counts, order, boxes in outlines:
            beyond = np.ones(lengths, np.bool_)
            for place, _ in boxes:
                beyond[indices(place, lengths)] = False
            outside.append(beyond.reshape(counts).transpose(order))
        return bool((right | np.concatenate(outside).reshape(right.shape)).all())

    def _by_element(self) -> tuple[TensorInMemory, TensorInMemory]:
        """Whether each element is right, and values, NaN before the first wrong one."""
        if self._known is None or self._wrong is None:
            self._known, self._wrong = self._tensor.filled(np.False_), self._tensor.filled(np.float32(np.nan))
            self._known.values[...] = self._right.elements
        return self._known, self._wrong

    def verdict(self) -> Verdict:
        """Count the wrong elements, with those never written."""
        size = prod(self._tensor.shape)
        if self._wrong is None and self._right.whole:
            return Verdict(size, 0, None, error_share=self._share)
        known, wrong = (each.values for each in self._by_element())
        right = int(np.count_nonzero(known))
        if right == size:
            return Verdict(size, 0, None, error_share=self._share)
        channel = next(index for index, each in enumerate(known) if not each.all())
        inside = np.unravel_index(int(known[channel].argmin()), known.shape[1:])
        at = (channel, *map(int, inside))
        first = self._expectation.mismatch(at, float(wrong[at]))
        return Verdict(size, size - right, first, error_share=self._share)

    def _expected(self, outline: Outline) -> Values:
        """Expected values of the next straight part, [lane, *items]; arbitrary outside the tensor."""
        lengths, counts, order, boxes = outline
        if len(boxes) == 1 and tuple(map(len, boxes[0][1])) == lengths and in_order(boxes[0][0]):
            values = self._next(boxes[0][1])
        else:
            values = np.zeros(lengths, self._expectation.number)
            for place, box in boxes:
                values[indices(place, lengths)] = self._next(box)
        return values.reshape(counts).transpose(order)

    def _next(self, box: Box) -> Values:
        """Expected values of the next box, computed together with the boxes that follow."""
        if not self._left:
            self._cover, self._left = next(self._ahead)
            self._computed = self._expectation.of(self._cover)
        self._left -= 1
        place = (slice(a.start - b.start, a.stop - b.start) for a, b in zip(box, self._cover, strict=True))
        return self._computed[tuple(place)]

    def _fits(self, box: Box) -> bool:
        channels, rows, cols, images = map(len, box)
        elements = rows * cols * images * max(channels, len(self._expectation.operands["ifmap"]))
        return elements * self._expectation.number.itemsize <= BOX_BYTES


# ---- a whole tensor, box by box


def verdict_of_whole(expectation: Expectation, written: Values) -> Verdict:
    """Compare every element of a tensor; NaN was never written."""
    # Most boxes are settled in float32; the reference in float64 is computed for the rest alone.
    screening, share = Screening(expectation, written), None
    wrong, first = 0, None
    for box in boxes(written.shape, len(expectation.operands["ifmap"])):
        if screening.settles(box):
            continue
        right, its_share = agreement(written[places(box)], expectation.of(box))
        share = larger(share, its_share)
        if not right.all():
            wrong += int(np.count_nonzero(~right))
            at = within(box, np.unravel_index(int(right.argmin()), right.shape))
            # Boxes do not come in the order of the tensor, so the first wrong element is the least of their firsts.
            first = at if first is None else min(first, at)
    share = larger(share, larger(screening.share, screening.furthest()))
    mismatch = None if first is None else expectation.mismatch(first, float(written[first]))
    return Verdict(written.size, wrong, mismatch, error_share=share)


def boxes(shape: tuple[int, ...], inputs: int) -> Iterator[Box]:
    """Boxes of all channels and as many rows as possible, or of fewer columns and images if that is too much."""
    channels, *others = shape
    most = max(1, MOST_ELEMENTS // max(channels, inputs))
    lengths: list[int] = []
    for at, length in enumerate(others):
        lengths.append(min(length, max(1, most // prod(others[at + 1 :]))))
    every = (
        [range(first, min(first + most, length)) for first in range(0, length, most)]
        for length, most in zip(others, lengths, strict=True)
    )
    for row, col, image in product(*every):
        yield range(channels), row, col, image


class Screening:
    """A quick test of outputs in float32, used as long as it settles more boxes than not.

    Attributes:
        share: largest error over its bound among outputs that were computed in float64 to settle a box, or None.
    """

    def __init__(self, expectation: Expectation, written: Values) -> None:
        """`written` is the whole tensor."""
        self._expectation, self._written = expectation, written
        self.share: float | None = None
        self._furthest: tuple[float, Index] | None = None
        self._settled = 0
        self._asked = expectation.bounded and expectation.tensor == OFMAP

    def settles(self, box: Box) -> bool:
        """Whether all outputs in `box` are surely within their bounds; if not, there may still be no error."""
        found = screen(self._expectation.layer, self._expectation.operands, box) if self._asked else None
        settled = found is not None and self._near(box, found)
        self._settled += 1 if settled else -1
        self._asked = self._asked and self._settled >= 0
        return settled

    def furthest(self) -> float | None:
        """Error over its bound of the output that is furthest from the float32 result, in the boxes that were
        settled.
        """
        return None if self._furthest is None else self._alone(self._furthest[1])[1]

    def _near(self, box: Box, found: Screen) -> bool:
        actual = self._written[places(box)]
        if found.least is None:
            # A result that is rounded as often may be on the other side of the true value, unless it is exactly the
            # same.
            same = bool((actual == found.values).all())
            return same and (not found.roundings or all_finite(found.values))
        with np.errstate(invalid="ignore", over="ignore"):  # Of infinities, which settle nothing.
            apart = np.subtract(actual, found.values, out=found.values)
            np.abs(apart, out=apart)
            near = equality.surely_near(apart, found.least, self._expectation.roundings, found.roundings)
        left = near.size - int(np.count_nonzero(near))
        if left > MOST_LEFT:
            return False
        # Nearly always none is left, and to look for them takes as long as to compare.
        for at in np.argwhere(~near) if left else ():
            right, share = self._alone(within(box, at))
            if not right:
                return False
            self.share = larger(self.share, share)
        if not all_finite(found.least):
            return False
        most = float(apart.max(initial=0.0))
        if self._furthest is None or most > self._furthest[0]:
            self._furthest = most, within(box, np.unravel_index(int(apart.argmax()), apart.shape))
        return True

    def _alone(self, at: Index) -> tuple[bool, float | None]:
        """Whether an output is right in float64, and its error over its bound."""
        box = alone(at)
        right, share = agreement(self._written[places(box)], self._expectation.of(box))
        return bool(right.all()), share
