"""`tpusim explain`: what it takes, and what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from tpusim.cli.options import Batch, Changes, Dims, Hardware, Json, Lowering, Ops, SkipUnknown, Workload
from tpusim.cli.root import app
from tpusim.cli.terminal import NO_FILE, errors_reported
from tpusim.report.plots import KNOWN


@app.command(epilog="Example: tpusim explain resnet50 --layer conv1")
@errors_reported(NO_FILE)
def explain(
    workload: Workload,
    layer: Annotated[
        str | None, Option(metavar="NAME", help="Which layer; a workload of one layer needs no name.")
    ] = None,
    hardware: Hardware = "tpu_v2",
    batch: Batch = 8,
    lowering: Lowering = None,
    changes: Changes = None,
    dims: Dims = None,
    skip_unknown: SkipUnknown = False,
    ops: Ops = None,
    json: Json = None,
    out: Annotated[
        Path | None, Option(metavar="FILE", help=f"Draw it: {', '.join(f'.{kind}' for kind in KNOWN)}.")
    ] = None,
) -> None:
    """Say why a layer takes as long as it does and what would help.

    The layer is simulated again and again, timing alone, each time with one thing made easier: twice the HBM
    bandwidth, twice the batch, a port for every client, ... What gains the most is what bounds it.

    It is also run by every other lowering, to say what it would cost.
    """
    from tpusim.cli.actions.explain import explain_and_report
    from tpusim.cli.actions.inputs import asked_of, load, tell_left_out

    work, machine = load(workload, hardware, batch, changes, asked=asked_of(dims, skip_unknown, ops), lowering=lowering)
    tell_left_out(work)
    explain_and_report(work, machine, layer, lowering, json, out)
