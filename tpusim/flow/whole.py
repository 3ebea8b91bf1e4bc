"""A whole tensor held against the reference: box by box, so that what the reference has of it stays in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

import numpy as np

from tpusim import reference
from tpusim.flow.held import Told
from tpusim.flow.numbers import Expectation
from tpusim.flow.screening import Screening
from tpusim.machines.tpu.datapath.hbm import HbmTensor
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.tensor import Part
from tpusim.machines.tpu.program.transfers import Spill
from tpusim.network.ops.op import Index
from tpusim.numerics.equality import Values, Verdict, agreement, compare, larger
from tpusim.reference import Box

MOST_ELEMENTS = 1 << 17
"""Of outputs, or of inputs for as many pixels, in a box."""


class Kept:
    """What a Program writes to one of its tensors; NaN where it never does."""

    def __init__(self, program: Program, name: str, told: Told) -> None:
        spills = (step for step in program.steps if isinstance(step, Spill) and step.tensor.name == name)
        parts = [part for step in spills for part in step.parts]
        self._tensor, self._told, self._written = (
            HbmTensor(program.tensor(name), np.array(np.nan, program.number), parts), told, 0,
        )  # fmt: skip

    def write(self, part: Part, values: Values) -> None:
        """Note `values` [lane, *items] of a part."""
        self._tensor.write(part, values)
        self._written += values.size
        self._told(self._written)

    @property
    def values(self) -> Values:
        """The tensor."""
        return self._tensor.values


def verdict_of_whole(expectation: Expectation, written: Values) -> Verdict:
    """Compare every element; NaN was never written."""
    screening, share = Screening(expectation), None
    wrong, first = 0, None
    for box in boxes(written.shape, len(expectation.operands["ifmap"])):
        actual = written[_places(box)]
        if not screening.settles(box, actual):
            right, its_share = agreement(actual, expectation.of(box))
            share = larger(share, its_share)
            if lost := int(np.count_nonzero(~right)):
                at = _first(right, box)
                first = at if first is None else min(first, at)
                wrong += lost
    if screening.furthest is not None:
        box = _alone(screening.furthest)
        share = larger(share, agreement(written[_places(box)], expectation.of(box))[1])
    if first is None:
        return Verdict(written.size, 0, None, error_share=share)
    box = _alone(first)
    name = partial(reference.TENSORS[expectation.tensor].element_name, expectation.layer)
    alone = compare(written[_places(box)], expectation.of(box), lambda _: name(first), expectation.tensor)
    return Verdict(written.size, wrong, alone.first, error_share=share)


def _first(right: Values, box: Box) -> Index:
    """The first element in `box` that is wrong."""
    at = np.unravel_index(int(right.argmin()), right.shape)
    return tuple(part[int(place)] for part, place in zip(box, at, strict=True))


def _alone(at: Index) -> Box:
    channel, row, col, image = (range(place, place + 1) for place in at)
    return channel, row, col, image


def _places(box: Box) -> tuple[slice, ...]:
    return tuple(slice(part.start, part.stop) for part in box)


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
