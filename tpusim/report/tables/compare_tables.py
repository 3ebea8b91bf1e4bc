"""Two results side by side, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from textwrap import fill
from typing import Any

from rich.table import Table

from tpusim.base.version import __version__
from tpusim.report.tables.compare_results import ORDERS, Compared, Row
from tpusim.report.tables.layout import Column, fitted, table
from tpusim.report.tables.run import first_wrong, heading, verdict
from tpusim.report.text import percent, scale, shortened, three_digits
from tpusim.result.records import LayerResult, Total
from tpusim.result.vocabulary.figures import TIMES

LEGEND = """\
B/A: cycles of B over those of A; below 1, B takes fewer. MAC: the same by the
MAC, where the work differs; time: in time, where the clock does. PE:
utilisation. change: cycles of B less those of A; of A: that in percent of all
of A's cycles."""

_WIDTH = 79


def headings(compared: Compared, names: Sequence[str], width: int = _WIDTH) -> str:
    """What A and B are."""
    results = zip("AB", names, (compared.before, compared.after), strict=True)
    return "\n".join(fill(f"{letter}: {name}: {heading(result)}", width, break_on_hyphens=False, break_long_words=False,
                          subsequent_indent="   ") for letter, name, result in results)  # fmt: skip


def changes_table(compared: Compared) -> Table:
    """The inputs that differ."""
    rows = [[change.name, _given(change.before), _given(change.after)] for change in compared.changes]
    return table([("input", "left"), ("A", "fold"), ("B", "fold")], rows)


def layers_table(compared: Compared, order: str, width: int | None = None) -> Table:
    """One row a layer, in as many columns as `width` characters hold (None: all). Equal ones only in network order."""
    rows = [row for row in sorted(compared.rows, key=ORDERS[order]) if order == "network" or not row.unchanged]
    return fitted(_columns(compared, max(12, width // 4) if width else None), rows, width)


def unchanged(compared: Compared) -> str:
    """How many layers are left out of the table because nothing changed; empty when none."""
    count = sum(row.unchanged for row in compared.rows)
    if count == 0:
        return ""
    if count == len(compared.rows):
        return "Every layer takes the same cycles."
    return f"{count} of {len(compared.rows)} layers take the same cycles (--sort network shows them)."


def totals(compared: Compared, width: int = _WIDTH) -> str:
    """All layers together, and the mean over layers."""
    before, after = compared.before.total, compared.after.total
    unit, size = scale((before.time_us, after.time_us), TIMES)
    lines = [
        f"Total: {before.cycles:,} -> {after.cycles:,} cycles ({_times(after.cycles, before.cycles)}); "
        f"{three_digits(before.time_us / size)} -> {three_digits(after.time_us / size)} {unit} "
        f"({_times(after.time_us, before.time_us)}); PE utilisation {percent(before.pe_utilization)} -> "
        f"{percent(after.pe_utilization)} %",
    ]
    lines += [*_per_image(compared), *_common(compared)]
    if (mean := compared.geometric_mean) is not None:
        by_mac = "" if compared.same_work else ", by the MAC"
        lines.append(f"Geometric mean over layers, each weighing the same{by_mac}: {_times(mean)}")
    return "\n".join(fill(line, width, subsequent_indent="  ") for line in lines)


def verdicts(compared: Compared, width: int = _WIDTH) -> str:
    """Whether the outputs of each were right."""
    lines = []
    for letter, result in zip("AB", (compared.before, compared.after), strict=True):
        wrong = first_wrong(result)
        more = f" WRONG: {wrong}; its cycles may be those of another computation." if wrong else ""
        lines.append(f"{letter}: {verdict(result.total)}{more}")
    return "\n".join(fill(line, width, subsequent_indent="   ") for line in lines)


def to_json(compared: Compared) -> str:
    """Everything, for other tools; null where a layer is in one result only."""
    before, after = compared.before.total, compared.after.total
    data = {
        "tpusim": __version__,
        "changes": [asdict(change) for change in compared.changes],
        "total": {
            **{name: _sides(before, after, name) for name in ("cycles", "time_us", "pe_utilization")},
            "ratio": after.cycles / before.cycles,
            "geometric_mean": compared.geometric_mean,
        },
        "layers": [_layer(row) for row in compared.rows],
        "outputs": [_outputs(result.total) for result in (compared.before, compared.after)],
    }
    return json.dumps(data, indent=2)


def _columns(compared: Compared, name_width: int | None) -> list[Column[Row]]:
    all_of_a = compared.before.total.cycles
    columns: list[Column[Row]] = [
        Column("layer", lambda row: shortened(row.name, name_width), justify="left"),
        Column("A\ncycles", lambda row: _cell(row.before, lambda layer: f"{layer.cycles:,}")),
        Column("B\ncycles", lambda row: _cell(row.after, lambda layer: f"{layer.cycles:,}")),
        Column("\nB/A", lambda row: _one_sided(row) or _ratio(row.ratio)),
        Column("A\nPE %", lambda row: _cell(row.before, lambda layer: percent(layer.pe_utilization)), 3),
        Column("B\nPE %", lambda row: _cell(row.after, lambda layer: percent(layer.pe_utilization)), 3),
        Column("\nchange", lambda row: f"{row.difference:+,}", 2),
        Column("of A\n%", lambda row: f"{100 * row.difference / all_of_a:+.1f}", 4),
    ]
    if not compared.same_work:
        columns.insert(4, Column("MAC\nB/A", lambda row: _ratio(row.mac_ratio), 1))
    if not compared.same_clock:
        columns.insert(4, Column("time\nB/A", lambda row: _ratio(row.time_ratio), 1))
    return columns


def _cell(layer: LayerResult | None, text: Callable[[LayerResult], str]) -> str:
    return text(layer) if layer else "-"


def _one_sided(row: Row) -> str:
    return "only B" if row.before is None else "only A" if row.after is None else ""


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def _times(after: float, before: float = 1) -> str:
    return f"x {after / before:.3f}" if before else "x -"


def _given(value: Any) -> str:
    return "(not there)" if value is None else str(value)


def _per_image(compared: Compared) -> list[str]:
    """Where the batch differs, and every layer is in both."""
    before, after = compared.before, compared.after
    if before.batch == after.batch or min(before.batch, after.batch) < 1 or len(compared.common) < len(compared.rows):
        return []
    times = [result.total.time_us / result.batch for result in (before, after)]
    unit, size = scale(times, TIMES)
    a, b = (three_digits(time / size) for time in times)
    return [f"Per image: {a} -> {b} {unit} ({_times(times[1], times[0])})"]


def _common(compared: Compared) -> list[str]:
    """Where the two do not have the same layers: those that both have."""
    rows = compared.common
    if len(rows) == len(compared.rows):
        return []
    if not rows:
        return ["They have no layer in common."]
    before = sum(row.before.cycles for row in rows if row.before)
    after = sum(row.after.cycles for row in rows if row.after)
    return [f"The {len(rows)} layers in both: {before:,} -> {after:,} cycles ({_times(after, before)})"]


def _sides(before: LayerResult | Total | None, after: LayerResult | Total | None, name: str) -> list[Any]:
    return [getattr(side, name) if side else None for side in (before, after)]


def _layer(row: Row) -> dict[str, Any]:
    names = ("cycles", "time_us", "macs", "pe_utilization")
    sides = {name: _sides(row.before, row.after, name) for name in names}
    return {"name": row.name, **sides, "ratio": row.ratio, "mac_ratio": row.mac_ratio}


def _outputs(total: Total) -> dict[str, int]:
    return {"outputs": total.outputs, "checked": total.outputs_checked, "mismatched": total.outputs_mismatched}
