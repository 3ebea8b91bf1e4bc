"""What an exhibit shows, as data: tables, charts, schedules and cells. How they are drawn is for the reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Table:
    """Text in rows under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True)
class Series:
    """A name and a value for each group, or for each place along x; None where there is none."""

    label: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Mark:
    """What the paper states, as a line across."""

    label: str
    value: float


@dataclass(frozen=True)
class Bars:
    """A bar a series in each group."""

    title: str
    groups: Sequence[str]
    series: Sequence[Series]
    unit: str
    marks: Sequence[Mark] = ()


@dataclass(frozen=True)
class Curves:
    """Lines over `x`; those of `right` have an axis of their own."""

    title: str
    x: Sequence[float]
    x_label: str
    left: Sequence[Series]
    left_label: str
    right: Sequence[Series] = ()
    right_label: str = ""
    marks: Sequence[Mark] = ()
    doubling: bool = False
    """Whether x doubles from one to the next."""


@dataclass(frozen=True)
class Cloud:
    """Named pairs (theirs, ours)."""

    label: str
    pairs: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Parity:
    """Ours over theirs, both in `unit`; `word` says what theirs are."""

    title: str
    clouds: Sequence[Cloud]
    unit: str
    word: str


@dataclass(frozen=True)
class Errors:
    """How errors in percent are spread, group by group."""

    title: str
    series: Sequence[Series]


@dataclass(frozen=True)
class Span:
    """Time [start, end) in which a row of a schedule does something; `kind` gives the tone."""

    start: float
    end: float
    kind: str


@dataclass(frozen=True)
class Schedule:
    """What each unit does when."""

    title: str
    rows: Sequence[tuple[str, Sequence[Span]]]
    end: float
    unit: str = "cycles"


@dataclass(frozen=True)
class Cell:
    """A text, and the number of its tone; 0 is blank."""

    text: str
    tone: int = 0


@dataclass(frozen=True)
class Grid:
    """Cells in rows, with names beside the rows and above the columns."""

    title: str
    cells: Sequence[Sequence[Cell]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    tones: dict[int, str] = field(default_factory=dict)
    """What tones mean."""


View: TypeAlias = Table | Bars | Curves | Parity | Errors | Schedule | Grid
