"""What does the jobs of a sweep: processes here, or a cluster."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from tpusim.study.sweep.job import Finding, Job

Done = tuple[Job, Sequence[Finding]]


class Executor(Protocol):
    """Does jobs, several at a time."""

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
