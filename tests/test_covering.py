"""Helpers that choose which cases of a test always run leave none out of a long run."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest

from tests.covering import covering, few

AXES = ("ab", (0, 1, 2), (True, False), "xyz")


def quick(cases: list[Any]) -> list[tuple[Any, ...]]:
    return [case.values for case in cases if not case.marks]


@pytest.mark.parametrize("together", [1, 2])
def test_all_combinations_are_there_and_few_cover_what_meets(together: int) -> None:
    cases = covering(together, *AXES)
    assert [case.values for case in cases] == [*product(*AXES)]
    assert all([*case.marks] in ([], [pytest.mark.long]) for case in cases)
    chosen = quick(cases)
    for some in combinations(range(len(AXES)), together):
        met = {tuple(case[at] for at in some) for case in chosen}
        assert met == {*product(*(AXES[at] for at in some))}
    assert len(chosen) <= (3 if together == 1 else 11)


def test_values_take_turns() -> None:
    for first, second in (("abcde", (0, 1)), ((0, 1), "abcde"), ("abc", "xyz")):
        chosen = quick(covering(1, first, second))
        assert len(chosen) == max(len(first), len(second))
        for values in zip(*chosen, strict=True):
            often = [values.count(each) for each in {*values}]
            assert max(often) <= min(often) + 1
    assert quick(covering(1, "abc", (0, 1))) == [("a", 0), ("b", 1), ("c", 0)]


def test_few_are_spread_and_keep_what_others_are_marked_with() -> None:
    cases = few(2, ["a", "b", pytest.param("c", id="last"), "d"])
    assert quick(cases) == [("a",), ("c",)]
    assert cases[2].id == "last"
    assert [case.values for case in few(1, [(1, 2), (3, 4)])] == [(1, 2), (3, 4)]
    marked = few(1, [1, pytest.param(2, marks=pytest.mark.rule("T1"))])[1]
    assert [mark.name for mark in marked.marks] == ["rule", "long"]
