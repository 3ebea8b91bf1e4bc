"""A table or figure of the paper: its simulations, its views, and its claims.

Reports decide how views are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeAlias

from tpusim.flow.jobs import resolve
from tpusim.machines.family import Machine
from tpusim.machines.lowered import Slot
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.study.paper.claims import Claim, ExhibitWords, Finding
from tpusim.study.sweep.points import Point

# ---- simulations

Row = Mapping[str, Any]


@dataclass(frozen=True)
class PointFigures:
    """Figures of a point, and of each of its layers, by the names of `tpusim.result.vocabulary.figures`."""

    figures: Row
    layers: Sequence[Row]

    @property
    def cycles(self) -> int:
        """Cycles of all layers together."""
        return int(self.figures["cycles"])

    def figure(self, name: str) -> float:
        """A figure of all layers together."""
        return float(self.figures[name])

    def each(self, name: str) -> list[float]:
        """A figure of every layer."""
        return [float(row[name]) for row in self.layers]

    def over(self, other: PointFigures, name: str) -> float:
        """Mean over the layers of a figure over that of the same layer of another point."""
        return fmean(own / its for own, its in zip(self.each(name), other.each(name), strict=True))


def point_of(name: str, layers: Sequence[Op], hardware: Machine, batch: int = 8, how: str = "channel_first") -> Point:
    """Layers on a machine by a lowering, timing alone."""
    return Point(resolve(Workload(name, batch, tuple(layers)), hardware, how))


# ---- views

Values: TypeAlias = Mapping[str, Sequence[float | None]]
"""Values by legend entry, one for each group or each place along x; None where there is none."""
Marks: TypeAlias = Mapping[str, float]
"""Values that the paper states, drawn as lines across."""


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
    """Lines over `x`; those of `right` have an axis of their own. With `doubling`, x doubles from one point to the
    next.
    """

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
"""Pairs of the reference's and our values."""


@dataclass(frozen=True)
class Parity:
    """Our cycles over the reference's, by legend entry; `word` names the origin of the reference."""

    title: str
    clouds: Mapping[str, Pairs]
    word: str


@dataclass(frozen=True)
class Errors:
    """Distributions of errors in percent, group by group."""

    title: str
    series: Values


@dataclass(frozen=True)
class ScheduleChart:
    """Activity of each unit over cycles; what is done in a slot gives the tone."""

    title: str
    rows: Mapping[str, Sequence[Slot]]
    end: float


@dataclass(frozen=True)
class Cell:
    """A text, and the number of its tone; 0 is blank."""

    text: str
    tone: int = 0


@dataclass(frozen=True)
class CellGrid:
    """Cells in rows, with names of rows and columns; `tones` has the meaning of each tone."""

    title: str
    cells: Sequence[Sequence[Cell]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    tones: Mapping[int, str] = field(default_factory=dict)


View: TypeAlias = TextTable | BarChart | Curves | Parity | Errors | ScheduleChart | CellGrid


@dataclass(frozen=True)
class ExhibitFigures:
    """An exhibit as we make it: views, and figures by the key of their claim."""

    views: Sequence[View] = ()
    findings: Mapping[str, Sequence[Finding]] = field(default_factory=dict)


@dataclass(frozen=True)
class Exhibit:
    """The words of an exhibit, with our views and figures."""

    words: ExhibitWords
    shown: ExhibitFigures

    @property
    def drawn(self) -> list[View]:
        """Views that are pictures."""
        return [each for each in self.shown.views if not isinstance(each, TextTable)]

    @property
    def tables(self) -> list[TextTable]:
        """Views that are tables."""
        return [each for each in self.shown.views if isinstance(each, TextTable)]

    @property
    def claims(self) -> list[Claim]:
        """Claims with our figures, and with the exhibit's section if they have none of their own."""
        found = self.shown.findings
        told = ((each, each.section or self.words.section, found.get(each.key, ())) for each in self.words.claims)
        return [each.model_copy(update={"section": section, "findings": (*own,)}) for each, section, own in told]


# ---- making

AskedPoints: TypeAlias = Mapping[Any, Point]
"""Points to be simulated, by names of the exhibit's own."""
FoundPoints: TypeAlias = Mapping[Any, PointFigures]
"""Results of the points, by the same names."""
Making: TypeAlias = Generator[AskedPoints, FoundPoints, ExhibitFigures]
"""An exhibit in the making: a generator that yields its points, is sent their results, and returns its views and
figures.
"""
Maker: TypeAlias = Callable[[], Making]


def asked(maker: Maker) -> AskedPoints:
    """Points that an exhibit asks for."""
    return next(maker())


def shown(maker: Maker, found: FoundPoints) -> ExhibitFigures:
    """Views and figures that an exhibit makes of its results."""
    making = maker()
    next(making)
    try:
        making.send(found)
    except StopIteration as done:
        result: ExhibitFigures = done.value
        return result
    raise AssertionError("an exhibit asks once")
