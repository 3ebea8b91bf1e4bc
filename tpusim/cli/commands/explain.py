"""The command `tpusim explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpusim.cli import options
from tpusim.cli.terminal import errors_reported, interruption_told
from tpusim.report.plots.formats import KNOWN

EXAMPLE = "Example: tpusim explain resnet50 --layer conv1"


def explain(
    workload: options.Workload,
    layer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which layer; a workload of one layer needs no name.")
    ] = None,
    hardware: options.Hardware = "tpu_v2",
    batch: options.Batch = 8,
    lowering: options.Lowering = "channel_first",
    changes: options.Changes = None,
    json: options.Json = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Draw it: {', '.join(f'.{kind}' for kind in KNOWN)}.")
    ] = None,
) -> None:
    """Say why a layer takes as long as it does, and what would help most.

    The layer is simulated again and again, timing alone, each time with one thing made easier: twice the HBM
    bandwidth, twice the batch, a port for every client, ... What gains the most is what bounds it.
    """
    with errors_reported(), interruption_told():
        from tpusim.cli.actions.explain import explain_and_report
        from tpusim.cli.actions.inputs import load

        work, machine = load(workload, hardware, batch, changes)
        explain_and_report(work, machine, layer, lowering, json, out)
