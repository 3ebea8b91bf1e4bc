"""The command `tpusim compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console

from tpusim.base.errors import InputError, did_you_mean
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.terminal import errors_reported, show
from tpusim.report.tables import compare_tables as tables
from tpusim.report.tables.compare_results import ORDERS, Compared
from tpusim.result.load import RESULT_FILE, read_result

EXAMPLE = "Example: tpusim compare results/resnet50 run.json"

_WIDEST = 79


def compare(
    before: Annotated[
        Path, typer.Argument(metavar="A", help=f"A result JSON, or a directory with {RESULT_FILE} in it.")
    ],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another.")],
    sort: Annotated[str, typer.Option(metavar="ORDER", help=f"Of the layers: {', '.join(ORDERS)}.")] = "change",
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Write it as JSON; - is stdout, tables go to stderr.")
    ] = None,
) -> None:
    """Compare two runs: what differs in what was asked, and what that does to each layer.

    Layers are matched by name. The largest change comes first; --sort network keeps the order of the network,
    --sort ratio begins with what became fastest.
    """
    with errors_reported():
        if sort not in ORDERS:
            raise InputError(
                f"--sort {sort!r}: no such order{did_you_mean(sort, ORDERS)}; there is {', '.join(ORDERS)}"
            )
        output = JsonOutput(json)
        output.check()
        compared = Compared(read_result(before), read_result(after))
        output.put(tables.to_json(compared))
        _report(compared, [str(before), str(after)], sort, output.words_to)


def _report(compared: Compared, names: list[str], sort: str, stream: TextIO) -> None:
    console = Console(file=stream)
    room = console.width if console.is_terminal else None
    width = min(_WIDEST, room or _WIDEST)
    show(stream, tables.headings(compared, names, width), "")
    if compared.changes:
        show(stream, tables.changes_table(compared), "")
    else:
        show(stream, "Nothing differs in what was asked.", "")
    same = tables.unchanged(compared)
    if sort == "network" or any(not row.unchanged for row in compared.rows):
        show(stream, tables.layers_table(compared, sort, room), "", tables.LEGEND, "")
    if same and sort != "network":
        show(stream, same)
    show(stream, tables.totals(compared, width), tables.verdicts(compared, width))
