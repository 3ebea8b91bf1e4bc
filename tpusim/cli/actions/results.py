"""Actions of `tpusim compare`, `tpusim plot` and `tpusim report`, which work on finished results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.files import probe, write
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.names import GENERATION_FILE, PAGE_FILE
from tpusim.cli.terminal import say
from tpusim.report.page.assemble import page, sweep_data
from tpusim.report.tables.compare import runs_compared, sweeps_compared
from tpusim.report.tables.compared import ORDERS, compared_results, compared_sweeps
from tpusim.report.tables.sweep import POINTS_FILE, SweepPoints, is_sweep, read_points
from tpusim.result.load import RESULT_FILE, read_result
from tpusim.study.sweep.store import FILE as STORE_FILE

if TYPE_CHECKING:
    from tpusim.report.plots.figure import Picture

CAPTIONS = "captions.txt"
_SWEPT = (
    "is of a sweep, and plot draws a run; the sweep has left its pictures there, its command draws them again, "
    "--format pdf for instance, without computing a point twice, and `tpusim report` makes a page of them"
)


def compare_and_report(before: Path, after: Path, sort: str, json: str | None) -> None:
    """Compare two results, or two sweeps, as JSON and as tables with the rows in the order `sort`."""
    if sort not in ORDERS:
        raise InputError(f"--sort {sort!r}: no such order{did_you_mean(sort, ORDERS)}; there is {', '.join(ORDERS)}")
    output, names = JsonOutput(json), [str(before), str(after)]
    for name in (before, after):
        _refuse_generation(name, "compare")
    for name in (before, after):
        if name.name == STORE_FILE:
            raise InputError(f"{name}: is what a sweep works with; give its directory, or its {POINTS_FILE}")
    kinds = [_sweep_meant(before), _sweep_meant(after)]
    if len(set(kinds)) > 1:
        said = (f"{name} is a {'sweep' if kind else 'run'}" for name, kind in zip(names, kinds, strict=True))
        raise InputError(f"{', '.join(said)}; compare two of a kind")
    if all(kinds):
        swept = compared_sweeps(_points_of(before), _points_of(after))
        output.deliver(sweeps_compared(swept, names, sort))
    else:
        compared = compared_results(read_result(before), read_result(after))
        output.deliver(runs_compared(compared, names, sort))


def _refuse_generation(source: Path, wanted: str) -> None:
    """Raise InputError where tokens of a generation were timed, which have a picture and a page of their own."""
    file = source / GENERATION_FILE if os.path.isdir(source) else source
    alone = not os.path.exists(source / RESULT_FILE) and not is_sweep(source)
    if file.name == GENERATION_FILE and os.path.exists(file) and alone:
        says = f"is of tokens (--tokens), and {wanted} is of a run or a sweep"
        advice = f"their picture and their page, {PAGE_FILE}, stand beside {GENERATION_FILE}"
        raise InputError(f"{source}: {says}; {advice}, and tpusim run ... --tokens N --out DIR makes them again")


def plot_result(source: Path, out: Path | None, kinds: Sequence[str]) -> None:
    """Draw a result into `out`, or beside itself, in every one of `kinds` of files."""
    _refuse_generation(source, "plot")
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


def write_pictures(folder: Path, pictures: Iterable[Picture], kinds: Sequence[str]) -> Iterator[Path]:
    """Write pictures in every format, with CAPTIONS, and yield the paths as they are written."""
    drawn = []
    for picture in pictures:
        drawn.append(picture)
        for name, contents in picture.files(kinds):
            write(folder / name, contents)
            yield folder / name
    yield write_captions(folder, drawn)


def write_captions(folder: Path, pictures: Iterable[Picture]) -> Path:
    """Write CAPTIONS, and return its path."""
    captions = (f"{picture.name}: {picture.caption}\n" for picture in pictures)
    write(folder / CAPTIONS, "\n".join(captions).encode())
    return folder / CAPTIONS


def write_page(source: Path, file: Path) -> None:
    """Write the page on a run or a sweep."""
    _refuse_generation(source, "report")
    if _sweep_meant(source):
        made = page("sweep", sweep_data(_points_of(source)))
    else:
        result = read_result(source)
        # Imported here, because matplotlib takes a second to import.
        from tpusim.report.page.run import run_page

        try:
            made = run_page(result)
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
    write(file, made)
    say(sys.stdout, str(file))


def _sweep_meant(source: Path) -> bool:
    """Whether a folder holds a sweep. Raises InputError if it holds a run as well."""
    swept = is_sweep(source)
    if swept and os.path.exists(source / RESULT_FILE):
        raise InputError(f"{source}: holds a run and a sweep; give {source / RESULT_FILE} or {source / POINTS_FILE}")
    return swept


def _points_of(source: Path) -> SweepPoints:
    """The points of a sweep, from its directory or its points.csv. Raises InputError."""
    return read_points(source / POINTS_FILE if os.path.isdir(source) else source)
