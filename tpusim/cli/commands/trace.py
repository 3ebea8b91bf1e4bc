"""`tpusim trace`: what it takes, and what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from tpusim.cli.names import TRACE_FORMATS
from tpusim.cli.options import Batch, Changes, Dims, Hardware, Layers, Lowering, Ops, Seed, SkipUnknown, Workload
from tpusim.cli.root import app
from tpusim.cli.terminal import NO_FILE, errors_reported


@app.command(epilog="Example: tpusim trace resnet50 --layers conv1 -o conv1.perfetto-trace")
@errors_reported(NO_FILE)
def trace(
    workload: Workload,
    hardware: Hardware = "tpu_v2",
    batch: Batch = 8,
    lowering: Lowering = None,
    layers: Layers = "*",
    changes: Changes = None,
    seed: Seed = 0,
    dims: Dims = None,
    skip_unknown: SkipUnknown = False,
    ops: Ops = None,
    first: Annotated[int, Option("--from", min=0, metavar="CYCLE", help="First cycle shown.")] = 0,
    last: Annotated[int | None, Option("--to", min=0, metavar="CYCLE", help="Last cycle shown.")] = None,
    out: Annotated[
        Path | None,
        Option("--out", "-o", metavar="FILE", help=f"Write FILE: {', '.join(TRACE_FORMATS)}; default: text here."),
    ] = None,
) -> None:
    """Show what the machine does, cycle by cycle.

    As text, picture (.png, .svg, .pdf) or .vcd: every lane in every cycle of one layer, from the register engine.

    As .perfetto-trace (or .pftrace): what every unit does, and what it waits for, in one layer or many, from the event
    engine. Where layers overlap (sequencer.between_layers) they do so here.

    Of machines of other families, a .perfetto-trace alone: of a GPU kernels, waves of blocks, and what an SM does.

    Open a .perfetto-trace at https://ui.perfetto.dev (the file stays on your computer), a .vcd with: gtkwave FILE
    """
    from tpusim.cli.actions.inputs import asked_of, load, tell_left_out
    from tpusim.cli.actions.trace import Wanted, print_or_write, write_timeline
    from tpusim.flow.lowerings import usual
    from tpusim.machines.family import family_of

    work, machine = load(workload, hardware, batch, changes, layers, asked_of(dims, skip_unknown, ops), lowering)
    tell_left_out(work)
    if lanes := family_of(machine).lanes(machine):
        print_or_write(Wanted(work, machine, lanes.count, lowering or usual(), seed, first, last), out)
    else:
        write_timeline(work, machine, lowering, first, last, out)
