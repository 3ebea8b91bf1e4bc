"""Read the points of a sweep back from its points.csv: the axes, then the columns of a point."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpusim.base.errors import InputError
from tpusim.base.units import number
from tpusim.report.text import from_cell
from tpusim.study.sweep.store import FILE as STORE_FILE
from tpusim.study.sweep.store import is_as_written

POINTS_FILE = "points.csv"
MOST_POINTS = 20_000
"""More make a page that browsers take long to draw."""

_AGAIN = "remove it, and the same `tpusim sweep` writes it anew"
_OTHER = "give a directory or a points.csv that `tpusim sweep` wrote"
Cell = float | None
"""None where a point failed."""
_FIRST_COLUMN = "workload"
_TEXTS = (_FIRST_COLUMN, "error")
_NEEDED = (_FIRST_COLUMN, "cycles", "time_us", "error")


class _TooMany(InputError):
    """It is sound, but no browser would draw it."""


@dataclass(frozen=True)
class SweepPoints:
    """A sweep's points, column by column: all as they were written, axes first, and the figures as numbers as well."""

    name: str
    axes: tuple[str, ...]
    texts: Mapping[str, tuple[str, ...]]
    figures: Mapping[str, tuple[Cell, ...]]

    @property
    def size(self) -> int:
        """Points, failed ones included."""
        return len(self.texts["error"])


def is_sweep(source: Path) -> bool:
    """Whether it is a points.csv, or a directory that a sweep has written into."""
    if not source.is_dir():
        return source.suffix == ".csv"
    return any((source / name).exists() for name in (POINTS_FILE, STORE_FILE))


def read_points(file: Path) -> SweepPoints:
    """The points in a points.csv.

    Raises:
        InputError: when there are none, says what is wrong in which line; or when they are not those that the sweep
            wrote, which the store beside them tells.
    """
    todo = _AGAIN if file.name == POINTS_FILE else _OTHER
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            points = _points(_name(file), lines)
        if not is_as_written(file):
            raise InputError("was changed after the sweep had written it")
        return points
    except FileNotFoundError:
        raise InputError(f"{file}: no such file; run `tpusim sweep` to its end, it writes one") from None
    except UnicodeDecodeError:
        raise InputError(f"{file}: not the points of a sweep: not UTF-8 text; {todo}") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); {todo}") from None
    except _TooMany as error:
        raise InputError(f"{file}: {error}; make the sweep smaller") from None
    except (InputError, csv.Error) as error:
        raise InputError(f"{file}: {error}; {todo}") from None


def _name(file: Path) -> str:
    return file.resolve().parent.name if file.name == POINTS_FILE else file.stem


def _points(name: str, lines: Iterable[str]) -> SweepPoints:
    reader = csv.reader(lines)
    header = next(reader, [])
    missing = [column for column in _NEEDED if column not in header]
    if missing or len(set(header)) != len(header):
        raise InputError(f"not the points of a sweep: no column {', '.join(missing) or 'may come twice'}")
    rows = list(_rows(reader, len(header)))
    if not rows:
        raise InputError("no points")
    axes = tuple(header[: header.index(_FIRST_COLUMN)])
    texts = dict(zip(header, zip(*rows, strict=True), strict=True))
    read = {key: _figures(values) for key, values in texts.items() if key not in (*axes, *_TEXTS)}
    points = SweepPoints(name, axes, texts, {key: values for key, values in read.items() if values})
    _check_finished(points)
    return points


def _rows(reader: Iterator[list[str]], width: int) -> Iterator[list[str]]:
    for count, row in enumerate(reader, 1):
        if len(row) != width:
            raise InputError(f"line {count + 1}: {len(row)} cells, not {width}")
        if count > MOST_POINTS:
            raise _TooMany(f"more than {MOST_POINTS:,} points, which is the most that a page shows")
        yield [from_cell(cell) for cell in row]


def _figures(values: Sequence[str]) -> tuple[Cell, ...]:
    """Numbers; nothing where a word is among them, or no number at all."""
    numbers = tuple(map(number, values))
    given = [found for value, found in zip(values, numbers, strict=True) if value]
    return numbers if given and None not in given else ()


def _check_finished(points: SweepPoints) -> None:
    for key in ("cycles", "time_us"):
        values = points.figures.get(key, [None] * points.size)
        for line, (error, value) in enumerate(zip(points.texts["error"], values, strict=True), 2):
            if not error and (value is None or value <= 0):
                raise InputError(f"line {line}: {key} is no number above zero, and the point has no error")
