"""What `tpusim run` does: its progress while it lasts, its report when it is over."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
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
    output = JsonOutput(json, made=out)
    if out is not None:
        probe(out / RESULT_FILE, make_folder=True)
    result = _simulated(work, machine, output.words_to, choices)
    if out is not None:
        write(out / RESULT_FILE, f"{result.to_json()}\n".encode())
    output.put(result.to_json())
    _report(output.words_to, work, result)
    if not result.correct:
        raise CheckFailed(f"the check failed: {tables.first_wrong(result)}")


def _simulated(work: Workload, machine: Hardware, report_to: TextIO, choices: Mapping[str, Any]) -> Result:
    """Simulate, telling on stderr how far it is; on Ctrl-C, report the layers that finished."""
    finished: list[LayerResult] = []

    def progress(layer: LayerResult) -> None:
        finished.append(layer)
        meter.show(len(finished), layer.name)

    def watch(layer: str, cycles: int) -> None:
        meter.show(len(finished), f"{layer}: {cycles:,} cycles")

    began = time.monotonic()
    try:
        with Meter(len(work.layers)) as meter:
            return simulate(work, machine, **choices, progress=progress, watch=watch)
    except KeyboardInterrupt:
        if finished:
            _print_layers(report_to, work, finished)
            show(report_to, tables.totals(total_of(tuple(finished), time.monotonic() - began)))
        say(sys.stderr, f"Interrupted after {len(finished)} of {len(work.layers)} layers; no file was written.")
        raise


def _report(stream: TextIO, work: Workload, result: Result) -> None:
    """Print heading, table, totals and verdict."""
    show(stream, tables.heading(result), "")
    _print_layers(stream, work, result.layers)
    notice = tables.word_notice(result)
    total = tables.totals(result.total, terminal_width(stream))
    show(stream, total, *([notice] if notice else []), tables.verdict(result.total))


def _print_layers(stream: TextIO, work: Workload, layers: Sequence[LayerResult]) -> None:
    """Print the table of layers, as wide as the terminal."""
    shapes = {layer.name: layer.text for layer in work.layers}
    width = terminal_width(stream)
    legend = tables.layer_legend(layers, shapes, width)
    show(stream, tables.layer_table(layers, shapes, width), "", legend, "")
