"""Simulate what is missing of some exhibits, keep it, and make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tpusim.study.paper.exhibit import Exhibit
from tpusim.study.paper.found import Simulated, read_back
from tpusim.study.paper.registry import MAKERS
from tpusim.study.paper.words import words
from tpusim.study.sweep.assembly import Assembly
from tpusim.study.sweep.job import Executor
from tpusim.study.sweep.keys import key_of
from tpusim.study.sweep.run import Progress, missing, run_sweep
from tpusim.study.sweep.space import Point
from tpusim.study.sweep.store import Store

FILE = "paper.sqlite"
"""Where simulated points are kept."""


_TOGETHER = 8
"""Points at a time: enough to keep all processors busy."""


def _layers(points: Sequence[tuple[Point, str]]) -> int:
    """How many different layers they have: of these about as many are done in a second, whatever the batch."""
    return sum(len(job.layers) for job in Assembly({key: point for point, key in points}).jobs(1))


class _Share(NamedTuple):
    """How many points are done before some others, their share of the work, and that of these."""

    done: int
    behind: float
    own: float

    def told(self, progress: Progress, done: int, name: str, share: float) -> None:
        progress(self.done + done, name, self.behind + share * self.own)


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

    def run(self, store: Store, executor: Executor, progress: Progress) -> None:
        """Simulate what is missing, some points after the others, so that an interruption finds most of them done.

        Raises:
            InputError: the store cannot be written.
            TpusimError: the executor can do no more.
        """
        wanted = [(point, key) for key, point in missing(self.points, store, fresh=False).items()]
        some = [wanted[first : first + _TOGETHER] for first in range(0, len(wanted), _TOGETHER)]
        layers = [_layers(each) for each in some]
        behind = 0
        for place, (points, own) in enumerate(zip(some, layers, strict=True)):
            so_far = _Share(place * _TOGETHER, behind / sum(layers), own / sum(layers))
            run_sweep(points, store, executor, False, partial(so_far.told, progress))
            behind += own

    def made(self, store: Store) -> list[Exhibit]:
        """The exhibits. Raises TpusimError when a point of theirs could not be simulated."""
        found = read_back(store, self.points)

        def own(names: dict[str, tuple[Point, str]]) -> dict[str, Simulated]:
            return {name: found[key] for name, (_, key) in names.items()}

        each = zip(self.figures, self.keyed, strict=True)
        return [Exhibit(words()[figure], MAKERS[figure].make(own(names))) for figure, names in each]
