"""A sweep as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, islice
from typing import Any

from rich.table import Table

from tpusim.report.tables.layout import Column, figure_column, fitting, legend, path_head, table
from tpusim.result.vocabulary.fields import axis_title
from tpusim.result.vocabulary.figures import COLUMNS
from tpusim.study.sweep.column import Goal

Row = Mapping[str, Any]

_SHOWN = {"cycles": 2, "time_us": 0, "tflops": 3, "pe_utilization": 1, "mapping_efficiency": 4, "port_idle_ratio": 5}
"""Which of these columns goes first where there is no room; 0 stays."""


def best(
    rows: Sequence[Row], axes: Sequence[str], goals: Sequence[Goal] = (), width: int | None = None, most: int = 10
) -> list[Table | str]:
    """A table of the best points, `most` together but at least one a workload; and what order, stars and columns mean.

    Without goals, best is the most TFLOPS, which for one network and batch is the least time; with goals, best is the
    Pareto front, in the order of the first goal.
    """
    finished = sorted((row for row in rows if not row["error"]), key=lambda row: _rank(row, goals))
    each = max(1, most // max(1, len({row["workload"] for row in finished})))
    by_workload = groupby(finished, key=lambda row: row["workload"])
    chosen = [row for _, ranked in by_workload for row in islice(ranked, each)]
    columns: list[Column[Row]] = [
        Column("", lambda row: "*" if row.get("pareto") else "", justify="left"),
        Column("workload", lambda row: row["workload"], justify="left"),
        *map(_axis_column, axes),
        *(_figure_column(goal.column) for goal in goals if goal.column in COLUMNS and goal.column not in _SHOWN),
        *(_figure_column(key, rank) for key, rank in _SHOWN.items() if any(row[key] is not None for row in chosen)),
    ]
    shown = fitting(columns, chosen, width)
    return [table(shown, chosen), *_meaning(rows, goals), "", legend(shown, width)]


def _rank(row: Row, goals: Sequence[Goal]) -> tuple[Any, ...]:
    if not goals:
        return row["workload"], -row["tflops"]
    return row["workload"], not row.get("pareto", False), *(goal.cost(row[goal.column]) for goal in goals)


def _meaning(rows: Sequence[Row], goals: Sequence[Goal]) -> list[str]:
    if not goals:
        return []
    count = sum(row.get("pareto", False) for row in rows)
    what = " and ".join(map(str, goals))
    if not count:
        return [f"In the order of {what}."]
    return [f"* on the Pareto front of {what}: {count} of {len(rows):,} points; no other point beats them in all."]


def _axis_column(axis: str) -> Column[Row]:
    return Column(path_head(axis), lambda row: str(row[axis]), legend=f"{axis}: {axis_title(axis)}")


def _figure_column(key: str, rank: int = 0) -> Column[Row]:
    return figure_column(COLUMNS[key], lambda row: row[key], COLUMNS[key].usual, rank)
