"""`tpusim sweep`: what it takes, and what it says of itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tpusim.cli.options import Formats, shipped_names
from tpusim.cli.root import app
from tpusim.cli.terminal import errors_reported
from tpusim.report.plots import known_formats


@app.command(epilog="Example: tpusim sweep array_size --out results/array_size")
@errors_reported()
def sweep(
    spec: Annotated[
        str,
        Argument(
            metavar="SPEC",
            help="Shipped name (see tpusim list), .yaml path, or - for stdin.",
            autocompletion=shipped_names("configs/sweeps"),
        ),
    ],
    out: Annotated[Path | None, Option(metavar="DIR", help="Results and pictures; default: results/NAME.")] = None,
    workers: Annotated[
        int, Option(min=1, max=1024, metavar="N", help="Processes; default: one a processor.")
    ] = os.cpu_count() or 1,
    cluster: Annotated[
        str | None,
        Option(metavar="tcp://HOST:PORT", help="Use a Dask cluster instead of processes here; tls:// if encrypted."),
    ] = None,
    resume: Annotated[
        bool, Option("--resume/--fresh", help="Keep points that DIR has already, or compute all again.")
    ] = True,
    parquet: Annotated[bool, Option("--parquet", help="Also points.parquet and layers.parquet.")] = False,
    formats: Formats = None,
) -> None:
    """Simulate every point of a sweep, timing alone.

    What is in DIR already is not computed again: stopped at any time, the same command continues.

    Exit code 0: done; 1: a point failed (the others are there); 2: bad input; 130: interrupted.
    """
    from tpusim.cli.actions.sweep import run_and_report

    kinds = known_formats(formats)
    run_and_report(spec, out, workers, cluster, fresh=not resume, parquet=parquet, kinds=kinds)
