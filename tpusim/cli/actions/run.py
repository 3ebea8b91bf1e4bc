"""What `tpusim run` does: its progress while it lasts, its report when it is over."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from tpusim.base.errors import CheckFailed
from tpusim.base.files import probe, write
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say, show, terminal_width
from tpusim.flow.simulation import simulate
from tpusim.machines.tpu.description import Hardware
from tpusim.network.workload import Workload
from tpusim.report.tables import run as tables
from tpusim.result.load import RESULT_FILE
from tpusim.result.records import LayerResult, Result, total_of


def simulate_and_report(work: Workload, machine: Hardware, json: str | None, out: Path | None, **choices: Any) -> None:
    """Run `work`, write its result as JSON and into `out`, and report it; `choices` are keywords of `simulate`.

    Raises:
        CheckFailed: an output is wrong; the result is written by then.
    """
    output = JsonOutput(json)
    output.check(made=out)
    if out is not None:
        probe(out / RESULT_FILE, make_folder=True)
    with Progress(work, output.words_to) as progress:
        result = simulate(work, machine, **choices, progress=progress, watch=progress.watch)
    if out is not None:
        write(out / RESULT_FILE, f"{result.to_json()}\n".encode())
    output.put(result.to_json())
    _report(output.words_to, work, result)
    if not result.correct:
        raise CheckFailed(f"the check failed: {tables.first_wrong(result)}")


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
        """Tell that a layer under way has come this far."""
        self._meter.show(len(self._finished), f"{layer}: {cycles:,} cycles")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._meter.__exit__()
        if kind is KeyboardInterrupt:
            self._report_finished()

    def _report_finished(self) -> None:
        done, of = len(self._finished), len(self._work.layers)
        if done:
            total = total_of(tuple(self._finished), time.monotonic() - self._began)
            _print_layers(self._report_to, self._work, self._finished)
            show(self._report_to, tables.totals(total))
        say(sys.stderr, f"Interrupted after {done} of {of} layers; no file was written.")


def _report(stream: TextIO, work: Workload, result: Result) -> None:
    """Print heading, table, totals and verdict."""
    show(stream, tables.heading(result), "")
    _print_layers(stream, work, result.layers)
    notice = tables.word_notice(result)
    show(stream, tables.totals(result.total), *([notice] if notice else []), tables.verdict(result.total))


def _print_layers(stream: TextIO, work: Workload, layers: Sequence[LayerResult]) -> None:
    """Print the table of layers, as wide as the terminal."""
    shapes = {layer.name: layer.text for layer in work.layers}
    show(stream, tables.layer_table(layers, shapes, terminal_width(stream)), "", tables.LEGEND, "")
