"""`tpusim paper`: what it takes, and what it says of itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from typer import Option

from tpusim.cli.names import EXHIBITS
from tpusim.cli.options import Formats, Json, words
from tpusim.cli.root import app
from tpusim.cli.terminal import errors_reported
from tpusim.report.plots import known_formats


@app.command(epilog="Example: tpusim paper --figure 14a --figure 16b")
@errors_reported()
def paper(
    out: Annotated[Path, Option(metavar="DIR", help="Results, pictures and page.")] = Path("results/paper"),
    figures: Annotated[
        list[str] | None,
        Option(
            "--figure",
            metavar="NAME",
            help=f"Only {', '.join(EXHIBITS)}. Repeatable; default: all.",
            autocompletion=words(EXHIBITS),
        ),
    ] = None,
    workers: Annotated[
        int, Option(min=1, max=1024, metavar="N", help="Processes; default: one a processor.")
    ] = os.cpu_count() or 1,
    json: Json = None,
    formats: Formats = None,
) -> None:
    """Make the figures and tables of the paper, and judge its claims.

    The paper is the one that the machine tpu_v2 comes from. Each figure stands beside what the text states; verdicts
    follow from our figures by rules that are told. DIR/paper.html holds all of it.

    What is in DIR already is not computed again: stopped at any time, the same command continues.

    Exit code 0: done, whatever the verdicts; 1: a simulation failed; 2: bad input; 130: interrupted.
    """
    from tpusim.cli.actions.paper import make_and_report

    make_and_report(figures or [], out, workers, json, known_formats(formats))
