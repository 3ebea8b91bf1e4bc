"""Which cases of a test always run; the others are long, and `scripts/prove long` runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import combinations, product
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def few(quick: int, cases: Iterable[Any]) -> list[ParameterSet]:
    """All cases of a test; so many of them are quick: the first, and others evenly spread."""
    every = [*cases]
    chosen = {at * len(every) // quick for at in range(quick)}
    return [_marked(case, at in chosen) for at, case in enumerate(every)]


def covering(together: int, *axes: Collection[Any]) -> list[ParameterSet]:
    """All combinations of values, one of each axis. Some are quick: each value of any axis is in one of these if
    `together` is 1, each pair of values of any two axes if it is 2. Values take turns.
    """
    every = [*product(*(range(len(axis)) for axis in axes))]
    missing = {each for case in every for each in _met(case, together)}
    chosen, taken = set[tuple[int, ...]](), Counter[tuple[int, int]]()
    while missing:
        best = max(
            every,
            key=lambda case: (len(missing & {*_met(case, together)}), -sum(taken[each] for each in enumerate(case))),
        )
        chosen.add(best)
        taken.update(enumerate(best))
        missing -= {*_met(best, together)}
    cases = product(*axes)
    return [_marked(case, at in chosen) for at, case in zip(every, cases, strict=True)]


def _met(case: tuple[int, ...], together: int) -> Iterator[tuple[tuple[int, int], ...]]:
    return combinations(enumerate(case), together)


def _marked(case: Any, quick: bool) -> ParameterSet:
    if not isinstance(case, ParameterSet):
        # A tuple has a value of each argument.
        case = pytest.param(*case) if type(case) is tuple else pytest.param(case)
    return case if quick else case._replace(marks=(*case.marks, pytest.mark.long))
