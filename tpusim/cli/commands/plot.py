"""`tpusim plot`: what it takes, and what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tpusim.cli.names import RESULT_FILE
from tpusim.cli.options import Formats
from tpusim.cli.root import app
from tpusim.cli.terminal import errors_reported
from tpusim.report.plots import known_formats


@app.command(epilog="Example: tpusim plot results/resnet50 --out figures --format pdf")
@errors_reported("Interrupted; the pictures named so far are there.")
def plot(
    source: Annotated[
        Path, Argument(metavar="DIR_OR_JSON", help=f"Written by tpusim run --json, or --out (DIR/{RESULT_FILE}).")
    ],
    out: Annotated[Path | None, Option(metavar="DIR", help="Where pictures go; default: beside the result.")] = None,
    formats: Formats = None,
) -> None:
    """Draw use, cycles, roofline, ops, memory and network of a run.

    Each picture comes with a caption, in captions.txt.
    """
    from tpusim.cli.actions.results import plot_result

    plot_result(source, out, known_formats(formats))
