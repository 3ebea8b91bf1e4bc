"""The tables that come with tpusim: rows as they stand in the files."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib.resources import files

Row = dict[str, str]


def rows(name: str) -> Iterator[Row]:
    """The rows of truth/NAME.csv, each value as text by the name of its column."""
    text = (files("tpusim.study.validation") / "truth" / f"{name}.csv").read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


def sizes(bounds: str) -> tuple[int, ...]:
    """The numbers of "3x3x16x1"."""
    return tuple(int(size) for size in bounds.split("x"))
