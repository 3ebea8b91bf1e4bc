"""Points taken apart into jobs, with each shape of a layer once, and put together again from the results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tpusim.base.errors import CapacityError, TpusimError
from tpusim.flow.lowerings import asked_of, candidates
from tpusim.flow.need import check_hbm
from tpusim.flow.simulation import simulate
from tpusim.machines.family import Machine, family_of
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult
from tpusim.study.sweep.points import Point

WorkFinding = tuple[LayerResult, ...] | str
"""Results of layers that ran together, or the reason why they cannot be simulated."""


@dataclass(frozen=True)
class Job:
    """Layers that run separately, or a network whose layers overlap, so that none could be timed by itself.

    A job is complete in itself, so that any process on any computer can do it.
    """

    hardware: Machine
    lowering: str
    works: tuple[Workload, ...]


def simulated(job: Job) -> Sequence[WorkFinding]:
    """Return the finding of each of its workloads, timing alone."""

    def finding(work: Workload) -> WorkFinding:
        try:
            return simulate(work, job.hardware, lowering=job.lowering, check=False).layers
        except Exception as error:
            # Even an unforeseen error of one point must not end a sweep of thousands.
            return str(error) if isinstance(error, TpusimError) else f"{type(error).__name__}: {error}"

    return tuple(map(finding, job.works))


Done = tuple[Job, Sequence[WorkFinding]]


class Executor(Protocol):
    """Does jobs, several at a time: in processes here, or on a cluster."""

    @property
    def workers(self) -> int:
        """Number of jobs at a time."""
        ...

    def outcomes(self, jobs: Sequence[Job]) -> Generator[Done]:
        """Yield each job with a finding for each of its workloads, in the order in which jobs end.

        Raises:
            TpusimError: when no more jobs can be done.
        """
        ...


# ---- points in progress: their jobs, and their findings put together

Whole = tuple[str, Point, WorkFinding]
"""A point by its key, with its layers in network order, or the reason why it cannot be simulated."""

_JOBS_A_WORKER = 8
"""Least jobs for each worker: the last jobs then leave idle at most an eighth of a worker's time, unless a layer, or a
network whose layers overlap, takes longer by itself.
"""
_MACS_OF_A_LAYER = 100_000
"""Cost of a layer before its first pass, as multiplications of one PE."""


@dataclass
class _Place:
    """A machine and a batch: points that wait for a shape by a lowering, and findings so far."""

    waiting: dict[Hashable, list[str]] = field(default_factory=dict)
    found: dict[Hashable, WorkFinding] = field(default_factory=dict)


class Assembly:
    """Points of a run by key, in progress."""

    def __init__(self, points: Mapping[str, Point]) -> None:
        self._points, refused = points, {key: _refusal(point) for key, point in points.items()}
        self.refused: list[Whole] = [(key, points[key], why) for key, why in refused.items() if why]
        """Points that their machines have no memory for."""
        self._places: dict[tuple[Machine, int], _Place] = {}
        self._left: dict[str, int] = {}
        self._new: list[Job] = []
        for key, point in points.items():
            if refused[key]:
                continue
            place = self._places.setdefault((point.hardware, point.workload.batch), _Place())
            parts: dict[Hashable, tuple[Workload, str]] = {}
            for part in _parts(point):
                # Layers of one kind take the same time, so that each kind is simulated once.
                parts.setdefault(_kind(*part, point.hardware), part)
            new: dict[str, list[Workload]] = defaultdict(list)
            for kind, (work, lowering) in parts.items():
                if kind not in place.waiting:
                    new[lowering].append(work)
                place.waiting.setdefault(kind, []).append(key)
            self._left[key] = len(parts)
            own = (Job(point.hardware, lowering, tuple(works)) for lowering, works in new.items())
            self._new += sorted(own, key=weight, reverse=True)

    def jobs(self, workers: int) -> list[Job]:
        """Return every shape on every machine once, cut up if there are few for `workers`.

        All that a point needs comes ahead of what only later points need, so that points end one after another, and
        whoever stops a sweep keeps those that were begun first. A network whose layers overlap is one job.
        """
        limit = sum(map(weight, self._new)) / (_JOBS_A_WORKER * workers)
        return [piece for job in self._new for piece in _pieces(job, limit)]

    def add(self, job: Job, findings: Sequence[WorkFinding]) -> Iterator[Whole]:
        """Take in the findings of a job, and yield the points that are now complete."""
        where = job.hardware, job.works[0].batch
        place = self._places[where]
        for work, finding in zip(job.works, findings, strict=True):
            kind = _kind(work, job.lowering, job.hardware)
            if isinstance(finding, str) and not _overlap(job.hardware):
                # The finding holds for all layers of the kind, whatever they are called.
                finding = finding.removeprefix(f"layer {work.layers[0].name}: ")
            place.found[kind] = finding
            for key in place.waiting.pop(kind):
                self._left[key] -= 1
                if not self._left[key]:
                    yield key, self._points[key], _layers_of(self._points[key], place.found)
        # A sweep has too many places to keep the findings of finished ones.
        if not place.waiting:
            del self._places[where]


def _refusal(point: Point) -> str:
    """Why a machine does not take a network as a whole; empty where it does. Layers are refused one by one."""
    try:
        check_hbm(point.workload, point.hardware)
    except CapacityError as error:
        return str(error)
    return ""


def _overlap(machine: Machine) -> bool:
    return family_of(machine).overlaps(machine)


def _parts(point: Point) -> list[tuple[Workload, str]]:
    """Parts of a point that run by themselves, with their lowerings: its layers, or all of them if they overlap."""
    work = point.workload
    if _overlap(point.hardware):
        return [(work, point.lowering)]
    asked = asked_of(work, point.lowering, family_of(point.hardware))
    return [(Workload("job", work.batch, (layer,)), lowering) for layer, lowering in asked]


def _kind(work: Workload, lowering: str, machine: Machine) -> Hashable:
    """A key of a part; parts with equal keys take equally long on a machine."""
    return work if _overlap(machine) else work.layers[0].shape_key, lowering


def weight(job: Job) -> float:
    """Return a rough duration of a job, without a unit: time grows with passes, and these with MACs a PE."""
    return sum(_weight(work, job) for work in job.works)


def _weight(work: Workload, job: Job) -> float:
    tried = len(candidates(job.lowering, family_of(job.hardware)))
    return tried * sum(layer.macs(work.batch) / job.hardware.macs_per_cycle + _MACS_OF_A_LAYER for layer in work.layers)


def _pieces(job: Job, limit: float) -> Iterator[Job]:
    """Yield the job in pieces of at most `limit`, or of a single workload."""
    piece: list[Workload] = []
    room = limit
    for work in sorted(job.works, key=lambda work: -_weight(work, job)):
        if piece and _weight(work, job) > room:
            yield replace(job, works=tuple(piece))
            piece, room = [], limit
        piece.append(work)
        room -= _weight(work, job)
    yield replace(job, works=tuple(piece))


def _layers_of(point: Point, found: Mapping[Hashable, WorkFinding]) -> WorkFinding:
    layers: list[LayerResult] = []
    for work, lowering in _parts(point):
        finding = found[_kind(work, lowering, point.hardware)]
        if isinstance(finding, str):
            return finding if _overlap(point.hardware) else f"layer {work.layers[0].name}: {finding}"
        layers += (replace(each, name=layer.name) for layer, each in zip(work.layers, finding, strict=True))
    return tuple(layers)
