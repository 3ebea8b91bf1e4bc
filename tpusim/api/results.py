"""`tpusim compare` and `tpusim report`: two results beside each other, and a page of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpusim.api.answer import Answer, Row
from tpusim.api.sweep import SweepAnswer
from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.files import named, write
from tpusim.report.page.assemble import page, sweep_data
from tpusim.report.plots import KNOWN
from tpusim.report.tables.compare import runs_compared, sweeps_compared
from tpusim.report.tables.compared import ORDERS, Comparable, compared_results, compared_sweeps
from tpusim.report.tables.generation import GENERATION_FILE
from tpusim.report.tables.sweep import POINTS_FILE, SweepPoints, is_sweep, read_points
from tpusim.result.load import RESULT_FILE, read_result
from tpusim.result.records import Result
from tpusim.study.sweep.store import FILE as STORE_FILE

PAGE_FILE = "report.html"
Source = str | Path | Result | Answer
"""A result or an answer, or the file or folder that a command has written."""


def compare(before: Source, after: Source, *, sort: str = "change") -> Answer:
    """Set two runs beside each other layer by layer, or two sweeps point by point, as `tpusim compare` does.

    Args:
        before: a `Result`, the answer of `sweep`, or the file or folder of one of them.
        after: another of the same kind.
        sort: order of the rows: change (the largest first), network, or ratio.

    Raises:
        InputError: an unknown order, files that are not of a run or a sweep, or one of each.

    Examples:
        >>> import tpusim
        >>> tiny = tpusim.load_workload("tiny", batch=2)
        >>> changes = "vector_memory.ports=shared", "vector_memory.ports=separate"
        >>> machines = [tpusim.load_hardware("tiny_4x4", change) for change in changes]
        >>> answer = tpusim.compare(*(tpusim.simulate(tiny, machine, check=False) for machine in machines))
        >>> answer.to_frame()[["name", "cycles_a", "cycles_b"]].values.tolist()
        [['two_passes', 97, 73], ['fig11', 65, 59], ['fig10', 62, 57]]
    """
    if sort not in [*ORDERS]:
        raise InputError(f"--sort {sort!r}: no such order{did_you_mean(sort, ORDERS)}; there is {', '.join(ORDERS)}")
    names = [_name(each, letter) for each, letter in zip((before, after), "AB", strict=True)]
    kinds = ["sweep" if _is_of_sweep(each, "compare") else "run" for each in (before, after)]
    if len({*kinds}) > 1:
        raise InputError(f"{', '.join(map('{} is a {}'.format, names, kinds))}; compare two of a kind")
    one, other = (_read(each, "compare") for each in (before, after))
    files = [_name(each, "") for each in (before, after)]
    if isinstance(one, Result) and isinstance(other, Result):
        runs = compared_results(one, other)
        return Answer(runs_compared(runs, files, sort), [*_rows(runs, sort)], runs)
    assert isinstance(one, SweepPoints)
    assert isinstance(other, SweepPoints)
    swept = compared_sweeps(one, other)
    return Answer(sweeps_compared(swept, files, sort), [*_rows(swept, sort)], swept)


def report(source: Source, out: str | Path | None = None) -> Path:
    """Write one HTML page, to open in a browser, as `tpusim report` does, and return its path.

    The page needs no network and no other file.

    Args:
        source: a `Result`, the answer of `explain`, `generate`, `scale` or `sweep`, or the file or folder of a run or a
            sweep.
        out: the file; None: report.html beside the source, or here.

    Raises:
        InputError: a file is not of a run or a sweep, or the page cannot be written.

    Examples:
        >>> import tempfile, tpusim
        >>> result = tpusim.simulate(tpusim.load_workload("tiny", batch=2), tpusim.load_hardware("tiny_4x4"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = tpusim.report(result, f"{folder}/tiny.html")
        ...     page.name, page.stat().st_size > 10_000
        ('tiny.html', True)
    """
    if out is None:
        beside = source if isinstance(source, str | Path) else Path()
        folder = Path(beside) if os.path.isdir(beside) else Path(beside).parent
        out = folder / PAGE_FILE
    file = named(out)
    if file.suffix.removeprefix(".") in KNOWN:
        says = "is the name of a picture, and a page is HTML; write FILE.html, or draw pictures with tpusim plot"
        raise InputError(f"{file}: {says}")
    made = _page(source)
    write(file, made)
    return file


def _page(source: Source) -> bytes:
    if isinstance(source, Answer) and source.heading:
        return source.to_page()
    held = _read(source, "report")
    if isinstance(held, SweepPoints):
        return page("sweep", sweep_data(held))
    # Imported here, because matplotlib takes a second to import.
    from tpusim.report.page.run import run_page

    try:
        return run_page(held)
    except InputError as error:
        raise InputError(f"{_name(source, held.workload)}: {error}") from None


def _name(source: Source, unnamed: str) -> str:
    return str(source) if isinstance(source, str | Path) else unnamed


def _is_of_sweep(source: Source, wanted: str) -> bool:
    """Whether a source is of a sweep; else it is of a run. Raises InputError for the answer of another command."""
    if isinstance(source, Result):
        return False
    if isinstance(source, Answer):
        if not isinstance(source, SweepAnswer) or source.points is None:
            raise InputError(f"{wanted} is of runs and sweeps that have points, and this is none: {source!r}")
        return True
    if not isinstance(source, str | Path):
        raise InputError(f"{source!r:.80} is no result; give a Result, an answer, or the path of what a command wrote")
    place = Path(source)
    refuse_generation(place, wanted)
    if place.name == STORE_FILE:
        raise InputError(f"{place}: is what a sweep works with; give its directory, or its {POINTS_FILE}")
    return sweep_meant(place)


def _read(source: Source, wanted: str) -> Result | SweepPoints:
    """Return what a source holds: a run or a sweep. Raises InputError for anything else."""
    swept = _is_of_sweep(source, wanted)
    if isinstance(source, Result):
        return source
    if isinstance(source, SweepAnswer):
        assert source.points is not None
        return source.points
    assert isinstance(source, str | Path)
    place = Path(source)
    if not swept:
        return read_result(place)
    return read_points(place / POINTS_FILE if os.path.isdir(place) else place)


def refuse_generation(source: Path, wanted: str) -> None:
    """Raise InputError where tokens of a generation were timed, which have a picture and a page of their own."""
    file = source / GENERATION_FILE if os.path.isdir(source) else source
    alone = not os.path.exists(source / RESULT_FILE) and not is_sweep(source)
    if file.name == GENERATION_FILE and os.path.exists(file) and alone:
        says = f"is of tokens (--tokens), and {wanted} is of a run or a sweep"
        advice = f"their picture and their page, {PAGE_FILE}, stand beside {GENERATION_FILE}"
        raise InputError(f"{source}: {says}; {advice}, and tpusim run ... --tokens N --out DIR makes them again")


def sweep_meant(source: Path) -> bool:
    """Whether a folder holds a sweep. Raises InputError if it holds a run as well."""
    swept = is_sweep(source)
    if swept and os.path.exists(source / RESULT_FILE):
        raise InputError(f"{source}: holds a run and a sweep; give {source / RESULT_FILE} or {source / POINTS_FILE}")
    return swept


def _rows(compared: Comparable, order: str) -> Iterator[Row]:
    """Yield a row for each layer, or point, with what it takes in A and in B."""
    for row in sorted(compared.rows, key=ORDERS[order]):
        made: dict[str, Any] = {"name": row.name}
        for letter, side in (("a", row.before), ("b", row.after)):
            made |= {f"{key}_{letter}": getattr(side, key, None) for key in ("cycles", "time_us", "pe_utilization")}
        yield {**made, "ratio": row.ratio}
