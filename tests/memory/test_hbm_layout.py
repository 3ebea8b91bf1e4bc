"""What moving a part of a tensor costs, against a list of the addresses in it."""

from __future__ import annotations

from itertools import pairwise, product
from math import ceil, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rules import rule
from tpusim.memory.hbm_layout import HWCN, Box, StoredTensor, axes_of, inside, whole_bursts

Shape = tuple[int, int, int, int]


def burst_bytes(box: Box, shape: Shape, element_bytes: int, burst: int) -> int:
    """What a pipe moves of a map that lies HWCN."""
    order = axes_of(HWCN)
    runs = StoredTensor(0, shape, shape, order, order, element_bytes, burst).runs(box)
    return runs.moved(burst) if runs else 0


def addresses(box: Box, shape: Shape) -> list[int]:
    """Where the elements lie when rows are outside, then columns, then channels, then images."""
    channels, _, cols, images = shape
    walked = product(box.rows, box.cols, box.channels, box.images)
    return sorted(((row * cols + col) * channels + channel) * images + image for row, col, channel, image in walked)


def runs(places: list[int]) -> list[int]:
    """The lengths of runs of neighbours."""
    lengths: list[int] = []
    for before, place in zip([-2, *places], places, strict=False):
        if place == before + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def enumerated(box: Box, shape: Shape, element_bytes: int, burst: int) -> int:
    """Whole bursts of every run of neighbours."""
    return sum(ceil(run * element_bytes / burst) * burst for run in runs(addresses(box, shape)))


@st.composite
def parts(draw: st.DrawFn, extent: int, largest_step: int = 1) -> range:
    """Some of `extent` coordinates; often all."""
    if draw(st.booleans()):
        return range(extent)
    first, step = draw(st.integers(0, extent - 1)), draw(st.integers(1, largest_step))
    return range(first, draw(st.integers(first, extent)), step)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Box, Shape]:
    """A map of up to 5 x 5 pixels, and a part of it: every axis whole or not, rows and columns perhaps strided."""
    shape = tuple(draw(st.integers(1, most)) for most in (4, 5, 5, 6))
    channels, rows, cols, images = shape
    part = Box(draw(parts(channels)), draw(parts(rows, 3)), draw(parts(cols, 3)), draw(parts(images)))
    return part, (channels, rows, cols, images)


def wraps(box: Box, shape: Shape) -> bool:
    """Whether strided columns end where a row does, and the next row begins with one of them."""
    cols, rows = box.cols, box.rows
    strided = len(cols) > 1 and cols.step > 1
    return strided and len(rows) > 1 and rows.step == 1 and (cols[0], cols[-1]) == (0, shape[2] - 1)


sizes = st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from([4, 6, 16, 64]))


@rule("T122")
@settings(max_examples=300, deadline=None)
@given(boxes(), sizes)
def test_every_run_of_neighbours_is_moved_in_whole_bursts(part: tuple[Box, Shape], size: tuple[int, int]) -> None:
    """Or in fewer bytes with others, where no whole burst lies between them."""
    (box, shape), (element, burst) = part, size
    moved, listed, places = burst_bytes(box, shape, *size), enumerated(box, shape, *size), addresses(box, shape)
    beyond = burst * len(box.rows) if wraps(box, shape) else 0
    assert len(places) * element <= moved <= listed + beyond
    gaps = [(after - place - 1) * element for place, after in pairwise(places)]
    if all(not gap or gap >= burst for gap in gaps):
        assert moved >= listed


SHAPE = (2, 6, 6, 8)


@pytest.mark.parametrize(
    ("box", "moved"),
    [
        # Whole rows are one run, 6 x 2 x 8 elements a row; every other row is one each.
        (Box(range(2), range(3), range(6), range(8)), 320),
        (Box(range(2), range(0, 6, 2), range(6), range(8)), 3 * 128),
        # Pixels of 16 elements: three neighbours, then three strided ones, in each of two rows 96 bytes apart.
        (Box(range(2), range(2), range(3), range(8)), 2 * 64),
        (Box(range(2), range(2), range(1, 6, 2), range(8)), 192),
        # Four images of one channel, and of both: 16 and 8 bytes apart, so that a row is read through.
        (Box(range(1), range(1), range(6), range(4)), 128),
        (Box(range(2), range(1), range(6), range(4)), 128),
        # A single strided column of a map that has no other: all rows are one run.
        (Box(range(2), range(3), range(0, 1, 2), range(8)), 64),
    ],
)
def test_by_hand(box: Box, moved: int) -> None:
    """Elements of a byte, bursts of 64."""
    shape = (2, 6, 1, 8) if len(box.cols) == 1 else SHAPE
    assert burst_bytes(box, shape, 1, 64) == moved


@given(st.integers(0, 1000), st.integers(1, 70))
def test_whole_bursts_are_the_least_that_hold_it(size: int, burst: int) -> None:
    moved = whole_bursts(size, burst)
    assert moved % burst == 0
    assert 0 <= moved - size < burst


@settings(max_examples=500)
@given(st.integers(-9, 9), st.integers(0, 9), st.integers(1, 4), st.integers(-9, 9), st.integers(1, 9))
def test_places_inside_are_those_that_exist(start: int, count: int, step: int, shift: int, extent: int) -> None:
    rows = range(start, start + count * step, step)
    assert [*inside(rows, shift, extent)] == [row + shift for row in rows if 0 <= row + shift < extent]


@given(boxes())
def test_bursts_of_an_element_move_what_is_asked_for(part: tuple[Box, Shape]) -> None:
    box, shape = part
    wanted = prod(map(len, (box.channels, box.rows, box.cols, box.images)))
    assert burst_bytes(box, shape, 4, 4) == 4 * wanted
