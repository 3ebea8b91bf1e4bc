"""Progress on stderr."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from tpusim.base.imports import compiling
from tpusim.cli.terminal import say

if TYPE_CHECKING:
    from rich.progress import Progress

FIRST_SECONDS = 1.0
"""Seconds of work before progress is shown."""

QUIET_SECONDS = 2.0
"""Seconds between two lines of progress in a pipe."""


class Meter:
    """Progress: a bar on a terminal, a line now and then in a pipe, and nothing for quick work.

    With a `unit` of the total, which are stored as they are done, also the rate a minute, and the time left.
    """

    def __init__(self, total: int = 1, unit: str = "") -> None:
        self.done = 0
        self.total, self._unit = total, unit
        self._began = self._news = time.monotonic()
        self._told = self._began - max(0.0, QUIET_SECONDS - FIRST_SECONDS)
        self._name, self._share = "", 0.0
        self._bar: Progress | None = None
        self._terminal = sys.stderr.isatty()
        self._over = threading.Event()
        self._telling = threading.Lock()

    def __enter__(self) -> Meter:
        self._timer = threading.Thread(target=self._remind, daemon=True)
        self._timer.start()
        return self

    def show(self, done: int, name: str, share: float | None = None) -> None:
        """Show that `done` of the total are done; `name` is the last one, or the one under way, and `share` the share
        of the work, if known.

        May be called on any thread.
        """
        self.done, self._name, self._news = done, name, time.monotonic()
        self._share = done / max(1, self.total) if share is None else share
        self._tell()

    def step(self, done: int, total: int, name: str, share: float | None = None) -> None:
        """Show that `done` of `total` are done, where the total is known while the work goes on."""
        self.total = total
        self.show(done, name, share)

    def _remind(self) -> None:
        """Show the bar once it has taken a while; show what is under way even without news."""
        wait = FIRST_SECONDS
        while not self._over.wait(wait):
            if self._terminal and wait == FIRST_SECONDS:
                self._bar = self._started()
            wait = QUIET_SECONDS
            if self._name:
                self._tell()

    def _started(self) -> Progress:
        """Draw the bar."""
        # Imported here, because quick work needs none, and it takes as long to import as all code of tables.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        name = TextColumn("{task.fields[name]}", markup=False)
        bar = Progress(*columns, name, console=Console(stderr=True), transient=True)
        bar.add_task("", completed=self.done, total=self.total, name=self._name)
        bar.start()
        return bar

    def _tell(self) -> None:
        """Update the bar; in a pipe, print a line unless there was one just now."""
        with self._telling:
            now = time.monotonic()
            name, heard = self._name, self._news
            if self._unit:
                speed = pace(self.done, heard - self._began, self._share, self._unit, now - heard)
                name = ", ".join(filter(None, (f"{self._unit} stored", name, speed)))
            if compiling():
                name = f"{name}; loops are compiled"
            if self._bar:
                self._bar.update(self._bar.task_ids[0], completed=self.done, total=self.total, name=name)
                return
            if self._terminal or now - self._told <= QUIET_SECONDS or self._over.is_set():
                return
            self._told = now
            silent = f", {now - heard:.0f} s" if now - heard > FIRST_SECONDS else ""
            say(sys.stderr, f"{self.done:,}/{self.total:,} {name}{silent} ...")

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._timer.join()
        if self._bar:
            self._bar.stop()


def pace(done: int, seconds: float, share: float, unit: str, since: float = 0) -> str:
    """Return text such as "412 points/min, 1:20 left", `since` seconds after `done` were done in `seconds`.

    The time left follows from the share of the work done; once that time is over, none is shown.
    """
    rate = f"{60 * done / seconds:,.0f} {unit}/min" if done and seconds else ""
    left_over = seconds * (1 - share) / share - since if share else -1
    if left_over < 0:
        return rate
    minutes, rest = divmod(round(left_over), 60)
    hours, minutes = divmod(minutes, 60)
    left = f"about {f'{hours}:{minutes:02}' if hours else minutes}:{rest:02} left"
    return f"{rate}, {left}" if rate else left
