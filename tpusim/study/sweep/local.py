"""The jobs of a sweep on this computer."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

from tpusim.study.processes import Processes
from tpusim.study.sweep.executor import Done
from tpusim.study.sweep.job import Finding, Job, simulated


class Local:
    """Processes on this computer; with one worker this process."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._processes: Processes[Job, Sequence[Finding]] = Processes(simulated, workers)

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def outcomes(self, jobs: Sequence[Job]) -> Generator[Done]:
        """See Executor."""
        with closing(self._processes.results(jobs)) as results:
            for place, findings in results:
                yield jobs[place], findings
