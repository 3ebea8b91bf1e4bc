"""Two runs side by side, or two sweeps: what `tpusim compare` tells, in words and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from tpusim.base.words import counted
from tpusim.report.shown import Column, Paragraphs, Sentences, Shown, Table, path_head
from tpusim.report.tables.compared import (
    ORDERS,
    Change,
    Compared,
    ComparedResults,
    ComparedRow,
    ComparedSweeps,
    Measured,
    PointRow,
)
from tpusim.report.tables.sentences import first_wrong, heading, overlap_notice, riding, verdict
from tpusim.report.tables.sweep import SweepPoints
from tpusim.report.text import percent, scale, three_digits
from tpusim.result.records import Result, by_op
from tpusim.result.vocabulary.figures import BYTES, JOULES, LAYER, TIMES, Units
from tpusim.result.vocabulary.runs import left_out

MOST_ROWS = 50
"""Points shown; the JSON has all."""
MOST_EDGES = 4
"""Layers of which it is told that they read something else; more of them are counted."""

_PE = f"PE %: {LAYER['pe_utilization'].label}, {LAYER['pe_utilization'].meaning}"
_OF_A = "of A: the change in percent of all of A's cycles"
_CARRIED = "+1: with a layer that rides on its results in A or in B, and is apart in the other"
_SHARES = (
    "Where layers overlap, the cycles of each are its share; in them it may wait for transfers of those before it."
)
_BY_MAC = "MAC: the same by the MAC, as the work differs"
_IN_TIME = "time: the same in time, as the clocks differ"

AnyRow = TypeVar("AnyRow", bound=ComparedRow)

# ---- runs


def runs_compared(compared: ComparedResults, names: Sequence[str], order: str) -> Shown:
    """What A and B are, what differs in what was asked, the layers in this order, and all of them together.

    In JSON null stands where a layer is in one result only; `layers` says how many are one in the other.
    """
    edges = " but for what layers read" if compared.rewired else ""
    layers = layer_table(compared, order)
    return Shown(
        (
            [_named(names, map(_run, (compared.before, compared.after)))],
            [Table(_CHANGES, compared.changes) if compared.changes else f"Nothing differs in what was asked{edges}."],
            *_of_rows(layers, *[_SHARES] * any(map(overlap_notice, (compared.before, compared.after)))),
            [_unchanged(compared, order), rewired(compared), totals(compared), verdicts(compared)],
        ),
        _run_data(compared),
    )


def _run_data(compared: ComparedResults) -> dict[str, Any]:
    before, after = compared.before.total, compared.after.total
    return {
        "changes": [asdict(change) for change in compared.changes],
        "total": {
            **_sides(before, after, "cycles", "time_us", "pe_utilization"),
            "ratio": after.cycles / before.cycles,
            "geometric_mean": compared.geometric_mean,
        },
        "layers": [
            {
                "name": row.name,
                **_measured(row),
                **({"layers": row.layers} if row.layers > 1 else {}),
                **({"inputs": compared.rewired[row.name]} if row.name in compared.rewired else {}),
            }
            for row in compared.rows
        ],
        "by_op": _ops_of(compared),
        "outputs": [
            {"outputs": total.outputs, "checked": total.outputs_checked, "mismatched": total.outputs_mismatched}
            for total in (before, after)
        ],
    }


def _run(result: Result) -> str:
    missing = left_out(result.not_timed.items(), result.not_known.items())
    return f"{heading(result)}. {missing}" if missing else heading(result)


_CHANGES: tuple[Column[Change], ...] = (
    Column("input", lambda change: change.name, justify="left"),
    Column("A", lambda change: _given(change.before), justify="fold"),
    Column("B", lambda change: _given(change.after), justify="fold"),
)


def _given(value: Any) -> str:
    return "(not there)" if value is None else str(value)


def layer_table(compared: ComparedResults, order: str) -> Table[ComparedRow]:
    """A row a layer. Equal ones only in network order."""
    all_of_a = compared.before.total.cycles
    carried = any(row.layers > 1 for row in compared.rows)
    columns: list[Column[ComparedRow]] = [
        Column(
            "layer",
            lambda row: f"{row.name} +{row.layers - 1}" if row.layers > 1 else row.name,
            justify="left",
            legend=_CARRIED * carried,
            part=4,
        ),
        *_measured_columns(compared),
        Column("of A\n%", lambda row: f"{100 * row.difference / all_of_a:+.1f}", 4, legend=_OF_A),
    ]
    return Table(columns, _ordered(compared.rows, order))


def _unchanged(compared: ComparedResults, order: str) -> str:
    """How many layers are left out of the table because nothing changed; empty when none."""
    count = 0 if order == "network" else sum(row.unchanged for row in compared.rows)
    if count == len(compared.rows):
        return "Every layer takes the same cycles."
    left = f"{count} of {len(compared.rows)} layers take the same cycles (--sort network shows them)."
    return left if count else ""


def totals(compared: ComparedResults) -> Sentences:
    """All layers together, and the mean over layers."""
    before, after = compared.before.total, compared.after.total
    lines = [
        f"Total: {before.cycles:,} -> {after.cycles:,} cycles ({_times(after.cycles, before.cycles)}); "
        f"{_two_of(before.time_us, after.time_us, TIMES)}; PE utilisation {percent(before.pe_utilization)} -> "
        f"{percent(after.pe_utilization)} %",
        *_moved(compared),
        *_per_image(compared),
        *([_in_both(compared, "layer")] if len(compared.common) < len(compared.rows) else []),
        *_by_op(compared),
        *_mean(compared, "layers"),
    ]
    return Sentences(lines, "  ")


def _moved(compared: ComparedResults) -> list[str]:
    """Bytes and joules, where they differ."""
    totals = compared.before.total, compared.after.total
    moved = [total.hbm_read_bytes + total.hbm_write_bytes for total in totals]
    energies = [total.energy_use.energy for total in totals if total.energy_use]
    told = [f"HBM traffic {_two_of(moved[0], moved[1], BYTES)}"] * (moved[0] != moved[1])
    if len(energies) == len(totals) and energies[0] != energies[1]:
        told.append(f"energy, a model, {_two_of(energies[0], energies[1], JOULES)}")
    return ["; ".join(told)] if told else []


def _per_image(compared: ComparedResults) -> list[str]:
    """Where the batch differs, and every layer is in both."""
    before, after = compared.before, compared.after
    if before.batch == after.batch or min(before.batch, after.batch) < 1 or len(compared.common) < len(compared.rows):
        return []
    one, other = (each.total.time_us / each.batch for each in (before, after))
    return [f"Per image: {_two_of(one, other, TIMES)}"]


def _by_op(compared: ComparedResults) -> list[str]:
    """Where there are several kinds of op: the cycles of each."""
    uses = _ops_of(compared)
    if len(uses) < 2:
        return []
    told = (f"{op} {before:,} -> {after:,}" for op, (before, after) in uses.items())
    return [f"Cycles by op: {', '.join(told)}"]


def _ops_of(compared: ComparedResults) -> dict[str, list[int]]:
    """By op its cycles in each, 0 where there is none of it."""
    one, other = (by_op(result.layers) for result in (compared.before, compared.after))
    return {op: [side[op].cycles if op in side else 0 for side in (one, other)] for op in {**one, **other}}


def rewired(compared: ComparedResults) -> Sentences:
    """Layers that do not read the same in both; empty when there are none."""
    said = [f"{name} reads {' and '.join(one)} in A, {' and '.join(two)} in B"
            for name, (one, two) in compared.rewired.items()]  # fmt: skip
    more = [f"and {len(said) - MOST_EDGES:,} more (--json has them)"] if len(said) > MOST_EDGES else []
    return Sentences([f"Not wired alike: {'; '.join([*said[:MOST_EDGES], *more])}."] if said else [], "  ")


def verdicts(compared: ComparedResults) -> Sentences:
    """What of each is not apart, and whether its outputs were right."""
    lines = []
    for letter, result in zip("AB", (compared.before, compared.after), strict=True):
        lines += [f"{letter}: {told}" for told in (riding(result), *overlap_notice(result).splitlines()) if told]
        wrong = first_wrong(result)
        more = f" WRONG: {wrong}; its cycles may be those of another computation." if wrong else ""
        lines.append(f"{letter}: {verdict(result)}{more}")
    return Sentences(lines, "   ")


# ---- sweeps


def sweeps_compared(compared: ComparedSweeps, names: Sequence[str], order: str) -> Shown:
    """What A and B are, at most MOST_ROWS points in this order, and all of them together.

    In JSON null stands where a point is in one sweep only.
    """
    points = _point_table(compared, order)
    return Shown(
        (
            [_named(names, map(_sweep, (compared.before, compared.after)))],
            *_of_rows(points),
            [_left_out(compared, order, len(points.rows)), Sentences([*_point_totals(compared)], "  ")],
        ),
        {
            "axes": [*compared.before.axes],
            "geometric_mean": compared.geometric_mean,
            "points": [{"settings": dict(row.settings), **_measured(row)} for row in compared.rows],
        },
    )


def _sweep(points: SweepPoints) -> str:
    networks = ", ".join(dict.fromkeys(points.texts["workload"]))
    failed = sum(map(bool, points.texts["error"]))
    batches = [] if "batch" in points.axes else dict.fromkeys(points.texts.get("batch", ()))
    parts = [f"sweep {points.name}", f"{counted(points.size, 'point')} of {networks}"]
    parts += [f"batch {batch}" for batch in batches] + ([f"{failed:,} failed"] if failed else [])
    return ", ".join(parts)


def _point_table(compared: ComparedSweeps, order: str) -> Table[PointRow]:
    """A row a point. A workload that is the same everywhere is left out; it stands in the heading."""

    def setting(name: str, row: PointRow) -> str:
        return row.settings[name]

    one_network = len({row.settings["workload"] for row in compared.rows}) == 1
    names = [*([] if one_network else ["workload"]), *compared.before.axes]
    settings = [Column(path_head(name), partial(setting, name)) for name in names]
    return Table([*settings, *_measured_columns(compared)], _ordered(compared.rows, order)[:MOST_ROWS])


def _left_out(compared: ComparedSweeps, order: str, shown: int) -> str:
    """How many points the table does not show, and why; empty when none."""
    same = 0 if order == "network" else sum(row.unchanged for row in compared.rows)
    more = len(compared.rows) - same - shown
    if same == len(compared.rows):
        return "Every point takes the same cycles."
    parts = [f"{same:,} of {len(compared.rows):,} points with the same cycles"] if same else []
    parts += [f"{more:,} more (--json has all)"] if more else []
    return f"Not shown: {', '.join(parts)}." if parts else ""


def _point_totals(compared: ComparedSweeps) -> Iterator[str]:
    """The points in both together, the mean over them, and how many are in one only."""
    yield _in_both(compared, "point")
    yield from _mean(compared, "points")
    for letter, other in (("A", "after"), ("B", "before")):
        if count := sum(getattr(row, other) is None for row in compared.rows):
            yield f"{counted(count, 'point')} only in {letter}"


# ---- what both say


def _named(names: Sequence[str], told: Iterable[str]) -> Sentences:
    """What A and B are."""
    return Sentences([f"{letter}: {name}: {each}" for letter, name, each in zip("AB", names, told, strict=True)], "   ")


def _ordered(rows: Sequence[AnyRow], order: str) -> list[AnyRow]:
    """The rows in this order; but in that of the network without those that did not change."""
    return [row for row in sorted(rows, key=ORDERS[order]) if order == "network" or not row.unchanged]


def _of_rows(table: Table[Any], *more: str) -> Paragraphs:
    """The table and what it holds, where there is a row."""
    return ([table], [table.legend(*more)]) if table.rows else ()


def _measured(row: ComparedRow) -> dict[str, Any]:
    sides = _sides(row.before, row.after, "cycles", "time_us", "macs", "pe_utilization")
    return {**sides, "ratio": row.ratio, "mac_ratio": row.mac_ratio}


def _sides(before: object, after: object, *names: str) -> dict[str, list[Any]]:
    return {name: [getattr(side, name) if side else None for side in (before, after)] for name in names}


def _measured_columns(compared: Compared) -> list[Column[ComparedRow]]:
    """What was measured of both sides, and how they differ."""
    columns: list[Column[ComparedRow]] = [
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


def _ratio_or_side(row: ComparedRow) -> str:
    return _ratio(row.ratio) if row.ratio else "only A" if row.before else "only B"


def _cell(layer: Measured | None, text: Callable[[Measured], str]) -> str:
    return text(layer) if layer else "-"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def _in_both(compared: Compared, what: str) -> str:
    """The cycles of the layers or points that both have."""
    if not compared.common:
        return f"They have no {what} in common."
    before, after = (sum(each.cycles for each in side) for side in zip(*compared.common, strict=True))
    return f"{counted(len(compared.common), what)} in both: {before:,} -> {after:,} cycles ({_times(after, before)})"


def _mean(compared: Compared, what: str) -> list[str]:
    """The mean over layers or points, where there is one."""
    if (mean := compared.geometric_mean) is None:
        return []
    by_mac = "" if compared.same_work else ", by the MAC"
    return [f"Geometric mean over {compared.mean_is_over(what)}, each weighing the same{by_mac}: {_times(mean)}"]


def _times(after: float, before: float = 1) -> str:
    return f"x {after / before:.3f}" if before else "x -"


def _two_of(before: float, after: float, units: Units) -> str:
    """Two figures in one unit: "3.56 -> 1.78 ms (x 0.500)"."""
    unit, size = scale((before, after), units)
    return f"{three_digits(before / size)} -> {three_digits(after / size)} {unit} ({_times(after, before)})"
