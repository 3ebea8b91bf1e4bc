"""Helpers that choose which cases of a test always run leave none out of a long run."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest

from tests.covering import covering, few, in_turn

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


def test_few_are_spread_and_keep_what_others_are_marked_with() -> None:
    cases = few(2, ["a", "b", pytest.param("c", id="last"), "d"])
    assert quick(cases) == [("a",), ("c",)]
    assert cases[2].id == "last"
    assert [case.values for case in few(1, [(1, 2), (3, 4)])] == [(1, 2), (3, 4)]
    marked = few(1, [1, pytest.param(2, marks=pytest.mark.rule("T1"))])[1]
    assert [mark.name for mark in marked.marks] == ["rule", "long"]


def test_each_of_the_first_meets_one_of_the_second_in_turn() -> None:
    cases = in_turn("abc", [(1, 2), (3, 4)])
    assert [case.values for case in cases] == [*product("abc", [(1, 2), (3, 4)])]
    assert quick(cases) == [("a", (1, 2)), ("b", (3, 4)), ("c", (1, 2))]
