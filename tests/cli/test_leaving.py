"""However a command ends, it ends: nothing under way keeps it, and Ctrl-C is always heard."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from typer.testing import CliRunner

from tests import forked
from tpusim.base.errors import CheckFailed
from tpusim.base.interruption import ENDING, HeldInterrupt
from tpusim.cli import progress
from tpusim.cli.actions import run as action
from tpusim.cli.app import app
from tpusim.cli.terminal import uninterrupted
from tpusim.result.load import read_result

TINY = ("run", "tiny", "--hardware", "tiny_4x4", "--batch", "2", "--set", "mapping.search=estimate")


@dataclass(frozen=True)
class Busy:
    """Makes a run of what raises something while another thread goes on; patched in a process of its own."""

    then: Callable[..., Any]

    def __call__(self) -> None:
        run = action.run

        def failing(*args: Any, progress: Any, **options: Any) -> Any:
            threading.Thread(target=time.sleep, args=[60]).start()
            self.then(partial(run, *args, **options), progress)

        action.run = failing


def raising(error: BaseException) -> Callable[..., Any]:
    def then(*_: Any) -> None:
        raise error

    return then


def wrong(run: Callable[[], Any], progress: Any) -> None:
    progress(replace(run().layers[0], outputs_mismatched=1))
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("then", "code", "message"),
    [
        (raising(CheckFailed("x")), 1, "Error: x"),
        (raising(MemoryError()), 2, "Error: this computer has too little memory for it; ask for less at a time"),
        (raising(RuntimeError("a mistake in here")), 1, "RuntimeError: a mistake in here"),
        (raising(KeyboardInterrupt()), 130, "Interrupted after 0 of 3 layers; no file was written."),
        (wrong, 1, "Error: the check failed: layer fig10: 1 of 72 outputs are wrong"),
    ],
)
def test_what_other_threads_do_keeps_no_command_from_ending(then: Callable[..., Any], code: int, message: str) -> None:
    shown = forked.tpusim(*TINY, first=Busy(then))
    assert shown.returncode == code, shown.stderr
    assert message in shown.stderr


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """The end to write to of a pipe that takes nothing more."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    size = fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)
    assert os.write(writing, bytes(size)) == size
    os.set_blocking(writing, True)
    yield writing
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    "json",
    [*(pytest.param(each, marks=pytest.mark.long) for each in ((), ("--json", "-"))), ("--json", "fifo")],
    ids=str,
)
def test_ctrl_c_ends_what_waits_for_a_reader(json: tuple[str, ...], full_pipe: int) -> None:
    os.mkfifo("fifo")
    with TemporaryFile() as messages, begun("--out", "deep", *json, streams=(full_pipe, messages.fileno())) as process:
        until(Path("deep/run.json").exists)
        os.kill(process, signal.SIGINT)
        code = forked.code_of(process, 15)
        if code is None:
            # A signal that comes just ahead of the call that waits does not wake it: people press the keys again.
            os.kill(process, signal.SIGINT)
            code = forked.code_of(process, 15)
        assert code == 130
        messages.seek(0)
        last = messages.read().decode().splitlines()[-1]
    assert last == "Interrupted after 3 of 3 layers; deep/run.json holds what is done."
    assert read_result(Path("deep")).layers_left == 0


def test_a_second_ctrl_c_ends_what_cannot_even_say_so(full_pipe: int) -> None:
    # On a busy computer progress would be told, and wait for a reader before anything is written.
    with begun("--out", "deep", streams=(full_pipe, full_pipe), first=quiet) as process:
        until(Path("deep/run.json").exists)
        os.kill(process, signal.SIGINT)
        assert forked.code_of(process, 1) is None
        os.kill(process, signal.SIGINT)
        assert forked.code_of(process, 30) == 130


def quiet() -> None:
    progress.FIRST_SECONDS = progress.QUIET_SECONDS = 999


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_ends_a_job_leaves_nothing_half_written(number: signal.Signals) -> None:
    """As `kill`, batch systems and a closed terminal do it, in the moment before a file has its name."""

    def first() -> None:
        os.replace = lambda *_: os.kill(os.getpid(), number)

    ended = forked.tpusim("trace", *TINY[1:], "--layers", "fig10", "-o", "run.json", first=first)
    assert (ended.returncode, ended.stderr) == (130, "Interrupted; no file was written.\n")
    assert os.listdir() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_is_done_is_kept_whatever_ends_the_run(number: signal.Signals) -> None:
    run = action.run

    def ending(*args: Any, progress: Any, **options: Any) -> Any:
        def seen(layer: Any) -> None:
            progress(layer)
            os.kill(os.getpid(), number)

        return run(*args, progress=seen, **options)

    shown = forked.tpusim(*TINY, "--out", "deep", first=lambda: setattr(action, "run", ending))
    assert (shown.returncode, shown.stderr.splitlines()[-1]) == (
        130, "Interrupted after 1 of 3 layers; deep/run.json holds what is done.",
    )  # fmt: skip
    assert read_result(Path("deep")).layers_left == 2


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """As `nohup` has it."""
    replace_file = os.replace

    def first() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.replace = lambda *paths: (os.kill(os.getpid(), signal.SIGHUP), replace_file(*paths))

    shown = forked.tpusim("trace", *TINY[1:], "--layers", "fig10", "-o", "run.json", first=first)
    assert (shown.returncode, shown.stderr, os.listdir()) == (0, "", ["run.json"])


@contextmanager
def begun(*more: str, streams: tuple[int, int], first: Callable[[], None] | None = None) -> Iterator[int]:
    """A run of the small network in a process that ends with the test, whatever fails."""
    with open(os.devnull) as nothing:
        process = forked.begun(*TINY, *more, streams=(nothing.fileno(), *streams), first=first)
    try:
        yield process
    finally:
        with suppress(ChildProcessError):
            if forked.code_of(process, 0) is None:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)


def until(there: Any) -> None:
    last = time.monotonic() + 30
    while not there():
        assert time.monotonic() < last
        time.sleep(0.01)


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_plot_says_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(app, [*TINY, "--out", "deep"]).exit_code == 0
    replace = os.replace

    def interrupted(*paths: Any) -> None:
        replace(*paths)
        if str(paths[1]).endswith(".svg"):
            monkeypatch.setattr(os, "replace", lambda *_: interrupt())

    monkeypatch.setattr(os, "replace", interrupted)
    result = CliRunner().invoke(app, ["plot", "deep", "--format", "svg"])
    assert result.exit_code == 130
    assert result.stderr == "Interrupted; the pictures named so far are there.\n"
    assert [str(file) for file in Path("deep").glob("*.svg")] == result.stdout.split()


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", ENDING)
def test_what_is_put_away_is_put_away_whole_and_then_ctrl_c_is_answered(number: signal.Signals) -> None:
    done = []

    def put_away() -> None:
        with uninterrupted():
            signal.raise_signal(number)
            done.append("written")

    before = {each: signal.signal(each, signal.default_int_handler) for each in ENDING}
    try:
        with pytest.raises(KeyboardInterrupt):
            put_away()
        assert done == ["written"]
        assert {signal.getsignal(each) for each in ENDING} == {signal.default_int_handler}
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@pytest.mark.parametrize("json", [(), ("--json", "a.json")])
def test_ctrl_c_during_a_write_leaves_every_file(json: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def interrupted(*paths: Any) -> None:
        monkeypatch.setattr(os, "replace", replace)
        interrupt()
        replace(*paths)

    monkeypatch.setattr(os, "replace", interrupted)
    result = CliRunner().invoke(app, [*TINY, "--out", "deep", *json])
    assert result.exit_code == 130
    for file in ("deep/run.json", *json[1:]):
        assert read_result(Path(file)).layers_left == 0


def test_a_second_ctrl_c_does_not_wait() -> None:
    def put_away() -> None:
        with uninterrupted():
            interrupt()
            interrupt()
            pytest.fail("went on")

    with pytest.raises(KeyboardInterrupt):
        put_away()


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            interrupt()
            interrupt()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", ENDING)
def test_what_is_kept_back_is_answered_once_and_not_lost(number: signal.Signals) -> None:
    before, kept = {each: signal.signal(each, signal.default_int_handler) for each in ENDING}, HeldInterrupt()
    try:
        kept.hold()
        signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            kept.let_go()
        assert {signal.getsignal(each) for each in ENDING} == {signal.default_int_handler}
        kept.hold()
        kept.let_go()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_what_somebody_else_answers_is_not_kept_back() -> None:
    asked, kept = list[int](), HeldInterrupt()
    before = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    try:
        kept.hold()
        interrupt()
        assert asked == [signal.SIGINT]
        kept.let_go()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0, 1, 3])
@pytest.mark.parametrize("engine", ["event", "register"])
def test_ctrl_c_ends_what_compiles(engine: str, seconds: float, tmp_path: Path) -> None:
    """In whatever the compiler is doing: LLVM, which calls Python, swallows what that raises."""
    home = str(tmp_path / "home")
    own = {**os.environ, "XDG_CACHE_HOME": home, "NUMBA_CACHE_DIR": home}
    words = "run", "alexnet", "--no-check", "--layers", "conv5", "--set", "array.size=8", "--engine", engine
    with subprocess.Popen([sys.executable, "-m", "tpusim", *words], env=own, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr
        assert any("Note: loops are compiled" in line for line in run.stderr)
        time.sleep(seconds)
        run.send_signal(signal.SIGINT)
        says = run.stderr.read()
    assert run.returncode == 130, says
    assert says.splitlines()[-1] == "Interrupted after 0 of 1 layers; no file was written."
    assert "Traceback" not in says
