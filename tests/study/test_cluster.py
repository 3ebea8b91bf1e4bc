"""A sweep on a real Dask cluster on this computer: the same rows as here, whatever happens to its workers."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests import ROOT
from tests.study.small_sweep import QUICK, stored
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
hardware: quick.yaml
batch: 2
axes:
  array.size: {range: [2, 11]}
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
def scheduled(folder: Path, *more: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    file = folder / "scheduler.json"
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    with dask("scheduler", *options, *more) as process:
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
    with ExitStack() as running:
        joined = [running.enter_context(dask("worker", address, *options, path=path)) for _ in range(count)]
        with Client(address, timeout=10, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=20)
        yield joined
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
def desk(undrawn: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with one network and one spec."""
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(NET)
    Path("quick.yaml").write_text(QUICK)
    Path("some.yaml").write_text(SPEC)


def sweep(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["sweep", "some.yaml", *arguments])


def started(*arguments: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tpusim", "sweep", "some.yaml", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


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


@pytest.mark.long
@needs_dask
def test_a_cluster_gives_the_rows_of_this_computer_also_when_a_worker_is_killed(scheduler: Scheduler) -> None:
    address, _ = scheduler
    assert sweep("--out", "here", "--workers", "1").exit_code == 0
    with workers(address, 2) as both:
        whole = started("--out", "whole", "--cluster", address)
        shown, told = whole.communicate(timeout=60)
        assert whole.returncode == 0, told
        assert "30 points: 30 computed, 0 there already, 0 failed" in shown
        killed = started("--out", "killed", "--cluster", address)
        wait_for(15, "killed", killed)
        both[0].kill()
        assert there("killed") < 30, "the worker was killed too late to prove anything"
        shown, told = killed.communicate(timeout=60)
        assert killed.returncode == 0, told
        assert "30 points: 30 computed, 0 there already, 0 failed" in shown
    assert stored("whole") == stored("here")
    assert stored("killed") == stored("here")


@pytest.mark.long
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
    assert 5 <= kept < 30
    assert f"{30 - kept} computed, {kept} there already" in sweep("--out", "stopped", "--workers", "1").stdout


@pytest.mark.long
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
    assert 5 <= there("half") < 30


@needs_dask
def test_workers_that_cannot_do_it(scheduler: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import Client

    address, _ = scheduler
    monkeypatch.setattr("tpusim.api.sweep._JOIN_SECONDS", 0.2)
    alone = sweep("--cluster", address)
    assert alone.exit_code == 2
    assert "Waiting 0.2 seconds for a worker" in alone.stderr
    assert f"no worker has joined the scheduler; start some with: dask worker {address}" in alone.stderr
    if importlib.util.find_spec("tpusim").origin.startswith(str(ROOT)):  # type: ignore[union-attr]
        other = tmp_path / "other"
        shutil.copytree(ROOT / "tpusim", other / "tpusim")
        with (other / "tpusim" / "machines" / "__init__.py").open("a") as file:
            file.write("# another model\n")
        with workers(address, 1, other), Client(address, set_as_default=False) as client:
            (worker,) = client.nthreads()
            shown, named = (sweep("--cluster", each) for each in (address, worker))
        assert shown.exit_code == 2
        assert "has another version of tpusim; install there the version that is on this computer" in shown.stderr
        # A worker itself is no scheduler, whatever it holds.
        assert named.exit_code == 2
        assert f"--cluster {worker}: is a worker of Dask; give the address of its scheduler" in named.stderr
    assert not Path("results").exists()


@needs_dask
@pytest.mark.parametrize(
    "address", ["foo", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "127.0.0.1:8786", "tcp://a b:1", "http://a:8786"]
)
def test_what_is_no_address(address: str) -> None:
    shown = sweep("--cluster", address)
    assert shown.exit_code == 2
    assert (
        f"--cluster {address}: is no address of a Dask scheduler; write tcp://HOST:PORT, or tls://HOST:PORT"
        in shown.stderr
    )


def told(address: str) -> str:
    """What is said of an address that will not do: one line, within a bounded time, before anything is made."""
    began = time.monotonic()
    shown = sweep("--cluster", address)
    assert time.monotonic() - began < 20
    assert shown.exit_code == 2, shown.output
    _, line = shown.stderr.splitlines()
    assert not Path("results").exists()
    return line.removeprefix(f"Error: --cluster {address}: ")


@needs_dask
@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("tcp://127.0.0.1:{port}", "nothing answers there (Connection refused); start a scheduler: dask scheduler"),
        ("tls://127.0.0.1:{port}", "Dask's configuration names no certificates; see TLS in docs/sweeps.md"),
        ("tcp://no-such-host.invalid:8786", "no computer is known by that name ("),
        ("tcp://a..b:8786", "no computer can have that name; check the address"),
        (f"tcp://{'a' * 64}.example:8786", "no computer can have that name; check the address"),
    ],
)
def test_nobody_there(address: str, says: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert told(address.format(port=closed.getsockname()[1])).startswith(says)


def silent(_: socket.socket) -> None:
    time.sleep(30)


def speaking(first: bytes) -> Callable[[socket.socket], None]:
    def speak(client: socket.socket) -> None:
        client.sendall(first)
        client.recv(100)
        time.sleep(1)

    return speak


def flooding(client: socket.socket) -> None:
    with suppress(OSError):
        while True:
            client.sendall(bytes(65536))


OTHERS = {
    "silent": silent,
    "leaves": lambda client: None,
    "http": speaking(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    "ssh": speaking(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "little": speaking(b"220"),
    "noise": speaking(random.Random(1).randbytes(4000)),
    "zeros": flooding,
}


@needs_dask
@pytest.mark.parametrize("other", OTHERS)
def test_somebody_else(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpusim.study.sweep.cluster._CONNECT_SECONDS", 1.5)
    with listening(OTHERS[other]) as port:
        line = told(f"tcp://127.0.0.1:{port}")
    assert line == "what answers there is no Dask scheduler, or wants TLS; then write tls://HOST:PORT"


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of somebody who does this with every client."""

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                threading.Thread(target=answer, args=(client,), daemon=True).start()

    def answer(client: socket.socket) -> None:
        with client, suppress(OSError):
            serve(client)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ca.pem, and cert.pem and key.pem signed by it; other.pem is a CA that signed nothing."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "other"):
        whose = ["-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}"]
        openssl("req", "-x509", "-newkey", "rsa:2048", "-days", "2", *whose)
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "asked.pem", "-subj", "/CN=tpusim")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-out", "cert.pem"]
    openssl("x509", "-req", "-in", "asked.pem", *signed)
    return folder


def configured(certificates: Path, ca: str = "ca.pem") -> dict[str, str]:
    """What docs/sweeps.md has people set."""
    names = {"CA_FILE": ca, "CLIENT__CERT": "cert.pem", "CLIENT__KEY": "key.pem"}
    return {f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(certificates / file) for name, file in names.items()}


def encrypted(certificates: Path, *arguments: str, ca: str = "ca.pem") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "tpusim", "sweep", "some.yaml", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **configured(certificates, ca)}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.long
@needs_dask
@needs_openssl
def test_tls_with_certificates(certificates: Path, tmp_path: Path, scheduler: Scheduler) -> None:
    """The lines of docs/sweeps.md; then without certificates, with those of another CA, and to the wrong kind."""
    given = {"--tls-ca-file": "ca.pem", "--tls-cert": "cert.pem", "--tls-key": "key.pem"}
    options = [word for option, file in given.items() for word in (option, str(certificates / file))]
    with scheduled(tmp_path, "--protocol", "tls", *options) as (address, _):
        assert address.startswith("tls://127.0.0.1:")
        with dask("worker", address, "--no-nanny", "--no-dashboard", "--nthreads", "1", *options):
            shown = encrypted(certificates, "--out", "there", "--cluster", address)
            assert shown.returncode == 0, shown.stderr
            assert "30 points: 30 computed" in shown.stdout
        assert "names no certificates; see TLS in docs/sweeps.md" in told(address)
        assert "wants TLS; then write tls://HOST:PORT" in told(address.replace("tls", "tcp"))
        for ca, says in (("other.pem", "no secure connection to what"), ("none.pem", "certificates in Dask's config")):
            shown = encrypted(certificates, "--out", "other", "--cluster", address, ca=ca)
            assert shown.returncode == 2
            assert f"Error: --cluster {address}: " in shown.stderr
            assert says in shown.stderr
            assert len(shown.stderr.splitlines()) == 2
    plain = scheduler[0].replace("tcp", "tls")
    shown = encrypted(certificates, "--out", "other", "--cluster", plain)
    assert shown.returncode == 2
    assert f"Error: --cluster {plain}: no secure connection to what answers there (" in shown.stderr
    assert sweep("--out", "here", "--workers", "1").exit_code == 0
    assert stored("there") == stored("here")


def test_without_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tpusim.study.sweep.cluster", raising=False)
    monkeypatch.setitem(sys.modules, "distributed", None)
    shown = sweep("--cluster", "tcp://127.0.0.1:8786")
    assert shown.exit_code == 2
    assert "--cluster needs distributed, which cannot be imported" in shown.stderr
    assert "-m pip install distributed" in shown.stderr
