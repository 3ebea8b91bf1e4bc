"""A result in a notebook: as a small table of HTML, and as a flat table for pandas."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from html import escape
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tpusim.base.imports import need
from tpusim.result.records import LayerResult, Result
from tpusim.result.vocabulary.fields import by_path
from tpusim.result.vocabulary.figures import FIGURES, in_frame, value_of
from tpusim.result.vocabulary.runs import COLUMN, in_heading, left_out, size_of
from tpusim.result.vocabulary.states import parts_of

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_LAYERS = 20
"""Most layers shown; of a longer network the ones that take the longest."""

_HEADS = (
    "layer", "op", "outputs", "cycles", "time (us)", "PE utilisation (%)", "PEs unused (%)", "stalled (%)", "idle (%)",
)  # fmt: skip
_WORDS = 3
"""Columns that hold words; figures are aligned right."""


def html_of(result: Result) -> str:
    """Return what was run, a row a layer and the total, as HTML."""
    ranked = sorted(enumerate(result.layers), key=lambda each: -each[1].cycles)[:MOST_LAYERS]
    # The costliest layers, but in network order.
    shown = [layer for _, layer in sorted(ranked, key=itemgetter(0))]
    shorter = len(result.layers) - len(shown)
    rows = [_row([layer.name, layer.op, *_figures(layer)]) for layer in shown]
    if shorter:
        cycles = result.total.cycles - sum(layer.cycles for layer in shown)
        time_us = result.total.time_us - sum(layer.time_us for layer in shown)
        cells = [f"{shorter:,} shorter layers", "", "", f"{cycles:,}", f"{time_us:,.1f}"]
        rows.append(_row([*cells, *[""] * (len(_HEADS) - len(cells))]))
    rows.append(_row([f"total of {len(result.layers):,}", "", *_figures(result.total)], "th"))
    caption = f"{result.workload}, {size_of(result)}, on {result.machine}: {in_heading(result)}"
    if missing := left_out(result.not_timed.items(), result.not_known.items()):
        caption += f". {missing}"
    return f"<table><caption>{escape(caption)}</caption>{_row(_HEADS, 'th')}{''.join(rows)}</table>"


def _figures(record: LayerResult) -> list[str]:
    """Return the cells from the check on; the shares of the cycles add up."""
    parts = parts_of(record)
    stalled = sum(cycles for part, cycles in parts.items() if part not in ("useful", "unused", "idle"))
    shown = parts["useful"], parts["unused"], stalled, parts["idle"]
    checked = f"{record.wrong:,} wrong" if record.wrong else "all equal" if record.outputs_checked else "not checked"
    shares = (f"{100 * part / record.cycles:.1f}" for part in shown)
    return [checked, f"{record.cycles:,}", f"{record.time_us:,.1f}", *shares]


def _row(cells: Iterable[str], tag: str = "td") -> str:
    sides = chain(repeat("left", _WORDS), repeat("right"))
    written = (
        f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for cell, side in zip(cells, sides, strict=False)
    )
    return f"<tr>{''.join(written)}</tr>"


_OWN = ("stall_cycles", "dram")
"""Fields whose figures have names of their own."""
_INSIDE = re.compile(r"^(vector_memory|energy_use)\.")


def frame_of(result: Result) -> DataFrame:
    """Return a row a layer, with the columns of a sweep's layers.csv first; the other fields by their paths. Names of
    columns end with the unit where there is one.

    Raises:
        InputError: pandas is not installed.
    """
    need("Result.to_frame()", "pandas", "pandas")
    from pandas import DataFrame

    asked = {"workload": result.workload, "batch": result.batch}
    rows = ({**asked, "position": place, **row_of(layer)} for place, layer in enumerate(result.layers))
    return DataFrame([{in_frame(key): value for key, value in row.items()} for row in rows])


def row_of(layer: LayerResult) -> dict[str, Any]:
    """Return every field of a layer by its column: figures by their keys, nested fields as "blocking.rows"."""
    figures = {key: value_of(layer, key) for key in FIGURES}
    held = {key: value for key, value in asdict(layer).items() if key not in _OWN}
    wrong = str(layer.first_mismatch) if layer.first_mismatch else None
    rest = by_path({**held, "first_mismatch": wrong})
    others = {path: value for path, value in rest if _INSIDE.sub("", path) not in figures}
    words = {"name": others.pop("name"), "op": others.pop("op"), COLUMN: others.pop("lowering")}
    return {**words, **figures, **others}
