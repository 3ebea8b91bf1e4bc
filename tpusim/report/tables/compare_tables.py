"""Two results side by side, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from tpusim.base.words import counted
from tpusim.report.tables.compare_results import ORDERS, Change, Compared, ComparedResults, Measured, Row
from tpusim.report.tables.layout import WIDEST, Column, fitting, legend, table
from tpusim.report.tables.run import first_wrong, heading, verdict
from tpusim.report.tables.together import overlap_notice, riding
from tpusim.report.text import document, folded, percent, scale, shortened, three_digits
from tpusim.result.by_op import by_op
from tpusim.result.records import Result
from tpusim.result.vocabulary.figures import BYTES, JOULES, LAYER, TIMES, Units
from tpusim.result.vocabulary.runs import left_out


def headings(compared: ComparedResults, names: Sequence[str], width: int) -> str:
    """What A and B are."""
    results = zip("AB", names, (compared.before, compared.after), strict=True)
    return folded((f"{letter}: {name}: {_told(result)}" for letter, name, result in results), width, "   ")


def _told(result: Result) -> str:
    missing = left_out(result.not_timed.items(), result.not_known.items())
    return f"{heading(result)}. {missing}" if missing else heading(result)


def changes_table(compared: ComparedResults) -> Table:
    """The inputs that differ."""
    columns: list[Column[Change]] = [
        Column("input", lambda change: change.name, justify="left"),
        Column("A", lambda change: _given(change.before), justify="fold"),
        Column("B", lambda change: _given(change.after), justify="fold"),
    ]
    return table(columns, compared.changes)


def layers_table(compared: ComparedResults, order: str, width: int | None = None) -> Table:
    """One row a layer, in as many columns as `width` characters hold (None: all). Equal ones only in network order."""
    rows = _rows(compared, order)
    return table(_shown(compared, rows, width), rows)


def layers_legend(compared: ComparedResults, order: str, width: int | None = None) -> str:
    """What the columns of `layers_table` hold, and what cycles are where layers overlap."""
    shares = _SHARES if any(map(overlap_notice, (compared.before, compared.after))) else ""
    return folded([f"{legend(_shown(compared, _rows(compared, order), width))} {shares}"], min(width or WIDEST, WIDEST))


def _rows(compared: ComparedResults, order: str) -> list[Row]:
    return [row for row in sorted(compared.rows, key=ORDERS[order]) if order == "network" or not row.unchanged]


def _shown(compared: ComparedResults, rows: Sequence[Row], width: int | None) -> list[Column[Row]]:
    return fitting(_columns(compared, max(12, width // 4) if width else None), rows, width)


def unchanged(compared: ComparedResults) -> str:
    """How many layers are left out of the table because nothing changed; empty when none."""
    count = sum(row.unchanged for row in compared.rows)
    if count == 0:
        return ""
    if count == len(compared.rows):
        return "Every layer takes the same cycles."
    return f"{count} of {len(compared.rows)} layers take the same cycles (--sort network shows them)."


def totals(compared: ComparedResults, width: int) -> str:
    """All layers together, and the mean over layers."""
    before, after = compared.before.total, compared.after.total
    lines = [
        f"Total: {before.cycles:,} -> {after.cycles:,} cycles ({times(after.cycles, before.cycles)}); "
        f"{times_taken(before.time_us, after.time_us)}; PE utilisation {percent(before.pe_utilization)} -> "
        f"{percent(after.pe_utilization)} %",
        *_moved(compared),
        *_per_image(compared),
        *_common(compared),
        *_by_op(compared),
    ]
    if (mean := compared.geometric_mean) is not None:
        by_mac = "" if compared.same_work else ", by the MAC"
        lines.append(
            f"Geometric mean over {compared.mean_is_over('layers')}, each weighing the same{by_mac}: {times(mean)}"
        )
    return folded(lines, width, "  ")


MOST_EDGES = 4
"""Layers of which it is told that they read something else; more of them are counted."""


def rewired(compared: ComparedResults, width: int) -> str:
    """Layers that do not read the same in both; empty when there are none."""
    said = [f"{name} reads {' and '.join(one)} in A, {' and '.join(two)} in B"
            for name, (one, two) in compared.rewired.items()]  # fmt: skip
    if not said:
        return ""
    more = [f"and {len(said) - MOST_EDGES:,} more (--json has them)"] if len(said) > MOST_EDGES else []
    return folded([f"Not wired alike: {'; '.join([*said[:MOST_EDGES], *more])}."], width, "  ")


def verdicts(compared: ComparedResults, width: int) -> str:
    """What of each is not apart, and whether its outputs were right."""
    lines = []
    for letter, result in zip("AB", (compared.before, compared.after), strict=True):
        lines += [f"{letter}: {told}" for told in (riding(result), *overlap_notice(result).splitlines()) if told]
        wrong = first_wrong(result)
        more = f" WRONG: {wrong}; its cycles may be those of another computation." if wrong else ""
        lines.append(f"{letter}: {verdict(result)}{more}")
    return folded(lines, width, "   ")


def to_json(compared: ComparedResults) -> str:
    """Everything, for other tools; null where a layer is in one result only, and how many are one in the other."""
    before, after = compared.before.total, compared.after.total
    return document(
        changes=[asdict(change) for change in compared.changes],
        total={
            **sides(before, after, "cycles", "time_us", "pe_utilization"),
            "ratio": after.cycles / before.cycles,
            "geometric_mean": compared.geometric_mean,
        },
        layers=[
            {
                "name": row.name,
                **sides(row.before, row.after, "cycles", "time_us", "macs", "pe_utilization"),
                "ratio": row.ratio,
                "mac_ratio": row.mac_ratio,
                **({"layers": row.layers} if row.layers > 1 else {}),
                **({"inputs": compared.rewired[row.name]} if row.name in compared.rewired else {}),
            }
            for row in compared.rows
        ],
        by_op=ops_of(compared),
        outputs=[
            {"outputs": total.outputs, "checked": total.outputs_checked, "mismatched": total.outputs_mismatched}
            for total in (before, after)
        ],
    )


def sides(before: Measured | None, after: Measured | None, *names: str) -> dict[str, list[Any]]:
    return {name: [getattr(side, name) if side else None for side in (before, after)] for name in names}


_PE = f"PE %: {LAYER['pe_utilization'].label}, {LAYER['pe_utilization'].meaning}"
_OF_A = "of A: the change in percent of all of A's cycles"
_CARRIED = "+1: with a layer that rides on its results in A or in B, and is apart in the other"
_SHARES = (
    "Where layers overlap, the cycles of each are its share; in them it may wait for transfers of those before it."
)
_BY_MAC = "MAC: the same by the MAC, as the work differs"
_IN_TIME = "time: the same in time, as the clocks differ"


def _columns(compared: ComparedResults, name_width: int | None) -> list[Column[Row]]:
    all_of_a = compared.before.total.cycles
    carried = any(row.layers > 1 for row in compared.rows)
    return [
        Column("layer", lambda row: _called(row, name_width), justify="left", legend=_CARRIED * carried),
        *measured_columns(compared),
        Column("of A\n%", lambda row: f"{100 * row.difference / all_of_a:+.1f}", 4, legend=_OF_A),
    ]


def _called(row: Row, width: int | None) -> str:
    others = f" +{row.layers - 1}" if row.layers > 1 else ""
    return shortened(row.name, width and width - len(others)) + others


def measured_columns(compared: Compared) -> list[Column[Row]]:
    """What was measured of both sides, and how they differ."""
    columns: list[Column[Row]] = [
        Column("A\ncycles", lambda row: _cell(row.before, lambda layer: f"{layer.cycles:,}")),
        Column("B\ncycles", lambda row: _cell(row.after, lambda layer: f"{layer.cycles:,}")),
        Column("\nB/A", _ratio_or_side, legend="B/A: cycles of B over those of A; below 1, B takes fewer"),
        Column("A\nPE %", lambda row: _cell(row.before, lambda layer: percent(layer.pe_utilization)), 3),
        Column("B\nPE %", lambda row: _cell(row.after, lambda layer: percent(layer.pe_utilization)), 3, legend=_PE),
        Column(
            "\nchange",
            lambda row: f"{row.difference:+,}" if row.difference or row.ratio else "-",
            2,
            legend="change: cycles of B less those of A",
        ),
    ]
    if not compared.same_work:
        columns.insert(3, Column("MAC\nB/A", lambda row: _ratio(row.mac_ratio), 1, legend=_BY_MAC))
    if not compared.same_clock:
        columns.insert(3, Column("time\nB/A", lambda row: _ratio(row.time_ratio), 1, legend=_IN_TIME))
    return columns


def _ratio_or_side(row: Row) -> str:
    return _ratio(row.ratio) if row.ratio else "only A" if row.before else "only B"


def _cell(layer: Measured | None, text: Callable[[Measured], str]) -> str:
    return text(layer) if layer else "-"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def times(after: float, before: float = 1) -> str:
    return f"x {after / before:.3f}" if before else "x -"


def times_taken(before: float, after: float) -> str:
    """Two times in one unit: "3.56 -> 1.78 ms (x 0.500)"."""
    return _two_of(before, after, TIMES)


def _two_of(before: float, after: float, units: Units) -> str:
    unit, size = scale((before, after), units)
    return f"{three_digits(before / size)} -> {three_digits(after / size)} {unit} ({times(after, before)})"


def _moved(compared: ComparedResults) -> list[str]:
    """Bytes and joules, where they differ."""
    totals = compared.before.total, compared.after.total
    moved = [total.hbm_read_bytes + total.hbm_write_bytes for total in totals]
    energies = [total.energy_use.energy for total in totals if total.energy_use]
    told = [f"HBM traffic {_two_of(moved[0], moved[1], BYTES)}"] * (moved[0] != moved[1])
    if len(energies) == len(totals) and energies[0] != energies[1]:
        told.append(f"energy, a model, {_two_of(energies[0], energies[1], JOULES)}")
    return ["; ".join(told)] if told else []


def _given(value: Any) -> str:
    return "(not there)" if value is None else str(value)


def _per_image(compared: ComparedResults) -> list[str]:
    """Where the batch differs, and every layer is in both."""
    before, after = compared.before, compared.after
    if before.batch == after.batch or min(before.batch, after.batch) < 1 or len(compared.common) < len(compared.rows):
        return []
    return [f"Per image: {times_taken(*(result.total.time_us / result.batch for result in (before, after)))}"]


def _by_op(compared: ComparedResults) -> list[str]:
    """Where there are several kinds of op: the cycles of each."""
    uses = ops_of(compared)
    if len(uses) < 2:
        return []
    told = (f"{op} {before:,} -> {after:,}" for op, (before, after) in uses.items())
    return [f"Cycles by op: {', '.join(told)}"]


def ops_of(compared: ComparedResults) -> dict[str, list[int]]:
    """By op its cycles in each, 0 where there is none of it."""
    one, other = (by_op(result.layers) for result in (compared.before, compared.after))
    return {op: [side[op].cycles if op in side else 0 for side in (one, other)] for op in {**one, **other}}


def _common(compared: ComparedResults) -> list[str]:
    """Where the two do not have the same layers: those that both have."""
    if len(compared.common) == len(compared.rows):
        return []
    if not compared.common:
        return ["They have no layer in common."]
    before, after = (sum(layer.cycles for layer in side) for side in zip(*compared.common, strict=True))
    return [
        f"{counted(len(compared.common), 'layer')} in both: {before:,} -> {after:,} cycles ({times(after, before)})"
    ]
