"""Work on a few things at once, and hand them on in order."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from os import cpu_count
from typing import TypeVar

from threadpoolctl import threadpool_limits

Made = TypeVar("Made")

MOST_THREADS = 4
ROOM_BYTES = 2**30
"""What is worked on at once needs no more than this, however much is free, unless it is one thing alone."""
SWITCH_SECONDS = 0.0005
"""How long a thread that has come back from NumPy waits at most for one that runs Python: about as long as it takes to
come back. The interpreter's own ten times that would have it wait most of the time.
"""


def ahead(tasks: Iterable[tuple[int, Callable[[], Made]]], room: int = ROOM_BYTES) -> Iterator[Made]:
    """What each task returns, in order; with each, the bytes that it needs. They begin in order.

    Those worked on at once need no more than `room`, unless it is one alone.
    Threads work on tasks while the next are taken from `tasks`. NumPy releases the interpreter lock, BLAS stays on one
    thread.
    """
    threads = min(MOST_THREADS, cpu_count() or 1)
    pool = ThreadPoolExecutor(threads)
    under_way: deque[tuple[int, Future[Made]]] = deque()
    with threadpool_limits(1, user_api="blas"), _switching():
        try:
            for need, task in tasks:
                while under_way and (_must_wait(under_way, need, room, threads) or under_way[0][1].done()):
                    yield under_way.popleft()[1].result()
                under_way.append((need, pool.submit(task)))
                del task  # It holds a Program, and to ask for the next takes a while.
            while under_way:
                yield under_way.popleft()[1].result()
        finally:
            # An interrupted run does not wait for what is under way.
            pool.shutdown(wait=False, cancel_futures=True)


def _must_wait(under_way: deque[tuple[int, Future[Made]]], need: int, room: int, threads: int) -> bool:
    return len(under_way) > threads or sum(each for each, _ in under_way) + need > room


@contextmanager
def _switching() -> Iterator[None]:
    """Threads take turns at the interpreter every SWITCH_SECONDS."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
