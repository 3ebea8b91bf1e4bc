"""How far something is, on stderr."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from rich.console import Console

from tpusim.cli.terminal import say

if TYPE_CHECKING:
    from rich.progress import Progress

QUIET_SECONDS = 2.0
"""What takes less shows no progress; in a pipe, also the time between two lines of it."""


class Meter:
    """How far something is: a bar on a terminal, a line now and then in a pipe; nothing if it is quick.

    With `unit`, what the total counts, also how many of them a minute, and how much time is left.
    """

    def __init__(self, total: int, unit: str = "") -> None:
        self.done = 0
        self._total, self._unit = total, unit
        self._began = self._told = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Meter:
        console = Console(stderr=True)
        if console.is_terminal:
            self._bar = _bar(self._total, console)
            self._timer = threading.Timer(QUIET_SECONDS, self._bar.start)
            self._timer.daemon = True
            self._timer.start()
        return self

    def show(self, done: int, name: str, share: float | None = None) -> None:
        """`done` of the total are done, the last of them `name`; with them `share` of the work, if that is known."""
        self.done = done
        seconds = time.monotonic() - self._began
        if self._unit:
            speed = pace(done, seconds, done / self._total if share is None else share, self._unit)
            name = ", ".join(filter(None, (name, speed)))
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=done, name=name)
        elif time.monotonic() - self._told > QUIET_SECONDS:
            self._told = time.monotonic()
            say(sys.stderr, f"{done:,}/{self._total:,} {name} ...")

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._timer.cancel()
            self._timer.join()
            self._bar.stop()


def _bar(total: int, console: Console) -> Progress:
    # Here, because it takes as long to import as all of the table code.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    name = TextColumn("{task.fields[name]}", markup=False)
    bar = Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), name, console=console, transient=True)
    bar.add_task("", total=total, name="")
    return bar


def pace(done: int, seconds: float, share: float, unit: str) -> str:
    """Return text such as "412 points/min, 1:20 left"; the time left follows from the share of the work done."""
    rate = f"{60 * done / seconds:,.0f} {unit}/min" if done and seconds else ""
    if not share:
        return rate
    minutes, rest = divmod(round(seconds * (1 - share) / share), 60)
    hours, minutes = divmod(minutes, 60)
    left = f"about {f'{hours}:{minutes:02}' if hours else minutes}:{rest:02} left"
    return f"{rate}, {left}" if rate else left
