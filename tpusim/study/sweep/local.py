"""The jobs of a sweep on this computer. joblib takes longer to import than a small run: only who runs one does."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker

from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.backend import resource_tracker as loky_tracker
from joblib.externals.loky.process_executor import TerminatedWorkerError

from tpusim.base.errors import TpusimError
from tpusim.study.sweep.executor import Done
from tpusim.study.sweep.job import Job, simulated


@dataclass(frozen=True)
class Local:
    """Processes on this computer; with one worker this process."""

    workers: int

    def __enter__(self) -> Local:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.workers > 1 and kind is not None:
            get_reusable_executor().shutdown(wait=True, kill_workers=True)

    def outcomes(self, jobs: Sequence[Job]) -> Generator[Done]:
        """See Executor."""
        tasks = (delayed(_done)(job) for job in jobs)
        # One BLAS thread each: the workers fill the processors already.
        with _deaf_to_interrupts():
            running = Parallel(n_jobs=self.workers, return_as="generator_unordered", inner_max_num_threads=1)(tasks)
        with closing(running):
            try:
                yield from running
            except TerminatedWorkerError:
                raise TpusimError(
                    "a worker process was killed, perhaps for lack of memory; try fewer --workers"
                ) from None


def _done(job: Job) -> Done:
    return job, simulated(job)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes started in here do not see Ctrl-C: this one ends them, and one message is enough."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Python's own tracker, which the first worker would start, leaves Ctrl-C unblocked behind it; that of joblib
    # would tell of every lock that killed workers leave, and then clean up.
    resource_tracker.ensure_running()
    with _environment("PYTHONWARNINGS", "ignore:resource_tracker"):
        loky_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value if before is None else f"{before},{value}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
