"""The command in a forked process, which has nothing to import: that takes longer than most commands do."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

from tpusim.__main__ import main

MOST_SECONDS = 300
"""After that the child is ended, so that nobody waits for what waits for ever."""


def tpusim(
    *arguments: str,
    output: int | None = None,
    more: Mapping[str, str] | None = None,
    folder: Path | None = None,
    first: Callable[[], Any] | None = None,
    given: bytes = b"",
) -> subprocess.CompletedProcess[str]:
    """What the command says and how it ends, with `more` in its environment; `output` is a file that takes what it
    prints, `given` its standard input. `first` is called in the child before the command.
    """
    with TemporaryFile() as out, TemporaryFile() as err, TemporaryFile() as fed:
        fed.write(given)
        fed.seek(0)
        streams = fed.fileno(), out.fileno() if output is None else output, err.fileno()
        process = begun(*arguments, streams=streams, more=more, folder=folder, first=first)
        _, status = os.waitpid(process, 0)
        out.seek(0)
        err.seek(0)
        code = os.waitstatus_to_exitcode(status)
        return subprocess.CompletedProcess(arguments, code, out.read().decode(), err.read().decode())


def begun(
    *arguments: str,
    streams: tuple[int, int, int] | None = None,
    more: Mapping[str, str] | None = None,
    folder: Path | None = None,
    first: Callable[[], Any] | None = None,
) -> int:
    """The process of a command that is under way, to which nobody listens without `streams`: whoever begins it waits
    for it.
    """
    process = os.fork()
    if process == 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        _child(arguments, streams or (nothing, nothing, nothing), more or {}, folder, first)
    return process


def code_of(process: int, seconds: float) -> int | None:
    """How a process ends; None: it does not within so many seconds."""
    last = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > last:
            return None
        time.sleep(0.01)


def told(messages: str) -> list[str]:
    """Lines but those of progress: a busy computer may take the two seconds after which it is told."""
    return [line for line in messages.splitlines() if not line.endswith("...")]


def _child(
    arguments: tuple[str, ...],
    streams: tuple[int, int, int],
    more: Mapping[str, str],
    folder: Path | None,
    first: Callable[[], Any] | None,
) -> NoReturn:
    """Be the process that a shell would start, from the first line of `main` to the interpreter's end."""
    code = 120
    # What the tests before it have left in memory is no garbage of the command's: to look through it takes seconds.
    gc.freeze()
    try:
        signal.alarm(MOST_SECONDS)
        for at, file in enumerate(streams):
            os.dup2(file, at)
        os.environ.update(more)
        encoding = os.environ.get("PYTHONIOENCODING")
        sys.stdin = open(0)  # noqa: SIM115
        sys.stdout, sys.stderr = (open(at, "w", encoding=encoding) for at in (1, 2))  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Pytest would show more of them.
        warnings.resetwarnings()
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        if folder:
            os.chdir(folder)
        sys.argv = ["tpusim", *arguments]
        if first:
            first()
        main()
        sys.stdout.flush()
        code = 0
    finally:
        os._exit(code)
