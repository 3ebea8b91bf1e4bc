"""The points of a sweep: the best of them as a table; in files, written and read back."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from tpusim.base.errors import InputError
from tpusim.base.files import is_named_pipe
from tpusim.base.units import number
from tpusim.base.words import counted
from tpusim.input.source import PIPE
from tpusim.network.entries import LOWERING
from tpusim.report.csv_rows import LAYER_COLUMNS, write_rows
from tpusim.report.shown import NONE, Column, Legend, Paragraphs, Table, figure_column, path_head
from tpusim.report.text import column_scale, from_cell, three_digits
from tpusim.result.rules import SHARES
from tpusim.result.vocabulary.fields import axis_title
from tpusim.result.vocabulary.figures import COLUMNS, COSTS, FIGURES, SPEEDS, TIMES, Figure
from tpusim.study.sweep.axes import HARDWARE
from tpusim.study.sweep.points import Point
from tpusim.study.sweep.reader import Goal, goal_named
from tpusim.study.sweep.store import FILE as STORE_FILE
from tpusim.study.sweep.store import is_as_written

Row = Mapping[str, Any]

_SHOWN = {
    "cycles": 2,
    "time_us": 0,
    "tokens_per_s": 0,
    "first_token_us": 0,
    "tflops": 3,
    "pe_utilization": 1,
    "mapping_efficiency": 4,
    "port_idle_ratio": 5,
}
"""The order in which columns leave a table that is too wide: the highest number first; 0 stays."""


def best(rows: Sequence[Row], axes: Sequence[str], goals: Sequence[Goal] = (), most: int = 10) -> Paragraphs:
    """Return a table of the best points, `most` together but at least one a workload; and a legend of order, stars and
    columns.

    Without goals, best is the most TFLOPS, which for one network and batch is the least time, or the most tokens a
    second where all networks make tokens; with goals, best is the Pareto front, in the order of the first goal.
    """

    def setting(axis: str, row: Row) -> str:
        return str(row[axis])

    def rank(row: Row) -> tuple[Any, ...]:
        costs = [goal.cost(row[goal.column]) for goal in goals] or [-row[speed]]
        # False sorts before True: points on the front come first.
        return row["workload"], not row.get("pareto", False), *costs

    finished = [row for row in rows if not row["error"]]
    speed = speed_of(finished)
    finished.sort(key=rank)
    # Every workload gets an equal share of the rows: their times cannot be compared.
    each = max(1, most // max(1, len({row["workload"] for row in finished})))
    by_workload = groupby(finished, key=lambda row: row["workload"])
    chosen = [row for _, ranked in by_workload for row in islice(ranked, each)]
    columns: list[Column[Row]] = [
        Column("", lambda row: "*" if row.get("pareto") else "", justify="left"),
        Column("workload", lambda row: row["workload"], justify="left"),
        *(Column(path_head(axis), partial(setting, axis), legend=f"{axis}: {axis_title(axis)}") for axis in axes),
        *(
            _figure_column(goal.column, chosen)
            for goal in goals
            if goal.column in COLUMNS and goal.column not in _SHOWN
        ),
        *(
            _figure_column(key, chosen, rank)
            for key, rank in _SHOWN.items()
            if any(row[key] is not None for row in chosen)
        ),
    ]
    table, what = Table(columns, chosen), " and ".join(map(str, goals))
    count = sum(row.get("pareto", False) for row in rows)
    order = f"In the order of {what}." if goals else ""
    if count:
        of = f"{count} of {len(rows):,} points"
        order = f"* on the Pareto front of {what}: {of}; no other point beats them in all."
    shown = (
        f"{len(chosen):,} of {len(finished):,} points; {POINTS_FILE} has all." if len(chosen) < len(finished) else ""
    )
    return [table, order, shown], [table.legend()]


def speed_of(rows: Sequence[Row]) -> str:
    """Return the column that tells how fast points are: tokens a second where all make tokens, or else TFLOPS."""
    made = [row.get("tokens_per_s") for row in rows]
    return "tokens_per_s" if made and None not in made else "tflops"


def _figure_column(key: str, rows: Sequence[Row], rank: int = 0) -> Column[Row]:
    unit = column_scale((row[key] for row in rows), COLUMNS[key].units)
    return figure_column(COLUMNS[key], lambda row: row[key], unit, rank)


# ---- over lowerings alone, or machines alone


def compares(axes: Sequence[str]) -> str:
    """Return the one axis of a sweep that compares lowerings, or machines, and nothing else; empty for other sweeps."""
    return next((axis for axis in (LOWERING, HARDWARE) if [*axes] == [axis]), "")


@dataclass(frozen=True)
class PointTable:
    """The points of such a sweep by network and lowering or machine, with networks and these in their order.

    Failed points are missing, and so are points that there is no reference for. `times` are over the time of
    `reference`: the first lowering or machine that did every network, or else the one that did most of them.
    """

    workloads: Sequence[str]
    values: Sequence[str]
    reference: str
    points: Mapping[tuple[str, str], Row]
    times: Mapping[tuple[str, str], float]
    some_failed: bool


def word_notice(points: Sequence[Point], fills: Mapping[str, int]) -> str:
    """Say in how many points words are partly used.

    `fills` are by key the fewest elements of a word that hold anything. Empty where all words are full.
    """
    known = {each.key: (each, each.jobs.hardware.to_dict()["vector_memory"]["word_elements"])
             for each in points if each.key in fills}  # fmt: skip
    partly = [key for key, (_, word) in known.items() if fills[key] < word]
    if not partly:
        return ""
    least = min(partly, key=lambda key: fills[key] / known[key][1])
    point, word = known[least]
    return (
        f"Words partly used in {len(partly):,} of {counted(len(points), 'point')}: as few as {fills[least]} of {word} "
        f"elements hold anything (a layer of {point.jobs.work.name} at batch {point.jobs.work.batch}); feature maps "
        f"there take up to {word / fills[least]:.3g} times the space and port accesses. Batches, and rows of a GEMM, "
        "that are multiples of a word fill it."
    )


def comparison(rows: Sequence[Row], axis: str) -> PointTable:
    """Set the points of such a sweep against each other; `rows` hold failed ones as well."""
    workloads, values = ([*dict.fromkeys(row[key] for row in rows)] for key in ("workload", axis))
    finished = [row for row in rows if not row["error"]]
    reference = max(values, key=[row[axis] for row in finished].count)
    first = {row["workload"]: row["time_us"] for row in finished if row[axis] == reference}
    points = {(row["workload"], row[axis]): row for row in finished if row["workload"] in first}
    times = {key: row["time_us"] / first[row["workload"]] for key, row in points.items()}
    return PointTable(workloads, values, reference, points, times, len(finished) < len(rows))


def compared(rows: Sequence[Row], axis: str) -> Paragraphs:
    """Return a row a network and a column a lowering or machine, with their legend."""
    found = comparison(rows, axis)
    if axis == HARDWARE:
        return _times(rows, found)
    first = {workload: row["time_us"] for (workload, by), row in found.points.items() if by == found.reference}
    unit, size = column_scale(first.values(), TIMES)

    def times(value: str, workload: str) -> str:
        key = workload, value
        return f"{found.times[key]:.2f}" if key in found.times else NONE

    columns: list[Column[str]] = [
        Column("workload", lambda workload: workload, justify="left"),
        Column(
            f"{path_head(found.reference)}\n{unit}",
            lambda workload: three_digits(first[workload] / size) if workload in first else NONE,
            legend=f"{found.reference}: its time. The others: times as long{'. -: failed' * found.some_failed}",
        ),
        *(Column(path_head(each), partial(times, each)) for each in found.values if each != found.reference),
    ]
    return [Table(columns, found.workloads)], [Legend(columns)]


def _times(rows: Sequence[Row], found: PointTable) -> Paragraphs:
    """Times themselves, all in one unit: those of machines are too far apart for two digits of a ratio."""
    took = {(row["workload"], row[HARDWARE]): row["time_us"] for row in rows if not row["error"]}
    unit, size = column_scale(took.values(), TIMES)

    def time(machine: str, workload: str) -> str:
        key = workload, machine
        return three_digits(took[key] / size) if key in took else NONE

    columns = [
        Column("workload", lambda workload: workload, justify="left"),
        *(Column(f"{path_head(each)}\n{unit}", partial(time, each)) for each in found.values),
    ]
    return [Table(columns, found.workloads), "-: failed." * found.some_failed], []


# ---- files: CSV, and with the extra `parquet` Parquet; points read back from CSV


ColumnKinds = Mapping[str, type]
"""Names of columns in order, and their types: int, float, str or bool."""

_ROWS_AT_ONCE = 20_000


def point_columns(axes: Mapping[str, Sequence[object]], front: bool) -> ColumnKinds:
    """Return the columns of a point: its axes, the workload, the figures, why it failed, and what its machine is made
    of.

    With `front`, also whether it is on the Pareto front, and the goals of that, the same for all points, as is the
    setup: the machine, unless it is an axis, and the phase.
    """
    marks = {"pareto": bool, GOALS: str} if front else {}
    return {**_point(axes), **_kinds(FIGURES), "error": str, **_kinds(SPEEDS), **_kinds(COSTS), **marks, SETUP: str}


def told_of_all(goals: Sequence[Goal], setup: str) -> Row:
    """Return the cells of a point that tell the goals of its front ("least time_us; least pes") and the setup."""
    return {GOALS: _BETWEEN.join(map(str, goals)), SETUP: setup}


def layer_columns(axes: Mapping[str, Sequence[object]]) -> ColumnKinds:
    """Return the columns of a layer: the axes of its point, its place in the network, its lowering, and the figures."""
    return {**_point(axes), **LAYER_COLUMNS}


def write_csv(file: Path, rows: Iterable[Row], columns: ColumnKinds) -> None:
    """Write a line a row, after one with the names. Texts that a spreadsheet would compute are guarded."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        write_rows(csv.writer(stream), rows, columns)


def write_parquet(file: Path, rows: Iterable[Row], columns: ColumnKinds) -> None:
    """Write a line a row, in typed columns; only some rows at a time are in memory."""
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    types = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string(), bool: pyarrow.bool_()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    remaining = iter(rows)
    with ParquetWriter(file, schema) as writer:
        while part := list(islice(remaining, _ROWS_AT_ONCE)):
            data = [[None if row[name] is None else kind(row[name]) for row in part] for name, kind in columns.items()]
            writer.write_table(pyarrow.table(data, schema=schema))


def _point(axes: Mapping[str, Sequence[object]]) -> ColumnKinds:
    return {**{axis: _kind(values) for axis, values in axes.items()}, "workload": str, "batch": int}


def _kinds(figures: Mapping[str, Figure]) -> ColumnKinds:
    return {key: figure.kind for key, figure in figures.items()}


def _kind(values: Sequence[object]) -> type:
    """Return the narrowest type that holds all values: quantities such as "700 GB/s" are text, and so is [1, 2,
    auto].
    """
    kinds = {type(value) for value in values}
    return kinds.pop() if len(kinds) == 1 else float if kinds <= {int, float} else str


# ---- points read back

POINTS_FILE = "points.csv"
MOST_POINTS = 20_000
"""Most points of a page: with more, browsers take long to draw it."""

_AGAIN = "remove it, and the same `tpusim sweep` writes it anew"
_OTHER = "give a directory or a points.csv that `tpusim sweep` wrote"
_FIRST_COLUMN = "workload"
_TEXTS = (_FIRST_COLUMN, "error")
GOALS, SETUP, _BETWEEN = "goals", "setup", "; "
_NEEDED = (_FIRST_COLUMN, "cycles", "time_us", "error")


class _TooManyPoints(InputError):
    """A file that is sound, but has more points than browsers can draw."""


@dataclass(frozen=True)
class SweepPoints:
    """A sweep's points, column by column: all as they were written, axes first, and the figures as numbers as well.

    A figure is None where a point failed.
    """

    name: str
    axes: tuple[str, ...]
    texts: Mapping[str, tuple[str, ...]]
    figures: Mapping[str, tuple[float | None, ...]]
    goals: tuple[Goal, ...] = ()
    """What its front was asked for; empty without one, and in a file of an earlier version."""
    setup: str = ""
    """The machine of all points and their phase; empty in a file of an earlier version."""

    @property
    def size(self) -> int:
        """Number of points, failed ones included."""
        return len(self.texts["error"])


def is_sweep(source: Path) -> bool:
    """Return whether `source` is a points.csv, or a directory that a sweep has written into."""
    if not os.path.isdir(source):
        return source.suffix == ".csv"
    return any(os.path.exists(source / name) for name in (POINTS_FILE, STORE_FILE))


def read_points(file: Path, named: str = "") -> SweepPoints:
    """Read the points in a points.csv; the sweep is `named` so, or as its folder or file.

    Raises:
        InputError: when there are none, with the line and its fault; or when they are not the points that the sweep
            wrote, which the store beside them tells.
    """
    todo = _AGAIN if file.name == POINTS_FILE else _OTHER
    if is_named_pipe(file):
        raise InputError(f"{file}: {PIPE}")
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            points = _points(named or (file.resolve().parent.name if file.name == POINTS_FILE else file.stem), lines)
        if not is_as_written(file):
            raise InputError("was changed after the sweep had written it")
        return points
    except FileNotFoundError:
        raise InputError(f"{file}: no such file; run `tpusim sweep` to its end, it writes one") from None
    except UnicodeDecodeError:
        raise InputError(f"{file}: not the points of a sweep: not UTF-8 text; {todo}") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); {todo}") from None
    except _TooManyPoints as error:
        raise InputError(f"{file}: {error}; make the sweep smaller") from None
    except (InputError, csv.Error) as error:
        raise InputError(f"{file}: {error}; {todo}") from None


def _points(name: str, lines: Iterable[str]) -> SweepPoints:
    reader = csv.reader(lines)
    header = next(reader, [])
    missing = [column for column in _NEEDED if column not in header]
    if missing or len(set(header)) != len(header):
        raise InputError(f"not the points of a sweep: no column {', '.join(missing) or 'may come twice'}")
    rows = list(_rows(reader, len(header)))
    if not rows:
        raise InputError("no points")
    # Axes have any names; they are known by standing before the first column of a point.
    axes = tuple(header[: header.index(_FIRST_COLUMN)])
    texts = dict(zip(header, zip(*rows, strict=True), strict=True))
    read = {key: _figures(values) for key, values in texts.items() if key not in (*axes, *_TEXTS, GOALS, SETUP)}
    figures, goals = {key: values for key, values in read.items() if values}, texts.get(GOALS, ("",))[0]
    asked = tuple(goal for goal in map(goal_named, goals.split(_BETWEEN)) if goal)
    if not all(goal.column in (*figures, *axes) for goal in asked):
        raise InputError(f"{GOALS}: {goals}: of a column that is not there")
    points = SweepPoints(name, axes, texts, figures, asked, texts.get(SETUP, ("",))[0])
    for key in ("cycles", "time_us"):
        found = points.figures.get(key, [None] * points.size)
        # Line 1 is the header.
        for line, (error, value) in enumerate(zip(texts["error"], found, strict=True), 2):
            if not error and (value is None or value <= 0):
                raise InputError(f"line {line}: {key} is no number above zero, and the point has no error")
    for key in SHARES:
        for line, share in enumerate(points.figures.get(key, ()), 2):
            if share is not None and not 0 <= share <= 1:
                raise InputError(f"line {line}: {key}, {share:g}, is a share, from 0 to 1")
    return points


def _rows(reader: Iterator[list[str]], width: int) -> Iterator[list[str]]:
    for count, row in enumerate(reader, 1):
        if len(row) != width:
            raise InputError(f"line {count + 1}: {len(row)} cells, not {width}")
        if count > MOST_POINTS:
            raise _TooManyPoints(f"more than {MOST_POINTS:,} points, which is the most that a page shows")
        yield [from_cell(cell) for cell in row]


def _figures(values: Sequence[str]) -> tuple[float | None, ...]:
    """Return numbers; nothing where a word is among the values, or no number at all."""
    numbers = tuple(map(number, values))
    given = [found for value, found in zip(values, numbers, strict=True) if value]
    return numbers if given and None not in given else ()
