"""Where the jobs of a sweep are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from joblib import Parallel, delayed

from tpusim.sweep.job import Finding, Job, simulated

Done = tuple[Job, Sequence[Finding]]


class Executor(Protocol):
    """Does jobs, several at a time."""

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """Each job with a finding for each of its workloads, as soon as it is done, in any order."""
        ...


@dataclass(frozen=True)
class Local:
    """Processes on this computer."""

    workers: int

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """See Executor."""
        tasks = (delayed(simulated)(job) for job in jobs)
        yield from Parallel(n_jobs=self.workers, return_as="generator_unordered")(tasks)
