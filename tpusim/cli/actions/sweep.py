"""What `tpusim sweep` does."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

from tpusim.base.errors import TpusimError
from tpusim.base.extras import need
from tpusim.base.files import make_folder
from tpusim.cli.actions.sweep_files import Finished, write_files
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say, show, terminal_width
from tpusim.report.page.sweep_file import POINTS_FILE
from tpusim.report.tables import sweep_tables as tables
from tpusim.report.tables.sweep_lowerings import compared, over_lowerings
from tpusim.study.processes import Processes
from tpusim.study.sweep.job import Executor, simulated
from tpusim.study.sweep.run import Outcome, keyed, missing, rows_of, run_sweep
from tpusim.study.sweep.search import need_optuna, run_search
from tpusim.study.sweep.spec import Sweep, load_sweep
from tpusim.study.sweep.store import FILE, DamagedStore, Store

_JOIN_SECONDS = 10.0
_MOST_FAILURES = 10
"""So many are told one by one on the screen; points.csv has them all."""


def run_and_report(
    spec: str, out: Path | None, workers: int, cluster: str | None, *, fresh: bool, parquet: bool, kinds: Sequence[str]
) -> None:
    """Compute what is missing of a sweep, and leave its files in `out`, or in results/NAME.

    Raises:
        TpusimError: a point failed, and the others are there; or a search found no point.
    """
    sweep = load_sweep(spec)
    if parquet:
        need("--parquet", "pyarrow", "pyarrow.parquet")
    if sweep.search:
        need_optuna()
    folder = out or Path("results") / sweep.name
    say(sys.stderr, sweep.summary, *(f"Note: {note}" for note in sweep.notes))
    with _executor(workers, cluster) as executor:
        make_folder(folder)
        with closing(Store(folder / FILE)) as store:
            began = time.monotonic()
            outcome = _compute(sweep, store, folder, executor, fresh)
            seconds = time.monotonic() - began
            if not outcome.points:
                raise TpusimError(outcome.short)
            rows = rows_of(sweep, store, outcome.points)
            show(sys.stdout, *_tables(sweep, rows), "")
            names = write_files(Finished(sweep, outcome.points, store, rows), folder, parquet, kinds)
    show(sys.stdout, f"In {folder}: {FILE}, {', '.join(names)}", _summary(outcome, seconds))
    if outcome.short:
        say(sys.stderr, f"Note: {outcome.short}.")
    _report_failures(sweep, rows, folder)


def _tables(sweep: Sweep, rows: Sequence[Mapping[str, Any]]) -> list[Table | str]:
    axes, width = [*sweep.axes], terminal_width(sys.stdout)
    if over_lowerings(axes) and not sweep.goals:
        return compared(rows, width)
    return tables.best(rows, axes, sweep.goals, width)


@contextmanager
def _executor(workers: int, cluster: str | None) -> Iterator[Executor]:
    if cluster is None:
        with Processes(simulated, workers) as processes:
            yield processes
        return
    need("--cluster", "distributed", "distributed")
    # Here, because Dask is an extra.
    from tpusim.study.sweep.cluster import Cluster

    with Cluster(cluster) as members:
        if not members.workers:
            say(sys.stderr, f"Waiting {_JOIN_SECONDS:g} seconds for a worker to join {cluster} ...")
            members.wait_for_workers(_JOIN_SECONDS)
        members.check_workers()
        yield members


def _compute(sweep: Sweep, store: Store, folder: Path, executor: Executor, fresh: bool) -> Outcome:
    """Simulate what is missing; what ends it early says where the finished points are."""
    points = keyed(sweep)
    total = sweep.search.budget if sweep.search else len(missing(points, store, fresh))
    kept = f"finished points are in {folder}; the same command{' without --fresh' * fresh} continues"
    with Meter(total, "points") as meter:
        try:
            if sweep.search:
                return run_search(sweep, store, executor, fresh, meter.show)
            return run_sweep(points, store, executor, fresh, meter.show)
        except KeyboardInterrupt:
            say(sys.stderr, f"Interrupted after {meter.done:,} of {total:,} points; {kept}.")
            raise
        except TpusimError as error:
            if isinstance(error, DamagedStore) or not (folder / FILE).exists():
                raise
            raise type(error)(f"{error}; {kept}") from None


def _summary(outcome: Outcome, seconds: float) -> str:
    done = outcome.computed + outcome.failed
    counts = f"{outcome.computed:,} computed, {outcome.reused:,} there already, {outcome.failed:,} failed"
    rate = f", in {seconds:,.1f} s, {60 * done / seconds:,.0f} points a minute" if done else ""
    return f"{len(outcome.points):,} point{'s' * (len(outcome.points) != 1)}: {counts}{rate}"


def _report_failures(sweep: Sweep, rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Raise TpusimError when there are any."""
    failed = [row for row in rows if row["error"]]
    for row in failed[:_MOST_FAILURES]:
        settings = ", ".join(f"{axis}={row[axis]}" for axis in sweep.axes)
        say(sys.stderr, f"failed: {row['workload']} {settings}: {row['error']}")
    if len(failed) > _MOST_FAILURES:
        say(sys.stderr, f"... and {len(failed) - _MOST_FAILURES:,} more; points.csv has them all")
    if failed and len(failed) == len(rows):
        raise TpusimError(f"every one of {len(rows):,} points failed; their errors are in {folder / POINTS_FILE}")
    if failed:
        raise TpusimError(f"{len(failed):,} of {len(rows):,} points failed; the others are in {folder}")
