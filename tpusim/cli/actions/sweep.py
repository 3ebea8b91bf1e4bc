"""What `tpusim sweep` does."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from tpusim.base.errors import TpusimError
from tpusim.base.files import make_folder, replacing
from tpusim.base.imports import need
from tpusim.cli.actions.results import write_pictures
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import present, say, show
from tpusim.report.tables.sweep import (
    POINTS_FILE,
    ColumnKinds,
    best,
    compared,
    layer_columns,
    over_lowerings,
    point_columns,
    write_csv,
    write_parquet,
)
from tpusim.study.processes import Processes
from tpusim.study.sweep.jobs import Executor, simulated
from tpusim.study.sweep.points import Point, Sweep, load_sweep
from tpusim.study.sweep.run import Outcome, keyed, missing, need_optuna, rows_of, run_search, run_sweep
from tpusim.study.sweep.store import FILE, DamagedStore, Store, sources_digest

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
        with closing(Store(folder / FILE)) as store:
            began = time.monotonic()
            outcome = _compute(sweep, store, folder, executor, fresh)
            seconds = time.monotonic() - began
            if not outcome.points:
                raise TpusimError(outcome.short)
            rows = rows_of(sweep, store, outcome.points)
            compares = over_lowerings([*sweep.axes]) and not sweep.goals
            present(sys.stdout, compared(rows) if compares else best(rows, [*sweep.axes], sweep.goals))
            say(sys.stdout, "")
            names = write_files(Finished(sweep, outcome.points, store, rows), folder, parquet, kinds)
    show(sys.stdout, f"In {folder}: {FILE}, {', '.join(names)}", _summary(outcome, seconds))
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
    with metered(total, folder / FILE, kept) as meter:
        if sweep.search:
            return run_search(sweep, store, executor, fresh, meter.show)
        return run_sweep(points, store, executor, fresh, meter.show)


@contextmanager
def metered(total: int, store: Path, kept: str) -> Iterator[Meter]:
    """A meter of points that are simulated into a store; what ends it early says where the finished ones are `kept`."""
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


# ---- what a sweep leaves beside its store: tables and pictures

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Finished:
    """A sweep whose points are in a store, each with its key, and a row a point."""

    sweep: Sweep
    points: Sequence[tuple[Point, str]]
    store: Store
    rows: Sequence[Row]

    def layer_rows(self) -> Iterator[Row]:
        """Yield a row a layer of every point."""
        points = [(point.workload, dict(point.settings)) for point, _ in self.points]
        done = (work for (work, _), row in zip(points, self.rows, strict=True) if not row["error"])
        count = sum(len(work.layers) for work in done)
        for row in self.store.layers([key for _, key in self.points], count):
            workload, settings = points[row["place"]]
            yield {**row, "workload": workload.name, "batch": workload.batch, **settings}


def write_files(finished: Finished, folder: Path, parquet: bool, kinds: Sequence[str]) -> list[str]:
    """Write points.csv, layers.csv, with `parquet` both in its form as well, and the pictures in `kinds` of files.

    Nothing is written when the same points gave files that are still as they were. Returns the names; raises
    InputError when a file cannot be written.
    """
    results = [(key, row["error"]) for (_, key), row in zip(finished.points, finished.rows, strict=True)]
    drawn_by = sources_digest("report/**/*.py", "result/**/*.py")
    inputs = drawn_by, finished.sweep, results, parquet, kinds
    written = chain(_written(finished, folder, parquet), _pictures(finished, folder, kinds))
    return kept_files(finished.store, folder, inputs, written)


def _written(finished: Finished, folder: Path, parquet: bool) -> Iterator[str]:
    axes = finished.sweep.axes
    tables: list[tuple[str, ColumnKinds, Callable[[], Iterable[Row]]]] = [
        ("points", point_columns(axes, bool(finished.sweep.goals)), lambda: finished.rows),
        ("layers", layer_columns(axes), finished.layer_rows),
    ]
    writers = {"csv": write_csv, **({"parquet": write_parquet} if parquet else {})}
    for stem, columns, content in tables:
        for kind, writer in writers.items():
            with replacing(folder / f"{stem}.{kind}") as file:
                writer(file, content(), columns)
            yield f"{stem}.{kind}"


def _pictures(finished: Finished, folder: Path, kinds: Sequence[str]) -> Iterator[str]:
    # Here, because matplotlib takes longer to import than a finished sweep to be looked up.
    from tpusim.report.plots.sweep import plots

    for path in write_pictures(folder, plots(finished.sweep, finished.rows), kinds):
        yield path.name


def kept_files(store: Store, folder: Path, inputs: object, written: Iterable[str]) -> list[str]:
    """The names of files, which are `written` only where what they depend on is not as it was, or a file is not.

    The text of `inputs` holds whatever they depend on.
    """

    def stamps(names: Iterable[str]) -> dict[str, str]:
        """Size and time of each file that is there."""
        found = ((name, folder / name) for name in names)
        return {name: f"{s.st_size} {s.st_mtime_ns}" for name, file in found if file.exists() for s in [file.stat()]}

    digest = sha256(repr(inputs).encode()).hexdigest()
    before = store.files(digest)
    if before and stamps(before) == before:
        return [*before]
    names = [*written]
    store.remember_files(digest, stamps(names))
    return names
