"""What `tpusim compare` does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from tpusim.base.errors import InputError, did_you_mean
from tpusim.cli.actions.report import points_of, sweep_meant
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.terminal import deliver, show, terminal_width
from tpusim.report.page.sweep_file import POINTS_FILE
from tpusim.report.tables import compare_sweep_tables as sweep_tables
from tpusim.report.tables import compare_tables as tables
from tpusim.report.tables.compare_results import ORDERS, ComparedResults
from tpusim.report.tables.compare_sweeps import ComparedSweeps
from tpusim.report.tables.layout import WIDEST
from tpusim.result.load import read_result
from tpusim.study.sweep.store import FILE as STORE_FILE


def compare_and_report(before: Path, after: Path, sort: str, json: str | None) -> None:
    """Compare two results, or two sweeps, as JSON and as tables with the rows in the order `sort`."""
    if sort not in ORDERS:
        raise InputError(f"--sort {sort!r}: no such order{did_you_mean(sort, ORDERS)}; there is {', '.join(ORDERS)}")
    output, names = JsonOutput(json), [str(before), str(after)]
    for name in (before, after):
        if name.name == STORE_FILE:
            raise InputError(f"{name}: is what a sweep works with; give its directory, or its {POINTS_FILE}")
    kinds = [sweep_meant(before), sweep_meant(after)]
    if len(set(kinds)) > 1:
        said = (f"{name} is a {'sweep' if kind else 'run'}" for name, kind in zip(names, kinds, strict=True))
        raise InputError(f"{', '.join(said)}; compare two of a kind")
    if all(kinds):
        swept = ComparedSweeps(points_of(before), points_of(after))
        report = partial(_report_sweeps, swept, names, sort, output.words_to)
        deliver(partial(output.put, sweep_tables.to_json(swept)), report)
    else:
        compared = ComparedResults(read_result(before), read_result(after))
        report = partial(_report, compared, names, sort, output.words_to)
        deliver(partial(output.put, tables.to_json(compared)), report)


def _report(compared: ComparedResults, names: Sequence[str], sort: str, stream: TextIO) -> None:
    room = terminal_width(stream)
    width = min(WIDEST, room or WIDEST)
    show(stream, tables.headings(compared, names, width), "")
    if compared.changes:
        show(stream, tables.changes_table(compared), "")
    else:
        edges = " but for what layers read" if compared.rewired else ""
        show(stream, f"Nothing differs in what was asked{edges}.", "")
    same = tables.unchanged(compared)
    if sort == "network" or any(not row.unchanged for row in compared.rows):
        show(stream, tables.layers_table(compared, sort, room), "", tables.layers_legend(compared, sort, room), "")
    if same and sort != "network":
        show(stream, same)
    if edges := tables.rewired(compared, width):
        show(stream, edges)
    show(stream, tables.totals(compared, width), tables.verdicts(compared, width))


def _report_sweeps(compared: ComparedSweeps, names: Sequence[str], sort: str, stream: TextIO) -> None:
    room = terminal_width(stream)
    width = min(WIDEST, room or WIDEST)
    show(stream, sweep_tables.headings(compared, names, width), "")
    if sort == "network" or any(not row.unchanged for row in compared.rows):
        legend = sweep_tables.points_legend(compared, sort, room)
        show(stream, sweep_tables.points_table(compared, sort, room), "", legend, "")
    if note := sweep_tables.left_out(compared, sort):
        show(stream, note)
    show(stream, sweep_tables.totals(compared, width))
