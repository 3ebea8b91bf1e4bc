"""The command `tpusim sweep`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpusim.base.errors import TpusimError
from tpusim.base.extras import need
from tpusim.base.files import make_folder
from tpusim.cli.commands.sweep_files import Finished, write_files
from tpusim.cli.options import FormatOption
from tpusim.cli.screen import Meter
from tpusim.cli.terminal import errors_reported, say, show
from tpusim.report.plots.formats import known_formats
from tpusim.report.tables import sweep_tables as tables
from tpusim.study.sweep.search import need_optuna
from tpusim.study.sweep.spec import Sweep, load_sweep
from tpusim.study.sweep.store import FILE, Store

if TYPE_CHECKING:
    from tpusim.study.sweep.executor import Executor
    from tpusim.study.sweep.run import Outcome

EXAMPLE = "Example: tpusim sweep array_size --out results/array_size"

_JOIN_SECONDS = 10.0
_MOST_FAILURES = 10
"""Told one by one on the screen; points.csv has them all."""


def sweep(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="Shipped name, .yaml path, or - for stdin.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Results and pictures; default: results/NAME.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=1024, metavar="N", help="Processes; default: one a processor.")
    ] = os.cpu_count() or 1,
    cluster: Annotated[
        str | None, typer.Option(metavar="tcp://HOST:PORT", help="Use a Dask cluster instead of processes here.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Keep points that DIR has already, or compute all again.")
    ] = True,
    parquet: Annotated[bool, typer.Option("--parquet", help="Also points.parquet and layers.parquet.")] = False,
    formats: FormatOption = None,
) -> None:
    """Simulate every point of a sweep, timing alone; what is in DIR already is not computed again.

    Stopped at any time, the same command continues. Exit code 0: done; 1: a point failed (the others are there);
    2: bad input; 130: interrupted.
    """
    with errors_reported():
        kinds = known_formats(formats)
        wanted = load_sweep(spec)
        if parquet:
            need("--parquet", "pyarrow", "pyarrow.parquet")
        if wanted.search:
            need_optuna()
        folder = out or Path("results") / wanted.name
        say(sys.stderr, wanted.summary)
        with _executor(workers, cluster) as executor:
            make_folder(folder)
            with closing(Store(folder / FILE)) as store:
                began = time.monotonic()
                outcome = _run(wanted, store, folder, executor, fresh=not resume)
                seconds = time.monotonic() - began
                finished = Finished(wanted, outcome.points, store)
                rows = finished.rows()
                show(sys.stdout, *tables.best(rows, [*wanted.axes], wanted.goals), "")
                names = write_files(finished, rows, folder, parquet, kinds)
        say(sys.stdout, f"In {folder}: {FILE}, {', '.join(names)}", _summary(outcome, seconds))
        _tell_failures(wanted, rows, folder)


@contextmanager
def _executor(workers: int, cluster: str | None) -> Iterator[Executor]:
    # Here, because joblib and Dask take longer to import than a run does.
    if cluster is None:
        from tpusim.study.sweep.local import Local

        with Local(workers) as local:
            yield local
        return
    need("--cluster", "distributed", "distributed")
    from tpusim.study.sweep.cluster import Cluster

    with Cluster(cluster) as members:
        if not members.workers:
            say(sys.stderr, f"Waiting {_JOIN_SECONDS:g} seconds for a worker to join {cluster} ...")
            members.wait_for_workers(_JOIN_SECONDS)
        members.check_workers()
        yield members


def _run(wanted: Sweep, store: Store, folder: Path, executor: Executor, fresh: bool) -> Outcome:
    from tpusim.study.sweep.run import keyed, missing, run_sweep
    from tpusim.study.sweep.search import run_search

    points = keyed(wanted)
    total = wanted.search.budget if wanted.search else len(missing(points, store, fresh))
    done = 0
    with Meter(total, "points") as meter:

        def progress(now: int, name: str, share: float) -> None:
            nonlocal done
            done = now
            meter.show(now, name, share)

        kept = f"finished points are in {folder}; the same command{' without --fresh' * fresh} continues"
        try:
            if wanted.search:
                return run_search(wanted, store, executor, fresh, progress)
            return run_sweep(points, store, executor, fresh, progress)
        except KeyboardInterrupt:
            say(sys.stderr, f"Interrupted after {done:,} of {total:,} points; {kept}.")
            raise
        except TpusimError as error:
            if not (folder / FILE).exists():
                raise
            raise type(error)(f"{error}; {kept}") from None


def _summary(outcome: Outcome, seconds: float) -> str:
    done = outcome.computed + outcome.failed
    counts = f"{outcome.computed:,} computed, {outcome.reused:,} there already, {outcome.failed:,} failed"
    rate = f", in {seconds:,.1f} s, {60 * done / seconds:,.0f} points a minute" if done else ""
    return f"{len(outcome.points):,} point{'s' * (len(outcome.points) != 1)}: {counts}{rate}"


def _tell_failures(wanted: Sweep, rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Raises TpusimError when there are any."""
    failed = [row for row in rows if row["error"]]
    for row in failed[:_MOST_FAILURES]:
        settings = ", ".join(f"{axis}={row[axis]}" for axis in wanted.axes)
        say(sys.stderr, f"failed: {row['workload']} {settings}: {row['error']}")
    if len(failed) > _MOST_FAILURES:
        say(sys.stderr, f"... and {len(failed) - _MOST_FAILURES:,} more; points.csv has them all")
    if failed:
        raise TpusimError(f"{len(failed):,} of {len(rows):,} points failed; the others are in {folder}")
