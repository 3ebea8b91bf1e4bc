"""A table or figure of the paper: what is simulated for it, what it shows, and the claims that it carries.

How views are drawn is for the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeAlias

from tpusim.machines.family import Machine
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.study.paper.claims import Claim, ExhibitWords, Finding
from tpusim.study.sweep.points import Point

# ---- what is simulated

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Simulated:
    """Figures of a point, and of each of its layers, under the names of `tpusim.result.vocabulary.figures`."""

    figures: Row
    layers: Sequence[Row]

    @property
    def cycles(self) -> int:
        """The cycles of all layers together."""
        return int(self.figures["cycles"])

    def figure(self, name: str) -> float:
        """A figure of all layers together."""
        return float(self.figures[name])

    def each(self, name: str) -> list[float]:
        """A figure of every layer."""
        return [float(row[name]) for row in self.layers]

    def over(self, other: Simulated, name: str) -> float:
        """A figure of every layer over that of the same layer of another point: the mean of the layers."""
        return fmean(own / its for own, its in zip(self.each(name), other.each(name), strict=True))


def point_of(name: str, layers: Sequence[Op], hardware: Machine, batch: int = 8, how: str = "channel_first") -> Point:
    """Layers on a machine by a lowering, timing alone."""
    return Point(Workload(name, batch, tuple(layers)), (), hardware, how)


# ---- what is shown

Values: TypeAlias = Mapping[str, Sequence[float | None]]
"""By what a legend calls them, values for each group, or for each place along x; None where there is none."""
Marks: TypeAlias = Mapping[str, float]
"""What the paper states, as lines across."""


@dataclass(frozen=True)
class TextTable:
    """Text in rows under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True)
class BarChart:
    """A bar of each series in every group."""

    title: str
    groups: Sequence[str]
    series: Values
    unit: str
    marks: Marks = field(default_factory=dict)


@dataclass(frozen=True)
class Curves:
    """Lines over `x`; those of `right` have an axis of their own. `doubling`: x doubles from one to the next."""

    title: str
    x: Sequence[float]
    x_label: str
    left: Values
    left_label: str
    right: Values = field(default_factory=dict)
    right_label: str = ""
    marks: Marks = field(default_factory=dict)
    doubling: bool = False


Pairs: TypeAlias = Sequence[tuple[float, float]]
"""Theirs and ours."""


@dataclass(frozen=True)
class Parity:
    """Ours over theirs, both in cycles, by what a legend calls them; `word` says what theirs are."""

    title: str
    clouds: Mapping[str, Pairs]
    word: str


@dataclass(frozen=True)
class Errors:
    """How errors in percent are spread, group by group."""

    title: str
    series: Values


@dataclass(frozen=True)
class ChartSpan:
    """Time [start, end) in which a row of a schedule does something; `kind` gives the tone."""

    start: float
    end: float
    kind: str


@dataclass(frozen=True)
class ScheduleChart:
    """What each unit does when, in cycles."""

    title: str
    rows: Mapping[str, Sequence[ChartSpan]]
    end: float


@dataclass(frozen=True)
class Cell:
    """A text, and the number of its tone; 0 is blank."""

    text: str
    tone: int = 0


@dataclass(frozen=True)
class CellGrid:
    """Cells in rows, with names beside the rows and above the columns; `tones` say what tones mean."""

    title: str
    cells: Sequence[Sequence[Cell]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    tones: Mapping[int, str] = field(default_factory=dict)


View: TypeAlias = TextTable | BarChart | Curves | Parity | Errors | ScheduleChart | CellGrid


@dataclass(frozen=True)
class Exhibited:
    """What we make of an exhibit: views, and figures by the key of their claim."""

    views: Sequence[View] = ()
    findings: Mapping[str, Sequence[Finding]] = field(default_factory=dict)


@dataclass(frozen=True)
class Exhibit:
    """The words of an exhibit, and what we make of it."""

    words: ExhibitWords
    shown: Exhibited

    @property
    def drawn(self) -> list[View]:
        """What of it is a picture."""
        return [each for each in self.shown.views if not isinstance(each, TextTable)]

    @property
    def tables(self) -> list[TextTable]:
        """What of it is a table."""
        return [each for each in self.shown.views if isinstance(each, TextTable)]

    @property
    def claims(self) -> list[Claim]:
        """Each claim with our figures, and the exhibit's section where it has none of its own."""
        found = self.shown.findings
        told = ((each, each.section or self.words.section, found.get(each.key, ())) for each in self.words.claims)
        return [each.model_copy(update={"section": section, "findings": (*own,)}) for each, section, own in told]


# ---- how it is made

AskedPoints: TypeAlias = Mapping[Any, Point]
"""What is to be simulated, each under a name of the exhibit's own."""
FoundPoints: TypeAlias = Mapping[Any, Simulated]
"""What came of it, under the same names."""
Making: TypeAlias = Generator[AskedPoints, FoundPoints, Exhibited]
"""An exhibit being made: it yields what it asks for, is sent what came of it, and returns what it shows."""
Maker: TypeAlias = Callable[[], Making]


def asked(maker: Maker) -> AskedPoints:
    """What an exhibit asks for."""
    return next(maker())


def shown(maker: Maker, found: FoundPoints) -> Exhibited:
    """What an exhibit makes of what came of it."""
    making = maker()
    next(making)
    try:
        making.send(found)
    except StopIteration as done:
        result: Exhibited = done.value
        return result
    raise AssertionError("an exhibit asks once")
