"""Work on a few things at once: how many, in what order, and what is waited for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from functools import partial
from threading import Barrier, BrokenBarrierError, Event, Thread
from typing import Any

import pytest

from tpusim.flow import ahead as module
from tpusim.flow.ahead import ROOM_BYTES, ahead

THREADS = 2
LONG = 30.0


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cpu_count", lambda: THREADS)


class AtOnce:
    """A pool whose tasks are over when they are handed to it."""

    def __init__(self, _: int) -> None:
        pass

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(task())
        return future

    def shutdown(self, **_: bool) -> None:
        pass


@pytest.mark.parametrize(("need", "alone"), [(ROOM_BYTES // 2, False), (ROOM_BYTES // 2 + 1, True)])
def test_what_needs_more_room_than_there_is_runs_alone(need: int, alone: bool) -> None:
    both = Barrier(2)

    def meets() -> bool:
        try:
            both.wait(0.5 if alone else LONG)
        except BrokenBarrierError:
            return False
        return True

    assert list(ahead([(need, meets)] * 2)) == [not alone] * 2


def test_one_thing_too_big_for_the_room_is_done_all_the_same() -> None:
    assert list(ahead([(2 * ROOM_BYTES, partial(int, "1"))])) == [1]


def test_results_come_in_order_whoever_is_first() -> None:
    second = Event()

    def slow() -> str:
        assert second.wait(LONG)
        return "first"

    def quick() -> str:
        second.set()
        return "second"

    assert list(ahead([(1, slow), (1, quick)])) == ["first", "second"]


def test_what_is_done_is_handed_on_before_more_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futures, "ThreadPoolExecutor", AtOnce)
    begun: list[int] = []
    tasks = ((1, partial(begun.append, number)) for number in range(4))
    assert [len(begun) for _ in ahead(tasks)] == [1, 2, 3, 4]


def test_no_more_is_begun_than_keeps_the_threads_busy() -> None:
    """One more than there are threads waits for its turn; the next is only taken up."""
    taken: list[int] = []
    enough = Event()

    def tasks() -> Iterator[tuple[int, Callable[[], bool]]]:
        for number in range(THREADS + 4):
            taken.append(number)
            if len(taken) == THREADS + 2:
                enough.set()
            yield 1, partial(enough.wait, LONG)

    results = ahead(tasks())
    assert next(results)
    assert len(taken) == THREADS + 2
    assert all(results)


def test_who_leaves_waits_for_nothing_under_way() -> None:
    release, begun = Event(), Event()

    def held() -> bool:
        begun.set()
        return release.wait(LONG)

    results = ahead([(1, partial(begun.wait, LONG)), (1, held), (1, held), (1, held)])
    assert next(results)
    leaving = Thread(target=results.close)
    try:
        leaving.start()
        leaving.join(LONG / 3)
        assert not leaving.is_alive()
    finally:
        release.set()


def test_an_error_comes_when_it_is_its_turn() -> None:
    def wrong() -> int:
        raise RuntimeError("second")

    results = ahead([(1, partial(int, "1")), (1, wrong)])
    assert next(results) == 1
    with pytest.raises(RuntimeError, match="second"):
        next(results)


def test_threads_take_turns_often_as_long_as_there_are_some() -> None:
    usual = sys.getswitchinterval()
    (told,) = ahead([(0, sys.getswitchinterval)])
    assert told < usual
    assert sys.getswitchinterval() == usual
