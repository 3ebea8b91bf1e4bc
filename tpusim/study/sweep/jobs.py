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
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult
from tpusim.study.sweep.points import Point

Finding = LayerResult | str
"""A layer's result, or why it cannot be simulated."""


@dataclass(frozen=True)
class Job:
    """Complete in itself, so that any process on any computer can do it."""

    hardware: Machine
    batch: int
    lowering: str
    layers: tuple[Op, ...]

    def findings(self) -> Sequence[Finding]:
        """Return a finding for each layer, of timing alone."""
        return tuple(map(self._finding, self.layers))

    def _finding(self, layer: Op) -> Finding:
        try:
            work = Workload("job", self.batch, (layer,))
            return simulate(work, self.hardware, lowering=self.lowering, check=False).layers[0]
        except Exception as error:
            return _told(error).removeprefix(f"layer {layer.name}: ")


@dataclass(frozen=True)
class WholeJob(Job):
    """A network whose layers overlap, all of them: none takes by itself what it takes there."""

    workload: Workload

    def findings(self) -> Sequence[Finding]:
        """The findings of all layers, or for each why they cannot be simulated."""
        try:
            return simulate(self.workload, self.hardware, lowering=self.lowering, check=False).layers
        except Exception as error:
            return (_told(error),) * len(self.layers)


Done = tuple[Job, Sequence[Finding]]


class Executor(Protocol):
    """Does jobs, several at a time: in processes here, or on a cluster."""

    @property
    def workers(self) -> int:
        """How many jobs at a time."""
        ...

    def outcomes(self, jobs: Sequence[Job]) -> Generator[Done]:
        """Each job with a finding for each of its layers, as soon as it is done, in any order.

        Raises:
            TpusimError: when it can do no more jobs.
        """
        ...


def simulated(job: Job) -> Sequence[Finding]:
    """Return a finding for each layer, of timing alone."""
    return job.findings()


def _told(error: Exception) -> str:
    """Also of what nobody foresaw: one point must not end a sweep of thousands."""
    return str(error) if isinstance(error, TpusimError) else f"{type(error).__name__}: {error}"


# ---- points on their way: jobs made of them, and findings put together

Layers = tuple[LayerResult, ...]
Whole = tuple[str, Point, Layers | str]
"""A point under its key, with its layers in network order, or why it cannot be simulated."""

_JOBS_A_WORKER = 8
"""There are at least as many: what the last jobs leave idle is at most an eighth of a worker's time."""
_MACS_OF_A_LAYER = 100_000
"""What a layer costs before its first pass, as multiplications of one PE."""


@dataclass
class _Place:
    """A machine and a batch: who waits for which shape by which lowering, and what is known."""

    waiting: dict[Hashable, list[str]] = field(default_factory=dict)
    found: dict[Hashable, Finding] = field(default_factory=dict)


class Assembly:
    """The points of a run by key, on their way."""

    def __init__(self, points: Mapping[str, Point]) -> None:
        self._points = points
        self._places: dict[tuple[Machine, int], _Place] = {}
        self._whole: dict[WholeJob, str] = {}
        self._left: dict[str, int] = {}
        self._new: list[Job] = []
        for key, point in points.items():
            self._add_point(key, point)

    def jobs(self, workers: int) -> list[Job]:
        """Return every shape on every machine once; long points first, and cut up when there are few for `workers`.

        A network whose layers overlap is one job.
        """
        weighed = sorted(((weight(job), job) for job in (*self._whole, *self._new)), key=lambda pair: -pair[0])
        limit = sum(weight for weight, _ in weighed) / (_JOBS_A_WORKER * workers)
        return [piece for _, job in weighed for piece in _pieces(job, limit)]

    def add(self, job: Job, findings: Sequence[Finding]) -> Iterator[Whole]:
        """Take in what came of a job, and yield the points that are complete now."""
        if isinstance(job, WholeJob):
            key = self._whole.pop(job)
            said = [each for each in findings if isinstance(each, str)]
            layers = tuple(each for each in findings if not isinstance(each, str))
            yield key, self._points[key], said[0] if said else layers
            return
        place = self._places[job.hardware, job.batch]
        for layer, finding in zip(job.layers, findings, strict=True):
            kind = _kind(layer, job.lowering)
            place.found[kind] = finding
            for key in place.waiting.pop(kind):
                self._left[key] -= 1
                if not self._left[key]:
                    yield key, self._points[key], _layers_of(self._points[key], place.found)
        if not place.waiting:
            del self._places[job.hardware, job.batch]

    def _add_point(self, key: str, point: Point) -> None:
        if family_of(point.hardware).overlaps(point.hardware):
            work = point.workload
            self._whole[WholeJob(point.hardware, work.batch, point.lowering, work.layers, work)] = key
            return
        where, family = (point.hardware, point.workload.batch), family_of(point.hardware)
        place = self._places.setdefault(where, _Place())
        kinds = {_kind(*asked): asked for asked in reversed(asked_of(point.workload, point.lowering, family))}
        new: dict[str, list[Op]] = defaultdict(list)
        for kind, (layer, lowering) in reversed(kinds.items()):
            if kind not in place.waiting:
                new[lowering].append(layer)
            place.waiting.setdefault(kind, []).append(key)
        self._left[key] = len(kinds)
        self._new += [Job(*where, lowering, tuple(layers)) for lowering, layers in new.items()]


def _kind(layer: Op, lowering: str) -> Hashable:
    return layer.shape_key, lowering


def weight(job: Job) -> float:
    """Return about how long a job takes, in no unit: time goes with the passes, and they with MACs a PE."""
    return sum(_weight(layer, job) for layer in job.layers)


def _weight(layer: Op, job: Job) -> float:
    tried = len(candidates(job.lowering, family_of(job.hardware)))
    return tried * (layer.macs(job.batch) / job.hardware.pes + _MACS_OF_A_LAYER)


def _pieces(job: Job, limit: float) -> Iterator[Job]:
    """Yield the job in pieces of at most `limit`, or of one layer; one of a whole network stays whole."""
    if isinstance(job, WholeJob):
        yield job
        return
    piece: list[Op] = []
    room = limit
    for layer in sorted(job.layers, key=lambda layer: -_weight(layer, job)):
        if piece and _weight(layer, job) > room:
            yield replace(job, layers=tuple(piece))
            piece, room = [], limit
        piece.append(layer)
        room -= _weight(layer, job)
    yield replace(job, layers=tuple(piece))


def _layers_of(point: Point, found: Mapping[Hashable, Finding]) -> Layers | str:
    layers = []
    for layer, lowering in asked_of(point.workload, point.lowering, family_of(point.hardware)):
        finding = found[_kind(layer, lowering)]
        if isinstance(finding, str):
            return f"layer {layer.name}: {finding}"
        layers.append(replace(finding, name=layer.name))
    return tuple(layers)
