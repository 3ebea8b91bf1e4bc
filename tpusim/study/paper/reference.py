"""Sets of reference numbers as points: what is to be simulated for them, and the errors that come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from tpusim.machines.tpu.description import load_hardware
from tpusim.network.ops.conv2d import Conv2d
from tpusim.network.ops.op import Op
from tpusim.study.paper.claim import AGAINST, Finding
from tpusim.study.paper.exhibit import Asked, Found
from tpusim.study.paper.found import point_of
from tpusim.study.sweep.space import Point
from tpusim.study.validation.cases import Case
from tpusim.study.validation.sets import number_sets

Chosen = Callable[[Case], bool]


def every(_: Case) -> bool:
    """All cases."""
    return True


def thick(case: Case) -> bool:
    """Convolutions that leave nothing to stack: of 128 input channels and more."""
    (layer,) = case.layers
    return isinstance(layer, Conv2d) and layer.in_channels >= 128


@dataclass(frozen=True)
class Held:
    """Cases of some sets of one word that a machine is held against: their own, or `machine` as it is."""

    sets: tuple[str, ...]
    machine: str | None = None
    chosen: Chosen = every

    @property
    def cases(self) -> list[tuple[str, Case]]:
        """Each with its set."""
        return [(name, case) for name in self.sets for case in number_sets()[name].cases if self.chosen(case)]

    @property
    def word(self) -> str:
        """What the numbers of the sets are: measured, scheduled or estimated."""
        return number_sets()[self.sets[0]].status

    def asked(self) -> Asked:
        """A point for each set, batch and change of the machine."""
        groups: dict[str, list[tuple[int, Case]]] = {}
        for place, (name, case) in enumerate(self.cases):
            groups.setdefault(self._key(name, case), []).append((place, case))
        return {key: self._point(key, cases) for key, cases in groups.items()}

    def _key(self, name: str, case: Case) -> str:
        return " ".join((name, self.machine or "own", str(case.batch), *case.changes))

    def _point(self, key: str, cases: Sequence[tuple[int, Case]]) -> Point:
        name, (_, first) = key.partition(" ")[0], cases[0]
        numbers = number_sets()[name]
        changes = () if self.machine else (*numbers.changes, *first.changes)
        hardware = load_hardware(self.machine or numbers.hardware, changes)
        layers = [_named(layer, place, index) for place, case in cases for index, layer in enumerate(case.layers)]
        return point_of(name, layers, hardware, first.batch)

    def cycles(self, found: Found) -> list[float]:
        """What each case takes."""
        taken = [0.0] * len(self.cases)
        for key in {self._key(name, case) for name, case in self.cases}:
            for row in found[key].layers:
                taken[int(str(row["name"]).partition(" ")[0])] += float(row["cycles"])
        return taken

    def pairs(self, found: Found) -> list[tuple[float, float]]:
        """Theirs and ours."""
        return [(case.theirs, ours) for (_, case), ours in zip(self.cases, self.cycles(found), strict=True)]

    def errors(self, found: Found) -> list[float]:
        """The error of each case, in percent of theirs."""
        return [100 * (ours / theirs - 1) for theirs, ours in self.pairs(found)]

    def mean_error(self, found: Found, chosen: Chosen = every) -> float:
        """The mean of their sizes over some of them."""
        errors = zip(self.cases, self.errors(found), strict=True)
        return fmean(abs(error) for (_, case), error in errors if chosen(case))

    def total_error(self, found: Found) -> float:
        """The error of the sum of all, in percent."""
        pairs = self.pairs(found)
        return 100 * (sum(ours for _, ours in pairs) / sum(theirs for theirs, _ in pairs) - 1)

    def finding(self, found: Found, when: str, chosen: Chosen = every) -> Finding:
        """The mean error, under a name."""
        return Finding(when, self.mean_error(found, chosen), AGAINST.format(word=self.word))


def all_asked(held: Iterable[Held]) -> Asked:
    """The points of several."""
    return {key: point for each in held for key, point in each.asked().items()}


def _named(layer: Op, place: int, index: int) -> Op:
    """Under the place of its case, as a workload has every name once."""
    return replace(layer, name=f"{place} {index}")
