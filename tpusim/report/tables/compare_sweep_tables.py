"""Two sweeps side by side, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from rich.table import Table

from tpusim.base.words import counted
from tpusim.report.page.sweep_file import SweepPoints
from tpusim.report.tables.compare_results import ORDERS
from tpusim.report.tables.compare_sweeps import ComparedSweeps, PointRow
from tpusim.report.tables.compare_tables import measured_columns, sides, times
from tpusim.report.tables.layout import Column, fitting, legend, path_head, table
from tpusim.report.text import document, folded

MOST_ROWS = 50
"""Points shown; the JSON has all."""


def headings(compared: ComparedSweeps, names: Sequence[str], width: int) -> str:
    """What A and B are."""
    both = zip("AB", names, (compared.before, compared.after), strict=True)
    return folded((f"{letter}: {name}: {_heading(points)}" for letter, name, points in both), width, "   ")


def _heading(points: SweepPoints) -> str:
    networks = ", ".join(dict.fromkeys(points.texts["workload"]))
    failed = sum(map(bool, points.texts["error"]))
    batches = [] if "batch" in points.axes else dict.fromkeys(points.texts.get("batch", ()))
    parts = [f"sweep {points.name}", f"{counted(points.size, 'point')} of {networks}"]
    parts += [f"batch {batch}" for batch in batches] + ([f"{failed:,} failed"] if failed else [])
    return ", ".join(parts)


def points_table(compared: ComparedSweeps, order: str, width: int | None = None) -> Table:
    """One row a point, at most MOST_ROWS. Equal ones only in the order of the sweep."""
    rows = _rows(compared, order)
    return table(_shown(compared, rows, width), rows)


def points_legend(compared: ComparedSweeps, order: str, width: int | None = None) -> str:
    """What the columns of `points_table` hold."""
    return legend(_shown(compared, _rows(compared, order), width), width)


def left_out(compared: ComparedSweeps, order: str) -> str:
    """How many points the table does not show, and why; empty when none."""
    same = 0 if order == "network" else sum(row.unchanged for row in compared.rows)
    more = len(compared.rows) - same - len(_rows(compared, order))
    if same == len(compared.rows):
        return "Every point takes the same cycles."
    parts = [f"{same:,} of {len(compared.rows):,} points with the same cycles"] if same else []
    parts += [f"{more:,} more (--json has all)"] if more else []
    return f"Not shown: {', '.join(parts)}." if parts else ""


def totals(compared: ComparedSweeps, width: int) -> str:
    """The points in both together, the mean over them, and how many are in one only."""
    return folded(_totals(compared), width, "  ")


def _totals(compared: ComparedSweeps) -> Iterator[str]:
    if common := compared.common:
        before, after = (sum(point.cycles for point in side) for side in zip(*common, strict=True))
        yield f"{counted(len(common), 'point')} in both: {before:,} -> {after:,} cycles ({times(after, before)})"
    else:
        yield "They have no point in common."
    if (mean := compared.geometric_mean) is not None:
        by_mac = "" if compared.same_work else ", by the MAC"
        yield f"Geometric mean over {compared.mean_is_over('points')}, each weighing the same{by_mac}: {times(mean)}"
    for letter, other in (("A", "after"), ("B", "before")):
        if count := sum(getattr(row, other) is None for row in compared.rows):
            yield f"{counted(count, 'point')} only in {letter}"


def to_json(compared: ComparedSweeps) -> str:
    """Everything, for other tools; null where a point is in one sweep only."""
    return document(
        axes=[*compared.before.axes],
        geometric_mean=compared.geometric_mean,
        points=[
            {
                "settings": dict(row.settings),
                **sides(row.before, row.after, "cycles", "time_us", "macs", "pe_utilization"),
                "ratio": row.ratio,
                "mac_ratio": row.mac_ratio,
            }
            for row in compared.rows
        ],
    )


def _rows(compared: ComparedSweeps, order: str) -> list[PointRow]:
    rows = sorted(compared.rows, key=ORDERS[order])
    return [row for row in rows if order == "network" or not row.unchanged][:MOST_ROWS]


def _shown(compared: ComparedSweeps, rows: Sequence[PointRow], width: int | None) -> list[Column[PointRow]]:
    """A workload that is the same everywhere is left out; it stands in the heading."""
    one_network = len({row.settings["workload"] for row in compared.rows}) == 1
    names = [*([] if one_network else ["workload"]), *compared.before.axes]
    settings = [Column(path_head(name), partial(_setting, name)) for name in names]
    return fitting([*settings, *measured_columns(compared)], rows, width)


def _setting(name: str, row: PointRow) -> str:
    return row.settings[name]
