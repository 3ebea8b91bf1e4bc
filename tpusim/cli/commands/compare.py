"""`tpusim compare`: what it takes, and what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tpusim.cli.names import LAYER_ORDERS, RESULT_FILE
from tpusim.cli.options import Json, words
from tpusim.cli.root import app
from tpusim.cli.terminal import errors_reported


@app.command(epilog="Example: tpusim compare results/resnet50 run.json")
@errors_reported()
def compare(
    before: Annotated[
        Path, Argument(metavar="A", help=f"A result JSON or its directory (DIR/{RESULT_FILE}), or that of a sweep.")
    ],
    after: Annotated[Path, Argument(metavar="B", help="Another.")],
    sort: Annotated[
        str,
        Option(metavar="ORDER", help=f"Of the rows: {', '.join(LAYER_ORDERS)}.", autocompletion=words(LAYER_ORDERS)),
    ] = "change",
    json: Json = None,
) -> None:
    """Compare two runs layer by layer, or two sweeps point by point.

    Of runs also what differs in what was asked. Layers are matched by name, with those that ride on their results,
    points by their axes. The largest change comes first; --sort network keeps the order of the network or sweep,
    --sort ratio begins with what became fastest.
    """
    from tpusim.cli.actions.results import compare_and_report

    compare_and_report(before, after, sort, json)
