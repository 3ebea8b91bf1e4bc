"""The command `tpusim plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpusim.cli import options
from tpusim.cli.names import RESULT_FILE
from tpusim.cli.terminal import errors_reported
from tpusim.report.plots.formats import known_formats

EXAMPLE = "Example: tpusim plot results/resnet50 --out figures --format pdf"


def plot(
    source: Annotated[
        Path,
        typer.Argument(metavar="DIR_OR_JSON", help=f"Written by tpusim run --json, or --out (DIR/{RESULT_FILE})."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where pictures go; default: beside the result.")
    ] = None,
    formats: options.Formats = None,
) -> None:
    """Draw PE utilisation and the cycle breakdown of every layer, each with a caption."""
    with errors_reported():
        from tpusim.cli.actions.plot import plot_result

        plot_result(source, out, known_formats(formats))
