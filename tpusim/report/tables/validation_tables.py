"""How close tpusim comes to the reference numbers, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from tpusim.report.tables.layout import WIDEST, Column, fitting, legend, table
from tpusim.report.text import document, folded
from tpusim.study.validation.compare import ComparedCase, Comparison

_STATUS = {
    "estimated": "estimated: Google's compiler priced its own schedule, no chip ran",
    "measured": "measured: somebody ran the chip",
}


def summary_table(comparisons: Sequence[Comparison], width: int | None = None) -> Table:
    """One row a set of numbers, in as many columns as `width` characters hold (None: all of them)."""
    return table(_SUMMARY, comparisons, width)


def summary_legend(comparisons: Sequence[Comparison], width: int | None = None) -> str:
    """What the columns of `summary_table` hold, and the words in them."""
    said = dict.fromkeys(_STATUS[each.numbers.status] for each in comparisons)
    return folded([f"{legend(fitting(_SUMMARY, comparisons, width))} {'. '.join(said)}."], min(width or WIDEST, WIDEST))


def rows_table(comparison: Comparison) -> Table:
    """One row a case of one set."""
    numbers = comparison.numbers
    columns: list[Column[ComparedCase]] = [
        Column("case", lambda row: row.name, justify="left"),
        Column(f"tpusim\n{numbers.unit}", lambda row: _figure(row.ours)),
        Column(f"{numbers.status}\n{numbers.unit}", lambda row: _figure(row.theirs)),
        Column("error\n%", lambda row: _signed(row.error)),
        Column("roofline\nerror %", lambda row: _signed(row.roofline_error)),
    ]
    return table(columns, comparison.rows)


def to_json(comparisons: Sequence[Comparison]) -> str:
    """Every set with its figures and rows as JSON; errors as ratios."""
    return document(sets=[_to_dict(each) for each in comparisons])


def _to_dict(comparison: Comparison) -> dict[str, Any]:
    numbers = comparison.numbers
    rows = [{**asdict(row), "error": row.error, "roofline_error": row.roofline_error} for row in comparison.rows]
    for row in rows if not numbers.fitted else ():
        del row["fitted"]
    return {
        **{key: getattr(numbers, key) for key in ("name", "status", "about", "hardware", "changes", "unit")},
        "ours": asdict(comparison.ours),
        "roofline": asdict(comparison.roofline),
        "total_error": comparison.total_error,
        "halves": {"fit": comparison.half(True), "rest": comparison.half(False)},
        "rows": rows,
    }


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _signed(ratio: float) -> str:
    return f"{100 * ratio:+.1f}"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.2f}"


_MEAN = "mean: of the absolute errors relative to the reference, in percent"
_FIT = "fit: mean over the half of the cases that the fitted numbers of the machine were chosen on"
_ROOFLINE = "roofline: the mean error of max(MACs / PEs, bytes / bandwidth)"

_SUMMARY: tuple[Column[Comparison], ...] = (
    Column("set", lambda each: each.numbers.name, justify="left"),
    Column("status", lambda each: each.numbers.status, justify="left"),
    Column("cases", lambda each: f"{len(each.rows)}", 1),
    Column("mean", lambda each: _percent(each.ours.mean), legend=_MEAN),
    Column("median", lambda each: _percent(each.ours.median), 4, legend="median: of the same errors"),
    Column("90th", lambda each: _percent(each.ours.p90), 5, legend="90th: nine of ten are not larger"),
    Column("worst", lambda each: _signed(each.ours.worst), legend="worst: the largest, with its sign"),
    Column("where", lambda each: each.ours.where, 6, "left", "where: the case of the worst"),
    Column("total", lambda each: _signed(each.total_error), legend="total: error of the sum over all cases"),
    Column("fit", lambda each: _percent(each.half(True)), 3, legend=_FIT),
    Column(
        "rest", lambda each: _percent(each.half(False)), 2, legend="rest: mean over the cases nothing was fitted on"
    ),
    Column("roofline", lambda each: f"{100 * each.roofline.mean:.1f}", legend=_ROOFLINE),
)
