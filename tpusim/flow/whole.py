"""A whole tensor held against the reference: box by box, so that what the reference has of it stays in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

import numpy as np

from tpusim import reference
from tpusim.flow.boxes import alone, places, within
from tpusim.flow.held import Expectation, Told
from tpusim.flow.screening import Screening
from tpusim.machines.lowered import InParts, Part
from tpusim.network.ops.op import Index
from tpusim.numerics.element_types import Values
from tpusim.numerics.equality import Verdict, agreement, difference, larger
from tpusim.reference import Box
from tpusim.result.records import Mismatch

MOST_ELEMENTS = 1 << 18
"""Of outputs, or of inputs for as many pixels, in a box."""


class Kept:
    """What a Program writes to one of its tensors; NaN where it never does."""

    def __init__(self, program: InParts, name: str, told: Told) -> None:
        self._tensor, self._told, self._written = (
            program.written(name).filled(np.array(np.nan, program.number)),
            told,
            0,
        )

    def write(self, part: Part, values: Values) -> None:
        """Note `values` [lane, *items] of a part."""
        self._tensor.write(part, values)
        self._written += values.size
        self._told(self._written)

    @property
    def values(self) -> Values:
        """The tensor."""
        values: Values = self._tensor.values
        return values


def verdict_of_whole(expectation: Expectation, written: Values) -> Verdict:
    """Compare every element; NaN was never written."""
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
            first = at if first is None else min(first, at)
    share = larger(share, larger(screening.share, screening.furthest()))
    mismatch = None if first is None else _mismatch(expectation, first, float(written[first]))
    return Verdict(written.size, wrong, mismatch, error_share=share)


def _mismatch(expectation: Expectation, at: Index, actual: float) -> Mismatch:
    """What is wrong with an element."""
    name = partial(reference.TENSORS[expectation.tensor].element_name, expectation.layer)
    (expected,) = expectation.of(alone(at)).reshape(1)
    return difference(at, actual, expected, name, expectation.tensor)


def boxes(shape: tuple[int, ...], inputs: int) -> Iterator[Box]:
    """All channels of as many rows as can be; of less where that is too much."""
    channels, *others = shape
    most = max(1, MOST_ELEMENTS // max(channels, inputs))
    lengths: list[int] = []
    for at, length in enumerate(others):
        lengths.append(min(length, max(1, most // prod(others[at + 1 :]))))
    for row in _runs(others[0], lengths[0]):
        for col in _runs(others[1], lengths[1]):
            for image in _runs(others[2], lengths[2]):
                yield range(channels), row, col, image


def _runs(length: int, most: int) -> Iterator[range]:
    """So many at a time."""
    for first in range(0, length, most):
        yield range(first, min(first + most, length))
