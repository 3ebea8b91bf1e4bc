"""A few tasks at once, on threads, while the next ones are made."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from os import cpu_count
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

Made = TypeVar("Made")
Needing = tuple[int, Callable[[], Made]]
"""A task, with the bytes that it needs ahead of it."""

MOST_THREADS = 4
ROOM_BYTES = 2**30
"""Most bytes of tasks that run at once, however much is free, unless there is a single task."""
SWITCH_SECONDS = 0.0005
"""Longest time that a thread back from NumPy waits for a thread that runs Python: about as long as coming back takes.

The interpreter's default, ten times as long, would have it wait most of the time.
"""


def ahead(tasks: Iterable[Needing[Made]], room: int = ROOM_BYTES) -> Iterator[Made]:
    """Results of tasks, in order. At most `room` bytes are needed at once, unless a single task needs more.

    Threads work on tasks while the next ones are taken from `tasks`. NumPy releases the interpreter lock; BLAS stays on
    one thread.
    """
    # Imported here, as a run without a check needs no threads.
    from concurrent.futures import ThreadPoolExecutor

    from threadpoolctl import threadpool_limits

    threads = min(MOST_THREADS, cpu_count() or 1)
    pool = ThreadPoolExecutor(threads)
    under_way: deque[tuple[int, Future[Made]]] = deque()
    usual_interval = sys.getswitchinterval()
    with threadpool_limits(1, user_api="blas"):
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            for need, task in tasks:
                while under_way:
                    full = len(under_way) > threads or sum(each for each, _ in under_way) + need > room
                    if not (full or under_way[0][1].done()):
                        break
                    yield under_way.popleft()[1].result()
                under_way.append((need, pool.submit(task)))
                del task  # It holds a Program, and to ask for the next takes a while.
            while under_way:
                yield under_way.popleft()[1].result()
        finally:
            sys.setswitchinterval(usual_interval)
            # An interrupted run does not wait for tasks under way.
            pool.shutdown(wait=False, cancel_futures=True)
