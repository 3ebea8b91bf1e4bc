"""Two results or two sweeps set against each other: row by row, and what differs in what was asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, isclose, log
from typing import Any, Protocol

from tpusim.base.errors import InputError
from tpusim.base.units import magnitude
from tpusim.machines.family import FAMILIES, KEY, USUAL, family_named
from tpusim.report.tables.sweep import SweepPoints
from tpusim.result.records import LayerResult, Result
from tpusim.result.vocabulary.fields import by_path


class Measured(Protocol):
    """What a row compares: a layer of a run, a point of a sweep."""

    @property
    def cycles(self) -> int: ...
    @property
    def time_us(self) -> float: ...
    @property
    def macs(self) -> int: ...
    @property
    def pe_utilization(self) -> float: ...


@dataclass(frozen=True)
class Measures:
    """What layers that the other run has as one came to together, or a point of a sweep.

    `layers` are as many; `inputs` are what they read of others.
    """

    cycles: int
    time_us: float
    macs: int
    pe_utilization: float
    inputs: tuple[str, ...] = ()
    layers: int = 1


@dataclass(frozen=True)
class ComparedRow:
    """A layer or a point in both, or (the other is None) in one."""

    name: str
    before: Measured | None
    after: Measured | None

    @property
    def difference(self) -> int:
        """Cycles more than before; one that is not there takes none."""
        return (self.after.cycles if self.after else 0) - (self.before.cycles if self.before else 0)

    @property
    def ratio(self) -> float | None:
        """Cycles after over cycles before."""
        return self.after.cycles / self.before.cycles if self.before and self.after else None

    @property
    def mac_ratio(self) -> float | None:
        """Cycles a MAC after over cycles a MAC before: what counts when the two do not do the same work."""
        if not (self.before and self.after and self.before.macs and self.after.macs):
            return None
        return self.after.cycles * self.before.macs / (self.before.cycles * self.after.macs)

    @property
    def time_ratio(self) -> float | None:
        """Time after over time before."""
        return self.after.time_us / self.before.time_us if self.before and self.after else None

    @property
    def layers(self) -> int:
        """Layers of one side that are one on the other, and that one; 1 where both have it alike."""
        return max(side.layers if isinstance(side, Measures) else 1 for side in (self.before, self.after))

    @property
    def unchanged(self) -> bool:
        """Whether it takes the same cycles for the same work."""
        return bool(self.before and self.after and self.ratio == 1 and self.before.macs == self.after.macs)


class Compared(ABC):
    """What two results, or two sweeps, have in common."""

    @property
    @abstractmethod
    def rows(self) -> Sequence[ComparedRow]:
        """Every layer or point of either; those that are only after come last."""

    @property
    @abstractmethod
    def same_clock(self) -> bool:
        """Whether a cycle is as long in both."""

    @property
    def common(self) -> tuple[tuple[Measured, Measured], ...]:
        """Layers or points in both."""
        return tuple((row.before, row.after) for row in self.rows if row.before and row.after)

    @property
    def same_work(self) -> bool:
        """Whether those in both do as many MACs."""
        return all(before.macs == after.macs for before, after in self.common)

    @property
    def geometric_mean(self) -> float | None:
        """The mean of the cycle ratios (by the MAC) of those in both that multiply; None when there are none."""
        logs = [log(ratio) for ratio in self._mac_ratios]
        return exp(sum(logs) / len(logs)) if logs else None

    def mean_is_over(self, what: str) -> str:
        """What that is the mean of, "layers" or "points": all in both, or those that multiply."""
        some, all_ = len(self._mac_ratios), len(self.common)
        return what if some == all_ else f"the {some:,} of {all_:,} {what} that multiply"

    @property
    def _mac_ratios(self) -> list[float]:
        return [ratio for row in self.rows if (ratio := row.mac_ratio or 0) > 0]


ORDERS: dict[str, Callable[[ComparedRow], float]] = {
    "change": lambda row: -abs(row.difference),
    "ratio": lambda row: row.mac_ratio if row.mac_ratio is not None else float("inf"),
    "network": lambda row: 0,
}
"""What rows are sorted by; equal ones stay in the order of the network."""


# ---- runs

_ASKED = ("workload", "batch", "lowering", "engine", "dtype", "sums", "seed", "tpusim")


@dataclass(frozen=True)
class Change:
    """An input that differs; None where a result does not have it."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True)
class ComparedResults(Compared):
    """Two results, `before` and `after`."""

    before: Result
    after: Result

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The inputs that differ, fields of the hardware by their paths.

        A field that one side does not have, because an older version wrote it, has its default there. Of a part of the
        machine that one side has none of, such as a DRAM, the other side has the name.
        """
        one, other = (_inputs(result) for result in (self.before, self.after))
        before, after = _named(one, other), _named(other, one)
        changes = (Change(name, before.get(name), after.get(name)) for name in {**before, **after})
        return tuple(change for change in changes if change.before != change.after)

    @cached_property
    def rows(self) -> tuple[ComparedRow, ...]:
        """Every layer of either, in the order of the network; those that are only after come last.

        Layers of one that ride on another's results in the other are a row with it.
        """
        before, after = matched(self.before, self.after)
        return tuple(ComparedRow(name[0], before.get(name), after.get(name)) for name in {**before, **after})

    @property
    def rewired(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """By layer what it reads in each, where that differs.

        Nothing where one does not tell, nor where that follows from layers that only one of them has. Of several layers
        that are one in the other, in any order.
        """
        alone = {row.name for row in self.rows if not (row.before and row.after)}
        found = {}
        for row in self.rows:
            one, two = (side.inputs if isinstance(side, Matched) else () for side in (row.before, row.after))
            same = {*one} == {*two} if row.layers > 1 else one == two
            if one and two and not same and alone.isdisjoint({*one, *two}):
                found[row.name] = one, two
        return found

    @property
    def same_clock(self) -> bool:
        return all(change.name != "clock" for change in self.changes)


def _named(fields: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Fields by their paths; those inside what the others have none of are one, by its name."""
    parts = [
        path for path, value in others.items() if value is None and f"{path}.name" in fields.keys() - others.keys()
    ]
    inside = tuple([f"{path}." for path in parts])
    kept = {path: value for path, value in fields.items() if not path.startswith(inside)} if inside else dict(fields)
    return {**kept, **{path: fields[f"{path}.name"] for path in parts}}


def _inputs(result: Result) -> dict[str, Any]:
    asked = {name: getattr(result, name) for name in _ASKED}
    fields = dict(by_path({key: value for key, value in result.hardware.items() if key != "name"}))
    family = fields.get(KEY, USUAL)
    optional = by_path(family_named(family).left_out()) if family in FAMILIES else ()
    unsaid = {path: value for path, value in optional if path not in fields}
    sizes = {f"sizes.{name}": size for name, size in result.sizes.items()}
    return {**asked, **sizes, "hardware": result.hardware.get("name"), **fields, **unsaid}


# ---- layers that ride on another's results in one of two runs, and are by themselves in the other: one row for them

Key = tuple[str, int]
"""A layer's name, numbered so that a second of one name is not taken for the first."""


Matched = LayerResult | Measures


def matched(before: Result, after: Result) -> tuple[dict[Key, Matched], dict[Key, Matched]]:
    """The layers of each by what they are matched by; inputs are called by the layers that they became part of."""
    both = {layer.name for layer in before.layers} & {layer.name for layer in after.layers}
    bearers = {name: bearer for name, bearer in _bearers(before, after).items() if bearer in both}
    groups = (_groups(result, bearers).items() for result in (before, after))
    one, other = ({key: _one(key[0], layers, bearers) for key, layers in each} for each in groups)
    return one, other


def _bearers(*results: Result) -> dict[str, str]:
    """By layer that rides in any of the results, or carries others in one that ride elsewhere in another, the layer
    that it goes with.
    """
    ahead: dict[str, str] = {}

    def of(name: str) -> str:
        while name in ahead:
            name = ahead[name]
        return name

    for layer in (layer for result in results for layer in result.layers):
        for rider in layer.riders:
            if of(rider) != of(layer.name):
                ahead[of(rider)] = of(layer.name)
    return {name: of(name) for name in ahead}


def _groups(result: Result, bearers: Mapping[str, str]) -> dict[Key, list[LayerResult]]:
    seen: Counter[str] = Counter()
    groups: dict[Key, list[LayerResult]] = {}
    carrying = {*bearers.values()}
    for layer in result.layers:
        name = bearers.get(layer.name, layer.name)
        groups.setdefault((name, 0 if name in carrying else seen[name]), []).append(layer)
        seen[name] += 1
    return groups


def _one(name: str, layers: Sequence[LayerResult], bearers: Mapping[str, str]) -> Matched:
    inputs = tuple(dict.fromkeys(_read(name, layers, bearers)))
    if len(layers) == 1:
        return replace(layers[0], inputs=inputs)
    cycles = sum(layer.cycles for layer in layers)
    used = sum(layer.pe_utilization * layer.cycles for layer in layers) / cycles
    return Measures(cycles, sum(layer.time_us for layer in layers), sum(layer.macs for layer in layers), used, inputs,
                    len(layers))  # fmt: skip


def _read(name: str, layers: Sequence[LayerResult], bearers: Mapping[str, str]) -> Iterator[str]:
    """What layers read of others than themselves."""
    for each in (each for layer in layers for each in layer.inputs):
        if (read := bearers.get(each, each)) != name:
            yield read


# ---- sweeps: points joined by the values of their axes

_WORKLOAD = "workload"
_FIGURES = ("cycles", "time_us", "macs", "pe_utilization")

PointKey = tuple[str | float, ...]
"""The workload, and what the values of the axes measure: 0.7 TB/s is 700 GB/s."""


@dataclass(frozen=True)
class PointRow(ComparedRow):
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


def _figures(points: Mapping[PointKey, tuple[Mapping[str, str], Measures]], key: PointKey) -> Measures | None:
    return points[key][1] if key in points else None


def _points(points: SweepPoints) -> Iterator[tuple[PointKey, tuple[Mapping[str, str], Measures]]]:
    """The points that finished, by what tells them apart."""
    if missing := [key for key in _FIGURES if key not in points.figures]:
        raise InputError(f"{points.name}: no column {', '.join(missing)}; run the sweep again with this version")
    seen: set[PointKey] = set()
    for index in range(points.size):
        settings = {name: points.texts[name][index] for name in (_WORKLOAD, *sorted(points.axes))}
        key = tuple(map(_measure, settings.values()))
        if key in seen:
            raise InputError(f"{points.name}: two points at {_name(settings)}")
        seen.add(key)
        cycles, time_us, macs, used = (points.figures[figure][index] for figure in _FIGURES)
        if cycles is not None and time_us is not None and macs is not None and used is not None:
            yield key, (settings, Measures(int(cycles), time_us, int(macs), used))


def _measure(text: str) -> str | float:
    measure = magnitude(text)
    return text if measure is None else measure


def _name(settings: Mapping[str, str]) -> str:
    return ", ".join(value if key == _WORKLOAD else f"{key}={value}" for key, value in settings.items())
