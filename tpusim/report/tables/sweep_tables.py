"""A sweep as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from tpusim.report.tables.run import percent, table, three_digits
from tpusim.study.sweep.column import COSTS, Goal

Row = Mapping[str, Any]

_FIGURES = ("cycles", "time\nms", "TF/s", "PE\n%", "map\n%", "idle\n%")
_COSTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "pes": ("PEs", lambda value: f"{value:,.0f}"),
    "lanes": ("lanes", lambda value: f"{value:,.0f}"),
    "sram_bytes": ("SRAM\nMiB", lambda value: three_digits(value / 2**20)),
    "hbm_bytes_per_s": ("HBM\nGB/s", lambda value: three_digits(value / 1e9)),
}


def best(rows: Sequence[Row], axes: Sequence[str], goals: Sequence[Goal] = (), most: int = 10) -> list[Table | str]:
    """A table of the best points, `most` together but at least one a workload, and what their order and stars mean.

    Without goals, best is the most TFLOPS, which for one network and batch is the least time; with goals, best is the
    Pareto front, in the order of the first goal.
    """
    finished = sorted((row for row in rows if not row["error"]), key=lambda row: _rank(row, goals))
    each = max(1, most // max(1, len({row["workload"] for row in finished})))
    taken: Counter[str] = Counter()
    chosen = []
    for row in finished:
        taken[row["workload"]] += 1
        if taken[row["workload"]] <= each:
            chosen.append(row)
    extra = [goal.column for goal in goals if goal.column in COSTS]
    heads = [("", "left"), ("workload", "left"), *((_broken(axis), "right") for axis in axes)]
    heads += [(name, "right") for name in (*(_COSTS[name][0] for name in extra), *_FIGURES)]
    return [table(heads, [_cells(row, axes, extra) for row in chosen]), *_meaning(rows, goals)]


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


def _broken(axis: str) -> str:
    """A long path on several lines, so that the column is as wide as its values."""
    return axis.replace(", ", ",\n").replace(".", ".\n")


def _cells(row: Row, axes: Sequence[str], extra: Sequence[str]) -> list[str]:
    return [
        "*" if row.get("pareto") else "",
        row["workload"],
        *(str(row[axis]) for axis in axes),
        *(_COSTS[name][1](row[name]) for name in extra),
        f"{row['cycles']:,.0f}",
        three_digits(row["time_us"] / 1e3),
        three_digits(row["tflops"]),
        *(percent(row[name]) for name in ("pe_utilization", "mapping_efficiency", "port_idle_ratio")),
    ]
