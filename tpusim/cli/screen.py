"""A run on the screen: its progress while it lasts, its report when it is over."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console

from tpusim.cli.terminal import say, show
from tpusim.network.workload import Workload
from tpusim.report.tables import run as tables
from tpusim.result.records import LayerResult, Result, total_of

QUIET_SECONDS = 2.0
"""A run shorter than this shows no progress; in a pipe, also the time between two lines of it."""


def report(stream: TextIO, work: Workload, result: Result) -> None:
    """Heading, table, totals and verdict of a finished run."""
    show(stream, tables.heading(result), "")
    print_layers(stream, work, result.layers)
    notice = tables.word_notice(result)
    show(stream, tables.totals(result.total), *([notice] if notice else []), tables.verdict(result.total))


def print_layers(stream: TextIO, work: Workload, layers: Sequence[LayerResult]) -> None:
    """The table of layers, as wide as the terminal."""
    shapes = {layer.name: layer.text for layer in work.layers}
    console = Console(file=stream)
    width = console.width if console.is_terminal else None
    show(stream, tables.layer_table(layers, shapes, width), "", tables.LEGEND, "")


class Progress:
    """Tells on stderr how far a run is, and on Ctrl-C reports the layers that finished."""

    def __init__(self, work: Workload, report_to: TextIO) -> None:
        self._work = work
        self._report_to = report_to
        self._finished: list[LayerResult] = []
        self._began = time.monotonic()
        self._meter = Meter(len(work.layers))

    def __enter__(self) -> Progress:
        self._meter.__enter__()
        return self

    def __call__(self, layer: LayerResult) -> None:
        self._finished.append(layer)
        self._meter.show(len(self._finished), layer.name)

    def watch(self, layer: str, cycles: int) -> None:
        """A layer under way has come this far."""
        self._meter.show(len(self._finished), f"{layer}: {cycles:,} cycles")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._meter.__exit__()
        if kind is KeyboardInterrupt:
            self._report_finished()

    def _report_finished(self) -> None:
        done, of = len(self._finished), len(self._work.layers)
        if done:
            total = total_of(tuple(self._finished), time.monotonic() - self._began)
            print_layers(self._report_to, self._work, self._finished)
            show(self._report_to, tables.totals(total))
        say(sys.stderr, f"Interrupted after {done} of {of} layers; no file was written.")


class Meter:
    """How far something is, on stderr: a bar on a terminal, a line now and then in a pipe; nothing if it is quick.

    With `unit`, what the total counts, also how many of them a minute, and how much time is left.
    """

    def __init__(self, total: int, unit: str = "") -> None:
        self._total = total
        self._unit = unit
        self._began = self._told = time.monotonic()
        self._bar: _Bar | None = None

    def __enter__(self) -> Meter:
        console = Console(stderr=True)
        self._bar = _Bar(self._total, console) if console.is_terminal else None
        return self

    def show(self, done: int, name: str, share: float | None = None) -> None:
        """`done` of the total are done, the last of them `name`; with them `share` of the work, if that is known."""
        seconds = time.monotonic() - self._began
        if self._unit:
            told = pace(done, seconds, done / self._total if share is None else share, self._unit)
            name = ", ".join(filter(None, (name, told)))
        if self._bar:
            self._bar.show(done, name)
        elif time.monotonic() - self._told > QUIET_SECONDS:
            self._told = time.monotonic()
            say(sys.stderr, f"{done:,}/{self._total:,} {name} ...")

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()


def pace(done: int, seconds: float, share: float, unit: str) -> str:
    """Such as "412 points/min, 1:20 left"; how long is left follows from the share of the work that is done."""
    rate = f"{60 * done / seconds:,.0f} {unit}/min" if done and seconds else ""
    if not share:
        return rate
    minutes, rest = divmod(round(seconds * (1 - share) / share), 60)
    hours, minutes = divmod(minutes, 60)
    left = f"about {f'{hours}:{minutes:02}' if hours else minutes}:{rest:02} left"
    return f"{rate}, {left}" if rate else left


class _Bar:
    """A progress bar that appears only when the work takes over QUIET_SECONDS."""

    def __init__(self, total: int, console: Console) -> None:
        # Here, because it takes as long to import as all of the table code.
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        name = TextColumn("{task.fields[name]}", markup=False)
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), name)
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("", total=total, name="")
        self._timer = threading.Timer(QUIET_SECONDS, self._progress.start)
        self._timer.daemon = True
        self._timer.start()

    def show(self, done: int, name: str) -> None:
        self._progress.update(self._task, completed=done, name=name)

    def stop(self) -> None:
        self._timer.cancel()
        self._timer.join()
        self._progress.stop()
