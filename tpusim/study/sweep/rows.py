"""A sweep's points as rows: what the tables, the files and the pictures are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpusim.study.sweep.column import costs
from tpusim.study.sweep.pareto import front_of
from tpusim.study.sweep.space import Point
from tpusim.study.sweep.spec import Sweep
from tpusim.study.sweep.store import Store

Row = dict[str, Any]


def rows_of(sweep: Sweep, store: Store, points: Sequence[tuple[Point, str]]) -> list[Row]:
    """Return a row a point, in order: every column that is stored, what its machine is made of, and its axes.

    Where the sweep has goals, `pareto` tells who is on the front of these points.
    """
    found = store.points([key for _, key in points])
    rows = [
        {**row, **costs(point.hardware), **dict(point.settings)} for (point, _), row in zip(points, found, strict=True)
    ]
    if sweep.goals:
        rows = [{**row, "pareto": on} for row, on in zip(rows, front_of(rows, sweep.goals), strict=True)]
    return rows
