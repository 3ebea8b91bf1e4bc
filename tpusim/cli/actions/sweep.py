"""The action of `tpusim sweep`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tpusim.base.errors import TpusimError
from tpusim.base.files import make_folder, replacing
from tpusim.base.imports import need
from tpusim.base.words import counted
from tpusim.cli.actions.results import write_pictures
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import present, say, show
from tpusim.report.tables import sweep as tables
from tpusim.report.tables.hardware import part_notice
from tpusim.study.processes import Processes
from tpusim.study.sweep.parcels import Executor, simulated
from tpusim.study.sweep.points import Point, Sweep, load_sweep
from tpusim.study.sweep.run import Row, SweepOutcome, keyed, missing, need_optuna, rows_of, run_search, run_sweep
from tpusim.study.sweep.store import FILE, DamagedStore, Store, alone, sources_digest

_JOIN_SECONDS = 10.0
_MOST_FAILURES = 10
"""Failed points that the screen names one by one; points.csv has them all."""


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
        with alone(folder), closing(Store(folder / FILE)) as store:
            began = time.monotonic()
            outcome = _compute(sweep, store, folder, executor, fresh)
            seconds = time.monotonic() - began
            if not outcome.points:
                raise TpusimError(outcome.short)
            rows = rows_of(sweep, store, outcome.points)
            axis = "" if sweep.goals else tables.compares([*sweep.axes])
            present(sys.stdout, tables.compared(rows, axis) if axis else tables.best(rows, [*sweep.axes], sweep.goals))
            notice = tables.word_notice(outcome.points, store.word_fills([key for _, key in outcome.points]))
            parts = part_notice(dict.fromkeys(point.jobs.hardware for point, _ in outcome.points))
            show(sys.stdout, *filter(None, [parts, notice]), "")
            names = write_files(sweep, outcome.points, store, rows, folder, parquet, kinds)
    done = outcome.computed + outcome.failed
    counts = f"{outcome.computed:,} computed, {outcome.reused:,} there already, {outcome.failed:,} failed"
    rate = f", in {seconds:,.1f} s, {60 * done / seconds:,.0f} points a minute" if done else ""
    summary = f"{counted(len(outcome.points), 'point')}: {counts}{rate}"
    show(sys.stdout, f"In {folder}: {FILE}, {', '.join(names)}", summary)
    if outcome.short:
        say(sys.stderr, f"Note: {outcome.short}.")
    _report_failures(sweep, rows, folder)


@contextmanager
def _executor(workers: int, cluster: str | None) -> Iterator[Executor]:
    if cluster is None:
        with Processes(simulated, workers) as processes:
            yield processes
        return
    need("--cluster", "distributed", "distributed")
    # Imported here, because Dask is an extra.
    from tpusim.study.sweep.cluster import Cluster

    with Cluster(cluster) as members:
        if not members.workers:
            say(sys.stderr, f"Waiting {_JOIN_SECONDS:g} seconds for a worker to join {cluster} ...")
            members.wait_for_workers(_JOIN_SECONDS)
        members.check_workers()
        yield members


def _compute(sweep: Sweep, store: Store, folder: Path, executor: Executor, fresh: bool) -> SweepOutcome:
    """Simulate missing points; an early end says where the finished points are."""
    points = keyed(sweep)
    total = sweep.search.budget if sweep.search else len(missing(points, store, fresh))
    kept = f"finished points are in {folder}; the same command{' without --fresh' * fresh} continues"
    with metered(total, folder / FILE, kept) as meter:
        if sweep.search:
            return run_search(sweep, store, executor, fresh, meter.show)
        return run_sweep(points, store, executor, fresh, meter.show)


@contextmanager
def metered(total: int, store: Path, kept: str) -> Iterator[Meter]:
    """A meter of points that are simulated into a store; an early end says where the finished points are `kept`."""
    with Meter(total, "points") as meter:
        try:
            yield meter
        except KeyboardInterrupt:
            say(sys.stderr, f"Interrupted after {meter.done:,} of {total:,} points; {kept}.")
            raise
        except TpusimError as error:
            if isinstance(error, DamagedStore) or not store.exists():
                raise
            raise type(error)(f"{error}; {kept}") from None


def _report_failures(sweep: Sweep, rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Raise TpusimError if there are any failures."""
    failed = [row for row in rows if row["error"]]
    for row in failed[:_MOST_FAILURES]:
        settings = ", ".join(f"{axis}={row[axis]}" for axis in sweep.axes)
        say(sys.stderr, f"failed: {row['workload']} {settings}: {row['error']}")
    if len(failed) > _MOST_FAILURES:
        say(sys.stderr, f"... and {len(failed) - _MOST_FAILURES:,} more; points.csv has them all")
    if failed and len(failed) == len(rows):
        raise TpusimError(
            f"every one of {len(rows):,} points failed; their errors are in {folder / tables.POINTS_FILE}"
        )
    if failed:
        raise TpusimError(f"{len(failed):,} of {len(rows):,} points failed; the others are in {folder}")


# ---- files beside the store of a sweep: tables and pictures


def write_files(
    sweep: Sweep,
    points: Sequence[tuple[Point, str]],
    store: Store,
    rows: Sequence[Row],
    folder: Path,
    parquet: bool,
    kinds: Sequence[str],
) -> list[str]:
    """Write points.csv, layers.csv, with `parquet` both in its form as well, and the pictures in `kinds` of files.

    `points` are in the store, each with its key, and have a row each. Nothing is written when the same points gave
    files that are still as they were. Returns the names; raises InputError when a file cannot be written.
    """

    def point_rows() -> Iterator[Row]:
        """A row for each point, with what the front of all was asked for, and the setup."""
        told = tables.told_of_all(sweep.goals, sweep.setup)
        return ({**row, **told} for row in rows)

    def layer_rows() -> Iterator[Row]:
        """A row for each layer of every point."""
        done = (point.jobs.work for (point, _), row in zip(points, rows, strict=True) if not row["error"])
        count = sum(len(work.layers) for work in done)
        for row in store.layers([key for _, key in points], count):
            point, _ = points[row["place"]]
            yield {**row, "workload": point.jobs.work.name, "batch": point.jobs.work.batch, **dict(point.settings)}

    def written() -> Iterator[str]:
        contents: list[tuple[str, tables.ColumnKinds, Callable[[], Iterable[Row]]]] = [
            ("points", tables.point_columns(sweep.axes, bool(sweep.goals)), point_rows),
            ("layers", tables.layer_columns(sweep.axes), layer_rows),
        ]
        writers = {"csv": tables.write_csv, **({"parquet": tables.write_parquet} if parquet else {})}
        for stem, columns, content in contents:
            for kind, writer in writers.items():
                with replacing(folder / f"{stem}.{kind}") as file:
                    writer(file, content(), columns)
                yield f"{stem}.{kind}"
        # Imported here, because matplotlib takes longer to import than a finished sweep takes to be looked up.
        from tpusim.report.plots.sweep import plots

        for path in write_pictures(folder, plots(sweep, rows), kinds):
            yield path.name

    results = [(key, row["error"]) for (_, key), row in zip(points, rows, strict=True)]
    inputs = sources_digest("report/**/*.py", "result/**/*.py"), sweep, results, parquet, kinds
    return store.kept_files(inputs, written())
