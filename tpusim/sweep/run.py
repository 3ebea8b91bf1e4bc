"""Run what is missing of a sweep, on all processors, and keep every point as soon as it is there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from joblib import Parallel, delayed

from tpusim.errors import TpusimError
from tpusim.hardware import Hardware
from tpusim.result import LayerResult
from tpusim.simulate import simulate
from tpusim.sweep.spec import Point, Sweep
from tpusim.sweep.store import Store, key_of
from tpusim.workload import Workload, load_workload

LOWERING = "channel_first"
Progress = Callable[[int, str], None]
Layers = tuple[LayerResult, ...]


@dataclass(frozen=True)
class Outcome:
    """The keys of a sweep's points in order, and how many were there already, were computed, or failed."""

    points: tuple[tuple[Point, str], ...]
    reused: int
    computed: int
    failed: int


def run_sweep(sweep: Sweep, store: Store, workers: int, fresh: bool, progress: Progress) -> Outcome:
    """Simulate timing alone. A point that fails is stored with its error and does not stop the rest."""
    points = [(point, key_of(_workload(point), point.hardware, LOWERING)) for point in sweep.points()]
    there = set() if fresh else store.done(key for _, key in points)
    jobs: dict[tuple[Hardware, int], list[tuple[Point, str]]] = defaultdict(list)
    for point, key in dict((key, (point, key)) for point, key in points if key not in there).values():
        jobs[point.hardware, point.batch].append((point, key))
    tasks = (delayed(_simulated)(job) for job in jobs.values())
    done = failed = 0
    for job, outcomes in Parallel(n_jobs=workers, return_as="generator_unordered")(tasks):
        for (point, key), outcome in zip(job, outcomes, strict=True):
            done += 1
            failed += isinstance(outcome, str)
            _keep(store, point, key, outcome)
            progress(done, point.workload)
    return Outcome(tuple(points), len(there), done - failed, failed)


def missing(sweep: Sweep, store: Store, fresh: bool) -> int:
    """How many points a run would compute."""
    keys = {key_of(_workload(point), point.hardware, LOWERING) for point in sweep.points()}
    return len(keys) if fresh else len(keys - store.done(keys))


def _keep(store: Store, point: Point, key: str, outcome: Layers | str) -> None:
    if isinstance(outcome, str):
        store.save_error(key, _workload(point), point.hardware, outcome)
    else:
        store.save(key, _workload(point), point.hardware, outcome)


def _workload(point: Point) -> Workload:
    return _loaded(point.workload, point.batch)


@lru_cache(maxsize=256)
def _loaded(name: str, batch: int) -> Workload:
    return load_workload(name, batch=batch)


def _simulated(job: Sequence[tuple[Point, str]]) -> tuple[Sequence[tuple[Point, str]], list[Layers | str]]:
    """All workloads of one machine and batch; layers of one shape once for all of them."""
    known: dict[object, LayerResult] = {}
    return job, [_one(point, known) for point, _ in job]


def _one(point: Point, known: dict[object, LayerResult]) -> Layers | str:
    workload = _workload(point)
    shapes = {replace(layer, name="any"): layer for layer in reversed(workload.layers)}
    new = tuple(layer for shape, layer in reversed(shapes.items()) if shape not in known)
    try:
        if new:
            results = simulate(replace(workload, layers=new), point.hardware, check=False).layers
            known.update(zip((replace(layer, name="any") for layer in new), results, strict=True))
    except TpusimError as error:
        return str(error)
    return tuple(replace(known[replace(layer, name="any")], name=layer.name) for layer in workload.layers)
