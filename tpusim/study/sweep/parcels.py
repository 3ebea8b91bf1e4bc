"""Points taken apart into parcels, with each kind of job once, and put together again from the results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tpusim.base.errors import CapacityError, TpusimError
from tpusim.flow.hbm_need import held_in_hbm
from tpusim.flow.jobs import Job, Jobs
from tpusim.flow.lowerings import candidates
from tpusim.flow.simulation import run
from tpusim.machines.family import Machine
from tpusim.result.records import LayerResult
from tpusim.study.sweep.points import Point

WorkFinding = tuple[LayerResult, ...] | str
"""Results of layers that ran together, or the reason why they cannot be simulated."""


Parcel = tuple[Jobs, ...]
"""Layers on one machine that run separately, or a network whose layers overlap, so that none could be timed by itself.

A parcel is complete in itself, so that any process on any computer can do it.
"""


def simulated(parcel: Parcel) -> Sequence[WorkFinding]:
    """Return the finding of each of its works, timing alone."""

    def finding(work: Jobs) -> WorkFinding:
        try:
            return run(work, check=False).layers
        except Exception as error:
            # Even an unforeseen error of one point must not end a sweep of thousands.
            return str(error) if isinstance(error, TpusimError) else f"{type(error).__name__}: {error}"

    return tuple(map(finding, parcel))


Done = tuple[Parcel, Sequence[WorkFinding]]


class Executor(Protocol):
    """Does parcels, several at a time: in processes here, or on a cluster."""

    @property
    def workers(self) -> int:
        """Number of parcels at a time."""
        ...

    def outcomes(self, parcels: Sequence[Parcel]) -> Generator[Done]:
        """Yield each parcel with a finding for each of its works, in the order in which parcels end.

        Raises:
            TpusimError: when no more parcels can be done.
        """
        ...


# ---- points in progress: their parcels, and their findings put together

Whole = tuple[Point, WorkFinding]
"""A point with its layers in network order, or the reason why it cannot be simulated."""

_PARCELS_A_WORKER = 8
"""Least parcels for each worker: the last then leave idle at most an eighth of a worker's time, unless a layer, or a
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
        self.refused: list[Whole] = [(points[key], why) for key, why in refused.items() if why]
        """Points that their machines have no memory for."""
        self._places: dict[tuple[Machine, int], _Place] = {}
        self._left: dict[str, int] = {}
        self._new: list[Parcel] = []
        for key, point in points.items():
            if refused[key]:
                continue
            place = self._places.setdefault((point.jobs.machine, point.jobs.work.batch), _Place())
            parts = _parts(point.jobs)
            new: dict[str, list[Jobs]] = defaultdict(list)
            for kind, part in parts.items():
                if kind not in place.waiting:
                    new[part.lowering].append(
                        part if isinstance(part, Jobs) else part.alone(point.jobs.hardware, point.jobs.dtype)
                    )
                place.waiting.setdefault(kind, []).append(key)
            self._left[key] = len(parts)
            self._new += sorted(map(tuple, new.values()), key=weight, reverse=True)

    def parcels(self, workers: int) -> list[Parcel]:
        """Return every kind of job on every machine once, cut up if there are few for `workers`.

        All that a point needs comes ahead of what only later points need, so that points end one after another, and
        whoever stops a sweep keeps those that were begun first. A network whose layers overlap is one parcel.
        """
        limit = sum(map(weight, self._new)) / (_PARCELS_A_WORKER * workers)
        return [piece for parcel in self._new for piece in _pieces(parcel, limit)]

    def add(self, parcel: Parcel, findings: Sequence[WorkFinding]) -> Iterator[Whole]:
        """Take in the findings of a parcel, and yield the points that are now complete."""
        where = parcel[0].machine, parcel[0].work.batch
        place = self._places[where]
        for work, finding in zip(parcel, findings, strict=True):
            kind = _kind(work)
            if isinstance(finding, str) and not _overlap(work):
                # The finding holds for all layers of the kind, whatever they are called.
                finding = finding.removeprefix(f"layer {work.work.name}: ")
            place.found[kind] = finding
            for key in place.waiting.pop(kind):
                self._left[key] -= 1
                if not self._left[key]:
                    yield self._points[key], _layers_of(self._points[key], place.found)
        # A sweep has too many places to keep the findings of finished ones.
        if not place.waiting:
            del self._places[where]


def _refusal(point: Point) -> str:
    """Why a machine does not take a network as a whole; empty where it does. Layers are refused one by one."""
    try:
        held_in_hbm(point.jobs.work, point.jobs.machine)
    except CapacityError as error:
        return str(error)
    return ""


def _overlap(jobs: Jobs) -> bool:
    return jobs.family.overlaps(jobs.machine)


def _parts(jobs: Jobs) -> Mapping[Hashable, Job | Jobs]:
    """What runs by itself: a job of each kind, as all of a kind take the same time, or all jobs if they overlap."""
    if _overlap(jobs):
        return {_kind(jobs): jobs}
    parts: dict[Hashable, Job | Jobs] = {}
    for job, kind in zip(jobs.each, jobs.kinds, strict=True):
        parts.setdefault(kind, job)
    return parts


def _kind(part: Jobs) -> Hashable:
    """A key of what runs by itself; parts with equal keys take equally long on a machine."""
    return (part.work, part.lowering) if _overlap(part) else part.each[0].kind


def weight(parcel: Parcel) -> float:
    """Return a rough duration of a parcel, without a unit: time grows with passes, and these with MACs a PE."""
    return sum(map(_weight, parcel))


def _weight(work: Jobs) -> float:
    peak, tried = work.machine.macs_per_cycle, len(candidates(work.lowering, work.family))
    return tried * sum(job.layer.macs(job.batch) / peak + _MACS_OF_A_LAYER for job in work.each)


def _pieces(parcel: Parcel, limit: float) -> Iterator[Parcel]:
    """Yield the parcel in pieces of at most `limit`, or of a single work."""
    piece: list[Jobs] = []
    room = limit
    for work in sorted(parcel, key=lambda work: -_weight(work)):
        if piece and _weight(work) > room:
            yield tuple(piece)
            piece, room = [], limit
        piece.append(work)
        room -= _weight(work)
    yield tuple(piece)


def _layers_of(point: Point, found: Mapping[Hashable, WorkFinding]) -> WorkFinding:
    jobs, layers = point.jobs, list[LayerResult]()
    if _overlap(jobs):
        return found[_kind(jobs)]
    for job, kind in zip(jobs.each, jobs.kinds, strict=True):
        finding = found[kind]
        if isinstance(finding, str):
            return f"layer {job.layer.name}: {finding}"
        (layer,) = finding
        layers.append(layer.called(job.layer.name, layer.inputs, layer.riders, layer.phase))
    return tuple(layers)
