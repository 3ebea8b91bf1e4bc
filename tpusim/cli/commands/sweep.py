"""The command `tpusim sweep`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tpusim.cli import options
from tpusim.cli.terminal import errors_reported
from tpusim.report.plots.formats import known_formats

EXAMPLE = "Example: tpusim sweep array_size --out results/array_size"


def sweep(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="Shipped name, .yaml path, or - for stdin.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Results and pictures; default: results/NAME.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=1024, metavar="N", help="Processes; default: one a processor.")
    ] = os.cpu_count() or 1,
    cluster: Annotated[
        str | None, typer.Option(metavar="tcp://HOST:PORT", help="Use a Dask cluster instead of processes here.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Keep points that DIR has already, or compute all again.")
    ] = True,
    parquet: Annotated[bool, typer.Option("--parquet", help="Also points.parquet and layers.parquet.")] = False,
    formats: options.Formats = None,
) -> None:
    """Simulate every point of a sweep, timing alone; what is in DIR already is not computed again.

    Stopped at any time, the same command continues. Exit code 0: done; 1: a point failed (the others are there);
    2: bad input; 130: interrupted.
    """
    with errors_reported():
        from tpusim.cli.actions.sweep import run_and_report

        kinds = known_formats(formats)
        run_and_report(spec, out, workers, cluster, fresh=not resume, parquet=parquet, kinds=kinds)
