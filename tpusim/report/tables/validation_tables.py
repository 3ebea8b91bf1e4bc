"""How close tpusim comes to the reference numbers, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from tpusim.report.tables.layout import Column, fitting, legend, table
from tpusim.report.text import document
from tpusim.study.validation.cases import NETWORKS, WORDS, LeftOut
from tpusim.study.validation.comparison import AGREEING, ComparedCase, Comparison, by_word

_NONE = "-"


def summaries(comparisons: Sequence[Comparison], width: int | None = None) -> Iterator[tuple[str, Table]]:
    """For each word what it means, and a table of its sets, in as many columns as `width` characters hold (None: all).

    Kinds of which there are several sets have a row of all their cases. What no set has makes no column.
    """
    for word, found in by_word(comparisons).items():
        yield f"{word.capitalize()}: {WORDS[word]}.", table(_shown(found, width), found)


def summary_legend(comparisons: Sequence[Comparison], width: int | None = None) -> str:
    """What the columns of these tables hold."""
    shown = {column.header for found in by_word(comparisons).values() for column in _shown(found, width)}
    return legend([column for column in _SUMMARY if column.header in shown], width)


def _shown(found: Sequence[Comparison], width: int | None) -> list[Column[Comparison]]:
    said = [column for column in _SUMMARY if any(column.cell(each) != _NONE for each in found)]
    return fitting(said, found, width)


def rows_heading(comparison: Comparison) -> str:
    """What a set holds, and what it is held against."""
    numbers = comparison.numbers
    simulated = f"simulated on {numbers.hardware}" + f" by {numbers.lowering}" * bool(numbers.lowering)
    return f"{numbers.name}: {numbers.about}; {numbers.status}, {simulated}."


def rows_table(comparison: Comparison) -> Table:
    """One row a case of one set."""
    numbers = comparison.numbers
    columns: list[Column[ComparedCase]] = [
        Column("case", lambda row: row.name, justify="left"),
        Column(f"tpusim\n{numbers.unit}", lambda row: _figure(row.ours)),
        Column(f"{numbers.status}\n{numbers.unit}", lambda row: _figure(row.theirs)),
        Column("error\n%", lambda row: _signed(row.error)),
        Column("error %,\ntheir block", lambda row: _signed(row.error_with_their_block)),
        Column("quirk", lambda row: "yes" if row.quirk else _NONE),
        Column("roofline\nerror %", lambda row: _signed(row.roofline_error)),
    ]
    said = [column for column in columns if any(column.cell(row) != _NONE for row in comparison.rows)]
    return table(said, comparison.rows)


def totals_heading() -> str:
    """What the table of totals holds."""
    return "Whole networks: cycles of all their operations together."


def totals_table(comparisons: Sequence[Comparison]) -> Table | None:
    """What whole networks take together, and what of them is left out; None without networks."""
    found = [each for each in comparisons if each.numbers.kind == NETWORKS]
    return table(_TOTALS, found) if found else None


def left_out_table(comparison: Comparison) -> Table | None:
    """What belongs to a set, but is not compared; None where nothing is left out."""
    columns: list[Column[LeftOut]] = [
        Column("left out", lambda each: each.name, justify="left"),
        Column(f"{comparison.numbers.status}\n{comparison.numbers.unit}", lambda each: _figure(each.theirs)),
    ]
    return table(columns, comparison.numbers.left_out) if comparison.numbers.left_out else None


def to_json(comparisons: Sequence[Comparison]) -> str:
    """Every set with its figures and rows as JSON, and those of a word and kind together; errors are ratios."""
    shared = (each for found in by_word(comparisons).values() for each in found if each not in comparisons)
    return document(
        sets=[{**_to_dict(each), "rows": _rows(each)} for each in comparisons],
        together=[_to_dict(each) for each in shared],
    )


def _to_dict(comparison: Comparison) -> dict[str, Any]:
    numbers, blocks, agreement = comparison.numbers, comparison.with_their_blocks, comparison.agreement
    return {
        **{
            key: getattr(numbers, key)
            for key in ("name", "status", "kind", "about", "hardware", "lowering", "changes", "unit")
        },
        "cases": len(comparison.rows),
        "ours": asdict(comparison.ours),
        "with_their_blocks": asdict(blocks) if blocks else None,
        "roofline": asdict(comparison.roofline),
        "total_error": comparison.total_error,
        "totals": dict(zip(("ours", "theirs"), comparison.totals, strict=True)),
        "left_out": [asdict(each) for each in numbers.left_out],
        "halves": {"fit": comparison.half(True), "rest": comparison.half(False)},
        "quirks": {"cases": comparison.quirks, "mean_without": comparison.without_quirks},
        "estimate_and_schedule": dict(zip(("agree", "known"), agreement, strict=True)) if agreement else None,
    }


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    rows = [
        {**asdict(row), "error": row.error, "error_with_their_block": row.error_with_their_block,
         "roofline_error": row.roofline_error} for row in comparison.rows
    ]  # fmt: skip
    for row in rows if not comparison.numbers.fitted else ():
        del row["fitted"]
    return rows


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _signed(ratio: float | None) -> str:
    return _NONE if ratio is None else f"{100 * ratio:+.1f}"


def _percent(ratio: float | None) -> str:
    return _NONE if ratio is None else f"{100 * ratio:.2f}"


def _blocks(each: Comparison) -> str:
    """With the number of cases, where not all have a block."""
    if (spread := each.with_their_blocks) is None:
        return _NONE
    having = sum(row.with_their_block is not None for row in each.rows)
    return _percent(spread.mean) + (f" ({having})" if having < len(each.rows) else "")


def _besides(each: Comparison) -> str:
    return _figure(sum(one.theirs for one in each.numbers.left_out)) if each.numbers.left_out else _NONE


def _agreement(each: Comparison) -> str:
    return "{} of {}".format(*each.agreement) if each.agreement else _NONE


_MEAN = "mean: of the absolute errors relative to the reference, in percent"
_BLOCKS = "their blocks: the same with the compiler's blocks instead of ours (of so many cases, if not of all)"
_FIT = "fit: mean over the half of the cases that the fitted numbers of the machine were chosen on"
_REST = "rest: mean over the cases nothing was fitted on"
_QUIRK = "quirk: cases of which the estimator charges only some of the taps"
_AGREE = f"agree: cases in which estimate and schedule are within {100 * AGREEING:.0f} %, of those that have both"
_ROOFLINE = "roofline: the mean error of max(MACs / PEs, bytes / bandwidth)"

_SUMMARY: tuple[Column[Comparison], ...] = (
    Column("set", lambda each: each.numbers.name, justify="left"),
    Column("machine", lambda each: each.numbers.hardware, 8, "left"),
    Column("cases", lambda each: f"{len(each.rows)}", 1),
    Column("mean", lambda each: _percent(each.ours.mean), legend=_MEAN),
    Column("their\nblocks", _blocks, legend=_BLOCKS),
    Column("median", lambda each: _percent(each.ours.median), 5, legend="median: of the same errors"),
    Column("90th", lambda each: _percent(each.ours.p90), 6, legend="90th: nine of ten are not larger"),
    Column("worst", lambda each: _signed(each.ours.worst), legend="worst: the largest, with its sign"),
    Column("where", lambda each: each.ours.where, 7, "left", "where: the case of the worst"),
    Column("total", lambda each: _signed(each.total_error), legend="total: error of the sum over all cases"),
    Column("fit", lambda each: _percent(each.half(True)), 4, legend=_FIT),
    Column("rest", lambda each: _percent(each.half(False)), 4, legend=_REST),
    Column("quirk", lambda each: f"{each.quirks or _NONE}", 2, legend=_QUIRK),
    Column("without", lambda each: _percent(each.without_quirks), 2, legend="without: mean over all others"),
    Column("agree", _agreement, 3, legend=_AGREE),
    Column("roofline", lambda each: f"{100 * each.roofline.mean:.1f}", legend=_ROOFLINE),
)

_TOTALS: tuple[Column[Comparison], ...] = (
    Column("network", lambda each: each.numbers.about, justify="left"),
    Column("said", lambda each: each.numbers.status, justify="left"),
    Column("operations", lambda each: f"{len(each.rows)} of {len(each.rows) + len(each.numbers.left_out)}"),
    Column("tpusim\ncycles", lambda each: _figure(each.totals[0])),
    Column("their\ncycles", lambda each: _figure(each.totals[1])),
    Column("error\n%", lambda each: _signed(each.total_error)),
    Column("left out,\ntheir cycles", _besides),
)
