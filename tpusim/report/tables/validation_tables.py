"""How close tpusim comes to the reference numbers, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from tpusim.base.version import __version__
from tpusim.report.tables.run import table
from tpusim.study.validation.compare import Comparison

_COLUMNS = (
    "set", "status", "cases", "mean", "median", "90th", "worst", "where", "total", "fit", "rest", "roofline",
)  # fmt: skip
_FIRST_TO_GO = ("where", "90th", "median", "fit", "rest", "cases")

LEGEND = """\
Absolute errors relative to the reference, in percent; worst: with its sign, and where. total: error of the sum.
fit, rest: mean over the half of the cases that the fitted numbers of the machine were chosen on, and over the
other half. roofline: the mean error of max(MACs / PEs, bytes / bandwidth). estimated: Google's compiler priced
its own schedule, no chip ran; measured: somebody ran the chip."""


def summary_table(comparisons: Sequence[Comparison], width: int | None = None) -> Table:
    """One row a set of numbers, in as many columns as `width` characters hold (None: all of them)."""
    columns = list(_COLUMNS)
    rows = [dict(zip(_COLUMNS, _summary(each), strict=True)) for each in comparisons]
    for name in _FIRST_TO_GO:
        if width is None or sum(max(len(c), *(len(row[c]) for row in rows)) + 1 for c in columns) <= width:
            break
        columns.remove(name)
    left = {"set", "status", "where"}
    heads = [(name, "left" if name in left else "right") for name in columns]
    return table(heads, [[row[name] for name in columns] for row in rows])


def rows_table(comparison: Comparison) -> Table:
    """One row a case of one set."""
    unit = comparison.numbers.unit
    columns = ["case", f"tpusim\n{unit}", f"{comparison.numbers.status}\n{unit}", "error\n%", "roofline\nerror %"]
    rows = [
        [row.name, _figure(row.ours), _figure(row.theirs), _signed(row.error), _signed(row.roofline_error)]
        for row in comparison.rows
    ]
    return table([(name, "left" if name == "case" else "right") for name in columns], rows)


def to_json(comparisons: Sequence[Comparison]) -> str:
    """Every set with its figures and rows; errors as ratios."""
    return json.dumps({"tpusim": __version__, "sets": [_to_dict(each) for each in comparisons]}, indent=2)


def _summary(comparison: Comparison) -> list[str]:
    numbers, ours = comparison.numbers, comparison.ours
    halves = [comparison.half(fitted) for fitted in (True, False)]
    return [
        numbers.name,
        numbers.status,
        f"{len(comparison.rows)}",
        *(f"{100 * value:.2f}" for value in (ours.mean, ours.median, ours.p90)),
        _signed(ours.worst),
        ours.where,
        _signed(comparison.total_error),
        *("-" if half is None else f"{100 * half:.2f}" for half in halves),
        f"{100 * comparison.roofline.mean:.1f}",
    ]


def _to_dict(comparison: Comparison) -> dict[str, Any]:
    numbers = comparison.numbers
    about = {key: getattr(numbers, key) for key in ("name", "status", "about", "hardware", "changes", "unit")}
    left_out = () if numbers.fitted else ("fitted",)
    rows = [{**asdict(row), "error": row.error, "roofline_error": row.roofline_error} for row in comparison.rows]
    figures = {"ours": asdict(comparison.ours), "roofline": asdict(comparison.roofline)}
    halves = {"fit": comparison.half(True), "rest": comparison.half(False)}
    rows = [{name: value for name, value in row.items() if name not in left_out} for row in rows]
    return {**about, **figures, "total_error": comparison.total_error, "halves": halves, "rows": rows}


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _signed(ratio: float) -> str:
    return f"{100 * ratio:+.1f}"
