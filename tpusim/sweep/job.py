"""The unit of work of a sweep: one machine and batch, with every workload that runs on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpusim.errors import TpusimError
from tpusim.hardware import Hardware
from tpusim.result import LayerResult
from tpusim.simulate import simulate
from tpusim.workload import Workload

Layers = tuple[LayerResult, ...]
Finding = Layers | str
"""The layers of a point, or why it cannot be simulated."""


@dataclass(frozen=True)
class Job:
    """Points that share their machine; complete in itself, so that any process on any computer can do it.

    `keys` are those of the store, one a workload.
    """

    hardware: Hardware
    workloads: tuple[Workload, ...]
    keys: tuple[str, ...]


def simulated(job: Job) -> tuple[Job, Sequence[Finding]]:
    """Timing alone; layers of one shape are simulated once for all workloads of one batch."""
    known: dict[object, LayerResult] = {}
    return job, [_one(workload, job.hardware, known) for workload in job.workloads]


def _one(workload: Workload, hardware: Hardware, known: dict[object, LayerResult]) -> Finding:
    shapes = {(workload.batch, replace(layer, name="any")): layer for layer in reversed(workload.layers)}
    new = {shape: layer for shape, layer in reversed(shapes.items()) if shape not in known}
    try:
        if new:
            results = simulate(replace(workload, layers=tuple(new.values())), hardware, check=False).layers
            known.update(zip(new, results, strict=True))
    except TpusimError as error:
        return str(error)
    return tuple(
        replace(known[workload.batch, replace(layer, name="any")], name=layer.name) for layer in workload.layers
    )
