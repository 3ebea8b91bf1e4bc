"""A function over many inputs in several processes; what they do to a sweep stands in test_sweep_store.py."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import product
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from tests.study.work_elsewhere import doubled, killed, process_of
from tpusim.base.errors import InputError, TpusimError
from tpusim.base.memory import YOUNG
from tpusim.study import worker_processes
from tpusim.study.worker_processes import Processes


@pytest.mark.parametrize("workers", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_every_input_has_its_result(workers: int) -> None:
    """Also where neither fits a pipe; and again in the same processes."""
    inputs = [str(n) * 100_000 for n in range(8)]
    with Processes(doubled, workers) as several:
        for _ in range(2):
            assert dict(several.outcomes(inputs)) == {text: doubled(text) for text in inputs}
        assert len(active_children()) == (workers if workers > 1 else 0)
    assert active_children() == []


def test_only_one_process_is_this_one_and_others_look_for_cycles_as_seldom_as_the_command_does() -> None:
    with Processes(process_of, 1) as alone, Processes(process_of, 2) as both:
        assert {found for _, (found, _) in alone.outcomes(range(3))} == {os.getpid()}
        others, seldom = zip(*(found for _, found in both.outcomes(range(9))), strict=True)
    assert len({*others}) == 2
    assert os.getpid() not in others
    assert {*seldom} == {YOUNG}


@pytest.mark.parametrize(("there", "taken"), [(3, 3), (None, 1)])
def test_on_all_processors(there: int | None, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, told = list[int](), list[tuple[int, str]]()

    def here(function: Any, workers: int) -> Processes[Any, Any]:
        asked.append(workers)
        return Processes(function, 1)

    monkeypatch.setattr(worker_processes, "cpu_count", lambda: there)
    monkeypatch.setattr(worker_processes, "Processes", here)
    found = worker_processes.on_all_processors(doubled, ["a", "b"], str.upper, lambda *each: told.append(each))
    assert (asked, found, told) == ([taken], {"a": "aa", "b": "bb"}, [(1, "A"), (2, "B")])


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_error_is_raised(workers: int) -> None:
    with Processes(doubled, workers) as several, pytest.raises(InputError, match="wrong 1"):
        dict(several.outcomes(["a", "wrong 1", "wrong 2", "b"]))


def test_a_process_that_is_killed_is_an_error_and_ends_the_others() -> None:
    with Processes(killed, 2) as processes, pytest.raises(TpusimError, match="a worker process was killed"):
        dict(processes.outcomes(range(2)))
    assert active_children() == []


def children(pid: int) -> set[int]:
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return {int(line) for line in listing.stdout.split()}


COMMANDS = ("sweep", *["validate"] * (os.cpu_count() != 1))
KILLED = [*product(COMMANDS, (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP))]
QUICK = [("validate", signal.SIGTERM)]
"""`test_sweep_store.py` kills a sweep of one process in the middle of its work; each of the others takes seconds."""


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs the command ps to find the workers")
@pytest.mark.parametrize(
    ("command", "kind", "seconds"),
    [pytest.param(*each, 0.3, marks=pytest.mark.long, id=f"{each[0]}-{each[1].name}-0.3") for each in KILLED]
    + [pytest.param(*each, 0.02, id=f"{each[0]}-{each[1].name}-0.02") for each in QUICK]
    + [pytest.param(*each, 2.0, marks=pytest.mark.long, id=f"{each[0]}-{each[1].name}-2.0") for each in KILLED],
)
def test_workers_end_with_a_command_that_is_killed(
    command: str, kind: signal.Signals, seconds: float, tmp_path: Path
) -> None:
    """Alone, as `kill` does it; while they start, and in the middle of their work."""
    Path(tmp_path, "long.yaml").write_text("workloads: [vgg16]\naxes: {array.size: [16, 32, 64], batch: [1, 8, 32]}\n")
    words = ["validate"] if command == "validate" else ["sweep", "long.yaml", "--workers", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "tpusim", *words], cwd=tmp_path, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        while len(children(running.pid)) < 2:
            assert running.poll() is None, running.communicate()
            time.sleep(0.02)
        time.sleep(seconds)
        found = children(running.pid)
        assert running.poll() is None, running.communicate()
        running.send_signal(kind)
        until = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in found):
            assert time.monotonic() < until
            time.sleep(0.02)
        assert "Traceback" not in running.communicate()[1]
