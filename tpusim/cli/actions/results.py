"""Actions of `tpusim compare`, `tpusim plot` and `tpusim report`, which work on finished results."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tpusim.api.pictures import write_pictures
from tpusim.api.results import compare, refuse_generation, report
from tpusim.base.errors import InputError
from tpusim.base.files import probe
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.terminal import say
from tpusim.report.tables.sweep import POINTS_FILE, is_sweep
from tpusim.result.load import RESULT_FILE, read_result

_SWEPT = (
    "is of a sweep, and plot draws a run; the sweep has left its pictures there, its command draws them again, "
    "--format pdf for instance, without computing a point twice, and `tpusim report` makes a page of them"
)


def compare_and_report(before: Path, after: Path, sort: str, json: str | None) -> None:
    """Compare two results, or two sweeps, as JSON and as tables with the rows in the order `sort`."""
    output = JsonOutput(json)
    output.deliver(compare(before, after, sort=sort).shown)


def plot_result(source: Path, out: Path | None, kinds: Sequence[str]) -> None:
    """Draw a result into `out`, or beside itself, in every one of `kinds` of files."""
    refuse_generation(source, "plot")
    if source.name == POINTS_FILE or (
        os.path.isdir(source) and is_sweep(source) and not os.path.exists(source / RESULT_FILE)
    ):
        raise InputError(f"{source}: {_SWEPT}")
    result = read_result(source)
    folder = out or (source if os.path.isdir(source) else source.parent)
    probe(folder / RESULT_FILE, make_folder=True)
    # Imported here, because matplotlib takes longer to import than a run takes.
    from tpusim.report.plots.run import plots

    try:
        pictures = plots(result)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    for path in write_pictures(folder, pictures, kinds):
        say(sys.stdout, str(path))


def write_page(source: Path, file: Path) -> None:
    """Write the page on a run or a sweep."""
    say(sys.stdout, str(report(source, file)))
