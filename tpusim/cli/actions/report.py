"""What `tpusim report` does."""

from __future__ import annotations

import sys
from pathlib import Path

from tpusim.base.errors import InputError
from tpusim.base.files import write
from tpusim.cli.terminal import say
from tpusim.report.page.assemble import page
from tpusim.report.page.run_data import run_data
from tpusim.report.page.run_words import plain
from tpusim.report.page.sweep_data import sentences, sweep_data
from tpusim.report.page.sweep_file import POINTS_FILE, SweepPoints, is_sweep, read_points
from tpusim.result.load import RESULT_FILE, read_result


def write_page(source: Path, file: Path) -> None:
    """Write the page on a run or a sweep."""
    write(file, _sweep_page(source) if sweep_meant(source) else _run_page(source))
    say(sys.stdout, str(file))


def sweep_meant(source: Path) -> bool:
    """Whether it is a sweep's. Raises InputError where it holds a run as well."""
    swept = is_sweep(source)
    if swept and (source / RESULT_FILE).exists():
        raise InputError(f"{source}: holds a run and a sweep; give {source / RESULT_FILE} or {source / POINTS_FILE}")
    return swept


def points_of(source: Path) -> SweepPoints:
    """The points of a sweep, from its directory or its points.csv. Raises InputError."""
    return read_points(source / POINTS_FILE if source.is_dir() else source)


def _run_page(source: Path) -> bytes:
    result = read_result(source)
    # It draws with matplotlib, which takes a second to import; `compare` reads sweeps from here, too.
    from tpusim.report.page.pictures import pictures

    try:
        data = {**run_data(result), **pictures(result)}
        words = [plain(sentence, result) for sentence in data["sentences"]]
        return page("run", data["title"], [data["verdict"]["text"], *words], data)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _sweep_page(source: Path) -> bytes:
    points = points_of(source)
    data = sweep_data(points)
    return page("sweep", data["title"], [data["verdict"]["text"], *sentences(points)], data)
