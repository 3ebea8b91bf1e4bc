"""The action of `tpusim run`: progress while it lasts, a report at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import typer

from tpusim.base.errors import CheckFailed, InputError
from tpusim.base.files import probe, write
from tpusim.cli.actions.inputs import NetworkData
from tpusim.cli.json_output import CsvOutput, JsonOutput, refuse_shared
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import INTERRUPTED, deliver, present, say_interrupted, uninterrupted
from tpusim.flow.hbm_need import hbm_use
from tpusim.flow.jobs import Jobs
from tpusim.flow.simulation import result_of, run
from tpusim.network.workload import Workload
from tpusim.report.tables.run import run_paragraphs
from tpusim.report.tables.sentences import first_wrong
from tpusim.result.load import RESULT_FILE
from tpusim.result.records import LayerResult, Result

Write = Callable[[], None]


def simulate_and_report(
    jobs: Jobs, json: str | None, table: CsvOutput, out: Path | None, ends: NetworkData, **choices: Any
) -> None:
    """Run `jobs`, write the result as JSON, its layers as CSV, all into `out`, outputs as `ends` says, and report it.

    `choices` are keywords of `run`.

    After Ctrl-C that is the result of the layers that finished.

    Raises:
        InputError: something could not be written; what could be is there by then.
        CheckFailed: an output is wrong; the result is written by then.
    """
    output = JsonOutput(json, made=out)
    if output.to_stdout and table.to_stdout:
        raise InputError("--json -, --csv -: standard output takes one of them; give a file for the other")
    if out is not None:
        probe(out / RESULT_FILE, make_folder=True)
    # Of --json and --out the same file has the same text.
    for others in ({"--json": output.file}, {"--out": out and out / RESULT_FILE}, {"--save-outputs": ends.target}):
        refuse_shared({"--csv": table.file, **others})
    result, interrupted = _simulated(jobs, choices)
    journey = choices["journey"]
    outputs = [] if journey is None or interrupted else [partial(ends.save, journey)]
    interrupted = _deliver(jobs.work, result, (output, table), out, interrupted, outputs)
    if result.correct is False:
        raise CheckFailed(f"the check failed: {first_wrong(result)}")
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _simulated(jobs: Jobs, choices: Mapping[str, Any]) -> tuple[Result, bool]:
    """Simulate, telling on stderr how far it is; the result, and whether Ctrl-C cut it short.

    Raises:
        Exit: when it did so before the first layer finished.
    """
    finished: list[LayerResult] = []

    def progress(layer: LayerResult) -> None:
        finished.append(layer)
        meter.show(len(finished), f"{layer.name}: done")

    def watch(layer: str, doing: str) -> None:
        meter.show(len(finished), f"{layer}: {doing}")

    began = time.perf_counter()
    try:
        with Meter(len(jobs.each)) as meter:
            return run(jobs, **choices, progress=progress, watch=watch), False
    except KeyboardInterrupt:
        if not finished:
            say_interrupted(f"Interrupted after 0 of {len(jobs.each)} layers; no file was written.")
            raise typer.Exit(INTERRUPTED) from None
    asked = {name: choices[name] for name in ("engine", "seed", "sums")}
    hbm = hbm_use(jobs.work, jobs.machine)
    return result_of(jobs, finished, time.perf_counter() - began, hbm, **asked), True


def _deliver(
    work: Workload, result: Result, tables: tuple[JsonOutput, CsvOutput], out: Path | None, interrupted: bool,
    outputs: Sequence[Write],
) -> bool:  # fmt: skip
    """Write what is to be written and show the report; what fails keeps nothing else from being done.

    Returns:
        Whether Ctrl-C has cut anything short, this included.

    Raises:
        InputError: with everything that failed.
    """
    kept: list[str] = []
    text = cache(result.to_json)

    def to_folder(file: Path) -> None:
        write(file, f"{text()}\n".encode())
        kept.append(str(file))

    def put(output: JsonOutput, text: Callable[[], str]) -> None:
        output.put(text())
        kept.append(output.place)

    files: list[Write] = [] if out is None else [partial(to_folder, out / RESULT_FILE)]
    # Output that may wait for a reader comes after files, which are written at once.
    streams: list[Write] = []

    def rows() -> str:
        from tpusim.report.csv_rows import layers_csv

        return layers_csv(result)[:-1]

    contents: tuple[Callable[[], str], ...] = text, rows
    for output, content in zip(tables, contents, strict=True):
        if output.place:
            (files if output.replaced else streams).append(partial(put, output, content))

    def put_away() -> None:
        with uninterrupted():
            deliver(*files, *outputs)

    def report() -> None:
        words_to = next((each.words_to for each in tables if each.to_stdout), tables[0].words_to)
        present(words_to, run_paragraphs(work, result))

    try:
        deliver(put_away, *streams, report)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if interrupted:
            hold = "holds" if len(kept) == 1 else "hold"
            held = f"{' and '.join(kept)} {hold} what is done" if kept else "no file was written"
            say_interrupted(f"Interrupted after {len(result.layers)} of {len(work.layers)} layers; {held}.")
    return interrupted
