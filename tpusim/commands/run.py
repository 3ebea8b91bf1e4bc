"""The command `tpusim run`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tpusim.commands.options import (
    BatchOption,
    ChangesOption,
    HardwareOption,
    LayersOption,
    LoweringOption,
    SeedOption,
    WorkloadOption,
)
from tpusim.errors import CheckFailed, InputError
from tpusim.files import probe, write
from tpusim.hardware import load_hardware
from tpusim.outcome import ENGINES
from tpusim.report import tables
from tpusim.report.load import RESULT_FILE
from tpusim.screen import Progress, report
from tpusim.simulation import select_layers, simulate
from tpusim.terminal import Nowhere, errors_reported, say
from tpusim.workload import load_workload

EXAMPLE = "Example: tpusim run resnet50 --batch 8 --set array.size=256 --json run.json"


def run(
    workload: WorkloadOption,
    hardware: HardwareOption = "tpu_v2",
    batch: BatchOption = 8,
    lowering: LoweringOption = "channel_first",
    engine: Annotated[str, typer.Option(metavar="NAME", help=f"What keeps time: {', '.join(ENGINES)}.")] = "event",
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compute and check every output.")] = True,
    layers: LayersOption = "*",
    changes: ChangesOption = None,
    seed: SeedOption = 0,
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="Write the result JSON; - is stdout, tables go to stderr."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help=f"Write DIR/{RESULT_FILE}, for tpusim plot DIR.")
    ] = None,
) -> None:
    """Simulate a workload: its time, its stalls, and every output checked.

    Exit code 0: done; 1: a wrong output (the JSON is still written) or a deadlock; 2: bad input.
    """
    with errors_reported():
        machine = load_hardware(hardware, changes or [])
        work = select_layers(load_workload(workload, batch=batch), layers)
        files = _json_files(json, out)
        for file in files:
            probe(file, make_folder=file.parent == out)
        report_to = sys.stderr if json == "-" else sys.stdout
        with Progress(work, report_to) as progress:
            result = simulate(
                work,
                machine,
                lowering=lowering,
                engine=engine,
                check=check,
                seed=seed,
                progress=progress,
                watch=progress.watch,
            )
        for file in files:
            write(file, f"{result.to_json()}\n".encode())
        if json == "-":
            say(sys.stdout, result.to_json())
        report(report_to, work, result)
        if not result.correct:
            raise CheckFailed(f"the check failed: {tables.first_wrong(result)}")


def _json_files(json: str | None, out: Path | None) -> list[Path]:
    if json == "-" and isinstance(sys.stdout, Nowhere):
        raise InputError("--json -: standard output is closed; give a file")
    files = [Path(json)] if json is not None and json != "-" else []
    return files if out is None else [*files, out / RESULT_FILE]
