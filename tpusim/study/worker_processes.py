"""A function of many inputs, on all processors of this computer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from os import cpu_count
from threading import Thread
from typing import Any, Generic, TypeVar

from threadpoolctl import threadpool_limits

from tpusim.base.errors import TpusimError
from tpusim.base.interruption import ENDING
from tpusim.base.memory import look_seldom

Given = TypeVar("Given")
Found = TypeVar("Found")
InputProgress = Callable[[int, str], None]
"""Called with the number of inputs done, and the name of the last one."""


class Processes(Generic[Given, Found]):
    """A limited number of processes that end with this one, however it ends; a single one is this process itself.

    They start when there is work, and stay for more until `close`. Ctrl-C reaches this process alone.
    """

    def __init__(self, function: Callable[[Given], Found], workers: int) -> None:
        self._function, self.workers = function, workers
        self._processes: dict[Connection, BaseProcess] = {}

    def __enter__(self) -> Processes[Given, Found]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def outcomes(self, inputs: Sequence[Given]) -> Generator[tuple[Given, Found]]:
        """Yield each input with the function's result, as soon as it is there.

        Raises:
            TpusimError: a process was killed.
            Exception: what the function raises for the first input for which it raises.
        """
        count = min(self.workers, len(inputs))
        if count < 2:
            yield from ((given, self._function(given)) for given in inputs)
            return
        context = get_context("spawn")
        with _interrupts_blocked():
            while len(self._processes) < count:
                here, there = context.Pipe()
                process = context.Process(target=_serve, args=(self._function, there), daemon=True)
                process.start()
                there.close()
                self._processes[here] = process
        # One input at a time: a process with two could wait for the other end of the pipe, which waits for it.
        waiting, places = enumerate(inputs), dict[Connection, int]()
        errors: dict[int, Exception] = {}
        try:
            for connection in self._processes:
                places |= _send_next(waiting, connection)
            while places:
                ready = wait([*places])
                for connection in [each for each in places if each in ready]:
                    found, error = connection.recv()
                    place = places.pop(connection)
                    if error is not None:
                        errors[place] = error
                    elif not errors:
                        places |= _send_next(waiting, connection)
                        yield inputs[place], found
        except (EOFError, OSError):
            raise TpusimError("a worker process was killed, perhaps for lack of memory; try fewer --workers") from None
        finally:
            if places:
                self.close()
        if errors:
            raise errors[min(errors)]

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for process in self._processes.values():
            process.kill()
        for connection, process in self._processes.items():
            process.join()
            connection.close()
        self._processes.clear()


def on_all_processors(
    function: Callable[[Given], Found], inputs: Sequence[Given], name: Callable[[Given], str], progress: InputProgress
) -> dict[Given, Found]:
    """The function's result for each input."""
    found = {}
    with Processes(function, cpu_count() or 1) as processes:
        for done, (given, outcome) in enumerate(processes.outcomes(inputs), 1):
            found[given] = outcome
            progress(done, name(given))
    return found


def _send_next(waiting: Iterator[tuple[int, Any]], connection: Connection) -> dict[Connection, int]:
    """Send the next input, if there is one, and return its index."""
    for place, given in islice(waiting, 1):
        connection.send(given)
        return {connection: place}
    return {}


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Let processes that are started in here inherit a mask that keeps Ctrl-C from them, from their first moment."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Python's resource tracker, which the first process would start, must not inherit the mask.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(function: Callable[[Any], Any], connection: Connection) -> None:
    """Work on inputs as they come. BLAS has one thread: the processes fill the processors already."""
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    look_seldom()
    with threadpool_limits(1), suppress(EOFError, OSError):
        while True:
            given = connection.recv()
            found, failed = None, None
            try:
                found = function(given)
            except Exception as error:
                failed = error
            connection.send((found, failed))


def _end_with_parent() -> None:
    """End even in the middle of the work, and even if the parent can no longer say so."""
    if (parent := parent_process()) is not None:
        wait([parent.sentinel])
        os._exit(1)
