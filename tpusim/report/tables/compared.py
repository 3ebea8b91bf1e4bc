"""Two results or two sweeps set against each other: row by row, and with the inputs that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isclose, log
from typing import Any

from tpusim.base.errors import InputError
from tpusim.base.units import magnitude
from tpusim.machines.family import FAMILIES, KEY, USUAL, family_named
from tpusim.report.tables.sweep import SweepPoints
from tpusim.result.records import LayerResult, Result
from tpusim.result.vocabulary.fields import by_path


@dataclass(frozen=True)
class Measures:
    """The figures a row compares: of a layer, of several that are one in the other run, or of a point of a sweep.

    `layers` counts them; `inputs` are the other layers that they read.
    """

    cycles: int
    time_us: float
    macs: int
    pe_utilization: float
    inputs: tuple[str, ...] = ()
    layers: int = 1


@dataclass(frozen=True)
class ComparedRow:
    """A layer or a point in both, or in one (the other is None).

    `settings` are a point's, as the first sweep that has it wrote them: its workload, then its axes.
    """

    name: str
    before: Measures | None
    after: Measures | None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def difference(self) -> int:
        """Cycles more than before; a side that lacks the layer counts 0. A point that a side lacks did not change."""
        if self.settings and not (self.before and self.after):
            return 0
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
        """How many layers of one side are one layer on the other, and that one counts; 1 where both have the layer
        alike.
        """
        return max(side.layers for side in (self.before, self.after) if side)

    @property
    def unchanged(self) -> bool:
        """Whether both sides take the same cycles for the same work."""
        return bool(self.before and self.after and self.ratio == 1 and self.before.macs == self.after.macs)


@dataclass(frozen=True)
class Comparable:
    """The common part of two results, or of two sweeps.

    Attributes:
        rows: every layer or point of either; those that are only after come last.
        same_clock: whether a cycle is as long in both.
    """

    rows: Sequence[ComparedRow]
    same_clock: bool

    def ordered(self, order: str) -> list[ComparedRow]:
        """Return the rows in one of ORDERS; rows that did not change are left out, except in network order."""
        return [row for row in sorted(self.rows, key=ORDERS[order]) if order == "network" or not row.unchanged]

    @property
    def common(self) -> tuple[tuple[Measures, Measures], ...]:
        """Layers or points in both."""
        return tuple((row.before, row.after) for row in self.rows if row.before and row.after)

    @property
    def same_work(self) -> bool:
        """Whether layers or points in both do as many MACs."""
        return all(before.macs == after.macs for before, after in self.common)

    @property
    def geometric_mean(self) -> float | None:
        """The mean of the cycle ratios (by the MAC) of rows in both that multiply; None when there are none."""
        logs = [log(ratio) for ratio in self._mac_ratios]
        return exp(sum(logs) / len(logs)) if logs else None

    def mean_is_over(self, what: str) -> str:
        """Say what is averaged, "layers" or "points": all in both, or those that multiply."""
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
"""The ways to sort rows; equal rows stay in the order of the network."""


# ---- runs

_ASKED = ("workload", "batch", "lowering", "engine", "dtype", "sums", "seed", "tpusim")


@dataclass(frozen=True)
class Change:
    """An input that differs; None where a result does not have it."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True)
class ComparedResults(Comparable):
    """Two results, `before` and `after`, and the inputs that differ: fields of the hardware are named by
    their paths.
    """

    before: Result
    after: Result
    changes: tuple[Change, ...]

    @property
    def rewired(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """By layer what it reads in each of the results, where that differs.

        Empty for a layer of which one result does not tell, or that reads a layer which only one result has. Where one
        layer stands for several, the order of what they read does not count.
        """
        alone = {row.name for row in self.rows if not (row.before and row.after)}
        found = {}
        for row in self.rows:
            one, two = (side.inputs if side else () for side in (row.before, row.after))
            same = {*one} == {*two} if row.layers > 1 else one == two
            if one and two and not same and alone.isdisjoint({*one, *two}):
                found[row.name] = one, two
        return found


def compared_results(before: Result, after: Result) -> ComparedResults:
    """Set two results against each other, layer by layer in the order of the network.

    A field that one side does not have, because an older version wrote it, has its default there. Of a part of the
    machine that one side has none of, such as a DRAM, the other side has the name. Layers of one that ride on another's
    results in the other are a row with it, whose inputs are called by the layers that they became part of.
    """
    one, other = _inputs(before), _inputs(after)
    asked, wanted = _named(one, other), _named(other, one)
    differing = (Change(name, asked.get(name), wanted.get(name)) for name in {**asked, **wanted})
    changes = tuple(change for change in differing if change.before != change.after)
    both = {layer.name for layer in before.layers} & {layer.name for layer in after.layers}
    bearers = {name: bearer for name, bearer in _bearers(before, after).items() if bearer in both}
    ours, theirs = (_measured(result, bearers) for result in (before, after))
    rows = tuple(ComparedRow(key[0], ours.get(key), theirs.get(key)) for key in {**ours, **theirs})
    return ComparedResults(rows, all(change.name != "clock" for change in changes), before, after, changes)


def _named(fields: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields by their paths; those inside a part that the others lack are one field, by the part's name."""
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
    sizes: dict[str, object] = {f"sizes.{name}": size for name, size in result.sizes.items()}
    sizes |= {f"layers of {kind} in HBM": count for kind, count in result.narrow.items()}
    if step := result.step:
        sizes |= {"slice": step.slice, **{f"mesh.{axis}": chips for axis, chips in step.mesh.items()}}
    return {**asked, **sizes, "hardware": result.hardware.get("name"), **fields, **unsaid}


# ---- layers that ride on another's results in one of two runs, and are by themselves in the other: one row for them


def _bearers(*results: Result) -> dict[str, str]:
    """Return by layer that rides in any of the results, or carries others in one that ride elsewhere in another, the
    layer that it goes with.
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


def _measured(result: Result, bearers: Mapping[str, str]) -> dict[tuple[str, int], Measures]:
    """Return a result's layers by what they are matched by: a name, numbered so that a second of one name is
    another.
    """
    seen: Counter[str] = Counter()
    groups: dict[tuple[str, int], list[LayerResult]] = {}
    carrying = {*bearers.values()}
    for layer in result.layers:
        name = bearers.get(layer.name, layer.name)
        # Layers that go with one bearer are one row; others of one name are told apart by number.
        groups.setdefault((name, 0 if name in carrying else seen[name]), []).append(layer)
        seen[name] += 1
    found = {}
    for (name, number), layers in groups.items():
        read = dict.fromkeys(bearers.get(each, each) for layer in layers for each in layer.inputs)
        # Inside a row, layers read one another, which is no edge of the row.
        inputs = tuple(each for each in read if each != name)
        time_us, macs = sum(layer.time_us for layer in layers), sum(layer.macs for layer in layers)
        cycles, used = layers[0].cycles, layers[0].pe_utilization
        if len(layers) > 1:
            cycles = sum(layer.cycles for layer in layers)
            # Utilisation is a share of cycles, so its mean is weighted by them.
            used = sum(layer.pe_utilization * layer.cycles for layer in layers) / cycles
        found[name, number] = Measures(cycles, time_us, macs, used, inputs, len(layers))
    return found


# ---- sweeps: points joined by the values of their axes

_WORKLOAD = "workload"
_FIGURES = ("cycles", "time_us", "macs", "pe_utilization")

PointKey = tuple[str | float, ...]
"""The workload, and the measured values of the axes: 0.7 TB/s is 700 GB/s."""


@dataclass(frozen=True)
class ComparedSweeps(Comparable):
    """Two sweeps over the same axes. Points that failed are like points that are not there."""

    before: SweepPoints
    after: SweepPoints


def compared_sweeps(before: SweepPoints, after: SweepPoints) -> ComparedSweeps:
    """Set two sweeps against each other, point by point in the order of the first.

    Raises:
        InputError: other axes, a point that comes twice, or figures that are missing.
    """
    if set(before.axes) != set(after.axes):
        both = (f"{side.name} has {', '.join(side.axes) or 'none'}" for side in (before, after))
        raise InputError(f"points are joined by their axes, and these differ: {'; '.join(both)}")
    one, other = dict(_points(before)), dict(_points(after))
    rows = []
    for key in {**one, **other}:
        found = [side.get(key) for side in (one, other)]
        settings = next(each[0] for each in found if each)
        first, second = (each and each[1] for each in found)
        rows.append(ComparedRow(_name(settings), first, second, settings))
    # The clocks agree if times and cycles have the same ratio at every point: points.csv holds no clock of its own.
    same_clock = all(isclose(row.time_ratio, row.ratio) for row in rows if row.time_ratio and row.ratio)
    return ComparedSweeps(tuple(rows), same_clock, before, after)


def _points(points: SweepPoints) -> Iterator[tuple[PointKey, tuple[Mapping[str, str], Measures]]]:
    """Yield the points that finished, by their workload and axes."""
    if missing := [key for key in _FIGURES if key not in points.figures]:
        raise InputError(f"{points.name}: no column {', '.join(missing)}; run the sweep again with this version")
    seen: set[PointKey] = set()
    for index in range(points.size):
        settings = {name: points.texts[name][index] for name in (_WORKLOAD, *sorted(points.axes))}
        measures = ((text, magnitude(text)) for text in settings.values())
        key = tuple(text if measure is None else measure for text, measure in measures)
        if key in seen:
            raise InputError(f"{points.name}: two points at {_name(settings)}")
        seen.add(key)
        cycles, time_us, macs, used = (points.figures[figure][index] for figure in _FIGURES)
        if cycles is not None and time_us is not None and macs is not None and used is not None:
            yield key, (settings, Measures(int(cycles), time_us, int(macs), used))


def _name(settings: Mapping[str, str]) -> str:
    return ", ".join(value if key == _WORKLOAD else f"{key}={value}" for key, value in settings.items())
