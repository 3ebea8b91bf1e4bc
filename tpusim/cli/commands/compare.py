"""The command `tpusim compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpusim.cli import options
from tpusim.cli.names import LAYER_ORDERS, RESULT_FILE
from tpusim.cli.terminal import errors_reported

EXAMPLE = "Example: tpusim compare results/resnet50 run.json"


def compare(
    before: Annotated[
        Path, typer.Argument(metavar="A", help=f"A result JSON, or a directory with {RESULT_FILE} in it.")
    ],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another.")],
    sort: Annotated[str, typer.Option(metavar="ORDER", help=f"Of the layers: {', '.join(LAYER_ORDERS)}.")] = "change",
    json: options.Json = None,
) -> None:
    """Compare two runs: what differs in what was asked, and what that does to each layer.

    Layers are matched by name. The largest change comes first; --sort network keeps the order of the network,
    --sort ratio begins with what became fastest.
    """
    with errors_reported():
        from tpusim.cli.actions.compare import compare_and_report

        compare_and_report(before, after, sort, json)
