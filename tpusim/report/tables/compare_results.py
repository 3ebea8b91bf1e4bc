"""Two results, or two of anything measured, set against each other: row by row, and what differs in what was asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log
from typing import Any, Protocol

from tpusim.machines.family import KEY, USUAL
from tpusim.machines.tpu.description import optional_fields
from tpusim.report.tables.compare_carried import Matched, Together, matched
from tpusim.result.records import Result
from tpusim.result.vocabulary.fields import by_path

_ASKED = ("workload", "batch", "lowering", "engine", "dtype", "sums", "seed", "tpusim")


@dataclass(frozen=True)
class Change:
    """An input that differs; None where a result does not have it."""

    name: str
    before: Any
    after: Any


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
class Row:
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
        """The same by the MAC: what counts when the two do not do the same work."""
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
        return max(side.layers if isinstance(side, Together) else 1 for side in (self.before, self.after))

    @property
    def unchanged(self) -> bool:
        """Whether it takes the same cycles for the same work."""
        return bool(self.before and self.after and self.ratio == 1 and self.before.macs == self.after.macs)


class Compared(ABC):
    """What two results, or two sweeps, have in common."""

    @property
    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """Every layer or point of either; those that are only after come last."""

    @property
    @abstractmethod
    def same_clock(self) -> bool:
        """Whether a cycle is as long in both."""

    @property
    def common(self) -> tuple[tuple[Measured, Measured], ...]:
        """Those in both."""
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
    def rows(self) -> tuple[Row, ...]:
        """Every layer of either, in the order of the network; those that are only after come last.

        Layers of one that ride on another's results in the other are a row with it.
        """
        before, after = matched(self.before, self.after)
        return tuple(Row(name[0], before.get(name), after.get(name)) for name in {**before, **after})

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


ORDERS: dict[str, Callable[[Row], float]] = {
    "change": lambda row: -abs(row.difference),
    "ratio": lambda row: row.mac_ratio if row.mac_ratio is not None else float("inf"),
    "network": lambda row: 0,
}
"""What rows are sorted by; equal ones stay in the order of the network."""


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
    optional = by_path(optional_fields()) if fields.get(KEY, USUAL) == USUAL else ()
    unsaid = {path: value for path, value in optional if path not in fields}
    sizes = {f"sizes.{name}": size for name, size in result.sizes.items()}
    return {**asked, **sizes, "hardware": result.hardware.get("name"), **fields, **unsaid}
