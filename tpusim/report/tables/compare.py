"""Two runs side by side, or two sweeps: the answer of `tpusim compare`, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from tpusim.base.words import counted
from tpusim.report.shown import NONE, Column, CommandAnswer, Paragraphs, Sentences, Table, path_head
from tpusim.report.tables.compared import Change, Comparable, ComparedResults, ComparedRow, ComparedSweeps
from tpusim.report.tables.sentences import first_wrong, heading, overlap_notice, riding, verdict
from tpusim.report.tables.sweep import SweepPoints
from tpusim.report.text import percent, scale, three_digits
from tpusim.result.records import StepResult, by_op
from tpusim.result.vocabulary.figures import BYTES, JOULES, LAYER, TIMES, Scales
from tpusim.result.vocabulary.runs import left_out

MOST_ROWS = 50
"""Most points shown; the JSON has all."""
MOST_EDGES = 4
"""Most layers whose changed inputs are listed; if there are more, they are counted."""

_PE = f"PE %: {LAYER['pe_utilization'].label}, {LAYER['pe_utilization'].meaning}"
_OF_A = "of A: the change in percent of all of A's cycles"
_CARRIED = "+1: with a layer that rides on its results in A or in B, and is apart in the other"
_SHARES = (
    "Where layers overlap, the cycles of each are its share; in them it may wait for transfers of those before it."
)
_BY_MAC = "MAC: the same by the MAC, as the work differs"
_IN_TIME = "time: the same in time, as the clocks differ"

# ---- runs


def runs_compared(compared: ComparedResults, names: Sequence[str], order: str) -> CommandAnswer:
    """Say what A and B are, how their inputs differ, the layers in this order, and all of them together.

    In JSON null stands where a layer is in one result only; `layers` says how many are one in the other.
    """
    edges = " but for what layers read" if compared.rewired else ""
    layers, rows, results = layer_table(compared, order), compared.rows, (compared.before, compared.after)
    runs = []
    for result in results:
        missing = left_out(result.not_timed.items(), result.not_known.items())
        runs.append(f"{heading(result)}. {missing}" if missing else heading(result))
    same = len(rows) - len(layers.rows)
    unchanged = f"{same} of {len(rows)} layers take the same cycles (--sort network shows them)." if same else ""
    if same == len(rows):
        unchanged = "Every layer takes the same cycles."
    return CommandAnswer(
        (
            [_named(names, runs)],
            [Table(_CHANGES, compared.changes) if compared.changes else f"Nothing differs in what was asked{edges}."],
            *_of_rows(layers, *[_SHARES] * any(map(overlap_notice, results))),
            [unchanged, rewired(compared), totals(compared), verdicts(compared)],
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
        **_step_data(compared),
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
            {
                "outputs": each.total.outputs,
                "checked": each.total.outputs_checked,
                "mismatched": each.total.outputs_mismatched,
                "correct": each.correct,
            }
            for each in (compared.before, compared.after)
        ],
    }


def _step_data(compared: ComparedResults) -> dict[str, Any]:
    if (steps := _steps_of(compared)) is None:
        return {}
    one, other = steps
    names = "chips", "cycles", "seconds", "exposed_cycles", "items_per_second", "items_per_second_chip"
    return {"step": {**_sides(one, other, *names), "ratio": other.cycles / one.cycles}}


_CHANGES: tuple[Column[Change], ...] = (
    Column("input", lambda change: change.name, justify="left"),
    Column("A", lambda change: "(not there)" if change.before is None else str(change.before), justify="fold"),
    Column("B", lambda change: "(not there)" if change.after is None else str(change.after), justify="fold"),
)


def layer_table(compared: ComparedResults, order: str) -> Table[ComparedRow]:
    """Return a row a layer. Equal layers are shown only in network order."""
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
    return Table(columns, compared.ordered(order))


def totals(compared: ComparedResults) -> Sentences:
    """Return the figures of all layers together, and the mean over layers.

    Bytes and joules where they differ, time by image where the batch does, cycles by op.
    """
    results = one, other = compared.before, compared.after
    sides = before, after = one.total, other.total
    in_both = len(compared.common) == len(compared.rows)
    lines = [
        f"Total: {before.cycles:,} -> {after.cycles:,} cycles ({_times(after.cycles, before.cycles)}); "
        f"{_two_of(before.time_us, after.time_us, TIMES)}; PE utilisation {percent(before.pe_utilization)} -> "
        f"{percent(after.pe_utilization)} %"
    ]
    moved = [total.hbm_read_bytes + total.hbm_write_bytes for total in sides]
    energies = [total.energy_use.energy for total in sides if total.energy_use]
    told = [f"HBM traffic {_two_of(moved[0], moved[1], BYTES)}"] * (moved[0] != moved[1])
    # An energy on one side alone cannot be compared.
    if len(energies) == len(sides) and energies[0] != energies[1]:
        told.append(f"energy, a model, {_two_of(energies[0], energies[1], JOULES)}")
    lines += ["; ".join(told)] if told else []
    # Of several chips the step says it, as a batch is a chip's.
    if one.batch != other.batch and min(one.batch, other.batch) >= 1 and in_both and not (one.step or other.step):
        images = [result.total.time_us / result.batch for result in results]
        lines.append(f"Per image: {_two_of(images[0], images[1], TIMES)}")
    lines += [_steps(*steps)] if (steps := _steps_of(compared)) else []
    lines += [] if in_both else [_in_both(compared, "layer")]
    uses = _ops_of(compared)
    if len(uses) > 1:
        told = [f"{op} {first:,} -> {second:,}" for op, (first, second) in uses.items()]
        lines.append(f"Cycles by op: {', '.join(told)}")
    return Sentences([*lines, *_mean(compared, "layers")], "  ")


def _steps_of(compared: ComparedResults) -> tuple[StepResult, StepResult] | None:
    """Return the steps of both runs; None where one of them is of one chip."""
    one, other = compared.before.step, compared.after.step
    return (one, other) if one and other else None


def _steps(one: StepResult, other: StepResult) -> str:
    """Say what the steps of several chips take, and what they make."""
    per_chip = other.items_per_second_chip / one.items_per_second_chip
    made = f"{three_digits(one.items_per_second_chip)} -> {three_digits(other.items_per_second_chip)} {other.items}"
    return (
        f"Step of {one.chips:,} -> {other.chips:,} chips: {one.cycles:,} -> {other.cycles:,} cycles "
        f"({_times(other.cycles, one.cycles)}); {_two_of(one.seconds * 1e6, other.seconds * 1e6, TIMES)}; waits for "
        f"collectives {percent(one.exposed_cycles / one.cycles)} -> {percent(other.exposed_cycles / other.cycles)} %; "
        f"{made} a second a chip ({per_chip:.2f} x)"
    )


def _ops_of(compared: ComparedResults) -> dict[str, list[int]]:
    """Return cycles by op in each result, 0 where a result has none of the op."""
    one, other = (by_op(result.layers) for result in (compared.before, compared.after))
    return {op: [side[op].cycles if op in side else 0 for side in (one, other)] for op in {**one, **other}}


def rewired(compared: ComparedResults) -> Sentences:
    """Say which layers do not read the same in both; empty when there are none."""
    said = [f"{name} reads {' and '.join(one)} in A, {' and '.join(two)} in B"
            for name, (one, two) in compared.rewired.items()]  # fmt: skip
    more = [f"and {len(said) - MOST_EDGES:,} more (--json has them)"] if len(said) > MOST_EDGES else []
    return Sentences([f"Not wired alike: {'; '.join([*said[:MOST_EDGES], *more])}."] if said else [], "  ")


def verdicts(compared: ComparedResults) -> Sentences:
    """Say what overlaps or rides in each, and whether its outputs were right."""
    lines = []
    for letter, result in zip("AB", (compared.before, compared.after), strict=True):
        lines += [f"{letter}: {told}" for told in (riding(result), *overlap_notice(result).splitlines()) if told]
        wrong = first_wrong(result)
        more = f" WRONG: {wrong}; its cycles may be those of another computation." if wrong else ""
        lines.append(f"{letter}: {verdict(result)}{more}")
    return Sentences(lines, "   ")


# ---- sweeps


def sweeps_compared(compared: ComparedSweeps, names: Sequence[str], order: str) -> CommandAnswer:
    """Say what A and B are, at most MOST_ROWS points in this order, and all of them together.

    In JSON null stands where a point is in one sweep only.
    """

    def setting(name: str, row: ComparedRow) -> str:
        return row.settings[name]

    rows = compared.rows
    # A workload that is the same everywhere stands in the heading.
    one_network = len({row.settings["workload"] for row in rows}) == 1
    axes = [*([] if one_network else ["workload"]), *compared.before.axes]
    settings = [Column(path_head(name), partial(setting, name)) for name in axes]
    changed = compared.ordered(order)
    points = Table([*settings, *_measured_columns(compared)], changed[:MOST_ROWS])
    same, more = len(rows) - len(changed), len(changed) - len(points.rows)
    left = [f"{same:,} of {len(rows):,} points with the same cycles"] if same else []
    left += [f"{more:,} more (--json has all)"] if more else []
    not_shown = f"Not shown: {', '.join(left)}." if left else ""
    if same == len(rows):
        not_shown = "Every point takes the same cycles."
    only = ("A", sum(row.after is None for row in rows)), ("B", sum(row.before is None for row in rows))
    alone = [f"{counted(count, 'point')} only in {letter}" for letter, count in only if count]
    return CommandAnswer(
        (
            [_named(names, map(_sweep, (compared.before, compared.after)))],
            *_of_rows(points),
            [not_shown, Sentences([_in_both(compared, "point"), *_mean(compared, "points"), *alone], "  ")],
        ),
        {
            "axes": [*compared.before.axes],
            "geometric_mean": compared.geometric_mean,
            "points": [{"settings": dict(row.settings), **_measured(row)} for row in rows],
        },
    )


def _sweep(points: SweepPoints) -> str:
    networks = ", ".join(dict.fromkeys(points.texts["workload"]))
    failed = sum(map(bool, points.texts["error"]))
    batches = [] if "batch" in points.axes else dict.fromkeys(points.texts.get("batch", ()))
    parts = [f"sweep {points.name}", f"{counted(points.size, 'point')} of {networks}"]
    parts += [f"batch {batch}" for batch in batches] + ([f"{failed:,} failed"] if failed else [])
    return ", ".join(parts)


# ---- what both say


def _named(names: Sequence[str], told: Iterable[str]) -> Sentences:
    """Say what A and B are; what no file holds has no name."""
    each = zip("AB", names, told, strict=True)
    return Sentences([": ".join(filter(None, (letter, name, said))) for letter, name, said in each], "   ")


def _of_rows(table: Table[Any], *more: str) -> Paragraphs:
    """Return the table and its legend, if it has a row."""
    return ([table], [table.legend(*more)]) if table.rows else ()


def _measured(row: ComparedRow) -> dict[str, Any]:
    sides = _sides(row.before, row.after, "cycles", "time_us", "macs", "pe_utilization")
    return {**sides, "ratio": row.ratio, "mac_ratio": row.mac_ratio}


def _sides(before: object, after: object, *names: str) -> dict[str, list[Any]]:
    return {name: [getattr(side, name) if side else None for side in (before, after)] for name in names}


def _measured_columns(compared: Comparable) -> list[Column[ComparedRow]]:
    """Return the columns of both sides' figures, and of their differences."""
    columns: list[Column[ComparedRow]] = [
        Column("A\ncycles", lambda row: f"{row.before.cycles:,}" if row.before else NONE),
        Column("B\ncycles", lambda row: f"{row.after.cycles:,}" if row.after else NONE),
        Column(
            "\nB/A",
            lambda row: _ratio(row.ratio) if row.ratio else "only A" if row.before else "only B",
            legend="B/A: cycles of B over those of A; below 1, B takes fewer",
        ),
        Column("A\nPE %", lambda row: percent(row.before.pe_utilization) if row.before else NONE, 3),
        Column("B\nPE %", lambda row: percent(row.after.pe_utilization) if row.after else NONE, 3, legend=_PE),
        Column(
            "\nchange",
            lambda row: f"{row.difference:+,}" if row.difference or row.ratio else NONE,
            2,
            legend="change: cycles of B less those of A",
        ),
    ]
    if not compared.same_work:
        # Ratios by MAC and by time stand right behind the ratio of cycles that they correct.
        columns.insert(3, Column("MAC\nB/A", lambda row: _ratio(row.mac_ratio), 1, legend=_BY_MAC))
    if not compared.same_clock:
        columns.insert(3, Column("time\nB/A", lambda row: _ratio(row.time_ratio), 1, legend=_IN_TIME))
    return columns


def _ratio(ratio: float | None) -> str:
    return NONE if ratio is None else f"{ratio:.3f}"


def _in_both(compared: Comparable, what: str) -> str:
    """Return the cycles of the layers or points that both have."""
    if not compared.common:
        return f"They have no {what} in common."
    before, after = (sum(each.cycles for each in side) for side in zip(*compared.common, strict=True))
    return f"{counted(len(compared.common), what)} in both: {before:,} -> {after:,} cycles ({_times(after, before)})"


def _mean(compared: Comparable, what: str) -> list[str]:
    """Return the mean over layers or points, where there is one."""
    if (mean := compared.geometric_mean) is None:
        return []
    by_mac = "" if compared.same_work else ", by the MAC"
    return [f"Geometric mean over {compared.mean_is_over(what)}, each weighing the same{by_mac}: {_times(mean)}"]


def _times(after: float, before: float = 1) -> str:
    return f"x {after / before:.3f}" if before else "x -"


def _two_of(before: float, after: float, units: Scales) -> str:
    """Write two figures in one unit: "3.56 -> 1.78 ms (x 0.500)"."""
    unit, size = scale((before, after), units)
    return f"{three_digits(before / size)} -> {three_digits(after / size)} {unit} ({_times(after, before)})"
