"""The Pareto front: the points that no other point beats in everything."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.study.sweep.column import Goal

Row = Mapping[str, Any]
Floats = NDArray[np.float64]
_MOST_GOALS = 3


def on_front(costs: Floats) -> NDArray[np.bool_]:
    """Return which of `costs` (points x 1 to 3 goals, less is better) are on the front.

    A point is beaten by another that is nowhere worse and somewhere better; so equal points are on the front
    together. Points with a nan or an infinity never are, and beat none.
    """
    found = np.zeros(len(costs), dtype=bool)
    usable = np.isfinite(costs).all(axis=1)
    if usable.any():
        distinct, back = np.unique(costs[usable], axis=0, return_inverse=True)
        found[usable] = np.array(_unbeaten(distinct))[back.reshape(-1)]
    return found


def _unbeaten(costs: Floats) -> list[bool]:
    """Return which of distinct points in lexicographic order no other beats.

    Those before are no worse in the first goal, so a point is beaten if one before it is no worse in the other two.
    Of those before, only their own front in these two is kept: `y` ascending, `z` descending.
    """
    padded = np.zeros((len(costs), _MOST_GOALS))
    padded[:, : costs.shape[1]] = costs
    ys: list[float] = []
    zs: list[float] = []
    found = []
    for _, y, z in padded.tolist():
        after = bisect_right(ys, y)
        found.append(after == 0 or zs[after - 1] > z)
        if found[-1]:
            first = bisect_left(ys, y)
            last = first
            while last < len(zs) and zs[last] >= z:
                last += 1
            ys[first:last], zs[first:last] = [y], [z]
    return found


def front_of(rows: Sequence[Row], goals: Sequence[Goal]) -> list[bool]:
    """Return which rows are on the front of their workload; failed points are not."""
    together: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        together[row["workload"]].append(index)
    found = np.zeros(len(rows), dtype=bool)
    for indices in together.values():
        costs = [[_cost(rows[index], goal) for goal in goals] for index in indices]
        found[indices] = on_front(np.array(costs, dtype=np.float64))
    return [bool(each) for each in found]


def _cost(row: Row, goal: Goal) -> float:
    value = row[goal.column]
    return math.nan if row["error"] or value is None else goal.cost(float(value))
