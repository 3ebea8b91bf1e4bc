"""Simulate what is missing of some exhibits, keep it, and make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpusim.study.paper.exhibit import Exhibit
from tpusim.study.paper.found import Simulated, read_back
from tpusim.study.paper.registry import MAKERS
from tpusim.study.paper.words import words
from tpusim.study.sweep.job import Executor
from tpusim.study.sweep.run import Outcome, Progress, missing, run_sweep
from tpusim.study.sweep.space import Point
from tpusim.study.sweep.store import Store, key_of

FILE = "paper.sqlite"
"""Where simulated points are kept."""


@dataclass(frozen=True)
class Plan:
    """The points of some exhibits, each with its key in the store; several exhibits may share one."""

    figures: tuple[str, ...]
    keyed: tuple[dict[str, tuple[Point, str]], ...]

    @classmethod
    def of(cls, figures: Sequence[str]) -> Plan:
        """Everything that these exhibits ask for."""
        asked = (MAKERS[each].asked() for each in figures)
        keyed = ({name: (point, key_of(point)) for name, point in points.items()} for points in asked)
        return cls(tuple(figures), tuple(keyed))

    @property
    def points(self) -> list[tuple[Point, str]]:
        """All of them."""
        return [pair for of_entry in self.keyed for pair in of_entry.values()]

    def left(self, store: Store) -> int:
        """How many are not there yet."""
        return len(missing(self.points, store, fresh=False))

    def run(self, store: Store, executor: Executor, progress: Progress) -> Outcome:
        """Simulate what is missing; every point is in the store as soon as it is done.

        Raises:
            InputError: the store cannot be written.
            TpusimError: the executor can do no more.
        """
        return run_sweep(self.points, store, executor, False, progress)

    def made(self, store: Store) -> list[Exhibit]:
        """The exhibits. Raises TpusimError when a point of theirs could not be simulated."""
        found = read_back(store, self.points)

        def own(names: dict[str, tuple[Point, str]]) -> dict[str, Simulated]:
            return {name: found[key] for name, (_, key) in names.items()}

        each = zip(self.figures, self.keyed, strict=True)
        return [Exhibit(words()[figure], MAKERS[figure].make(own(names))) for figure, names in each]
