"""The command `tpusim report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpusim.cli.names import RESULT_FILE
from tpusim.cli.terminal import errors_reported, interruption_told

EXAMPLE = "Example: tpusim report results/resnet50 -o report.html"
PAGE_FILE = "report.html"


def report(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_SWEEP", help=f"A result JSON or its directory (DIR/{RESULT_FILE}), or that of a sweep."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help=f"Default: {PAGE_FILE} beside the source.")
    ] = None,
) -> None:
    """Write one HTML page on a run or a sweep, to look at in a browser: no network, no other file.

    Exit code 0: done; 2: bad input.
    """
    with errors_reported(), interruption_told():
        from tpusim.cli.actions.report import write_page

        write_page(source, out or (source if source.is_dir() else source.parent) / PAGE_FILE)
