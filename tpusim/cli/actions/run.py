"""What `tpusim run` does: its progress while it lasts, its report when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TextIO

import typer

from tpusim.base.errors import CheckFailed
from tpusim.base.files import probe, write
from tpusim.cli.actions.values import EndToEnd
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import INTERRUPTED, deliver, say_interrupted, show, terminal_width, uninterrupted
from tpusim.flow.lowerings import usual
from tpusim.flow.simulation import result_of, simulate
from tpusim.machines.family import KEY, USUAL, Machine, family_of
from tpusim.network.workload import Workload
from tpusim.report.tables import run as tables
from tpusim.report.tables.by_op import op_table
from tpusim.report.tables.together import fusion_notice, overlap_notice
from tpusim.result.load import RESULT_FILE
from tpusim.result.records import LayerResult, Result
from tpusim.result.vocabulary.lowerings import lowered_by
from tpusim.result.vocabulary.runs import by_reference, left_out

Write = Callable[[], None]
_MORE = " --ops all times those that the vector unit computes."


def simulate_and_report(
    work: Workload, machine: Machine, json: str | None, out: Path | None, ends: EndToEnd, **choices: Any
) -> None:
    """Run `work`, write its result as JSON and into `out`, its outputs as `ends` says, and report it.

    `choices` are keywords of `simulate`.

    After Ctrl-C that is the result of the layers that finished.

    Raises:
        InputError: something could not be written; what could be is there by then.
        CheckFailed: an output is wrong; the result is written by then.
    """
    output = JsonOutput(json, made=out)
    if out is not None:
        probe(out / RESULT_FILE, make_folder=True)
    result, interrupted = _simulated(work, machine, choices)
    journey = choices["journey"]
    outputs = [] if journey is None or interrupted else [partial(ends.save, journey)]
    interrupted = _deliver(work, result, output, out, interrupted, outputs)
    if not result.correct:
        raise CheckFailed(f"the check failed: {tables.first_wrong(result)}")
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _simulated(work: Workload, machine: Machine, choices: Mapping[str, Any]) -> tuple[Result, bool]:
    """Simulate, telling on stderr how far it is; the result, and whether Ctrl-C cut it short.

    Raises:
        Exit: when it did so before the first layer finished.
    """
    finished: list[LayerResult] = []

    def progress(layer: LayerResult) -> None:
        finished.append(layer)
        meter.show(len(finished), layer.name)

    def watch(layer: str, doing: str) -> None:
        meter.show(len(finished), f"{layer}: {doing}")

    began = time.perf_counter()
    try:
        with Meter(len(work.layers)) as meter:
            return simulate(work, machine, **choices, progress=progress, watch=watch), False
    except KeyboardInterrupt:
        if not finished:
            say_interrupted(f"Interrupted after 0 of {len(work.layers)} layers; no file was written.")
            raise typer.Exit(INTERRUPTED) from None
    asked = {name: choices[name] for name in ("engine", "seed", "dtype", "sums")}
    asked["lowering"] = choices["lowering"] or usual(family_of(machine))
    return result_of(work, machine, finished, time.perf_counter() - began, **asked), True


def _deliver(
    work: Workload, result: Result, output: JsonOutput, out: Path | None, interrupted: bool, outputs: Sequence[Write]
) -> bool:
    """Write what is to be written and show the report; what fails keeps nothing else from being done.

    Returns:
        Whether Ctrl-C has cut anything short, this included.

    Raises:
        InputError: with everything that failed.
    """
    kept: list[str] = []
    files, streams = _writes(cache(result.to_json), output, out, kept)
    try:
        deliver(partial(_put_away, [*files, *outputs]), *streams, partial(_report, output.words_to, work, result))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if interrupted:
            hold = "holds" if len(kept) == 1 else "hold"
            held = f"{' and '.join(kept)} {hold} what is done" if kept else "no file was written"
            say_interrupted(f"Interrupted after {len(result.layers)} of {len(work.layers)} layers; {held}.")
    return interrupted


def _writes(
    text: Callable[[], str], output: JsonOutput, out: Path | None, kept: list[str]
) -> tuple[list[Write], list[Write]]:
    """What writes `text` where it is wanted: into files, and to what may wait for a reader.

    Each adds its place to `kept` once it is written.
    """

    def to_folder(file: Path) -> None:
        write(file, f"{text()}\n".encode())
        kept.append(str(file))

    def to_json() -> None:
        output.put(text())
        kept.append(output.place)

    files: list[Write] = [] if out is None else [partial(to_folder, out / RESULT_FILE)]
    streams: list[Write] = []
    if output.place:
        (files if output.replaced else streams).append(to_json)
    return files, streams


def _put_away(files: Sequence[Write]) -> None:
    with uninterrupted():
        deliver(*files)


def _report(stream: TextIO, work: Workload, result: Result) -> None:
    """Print heading, table, totals and verdict."""
    show(stream, tables.heading(result), "")
    _print_layers(stream, work, result)
    missing = left_out(result.not_timed.items(), result.not_known.items())
    on_tpu = result.hardware.get(KEY, USUAL) == USUAL
    missing += _MORE if on_tpu and len(work.never_timed) < len(work.not_timed) else ""
    alone = by_reference(result)
    together = fusion_notice(work, result), overlap_notice(result)
    notices = filter(None, (lowered_by(result), *together, tables.word_notice(result), missing, alone))
    total = tables.totals(result.total, terminal_width(stream))
    if (by_op := op_table(result)) is not None:
        show(stream, by_op, "")
    show(stream, total, *notices, tables.verdict(result))


def _print_layers(stream: TextIO, work: Workload, result: Result) -> None:
    """Print the table of layers, as wide as the terminal."""
    counts, width = tables.alike(result.layers), terminal_width(stream)
    apart = [layer for layer in result.layers if layer.name in counts]
    rows = tables.costliest(apart, counts)
    shapes = {layer.name: layer.text for layer in work.layers}
    more = [note] if (note := tables.not_shown(apart)) else []
    asked = rows, shapes, width, result.lowering, counts
    show(stream, tables.layer_table(*asked), *more, "", tables.layer_legend(*asked), "")
