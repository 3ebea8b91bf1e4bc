"""The command `tpusim validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpusim.cli import options
from tpusim.cli.names import NUMBER_SETS
from tpusim.cli.terminal import errors_reported, interruption_told
from tpusim.report.plots.formats import known_formats

EXAMPLE = "Example: tpusim validate --set-of-numbers vgg16"


def validate(
    sets: Annotated[
        list[str] | None,
        typer.Option("--set-of-numbers", metavar="NAME", help=f"One of {', '.join(NUMBER_SETS)}. Repeatable."),
    ] = None,
    lowering: options.Lowering = "channel_first",
    changes: options.Changes = None,
    json: options.Json = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw parity and errors.")] = None,
    formats: options.Formats = None,
) -> None:
    """Compare cycles with what is known of the chip: estimates of Google's compiler, and measurements.

    A single set is shown row by row.
    """
    with errors_reported(), interruption_told():
        from tpusim.cli.actions.validate import compare_and_report

        compare_and_report(sets or [], lowering, changes or [], json, out, known_formats(formats))
