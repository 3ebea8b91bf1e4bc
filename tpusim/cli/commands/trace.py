"""The command `tpusim trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpusim.cli import options
from tpusim.cli.names import TRACE_FORMATS
from tpusim.cli.terminal import errors_reported, interruption_told

EXAMPLE = "Example: tpusim trace resnet50 --layers conv1 -o conv1.perfetto-trace"


def trace(
    workload: options.Workload,
    hardware: options.Hardware = "tpu_v2",
    batch: options.Batch = 8,
    lowering: options.Lowering = "channel_first",
    layers: options.Layers = "*",
    changes: options.Changes = None,
    seed: options.Seed = 0,
    first: Annotated[int, typer.Option("--from", min=0, metavar="CYCLE", help="First cycle shown.")] = 0,
    last: Annotated[int | None, typer.Option("--to", min=0, metavar="CYCLE", help="Last cycle shown.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help=f"Write FILE: {', '.join(TRACE_FORMATS)}; default: text here."
        ),
    ] = None,
) -> None:
    """Show what the machine does, cycle by cycle.

    As text, picture (.png, .svg, .pdf) or .vcd: every lane in every cycle of one layer, from the register engine.

    As .perfetto-trace (or .pftrace): what every unit does, and what it waits for, in one layer or many, from the event
    engine.

    Open a .perfetto-trace at https://ui.perfetto.dev (the file stays on your computer), a .vcd with: gtkwave FILE
    """
    with errors_reported(), interruption_told():
        from tpusim.cli.actions.inputs import load
        from tpusim.cli.actions.trace import Wanted, print_or_write

        work, machine = load(workload, hardware, batch, changes, layers)
        print_or_write(Wanted(work, machine, lowering, seed, first, last), out)
