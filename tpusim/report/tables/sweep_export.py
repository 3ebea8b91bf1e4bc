"""The points and layers of a sweep for other tools: CSV, and Parquet with the extra `parquet`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tpusim.report.text import to_cell
from tpusim.result.vocabulary.figures import COSTS, FIGURES, Figure
from tpusim.result.vocabulary.lowerings import COLUMN

Row = Mapping[str, Any]
Columns = Mapping[str, type]
"""Names of columns in order, and what they hold: int, float, str or bool."""

_ROWS_AT_ONCE = 20_000


def point_columns(axes: Mapping[str, Sequence[object]], front: bool) -> Columns:
    """A point's: its axes, the workload, the figures, why it could not be simulated, and what its machine is made of.

    With `front`, also whether it is on the Pareto front.
    """
    marks = {"pareto": bool} if front else {}
    return {**_point(axes), **_kinds(FIGURES), "error": str, **_kinds(COSTS), **marks}


def layer_columns(axes: Mapping[str, Sequence[object]]) -> Columns:
    """A layer's: the axes of its point, where it stands in the network, what lowered it, and the figures."""
    return {**_point(axes), "position": int, "name": str, "op": str, COLUMN: str, **_kinds(FIGURES)}


def write_csv(file: Path, rows: Iterable[Row], columns: Columns) -> None:
    """A line a row, after one with the names. Texts that a spreadsheet would compute are guarded."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows([to_cell(row[name]) for name in columns] for row in rows)


def write_parquet(file: Path, rows: Iterable[Row], columns: Columns) -> None:
    """The same as write_csv in typed columns; only some rows at a time are in memory."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    types = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string(), bool: pyarrow.bool_()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    remaining = iter(rows)
    with ParquetWriter(file, schema) as writer:
        while part := list(islice(remaining, _ROWS_AT_ONCE)):
            data = [[None if row[name] is None else kind(row[name]) for row in part] for name, kind in columns.items()]
            writer.write_table(pyarrow.table(data, schema=schema))


def _point(axes: Mapping[str, Sequence[object]]) -> Columns:
    return {**{axis: _kind(values) for axis, values in axes.items()}, "workload": str, "batch": int}


def _kinds(figures: Mapping[str, Figure]) -> Columns:
    return {key: figure.kind for key, figure in figures.items()}


def _kind(values: Sequence[object]) -> type:
    """The narrowest that holds them all: quantities such as "700 GB/s" are text, and so is [1, 2, auto]."""
    kinds = {type(value) for value in values}
    return kinds.pop() if len(kinds) == 1 else float if kinds <= {int, float} else str
