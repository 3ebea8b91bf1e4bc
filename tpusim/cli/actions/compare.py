"""What `tpusim compare` does."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from tpusim.base.errors import InputError, did_you_mean
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.terminal import show, terminal_width
from tpusim.report.tables import compare_tables as tables
from tpusim.report.tables.compare_results import ORDERS, ComparedResults
from tpusim.result.load import read_result

_WIDEST = 79


def compare_and_report(before: Path, after: Path, sort: str, json: str | None) -> None:
    """Compare the results in two places, as JSON and as tables with the layers in the order `sort`."""
    if sort not in ORDERS:
        raise InputError(f"--sort {sort!r}: no such order{did_you_mean(sort, ORDERS)}; there is {', '.join(ORDERS)}")
    output = JsonOutput(json)
    compared = ComparedResults(read_result(before), read_result(after))
    output.put(tables.to_json(compared))
    _report(compared, [str(before), str(after)], sort, output.words_to)


def _report(compared: ComparedResults, names: list[str], sort: str, stream: TextIO) -> None:
    room = terminal_width(stream)
    width = min(_WIDEST, room or _WIDEST)
    show(stream, tables.headings(compared, names, width), "")
    if compared.changes:
        show(stream, tables.changes_table(compared), "")
    else:
        show(stream, "Nothing differs in what was asked.", "")
    same = tables.unchanged(compared)
    if sort == "network" or any(not row.unchanged for row in compared.rows):
        show(stream, tables.layers_table(compared, sort, room), "", tables.layers_legend(compared, sort, room), "")
    if same and sort != "network":
        show(stream, same)
    show(stream, tables.totals(compared, width), tables.verdicts(compared, width))
