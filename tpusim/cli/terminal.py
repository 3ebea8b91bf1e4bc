"""Text for people, on a terminal, in a pipe, or on a closed stream."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TextIO

import typer

from tpusim.base.errors import InputError, Problem, TpusimError
from tpusim.base.interruption import ENDING
from tpusim.base.words import counted, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tpusim.report.shown import Paragraphs

INTERRUPTED = 130

MOST_PROBLEMS = 20
"""Most problems of an input that are shown; whoever wrote one mistake in every layer need not scroll."""

_UNBOUNDED = 100_000


NO_FILE = "Interrupted; no file was written."


_told = threading.Event()
"""Set once a command has answered Ctrl-C."""


def say_interrupted(*sentences: str) -> None:
    """Answer Ctrl-C with the rest of the work; an empty answer is an answer, too."""
    _told.set()
    try:
        say(sys.stderr, *sentences)
    except KeyboardInterrupt:
        # Nobody reads the output, and Ctrl-C was pressed once more.
        os._exit(INTERRUPTED)


def leave_now(code: int) -> NoReturn:
    """Exit without waiting for layers that other threads still compute; every file is complete or absent.

    Ctrl-C, or what counts as that, ends it at once, even if nobody reads the rest of the output.
    """
    for asked in ENDING if threading.current_thread() is threading.main_thread() else ():
        signal.signal(asked, lambda *_: os._exit(INTERRUPTED))
    if code == INTERRUPTED and not _told.is_set():
        say_interrupted(NO_FILE)
    # Output that nobody had read when Ctrl-C came is dropped.
    for stream in () if code == INTERRUPTED else (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


class NullStream(io.StringIO):
    """Stands in for a closed stream."""


def prepare_streams() -> None:
    # Python sets a closed stream (`>&-`) to None.
    sys.stdout = sys.stdout or NullStream()
    sys.stderr = sys.stderr or NullStream()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a layer's name must not end the run.
            stream.reconfigure(errors="replace")


@contextmanager
def errors_reported(interrupted: str = "") -> Iterator[None]:
    """Turn an error into messages on stderr and an exit code; after Ctrl-C, `interrupted` is the message."""
    try:
        yield
    except TpusimError as error:
        problems = error.problems if isinstance(error, InputError) else [error]
        more = len(problems) - MOST_PROBLEMS
        rest = [f"{counted(more, 'more problem')}, not shown; mend these first"] if more > 0 else []
        say(sys.stderr, *(f"Error: {problem}" for problem in problems[:MOST_PROBLEMS]), *rest)
        raise typer.Exit(error.exit_code) from None
    except MemoryError:
        say(sys.stderr, "Error: this computer has too little memory for it; ask for less at a time")
        raise typer.Exit(InputError.exit_code) from None
    except KeyboardInterrupt:
        say_interrupted(*filter(None, [interrupted]))
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a first Ctrl-C wait until files are put away, which is quick; a second one does not wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # What is ignored stays so, and what nobody has prepared for ends the process as ever; None: not Python's own.
    known = {each: signal.getsignal(each) for each in ENDING}
    before = {each: handler for each, handler in known.items() if handler not in (None, signal.SIG_IGN, signal.SIG_DFL)}
    asked = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    for each in before:
        signal.signal(each, remember)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if asked:
        raise KeyboardInterrupt


def deliver(*doings: Callable[[], None]) -> None:
    """Do several things one after another; a failure of one does not stop the others.

    Raises:
        InputError: with everything that failed.
    """
    problems: list[Problem] = []
    for doing in doings:
        try:
            doing()
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)


def show(stream: TextIO, *items: RenderableType) -> None:
    """Write tables and sentences, fitted to a terminal; in a pipe plain, unwrapped and in full."""
    from rich.console import Console

    text, width = io.StringIO(), terminal_width(stream)
    console = Console(file=text, force_terminal=width is not None, width=width or _UNBOUNDED)
    for item in items:
        shown = visible(item) if isinstance(item, str) else item
        console.print(shown, markup=False, highlight=False, emoji=False)
    _put(stream, [line.rstrip(" ") for line in text.getvalue().splitlines()])


def present(stream: TextIO, paragraphs: Paragraphs) -> None:
    """Show the paragraphs of a report, laid out for their stream."""
    from tpusim.report.shown import laid_out

    show(stream, *laid_out(paragraphs, terminal_width(stream)))


def terminal_width(stream: TextIO) -> int | None:
    """Return the width of the terminal behind `stream`; None for a file or a pipe."""
    from rich.console import Console

    console = Console(file=stream)
    return console.width if console.is_terminal else None


def say(stream: TextIO, *lines: str) -> bool:
    """Write lines, with control characters made visible; return whether somebody may still read on.

    A reader that left early (`| head`) does not change the outcome of a run.

    Raises:
        InputError: when standard output is closed, or cannot be written for another reason.
    """
    return _put(stream, [visible(line) for line in lines])


def _put(stream: TextIO, lines: Sequence[str]) -> bool:
    if stream is sys.stdout and isinstance(stream, NullStream):
        raise InputError("standard output: is closed, and nobody reads what is told; send it to /dev/null instead")
    try:
        stream.write("".join(f"{line}\n" for line in lines))
        stream.flush()
        return True
    except OSError as error:
        # Python flushes once more at exit, into something that accepts it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if stream is sys.stdout and not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output: cannot be written ({error.strerror})") from None
        return False
