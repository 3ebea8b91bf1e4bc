"""What a layer would cost by each lowering, in words and for JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from tpusim.report.tables.layout import Column, legend, table
from tpusim.report.text import folded, scale, three_digits
from tpusim.result.records import told
from tpusim.result.vocabulary.figures import BYTES, COUNTS, MEMORY, Units
from tpusim.study.explain.alternatives import Alternative, Unfit

TITLE = "What it costs by each lowering"


def alternatives_table(fit: Sequence[Alternative], taken: str, width: int | None = None) -> Table:
    """A row a lowering, the fastest first; `taken` is the one of the layer now. Where it is narrow, fewer columns."""
    return table(_columns(fit, taken), fit, width)


def _columns(fit: Sequence[Alternative], taken: str) -> list[Column[Alternative]]:
    now = next((each.layer.cycles for each in fit if each.lowering == taken), 0)

    def size(
        head: str, value: Callable[[Alternative], int], units: Units, rank: int, meaning: str
    ) -> Column[Alternative]:
        """In one unit, so that the eye can compare."""
        unit, scaled = scale(map(value, fit), units)
        name = head.replace("\n", " ")
        return Column(
            f"{head}\n{unit}", lambda each: three_digits(value(each) / scaled), rank, legend=f"{name}: {meaning}"
        )

    return [
        Column("", lambda each: "*" if each.lowering == taken else "", justify="left"),
        Column("lowering", lambda each: each.lowering, justify="left"),
        Column("cycles", lambda each: f"{each.layer.cycles:,}"),
        Column(
            "times\nas long",
            lambda each: f"{each.layer.cycles / now:.2f}" if now else "-",
            legend=f"times as long: as by {taken} (*), which it is lowered by now",
        ),
        size("HBM", lambda each: each.hbm_bytes, BYTES, 1, "bytes read and written"),
        size("HBM\nworkspace", lambda each: each.workspace_bytes, BYTES, 2, "tensors beside ifmap, filter and ofmap"),
        size(
            "vector\nmemory", lambda each: told(each.layer.vector_memory).peak_bytes, MEMORY, 3, "in use, of all lanes"
        ),
        size("port\naccesses", lambda each: each.accesses, COUNTS, 4, "words read and written, of all lanes"),
    ]


def meaning(fit: Sequence[Alternative], unfit: Sequence[Unfit], taken: str, width: int) -> str:
    """What the columns hold, and which lowerings do not fit."""
    alike = {each.reason: [other.lowering for other in unfit if other.reason == each.reason] for each in unfit}
    does_not = [f"By {' or '.join(names)} it cannot run here: {reason}." for reason, names in alike.items()]
    return "\n".join([legend(_columns(fit, taken), width), *([folded(does_not, width)] if does_not else [])])


def alternatives_json(fit: Sequence[Alternative], unfit: Sequence[Unfit]) -> list[dict[str, Any]]:
    """The same for tools: those that do not fit have only their name and the reason."""
    return [_for_tools(each) for each in fit] + [{"lowering": each.lowering, "unfit": each.reason} for each in unfit]


def _for_tools(each: Alternative) -> dict[str, Any]:
    layer, memory = each.layer, told(each.layer.vector_memory)
    return {
        "lowering": each.lowering,
        "cycles": layer.cycles,
        "time_us": layer.time_us,
        "hbm_read_bytes": layer.hbm_read_bytes,
        "hbm_write_bytes": layer.hbm_write_bytes,
        "workspace_bytes": each.workspace_bytes,
        "peak_bytes": memory.peak_bytes,
        "reads": memory.reads,
        "writes": memory.writes,
        "units": {"systolic_array": dict(layer.units["systolic_array"])},
    }
