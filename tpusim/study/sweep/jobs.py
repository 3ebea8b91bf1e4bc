"""Points taken apart into jobs, each shape of a layer once, and put together again from what came of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tpusim.base.errors import TpusimError
from tpusim.flow.lowerings import asked_of, candidates
from tpusim.flow.simulation import simulate
from tpusim.machines.family import Machine, family_of
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult
from tpusim.study.sweep.points import Point

WorkFinding = tuple[LayerResult, ...] | str
"""The results of layers that ran together, or why they cannot be simulated."""


@dataclass(frozen=True)
class Job:
    """Layers that each run alone, or a network whose layers overlap: none takes by itself what it takes there.

    Complete in itself, so that any process on any computer can do it.
    """

    hardware: Machine
    lowering: str
    works: tuple[Workload, ...]


def simulated(job: Job) -> Sequence[WorkFinding]:
    """Return a finding for each of its workloads, of timing alone."""

    def finding(work: Workload) -> WorkFinding:
        try:
            return simulate(work, job.hardware, lowering=job.lowering, check=False).layers
        except Exception as error:
            # Also what nobody foresaw: one point must not end a sweep of thousands.
            return str(error) if isinstance(error, TpusimError) else f"{type(error).__name__}: {error}"

    return tuple(map(finding, job.works))


Done = tuple[Job, Sequence[WorkFinding]]


class Executor(Protocol):
    """Does jobs, several at a time: in processes here, or on a cluster."""

    @property
    def workers(self) -> int:
        """How many jobs at a time."""
        ...

    def outcomes(self, jobs: Sequence[Job]) -> Generator[Done]:
        """Each job with a finding for each of its workloads, as soon as it is done, in any order.

        Raises:
            TpusimError: when it can do no more jobs.
        """
        ...


# ---- points on their way: jobs made of them, and findings put together

Whole = tuple[str, Point, WorkFinding]
"""A point under its key, with its layers in network order, or why it cannot be simulated."""

_JOBS_A_WORKER = 8
"""There are at least as many: what the last jobs leave idle is at most an eighth of a worker's time."""
_MACS_OF_A_LAYER = 100_000
"""What a layer costs before its first pass, as multiplications of one PE."""


@dataclass
class _Place:
    """A machine and a batch: who waits for which shape by which lowering, and what is known."""

    waiting: dict[Hashable, list[str]] = field(default_factory=dict)
    found: dict[Hashable, WorkFinding] = field(default_factory=dict)


class Assembly:
    """The points of a run by key, on their way."""

    def __init__(self, points: Mapping[str, Point]) -> None:
        self._points = points
        self._places: dict[tuple[Machine, int], _Place] = {}
        self._left: dict[str, int] = {}
        self._new: list[Job] = []
        for key, point in points.items():
            place = self._places.setdefault((point.hardware, point.workload.batch), _Place())
            parts: dict[Hashable, tuple[Workload, str]] = {}
            for part in _parts(point):
                parts.setdefault(_kind(*part, point.hardware), part)
            new: dict[str, list[Workload]] = defaultdict(list)
            for kind, (work, lowering) in parts.items():
                if kind not in place.waiting:
                    new[lowering].append(work)
                place.waiting.setdefault(kind, []).append(key)
            self._left[key] = len(parts)
            self._new += [Job(point.hardware, lowering, tuple(works)) for lowering, works in new.items()]

    def jobs(self, workers: int) -> list[Job]:
        """Return every shape on every machine once; long points first, and cut up when there are few for `workers`.

        A network whose layers overlap is one job.
        """
        weighed = sorted(((weight(job), job) for job in self._new), key=lambda pair: -pair[0])
        limit = sum(weight for weight, _ in weighed) / (_JOBS_A_WORKER * workers)
        return [piece for _, job in weighed for piece in _pieces(job, limit)]

    def add(self, job: Job, findings: Sequence[WorkFinding]) -> Iterator[Whole]:
        """Take in what came of a job, and yield the points that are complete now."""
        where = job.hardware, job.works[0].batch
        place = self._places[where]
        for work, finding in zip(job.works, findings, strict=True):
            kind = _kind(work, job.lowering, job.hardware)
            if isinstance(finding, str) and not _overlap(job.hardware):
                finding = finding.removeprefix(f"layer {work.layers[0].name}: ")
            place.found[kind] = finding
            for key in place.waiting.pop(kind):
                self._left[key] -= 1
                if not self._left[key]:
                    yield key, self._points[key], _layers_of(self._points[key], place.found)
        if not place.waiting:
            del self._places[where]


def _overlap(machine: Machine) -> bool:
    return family_of(machine).overlaps(machine)


def _parts(point: Point) -> list[tuple[Workload, str]]:
    """What of a point runs by itself, and by which lowering: each of its layers, or all where they overlap."""
    work = point.workload
    if _overlap(point.hardware):
        return [(work, point.lowering)]
    asked = asked_of(work, point.lowering, family_of(point.hardware))
    return [(Workload("job", work.batch, (layer,)), lowering) for layer, lowering in asked]


def _kind(work: Workload, lowering: str, machine: Machine) -> Hashable:
    """Parts of one kind take as long on a machine."""
    return work if _overlap(machine) else work.layers[0].shape_key, lowering


def weight(job: Job) -> float:
    """Return about how long a job takes, in no unit: time goes with the passes, and they with MACs a PE."""
    return sum(_weight(work, job) for work in job.works)


def _weight(work: Workload, job: Job) -> float:
    tried = len(candidates(job.lowering, family_of(job.hardware)))
    return tried * sum(layer.macs(work.batch) / job.hardware.pes + _MACS_OF_A_LAYER for layer in work.layers)


def _pieces(job: Job, limit: float) -> Iterator[Job]:
    """Yield the job in pieces of at most `limit`, or of one workload."""
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
