"""Runs and bursts of parts of tensors, against addresses worked out one by one."""

from __future__ import annotations

from itertools import groupby, pairwise, permutations, product
from math import prod
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.test_hbm_layout import parts
from tpusim.base.errors import InputError
from tpusim.memory.hbm_layout import AXES, FILTERS, Bursts, Layouts, Region, Runs, StoredTensor, axes_of, read_layouts


class Case(NamedTuple):
    stored: StoredTensor
    region: Region


@st.composite
def stored_parts(draw: st.DrawFn) -> Case:
    """A tensor of 1 to 4 axes anywhere, perhaps padded, its axes in any order; and a part, perhaps beyond it."""
    axes = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 6)) for _ in range(axes))
    padded = tuple(extent + draw(st.sampled_from([0, 0, 1, 3])) for extent in shape)
    order, needed = (tuple(draw(st.permutations(range(axes)))) for _ in range(2))
    size, burst, base = (
        draw(st.sampled_from([1, 2, 4])),
        draw(st.sampled_from([1, 4, 6, 16, 64])),
        draw(st.integers(0, 99)),
    )
    shifts = draw(st.lists(st.sampled_from([0, 0, -1, 2]), min_size=axes, max_size=axes))
    inside = (draw(parts(extent, 4)) for extent in shape)
    region = tuple(range(part.start + by, part.stop + by, part.step) for part, by in zip(inside, shifts, strict=True))
    return Case(StoredTensor(base, shape, padded, order, needed, size, burst), region)


def coordinates(case: Case) -> list[list[int]]:
    """Along each axis those that are moved: inside, with the padding behind the last where it follows them."""
    found = []
    for part, extent, padded in zip(case.region, case.stored.shape, case.stored.padded, strict=True):
        inside = [at for at in part if 0 <= at < extent]
        ends = inside and inside[-1] == extent - 1 and (part.step == 1 or len(inside) == 1)
        found.append([*inside, *(range(extent, padded) if ends else [])])
    return found


def address(stored: StoredTensor, at: tuple[int, ...]) -> int:
    place = 0
    for axis in stored.order:
        place = place * stored.padded[axis] + at[axis]
    return stored.base + place * stored.element_bytes


def wanted(case: Case) -> set[int]:
    """The bytes of the elements."""
    starts = (address(case.stored, at) for at in product(*coordinates(case)))
    return {start + byte for start in starts for byte in range(case.stored.element_bytes)}


@settings(max_examples=150, deadline=None)
@given(stored_parts())
def test_runs_are_the_bytes_of_the_part_each_once(case: Case) -> None:
    """And bytes between these, where fewer than a burst lie there; none where that would be more bursts."""
    runs, burst = case.stored.runs(case.region), case.stored.burst
    if runs is None:
        assert not all(coordinates(case))
        return
    listed, own = [start + byte for start in runs.starts.tolist() for byte in range(runs.size)], wanted(case)
    assert len({*listed}) == len(listed) == runs.number * runs.size
    assert own <= {*listed}
    ascending = sorted(own)
    between = {byte for at, after in pairwise(ascending) if after - at <= burst for byte in range(at + 1, after)}
    assert {*listed} - own <= between
    # Neighbours of the innermost axis are read through wherever they are closer than a burst.
    inner = case.stored.order[-1]
    steps = {after - at for at, after in pairwise(coordinates(case)[inner])}
    if steps and max(steps) * case.stored.element_bytes <= burst:
        assert runs.number <= prod(len(each) for axis, each in enumerate(coordinates(case)) if axis != inner)


@settings(max_examples=150, deadline=None)
@given(stored_parts())
def test_bursts_are_those_of_its_bytes_in_the_order_of_the_runs(case: Case) -> None:
    """Once where the next run begins in the burst in which one ends."""
    runs, burst = case.stored.runs(case.region), case.stored.burst
    bursts = Bursts(burst)
    if runs is None:
        return
    touched = [byte // burst * burst for start in runs.starts.tolist() for byte in range(start, start + runs.size)]
    expected = [each for each, _ in groupby(touched)]
    assert bursts.of([runs]).tolist() == expected
    later = runs._replace(base=runs.base + 5 * burst)
    assert bursts.of([later]).tolist() == [each + 5 * burst for each in expected]
    assert bursts.of([runs, runs]).tolist() == [each for each, _ in groupby(expected * 2)]
    assert bursts.of([runs]).dtype == np.int64


@settings(max_examples=100, deadline=None)
@given(stored_parts())
def test_runs_come_as_they_are_needed(case: Case) -> None:
    """By the coordinates of their first elements along the axes that are needed one after another."""
    stored, runs = case.stored, case.stored.runs(case.region)
    if runs is None or 1 in stored.padded:
        return
    where = {address(stored, at): at for at in product(*map(range, stored.padded))}
    firsts = [where[start] for start in runs.starts.tolist()]
    keys = [tuple(at[axis] for axis in stored.needed) for at in firsts]
    assert keys == sorted(keys)


def test_fig_7_by_hand() -> None:
    """Of eight channels of 5 x 5 a block needs columns A to C of rows 1 to 3; elements of a byte (paper Fig. 7)."""
    region = range(8), range(3), range(3), range(1)
    by = {
        name: StoredTensor(0, (8, 5, 5, 1), (8, 5, 5, 1), axes_of(name), (1, 2, 3, 0), 1, 4).runs(region)
        for name in ("CHW", "HWC")
    }
    # A row of a channel is three neighbours, row by row in all channels; a row of pixels is 24.
    assert by["CHW"] == Runs(0, ((3, 5), (8, 25)), 3)
    assert by["HWC"] == Runs(0, ((3, 40),), 24)
    # Every other column: five bytes of a row hold the three, and a step of two is shorter than a burst.
    strided = StoredTensor(0, (8, 5, 5, 1), (8, 5, 5, 1), axes_of("CHW"), (1, 2, 3, 0), 1, 4)
    assert strided.runs((range(8), range(1), range(0, 5, 2), range(1))) == Runs(0, ((8, 25),), 5)


def test_axes_by_name() -> None:
    assert axes_of("HWCN") == (1, 2, 0, 3)
    assert axes_of("CHW") == axes_of("NCHW") == (3, 0, 1, 2)
    assert axes_of("HWC") == axes_of("NHWC") == (3, 1, 2, 0)


def test_layouts_read_what_they_write() -> None:
    orders = ["".join(each) for axes in (AXES, "CHW") for each in permutations(axes)]
    for written in (*orders, {"ifmap": "HWC"}, {"filter": "HWIO", "lowered": "CHW"}):
        assert read_layouts(written).written == written
        assert read_layouts(read_layouts(written)) == read_layouts(written)
    assert read_layouts({"ifmap": "HWCN", "filter": "as_read"}) == read_layouts("HWCN") == read_layouts({}) == Layouts()


def test_one_name_is_for_maps_and_a_mapping_for_those_it_names() -> None:
    maps, some = read_layouts("CHW"), read_layouts({"ifmap": "HWC", "filter": "OHWI"})
    assert [maps.of(each) for each in ("ifmap", "ofmap", "lowered", "filter")] == ["CHW"] * 3 + ["as_read"]
    assert [some.of(each) for each in ("ifmap", "ofmap", "lowered", "filter")] == ["HWC", "HWCN", "HWCN", "OHWI"]
    assert {*FILTERS} == {"as_read", "OHWI", "HWIO"}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("chw", '"chw" is not a layout of feature maps; did you mean CHW? write the order of their axes, such as CHW'),
        ("HWW", '"HWW" is not a layout of feature maps; write the order'),
        ("CHWNN", '"CHWNN" is not'),
        (5, "5 is not a layout"),
        (None, "an empty value is not a layout"),
        ({"ifmap": "CW"}, '"CW" is not a layout of feature maps'),
        ({"ofmaps": "CHW"}, 'unknown key "ofmaps"; did you mean ofmap? allowed in layout: ifmap, ofmap'),
        ({"filter": "OIHW"}, '"OIHW" is not a layout of the filter; did you mean OHWI? write as_read or OHWI or HWIO'),
    ],
)
def test_what_is_no_layout_is_refused(value: object, says: str) -> None:
    with pytest.raises(InputError) as raised:
        read_layouts(value)
    assert says in str(raised.value)
