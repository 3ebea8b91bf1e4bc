"""Run what is missing of a sweep, keep every point as soon as it is there, and give all of them back as rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tpusim.study.sweep.assembly import Assembly, weight
from tpusim.study.sweep.column import costs
from tpusim.study.sweep.job import Executor
from tpusim.study.sweep.keys import key_of
from tpusim.study.sweep.pareto import front_of
from tpusim.study.sweep.space import Point
from tpusim.study.sweep.spec import Sweep
from tpusim.study.sweep.store import Store

Progress = Callable[[int, str, float], None]
"""Is told after every job: points done, the workload at hand, and the share of the work that is done, 0 to 1."""


@dataclass(frozen=True)
class Outcome:
    """The keys of a sweep's points in order, and how many were there already, were computed, or failed.

    `short` says why there are fewer than a search asked for.
    """

    points: tuple[tuple[Point, str], ...]
    reused: int
    computed: int
    failed: int
    short: str = ""


def keyed(sweep: Sweep) -> tuple[tuple[Point, str], ...]:
    """Return every point with its key in the store."""
    return tuple((point, key_of(point)) for point in sweep.points)


def run_sweep(
    points: Sequence[tuple[Point, str]], store: Store, executor: Executor, fresh: bool, progress: Progress
) -> Outcome:
    """Simulate timing alone. A point that fails is stored with its error and does not stop the rest.

    Raises:
        InputError: the store cannot be written.
        TpusimError: the executor can do no more. In both cases the points finished until then are in the store.
    """
    wanted = missing(points, store, fresh)
    assembly = Assembly(wanted)
    jobs = assembly.jobs(executor.workers)
    everything, behind = sum(map(weight, jobs)), 0.0
    done = failed = 0
    name = ""
    with closing(executor.outcomes(jobs)) as outcomes:
        for job, findings in outcomes:
            for key, point, finding in assembly.add(job, findings):
                name = point.workload.name
                done += 1
                failed += isinstance(finding, str)
                store.save(key, point, finding)
            behind += weight(job)
            progress(done, name, behind / everything)
    return Outcome(tuple(points), len({key for _, key in points}) - len(wanted), done - failed, failed)


def missing(points: Sequence[tuple[Point, str]], store: Store, fresh: bool) -> dict[str, Point]:
    """Return the points that a run would compute, by key, each once."""
    wanted = {key: point for point, key in points}
    there = set() if fresh else store.done(wanted)
    return {key: point for key, point in wanted.items() if key not in there}


def rows_of(sweep: Sweep, store: Store, points: Sequence[tuple[Point, str]]) -> list[dict[str, Any]]:
    """Return a row a point, in order: every column that is stored, what its machine is made of, and its axes.

    Where the sweep has goals, `pareto` tells who is on the front of these points.
    """
    found = store.points([key for _, key in points])
    rows = [
        {**row, **costs(point.hardware), **dict(point.settings)} for (point, _), row in zip(points, found, strict=True)
    ]
    if sweep.goals:
        rows = [{**row, "pareto": on} for row, on in zip(rows, front_of(rows, sweep.goals), strict=True)]
    return rows
