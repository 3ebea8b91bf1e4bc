"""The command `tpusim run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpusim.cli import options
from tpusim.cli.names import ENGINES, RESULT_FILE
from tpusim.cli.terminal import errors_reported

EXAMPLE = "Example: tpusim run resnet50 --batch 8 --set array.size=256 --json run.json"


def run(
    workload: options.Workload,
    hardware: options.Hardware = "tpu_v2",
    batch: options.Batch = 8,
    lowering: options.Lowering = "channel_first",
    engine: Annotated[str, typer.Option(metavar="NAME", help=f"What keeps time: {', '.join(ENGINES)}.")] = "event",
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compute and check every output.")] = True,
    layers: options.Layers = "*",
    changes: options.Changes = None,
    seed: options.Seed = 0,
    json: options.Json = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help=f"Write DIR/{RESULT_FILE}, for tpusim plot DIR.")
    ] = None,
) -> None:
    """Simulate a workload: its time, its stalls, and every output checked.

    Exit code 0: done; 1: a wrong output (the JSON is still written) or a deadlock; 2: bad input.
    """
    with errors_reported():
        from tpusim.cli.actions.inputs import load
        from tpusim.cli.actions.run import simulate_and_report

        work, machine = load(workload, hardware, batch, changes, layers)
        simulate_and_report(work, machine, json, out, lowering=lowering, engine=engine, check=check, seed=seed)
