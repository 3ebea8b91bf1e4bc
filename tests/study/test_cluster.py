"""A sweep on a real Dask cluster on this computer: the same rows as here, whatever happens to its workers."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests import ROOT
from tpusim.cli import app as cli

NET = """
name: net
layers:
  - {name: one, op: conv2d, in_channels: 5, in_height: 60, in_width: 9, out_channels: 6, kernel: 3}
  - {name: two, op: conv2d, in_channels: 5, in_height: 60, in_width: 9, out_channels: 6, kernel: 3}
  - {name: fc, op: gemm, m: batch, n: 7, k: 9}
"""
SPEC = """
name: some
workloads: [net.yaml]
hardware: tiny_4x4
batch: 2
axes:
  array.size: {range: [2, 21]}
  vector_memory.word_elements: {powers_of_two: [1, 4]}
"""

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="the extra cluster is not installed"
)


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of a scheduler, and its process."""
    with scheduled(tmp_path_factory.mktemp("scheduler")) as found:
        yield found


@contextmanager
def scheduled(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    file = folder / "scheduler.json"
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    with dask("scheduler", *options) as process:
        yield json.loads(waited_for(file))["address"], process


@contextmanager
def dask(kind: str, *arguments: str, path: Path | None = ROOT) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Dask; `path` is where it finds tpusim."""
    environment = {**os.environ, "PYTHONPATH": str(path or "")}
    words = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *arguments]
    # Not here, where a worker would find tpusim without being told to.
    process = subprocess.Popen(words, env=environment, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def workers(address: str, count: int, path: Path | None = ROOT) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many workers that have joined; gone again at the end."""
    from distributed import Client

    options = ["--no-nanny", "--no-dashboard", "--nthreads", "1", "--host", "127.0.0.1"]
    with dask("worker", address, *options, path=path) as one, dask("worker", address, *options, path=path) as two:
        if count == 1:
            two.kill()
            two.wait()
        with Client(address, timeout=10, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=20)
        yield [one, two]
    with Client(address, timeout=10, set_as_default=False) as client:
        while client.nthreads():
            time.sleep(0.05)


def waited_for(file: Path) -> str:
    for _ in range(400):
        if file.exists() and file.read_text():
            return file.read_text()
        time.sleep(0.05)
    raise TimeoutError(file)


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with one network and one spec."""
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(NET)
    Path("some.yaml").write_text(SPEC)


def sweep(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["sweep", "some.yaml", *arguments])


def started(*arguments: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tpusim", "sweep", "some.yaml", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def stored(folder: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(Path(folder) / "sweep.sqlite")) as connection:
        points = connection.execute("SELECT * FROM points ORDER BY key").fetchall()
        return points + connection.execute("SELECT * FROM layers ORDER BY key, position").fetchall()


def wait_for(points: int, folder: str, running: subprocess.Popen[str]) -> None:
    while there(folder) < points and running.poll() is None:
        time.sleep(0.002)


def there(folder: str) -> int:
    try:
        with closing(sqlite3.connect(f"file:{folder}/sweep.sqlite?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM points").fetchone()[0])
    except sqlite3.Error:
        return 0


Scheduler = tuple[str, "subprocess.Popen[bytes]"]


@needs_dask
def test_a_cluster_gives_the_rows_of_this_computer_also_when_a_worker_is_killed(scheduler: Scheduler) -> None:
    address, _ = scheduler
    assert sweep("--out", "here", "--workers", "1").exit_code == 0
    with workers(address, 2) as both:
        whole = started("--out", "whole", "--cluster", address)
        shown, told = whole.communicate(timeout=60)
        assert whole.returncode == 0, told
        assert "60 points: 60 computed, 0 there already, 0 failed" in shown
        killed = started("--out", "killed", "--cluster", address)
        wait_for(15, "killed", killed)
        both[0].kill()
        assert there("killed") < 60, "the worker was killed too late to prove anything"
        shown, told = killed.communicate(timeout=60)
        assert killed.returncode == 0, told
        assert "60 points: 60 computed, 0 there already, 0 failed" in shown
    assert stored("whole") == stored("here")
    assert stored("killed") == stored("here")


@needs_dask
def test_ctrl_c_keeps_what_is_finished(scheduler: Scheduler) -> None:
    address, _ = scheduler
    with workers(address, 1):
        running = started("--out", "stopped", "--cluster", address)
        wait_for(5, "stopped", running)
        os.killpg(running.pid, signal.SIGINT)
        _, told = running.communicate(timeout=30)
    assert running.returncode == 130
    lines = [line for line in told.splitlines() if not line.endswith("...")]
    assert len(lines) == 2, told
    assert "finished points are in stopped; the same command continues." in lines[1]
    kept = there("stopped")
    assert 5 <= kept < 60
    assert f"{60 - kept} computed, {kept} there already" in sweep("--out", "stopped", "--workers", "1").stdout


@needs_dask
def test_a_scheduler_that_dies_is_told_and_what_is_finished_is_kept(tmp_path: Path) -> None:
    with scheduled(tmp_path) as (address, process), dask("worker", address, "--no-nanny", "--nthreads", "1"):
        running = started("--out", "half", "--cluster", address)
        wait_for(5, "half", running)
        process.kill()
        _, told = running.communicate(timeout=30)
    assert running.returncode == 1
    lines = [line for line in told.splitlines() if not line.endswith("...")]
    assert lines[1:] == [
        "Error: the scheduler of the cluster is gone; finished points are in half; the same command continues"
    ]
    assert 5 <= there("half") < 60


@needs_dask
def test_workers_that_cannot_do_it(scheduler: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, _ = scheduler
    monkeypatch.setattr("tpusim.cli.actions.sweep._JOIN_SECONDS", 0.2)
    alone = sweep("--cluster", address)
    assert alone.exit_code == 2
    assert "Waiting 0.2 seconds for a worker" in alone.stderr
    assert f"no worker has joined the scheduler; start some with: dask worker {address}" in alone.stderr
    if importlib.util.find_spec("tpusim").origin.startswith(str(ROOT)):  # type: ignore[union-attr]
        other = tmp_path / "other"
        shutil.copytree(ROOT / "tpusim", other / "tpusim", ignore=shutil.ignore_patterns("__pycache__"))
        with (other / "tpusim" / "machines" / "__init__.py").open("a") as file:
            file.write("# another model\n")
        with workers(address, 1, other):
            shown = sweep("--cluster", address)
        assert shown.exit_code == 2
        assert "has another version of tpusim; install there the version that is on this computer" in shown.stderr
    assert not Path("results").exists()


@needs_dask
@pytest.mark.parametrize(
    "address", ["foo", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "127.0.0.1:8786", "tcp://a b:1"]
)
def test_what_is_no_address(address: str) -> None:
    shown = sweep("--cluster", address)
    assert shown.exit_code == 2
    assert f"--cluster {address}: is no address of a Dask scheduler; write tcp://HOST:PORT" in shown.stderr


@needs_dask
@pytest.mark.parametrize("listens", [False, True])
def test_nobody_there_or_somebody_else(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpusim.study.sweep.cluster._CONNECT_SECONDS", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        shown = sweep("--cluster", address)
    assert shown.exit_code == 2
    assert f"--cluster {address}: no Dask scheduler answers there; start one: dask scheduler" in shown.stderr


@needs_dask
def test_a_worker_instead_of_the_scheduler(scheduler: Scheduler) -> None:
    from distributed import Client

    address, _ = scheduler
    with workers(address, 1), Client(address, set_as_default=False) as client:
        (worker,) = client.nthreads()
        shown = sweep("--cluster", worker)
    assert shown.exit_code == 2
    assert f"--cluster {worker}: is a worker of Dask; give the address of its scheduler" in shown.stderr


def test_without_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tpusim.study.sweep.cluster", raising=False)
    monkeypatch.setitem(sys.modules, "distributed", None)
    shown = sweep("--cluster", "tcp://127.0.0.1:8786")
    assert shown.exit_code == 2
    assert "--cluster needs distributed, which cannot be imported" in shown.stderr
    assert "-m pip install distributed" in shown.stderr
