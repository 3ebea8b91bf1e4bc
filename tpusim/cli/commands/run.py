"""The command `tpusim run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpusim.base.errors import CheckFailed
from tpusim.base.files import probe, write
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.options import (
    BatchOption,
    ChangesOption,
    HardwareOption,
    LayersOption,
    LoweringOption,
    SeedOption,
    WorkloadOption,
)
from tpusim.cli.screen import Progress, report
from tpusim.cli.terminal import errors_reported
from tpusim.flow.engines import ENGINES
from tpusim.flow.simulation import select_layers, simulate
from tpusim.machines.tpu.description import load_hardware
from tpusim.network.workload import load_workload
from tpusim.report.tables import run as tables
from tpusim.result.load import RESULT_FILE

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
        output = JsonOutput(json)
        output.check(made=out)
        if out is not None:
            probe(out / RESULT_FILE, make_folder=True)
        with Progress(work, output.words_to) as progress:
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
        if out is not None:
            write(out / RESULT_FILE, f"{result.to_json()}\n".encode())
        output.put(result.to_json())
        report(output.words_to, work, result)
        if not result.correct:
            raise CheckFailed(f"the check failed: {tables.first_wrong(result)}")
