"""How close tpusim comes to the reference numbers, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from tpusim.base.version import __version__
from tpusim.report.tables.layout import Column, fitted
from tpusim.study.validation.compare import Compared, Comparison

LEGEND = """\
Absolute errors relative to the reference, in percent; worst: with its sign, and where. total: error of the sum.
fit, rest: mean over the half of the cases that the fitted numbers of the machine were chosen on, and over the
other half. roofline: the mean error of max(MACs / PEs, bytes / bandwidth). estimated: Google's compiler priced
its own schedule, no chip ran; measured: somebody ran the chip."""


def summary_table(comparisons: Sequence[Comparison], width: int | None = None) -> Table:
    """One row a set of numbers, in as many columns as `width` characters hold (None: all of them)."""
    return fitted(_SUMMARY, comparisons, width)


def rows_table(comparison: Comparison) -> Table:
    """One row a case of one set."""
    numbers = comparison.numbers
    columns: list[Column[Compared]] = [
        Column("case", lambda row: row.name, justify="left"),
        Column(f"tpusim\n{numbers.unit}", lambda row: _figure(row.ours)),
        Column(f"{numbers.status}\n{numbers.unit}", lambda row: _figure(row.theirs)),
        Column("error\n%", lambda row: _signed(row.error)),
        Column("roofline\nerror %", lambda row: _signed(row.roofline_error)),
    ]
    return fitted(columns, comparison.rows)


def to_json(comparisons: Sequence[Comparison]) -> str:
    """Every set with its figures and rows; errors as ratios."""
    return json.dumps({"tpusim": __version__, "sets": [_to_dict(each) for each in comparisons]}, indent=2)


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


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.2f}"


_SUMMARY: tuple[Column[Comparison], ...] = (
    Column("set", lambda each: each.numbers.name, justify="left"),
    Column("status", lambda each: each.numbers.status, justify="left"),
    Column("cases", lambda each: f"{len(each.rows)}", 1),
    Column("mean", lambda each: _percent(each.ours.mean)),
    Column("median", lambda each: _percent(each.ours.median), 4),
    Column("90th", lambda each: _percent(each.ours.p90), 5),
    Column("worst", lambda each: _signed(each.ours.worst)),
    Column("where", lambda each: each.ours.where, 6, "left"),
    Column("total", lambda each: _signed(each.total_error)),
    Column("fit", lambda each: _percent(each.half(True)), 3),
    Column("rest", lambda each: _percent(each.half(False)), 2),
    Column("roofline", lambda each: f"{100 * each.roofline.mean:.1f}"),
)
