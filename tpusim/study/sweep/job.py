"""The unit of work of a sweep, layers of different shapes on one machine, and what does such jobs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tpusim.base.errors import TpusimError
from tpusim.flow.simulation import simulate
from tpusim.machines.family import Machine
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult

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
        """One for each layer, of timing alone."""
        return tuple(_one(layer, self) for layer in self.layers)


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


def _one(layer: Op, job: Job) -> Finding:
    try:
        work = Workload("job", job.batch, (layer,))
        return simulate(work, job.hardware, lowering=job.lowering, check=False).layers[0]
    except Exception as error:
        return _told(error).removeprefix(f"layer {layer.name}: ")


def _told(error: Exception) -> str:
    """Also of what nobody foresaw: one point must not end a sweep of thousands."""
    return str(error) if isinstance(error, TpusimError) else f"{type(error).__name__}: {error}"
