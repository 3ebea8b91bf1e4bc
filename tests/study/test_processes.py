"""A function over many inputs in several processes; what they do to a sweep stands in test_sweep_store.py."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import active_children

import pytest

from tpusim.base.errors import InputError, TpusimError
from tpusim.study.processes import Processes


def doubled(text: str) -> str:
    if text.startswith("wrong"):
        # The later one is found first.
        time.sleep(0.3 * (text == "wrong 1"))
        raise InputError(text)
    return text + text


def process_of(_: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def killed(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 3])
def test_every_input_has_its_result(workers: int) -> None:
    """Also where neither fits a pipe; and again in the same processes."""
    inputs = [str(n) * 100_000 for n in range(8)]
    with Processes(doubled, workers) as processes:
        for _ in range(2):
            assert dict(processes.outcomes(inputs)) == {text: doubled(text) for text in inputs}
        assert len(active_children()) == (workers if workers > 1 else 0)
    assert active_children() == []


def test_only_one_process_is_this_one() -> None:
    with Processes(process_of, 1) as alone, Processes(process_of, 2) as both:
        assert {found for _, found in alone.outcomes(range(3))} == {os.getpid()}
        others = {found for _, found in both.outcomes(range(9))}
    assert len(others) == 2
    assert os.getpid() not in others


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_error_is_raised(workers: int) -> None:
    with Processes(doubled, workers) as processes, pytest.raises(InputError, match="wrong 1"):
        dict(processes.outcomes(["a", "wrong 1", "wrong 2", "b"]))


def test_a_process_that_is_killed_is_an_error_and_ends_the_others() -> None:
    with Processes(killed, 2) as processes, pytest.raises(TpusimError, match="a worker process was killed"):
        dict(processes.outcomes(range(2)))
    assert active_children() == []
