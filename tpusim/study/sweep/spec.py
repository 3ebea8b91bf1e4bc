"""What a sweep is: axes over fields of the machine, the batch and the layers, combined, for one or more workloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path

from tpusim.base.errors import InputError, Problem
from tpusim.input.document import Document
from tpusim.input.source import open_document
from tpusim.network.workload_file import workload_of
from tpusim.result.vocabulary.runs import left_out
from tpusim.study.sweep.axis import Axis, Shown, Value
from tpusim.study.sweep.column import Goal
from tpusim.study.sweep.reader import MOST_POINTS, Search, Spec, read
from tpusim.study.sweep.space import TOGETHER, Point, Space, Values

FOLDER = "configs/sweeps"

_MOST_TOLD = 10
_MOST_FAILED = 1000
_DRAWN = 20_000


@dataclass(frozen=True)
class Sweep:
    """A sweep, read and checked. `points` are all of a grid or zip; of a search, whose `space` they come from, none."""

    name: str
    axes: Mapping[str, Sequence[Shown]]
    combine: str
    size: int
    """Points before constraints, of all workloads."""
    points: tuple[Point, ...] = field(repr=False)
    space: Space = field(repr=False)
    search: Search | None
    goals: tuple[Goal, ...]
    """The goals of the Pareto front; empty without one."""
    notes: tuple[str, ...] = ()
    """What there is to know of networks of other tools: how they were read, and what of them takes no time."""

    @property
    def summary(self) -> str:
        """What it will do, in a line: "array_size: 5 points"."""
        if self.search:
            aim = " and ".join(map(str, self.search.objectives))
            return f"{self.name}: a search for {aim}, {self.search.budget:,} of {self.size:,} combinations"
        left_out = f", of {self.size:,} before where" if len(self.points) < self.size else ""
        return f"{self.name}: {len(self.points):,} point{'s' * (len(self.points) != 1)}{left_out}"


def load_sweep(name_or_path: str | Path) -> Sweep:
    """Read a shipped name, a path, or "-" for standard input.

    Raises:
        InputError: with every problem of the file, before anything runs.
    """
    document = open_document(name_or_path, FOLDER)
    spec = read(document)
    space = Space(spec)
    combinations = space.size if spec.combine == "grid" else len(spec.axes[0].values)
    size = combinations * len(spec.workloads)
    if spec.search is None and size > MOST_POINTS:
        message = f"{size:,} points; a sweep has at most {MOST_POINTS:,}: give fewer values, or write mode: search"
        raise InputError(document.problem("axes", message))
    points = _sound_points(document, spec, space, combinations)
    return Sweep(
        name=spec.name,
        axes={axis.name: axis.shown for axis in spec.axes},
        combine=spec.combine,
        size=size,
        points=() if spec.search else points,
        space=space,
        search=spec.search,
        goals=spec.goals,
        notes=tuple(note for each in spec.workloads for note in _notes(each)),
    )


def _notes(document: Document) -> Iterator[str]:
    work = workload_of(document, 1)
    missing = left_out(work.never_timed, work.not_known)
    yield from (f"{work.name}: {note}" for note in (*document.notes, missing) if note)


def _sound_points(document: Document, spec: Spec, space: Space, combinations: int) -> tuple[Point, ...]:
    """Return every point, or those of a large sample where there are too many."""
    whole = combinations <= MOST_POINTS
    built = _build(space, _combinations(spec) if whole else islice(space.drawn(0), _DRAWN))
    problems = built.hopeless(space.axes) if spec.search and built.points else [*built.problems.values()]
    if problems:
        found = [_located(document, problem) for _, problem in problems]
        more = [Problem(f"{document.label}: and more like these")] if len(found) > _MOST_TOLD else []
        raise InputError([*document.in_order(found[:_MOST_TOLD]), *more])
    if not built.points:
        of = f"{combinations:,}" if whole else f"{_DRAWN:,} drawn of {combinations:,}"
        left_out = (
            f"none of the {of} combinations of the axes' values satisfies {space.conditions}; widen one or the other"
        )
        raise InputError(document.problem("where", left_out))
    if spec.search and whole and spec.search.budget >= len(built.points):
        enough = f"{spec.search.budget:,} is enough for all {len(built.points):,} points; leave mode and search out"
        raise InputError(document.problem("search.budget", enough))
    return tuple(built.points)


@dataclass
class _Built:
    """What came of building combinations: points, and each problem once, with the first values that had it."""

    points: list[Point] = field(default_factory=list)
    sound: set[tuple[int, Value]] = field(default_factory=set)
    problems: dict[tuple[str | None, str], tuple[Values, Problem]] = field(default_factory=dict)

    def hopeless(self, axes: Sequence[Axis]) -> list[tuple[Values, Problem]]:
        """Return the problems of values that no combination made sound."""
        places = {axis.name: index for index, axis in enumerate(axes)}
        found = ((values, problem, places.get(str(problem.where))) for values, problem in self.problems.values())
        return [(v, problem) for v, problem, i in found if i is not None and (i, v[i]) not in self.sound]


def _build(space: Space, combinations: Iterator[Values]) -> _Built:
    built, failed = _Built(), 0
    for values in combinations:
        try:
            built.points += space.points(values)
            built.sound.update(enumerate(values))
        except InputError as error:
            failed += 1
            for problem in error.problems:
                said = problem.message.partition(TOGETHER)[0]
                built.problems.setdefault((problem.where, said), (values, problem))
        if failed > _MOST_FAILED:
            break
    return built


def _located(document: Document, problem: Problem) -> Problem:
    return document.problem(f"axes.{problem.where}" if problem.where else "axes", problem.message)


def _combinations(spec: Spec) -> Iterator[Values]:
    values = [axis.values for axis in spec.axes]
    return product(*values) if spec.combine == "grid" else zip(*values, strict=True)
