"""The command `tpusim sweep`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tpusim.cli_plot import write_pictures
from tpusim.errors import TpusimError
from tpusim.files import probe, write
from tpusim.report import sweep_tables as tables
from tpusim.screen import Meter
from tpusim.sweep.spec import Sweep, load_sweep
from tpusim.sweep.store import FILE, Store
from tpusim.terminal import errors_reported, say, show

EXAMPLE = "Example: tpusim sweep array_size --out results/array_size"


def sweep(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="Shipped name, .yaml path, or - for stdin.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Results and pictures; default: results/NAME.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=1024, metavar="N", help="Processes.")] = os.cpu_count() or 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute again what is there already.")] = False,
) -> None:
    """Simulate every point of a sweep, timing alone; what is in DIR already is not computed again.

    Exit code 0: done; 1: a point failed (the others are there); 2: bad input.
    """
    with errors_reported():
        wanted = load_sweep(spec)
        folder = out or Path("results") / wanted.name
        probe(folder / FILE, make_folder=True)
        say(sys.stderr, wanted.summary)
        rows, failed = _run(wanted, folder, workers, fresh)
        for row in (row for row in rows if row["error"]):
            say(sys.stderr, f"failed: {row['workload']} {_settings(row, wanted)}: {row['error']}")
        if failed:
            raise TpusimError(f"{failed} of {len(rows)} points failed; the others are in {folder}")


def _run(wanted: Sweep, folder: Path, workers: int, fresh: bool) -> tuple[Sequence[Mapping[str, Any]], int]:
    # Here, because joblib takes longer to import than a run does.
    from tpusim.sweep.executor import Local
    from tpusim.sweep.rows import rows_of
    from tpusim.sweep.run import keyed, missing, run_sweep
    from tpusim.sweep.search import need_optuna, run_search

    if wanted.search:
        need_optuna()
    folder.mkdir(parents=True, exist_ok=True)
    store = Store(folder / FILE)
    try:
        if wanted.search:
            with Meter(wanted.search.budget) as meter:
                outcome = run_search(wanted, store, Local(workers), fresh, meter.show)
        else:
            points = keyed(wanted)
            with Meter(len(missing(points, store, fresh))) as meter:
                outcome = run_sweep(points, store, Local(workers), fresh, meter.show)
        rows = rows_of(wanted, store, outcome.points)
    finally:
        store.close()
    _report(wanted, rows, folder)
    counts = f"{outcome.computed} computed, {outcome.reused} there already, {outcome.failed} failed"
    say(sys.stdout, f"{len(rows)} points: {counts}")
    return rows, sum(row["error"] is not None for row in rows)


def _report(wanted: Sweep, rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    from tpusim.report.sweep_plots import plots

    axes = [*wanted.axes]
    show(sys.stdout, *tables.best(rows, axes, wanted.goals), "")
    write(folder / "points.csv", tables.to_csv(rows, axes).encode())
    for _ in write_pictures(folder, plots(wanted, rows)):
        pass
    say(sys.stdout, f"In {folder}: {FILE}, points.csv and pictures")


def _settings(row: Mapping[str, Any], wanted: Sweep) -> str:
    return ", ".join(f"{axis}={row[axis]}" for axis in wanted.axes)
