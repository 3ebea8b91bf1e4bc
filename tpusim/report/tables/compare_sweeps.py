"""Two sweeps set against each other: points joined by the values of their axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isclose

from tpusim.base.errors import InputError
from tpusim.base.units import magnitude
from tpusim.report.page.sweep_file import SweepPoints
from tpusim.report.tables.compare_results import Compared, Row

_WORKLOAD = "workload"
_FIGURES = ("cycles", "time_us", "macs", "pe_utilization")

Key = tuple[str | float, ...]
"""The workload, and what the values of the axes measure: 0.7 TB/s is 700 GB/s."""


@dataclass(frozen=True)
class ComparedPoint:
    """What a point of a sweep came to."""

    cycles: int
    time_us: float
    macs: int
    pe_utilization: float


@dataclass(frozen=True)
class PointRow(Row):
    """A point by its settings, as the first sweep that has it wrote them: its workload, then its axes."""

    settings: Mapping[str, str]

    @property
    def difference(self) -> int:
        """Cycles more than before; none where one side lacks the point, as nothing grew or shrank."""
        return super().difference if self.before and self.after else 0


@dataclass(frozen=True)
class ComparedSweeps(Compared):
    """Two sweeps over the same axes. Points that failed are like points that are not there.

    Raises:
        InputError: other axes, a point that comes twice, or figures that are missing.
    """

    before: SweepPoints
    after: SweepPoints

    def __post_init__(self) -> None:
        if set(self.before.axes) != set(self.after.axes):
            both = (f"{side.name} has {', '.join(side.axes) or 'none'}" for side in (self.before, self.after))
            raise InputError(f"points are joined by their axes, and these differ: {'; '.join(both)}")

    @cached_property
    def rows(self) -> tuple[PointRow, ...]:
        """Every point that finished in either, in the order of the first sweep."""
        before, after = dict(_points(self.before)), dict(_points(self.after))
        found = before | {key: each for key, each in after.items() if key not in before}
        return tuple(
            PointRow(_name(settings), _figures(before, key), _figures(after, key), settings)
            for key, (settings, _) in found.items()
        )

    @property
    def same_clock(self) -> bool:
        """Whether a cycle is as long in both, at every point."""
        return all(isclose(row.time_ratio, row.ratio) for row in self.rows if row.time_ratio and row.ratio)


def _figures(points: Mapping[Key, tuple[Mapping[str, str], ComparedPoint]], key: Key) -> ComparedPoint | None:
    return points[key][1] if key in points else None


def _points(points: SweepPoints) -> Iterator[tuple[Key, tuple[Mapping[str, str], ComparedPoint]]]:
    """The points that finished, by what tells them apart."""
    if missing := [key for key in _FIGURES if key not in points.figures]:
        raise InputError(f"{points.name}: no column {', '.join(missing)}; run the sweep again with this version")
    seen: set[Key] = set()
    for index in range(points.size):
        settings = {name: points.texts[name][index] for name in (_WORKLOAD, *sorted(points.axes))}
        key = tuple(map(_measure, settings.values()))
        if key in seen:
            raise InputError(f"{points.name}: two points at {_name(settings)}")
        seen.add(key)
        cycles, time_us, macs, used = (points.figures[figure][index] for figure in _FIGURES)
        if cycles is not None and time_us is not None and macs is not None and used is not None:
            yield key, (settings, ComparedPoint(int(cycles), time_us, int(macs), used))


def _measure(text: str) -> str | float:
    measure = magnitude(text)
    return text if measure is None else measure


def _name(settings: Mapping[str, str]) -> str:
    return ", ".join(value if key == _WORKLOAD else f"{key}={value}" for key, value in settings.items())
