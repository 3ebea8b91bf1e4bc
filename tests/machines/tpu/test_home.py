"""Words of a tensor by what they hold: which parts have one form, and where their words are."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rules import rule
from tests.strategies import among, cases
from tpusim.machines.tpu.program.transfers import Along, Part
from tpusim.machines.tpu.schedule.home import held_by

SHAPE = 6, 4, 5, 8


@st.composite
def parts(draw: st.DrawFn) -> Part:
    """Channels side by side, of each so many rows, columns and images, some of which make up a word."""
    axes = draw(st.permutations([1, 2, 3]))[: draw(st.integers(1, 3))]
    items = []
    for axis in axes:
        step, first = draw(among(1, 1, 2)), draw(st.integers(0, 2))
        items.append(Along(axis, range(first, SHAPE[axis], step)[: draw(st.integers(1, 4))]))
    counts = [len(each.coordinates) for each in items]
    per_word = prod(counts[draw(st.integers(0, len(counts))) :])
    first = draw(st.integers(0, 4))
    lanes = range(first, draw(st.integers(first + 1, SHAPE[0])))
    return Part(draw(st.integers(0, 9)), (draw(st.integers(0, 3)),), (Along(0, lanes),), tuple(items), per_word)


@rule("T149")
@settings(max_examples=cases(1 / 2), deadline=None)
@given(part=parts())
def test_each_word_is_where_its_elements_are(part: Part) -> None:
    """The elements of the first lane one by one, `per_word` to a word."""
    found = held_by(part, SHAPE)
    assert found
    form, words = found
    elements = []
    for at in product(*(each.coordinates for each in part.items)):
        place = [part.lane[0].coordinates[0], 0, 0, 0]
        for each, coordinate in zip(part.items, at, strict=True):
            place[each.axis] += coordinate
        elements.append(np.ravel_multi_index(place, SHAPE))
    assert words[:, 0].tolist() == elements[:: part.per_word]
    assert (words[:, 1:] == [part.first_lanes[0], len(part.lane[0].coordinates)]).all()
    assert form.per_word == part.per_word
    strides = [prod(SHAPE[axis + 1 :]) for axis in range(4)]
    inside = [sum(at) for at in product(*([each * strides[axis] for each in steps] for axis, steps in form.inner))]
    for number, first in enumerate(words[:, 0].tolist()):
        mine = elements[number * part.per_word : (number + 1) * part.per_word]
        assert mine == [first + each for each in inside]


WHOLE = Part(0, (0,), (Along(0, range(3)),), (Along(1, range(4)), Along(3, range(8))), 8)


@rule("T147")
@pytest.mark.parametrize(
    "other",
    [
        WHOLE._replace(per_word=4), WHOLE._replace(per_word=16), WHOLE._replace(first_lanes=(0, 3)),
        WHOLE._replace(lane=(Along(0, range(3)), Along(1, range(3)))), WHOLE._replace(lane=(Along(1, range(3)),)),
        WHOLE._replace(lane=(Along(0, range(0, 6, 2)),)), WHOLE._replace(lane=(Along(0, (0, 1, 2)),)),
        WHOLE._replace(lane=(Along(0, range(4, 7)),)), WHOLE._replace(lane=(Along(0, range(-1, 2)),)),
        WHOLE._replace(items=(Along(1, range(1, 5)), Along(3, range(8)))),
        WHOLE._replace(items=(Along(1, range(4)), Along(3, range(-1, 7)))),
    ],
    ids=["half a word", "two", "copies", "two axes", "rows", "every other", "a table", "beyond the last channel",
         "before the first", "beyond the last row", "before the first image"],
)  # fmt: skip
def test_what_has_another_form_is_told(other: Part) -> None:
    assert held_by(WHOLE, SHAPE)
    assert held_by(other, SHAPE) is None


def test_the_last_of_each_axis_is_inside() -> None:
    edge = WHOLE._replace(lane=(Along(0, range(3, 6)),), items=(Along(1, range(3, 4)), Along(3, range(8))))
    assert held_by(edge, SHAPE)
