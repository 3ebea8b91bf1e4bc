"""The command in a forked process, which has nothing to import: that takes longer than most commands do."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

from tpusim.__main__ import main


def tpusim(
    *arguments: str,
    output: int | None = None,
    more: Mapping[str, str] | None = None,
    folder: Path | None = None,
    first: Callable[[], object] = lambda: None,
) -> subprocess.CompletedProcess[str]:
    """What the command says and how it ends, with `more` in its environment; `output` is a file that takes what it
    prints, and `first` is done ahead of it.
    """
    with TemporaryFile() as out, TemporaryFile() as err:
        process = os.fork()
        if process == 0:
            first()
            _child(arguments, out.fileno() if output is None else output, err.fileno(), more or {}, folder)
        _, status = os.waitpid(process, 0)
        out.seek(0)
        err.seek(0)
        code = os.waitstatus_to_exitcode(status)
        return subprocess.CompletedProcess(arguments, code, out.read().decode(), err.read().decode())


def begun(*arguments: str) -> int:
    """The process of a command that nobody listens to; whoever begins it ends it, and waits for it."""
    process = os.fork()
    if process == 0:
        nothing = os.open(os.devnull, os.O_WRONLY)
        _child(arguments, nothing, nothing, {}, None)
    return process


def told(messages: str) -> list[str]:
    """Lines but those of progress: a busy computer may take the two seconds after which it is told."""
    return [line for line in messages.splitlines() if not line.endswith("...")]


def _child(arguments: tuple[str, ...], out: int, err: int, more: Mapping[str, str], folder: Path | None) -> NoReturn:
    """Be the process that a shell would start, from the first line of `main` to the interpreter's end."""
    code = 120
    # What the tests before it have left in memory is no garbage of the command's: to look through it takes seconds.
    gc.freeze()
    try:
        with open(os.devnull) as nothing:
            for at, file in enumerate((nothing.fileno(), out, err)):
                os.dup2(file, at)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Pytest would show more of them.
        warnings.resetwarnings()
        for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        os.environ.update(more)
        if folder:
            os.chdir(folder)
        sys.argv = ["tpusim", *arguments]
        main()
        sys.stdout.flush()
        code = 0
    finally:
        os._exit(code)
