"""Rows as CSV: those of a sweep's points and layers, and of the layers of a run."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Any

from tpusim.report.text import to_cell
from tpusim.result.notebook import row_of
from tpusim.result.records import Result
from tpusim.result.vocabulary.figures import FIGURES
from tpusim.result.vocabulary.runs import COLUMN

LAYER_COLUMNS: Mapping[str, type] = {
    "position": int, "name": str, "op": str, COLUMN: str, **{key: figure.kind for key, figure in FIGURES.items()}
}  # fmt: skip
"""Columns of a layer, whose names tell the unit, and their types."""


_UNITS = {"energy": "energy_pj", "energy_delay": "energy_delay_pj_s"}
"""By column its name with the unit, where a sweep's does not tell it."""


def write_rows(writer: Any, rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> None:
    """Write a line a row, after one with the names. Texts that a spreadsheet would compute are guarded."""
    named = [*columns]
    writer.writerow(named)
    writer.writerows([to_cell(row[name]) for name in named] for row in rows)


def layers_csv(result: Result) -> str:
    """Return a run's layers as CSV, a line each, in the columns of a sweep's layers.csv; all names tell their units."""
    asked, stream = {"workload": result.workload, "batch": result.batch}, StringIO(newline="")
    rows = ({**asked, "position": place, **row_of(layer)} for place, layer in enumerate(result.layers))
    named = ({_UNITS.get(key, key): each for key, each in row.items()} for row in rows)
    columns = [*asked, *(_UNITS.get(key, key) for key in LAYER_COLUMNS)]
    write_rows(csv.writer(stream, lineterminator="\n"), named, columns)
    return stream.getvalue()
