"""`tpusim report`: what it takes, and what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tpusim.cli.names import PAGE_FILE, RESULT_FILE
from tpusim.cli.root import app
from tpusim.cli.terminal import NO_FILE, errors_reported


@app.command(epilog="Example: tpusim report results/resnet50 -o report.html")
@errors_reported(NO_FILE)
def report(
    source: Annotated[
        Path,
        Argument(
            metavar="RUN_OR_SWEEP", help=f"A result JSON or its directory (DIR/{RESULT_FILE}), or that of a sweep."
        ),
    ],
    out: Annotated[
        Path | None, Option("-o", "--out", metavar="FILE", help=f"Default: {PAGE_FILE} beside the source.")
    ] = None,
) -> None:
    """Write one HTML page on a run or a sweep, to open in a browser.

    The page needs no network and no other file.

    Exit code 0: done; 2: bad input.
    """
    from tpusim.cli.actions.results import write_page

    write_page(source, out or (source if source.is_dir() else source.parent) / PAGE_FILE)
