"""Run what is missing of a sweep, and keep every point as soon as it is there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpusim.hardware import Hardware
from tpusim.sweep.executor import Executor
from tpusim.sweep.job import Finding, Job
from tpusim.sweep.spec import Point, Sweep
from tpusim.sweep.store import Store, key_of
from tpusim.workload import Workload

LOWERING = "channel_first"
Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class Outcome:
    """The keys of a sweep's points in order, and how many were there already, were computed, or failed."""

    points: tuple[tuple[Point, str], ...]
    reused: int
    computed: int
    failed: int


def keyed(sweep: Sweep) -> tuple[tuple[Point, str], ...]:
    """Every point with its key in the store."""
    return tuple((point, key_of(point.workload, point.hardware, LOWERING)) for point in sweep.points)


def run_sweep(
    points: Sequence[tuple[Point, str]], store: Store, executor: Executor, fresh: bool, progress: Progress
) -> Outcome:
    """Simulate timing alone. A point that fails is stored with its error and does not stop the rest."""
    wanted = missing(points, store, fresh)
    done = failed = 0
    for job, findings in executor.outcomes(jobs_of(wanted)):
        for workload, key, finding in zip(job.workloads, job.keys, findings, strict=True):
            done += 1
            failed += isinstance(finding, str)
            keep(store, key, workload, job.hardware, finding)
            progress(done, workload.name)
    return Outcome(tuple(points), len({key for _, key in points}) - len(wanted), done - failed, failed)


def missing(points: Sequence[tuple[Point, str]], store: Store, fresh: bool) -> dict[str, Point]:
    """The points that a run would compute, by key, each once."""
    wanted = {key: point for point, key in points}
    there = set() if fresh else store.done(wanted)
    return {key: point for key, point in wanted.items() if key not in there}


def jobs_of(points: dict[str, Point]) -> list[Job]:
    """A job for each machine and batch."""
    together: dict[tuple[Hardware, int], list[tuple[Workload, str]]] = defaultdict(list)
    for key, point in points.items():
        together[point.hardware, point.workload.batch].append((point.workload, key))
    return [
        Job(hardware, tuple(workload for workload, _ in each), tuple(key for _, key in each))
        for (hardware, _), each in together.items()
    ]


def keep(store: Store, key: str, workload: Workload, hardware: Hardware, finding: Finding) -> None:
    """Store what came of a point."""
    if isinstance(finding, str):
        store.save_error(key, workload, hardware, finding)
    else:
        store.save(key, workload, hardware, finding)
