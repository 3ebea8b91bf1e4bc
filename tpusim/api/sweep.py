"""`tpusim sweep`: every point of a sweep, or those that a search chooses, with its files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tpusim.api.answer import Answer, Row
from tpusim.api.asked import Note
from tpusim.api.pictures import write_pictures
from tpusim.base.errors import InputError, TpusimError
from tpusim.base.files import make_folder, named, replacing
from tpusim.base.imports import need
from tpusim.base.words import counted
from tpusim.input.scalars import integer
from tpusim.machines.lowered import unheard
from tpusim.report.plots import known_formats
from tpusim.report.shown import CommandAnswer, Paragraphs, Sentences
from tpusim.report.tables import sweep as tables
from tpusim.report.tables.hardware import part_notice
from tpusim.report.tables.sweep import SweepPoints
from tpusim.result.vocabulary.figures import COLUMNS, in_frame
from tpusim.study.sweep.parcels import Executor, simulated
from tpusim.study.sweep.points import Point, Sweep, load_sweep
from tpusim.study.sweep.run import SweepOutcome, need_optuna, points_open, rows_of, run_search, run_sweep
from tpusim.study.sweep.store import FILE, DamagedStore, Store, alone, sources_digest
from tpusim.study.worker_processes import Processes

SweepProgress = Callable[[int, int, str, float], None]
"""Called with the points that are stored, all points, the workload of the last one, and the share of the work done."""
_JOIN_SECONDS = 10.0


@dataclass(frozen=True, repr=False, kw_only=True)
class SweepAnswer(Answer):
    """The points of a sweep; `found` is the `Sweep` as it was read.

    Attributes:
        points: the points as their file has them, for `compare` and `report`; None where every point failed.
        outcome: how many were computed, and how many were there already.
        files: names of the files in its folder; none where no folder was asked for.
        seconds: seconds that it took on this computer.
    """

    points: SweepPoints | None
    outcome: SweepOutcome
    files: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """The name of the sweep, and how many points it has."""
        return f"{self.found.name}, {counted(len(self.rows), 'point')}"


def sweep(
    spec: str | Path | Mapping[str, Any] | Sweep,
    out: str | Path | None = None,
    *,
    workers: int = 1,
    cluster: str | None = None,
    resume: bool = True,
    parquet: bool = False,
    format: str | Sequence[str] = (),
    progress: SweepProgress = unheard,
    note: Note = unheard,
) -> SweepAnswer:
    """Simulate every point of a sweep, timing alone, as `tpusim sweep` does.

    Args:
        spec: a name that `tpusim list` shows, a path, or what such a file holds, as a mapping; its workloads may then
            be those of `from_jax`, too.
        out: folder of the results, which are not computed again; None: nothing is kept but the answer.
        workers: processes; with several, a script must do its work below `if __name__ == "__main__":`.
        cluster: address of a Dask cluster that works instead of processes here.
        resume: keep points that are in `out` already.
        parquet: also write points.parquet and layers.parquet.
        format: formats of pictures to draw into `out`, such as png; one, or several.
        progress: called with points stored, all points, the workload of the last one, and the share of the work.
        note: called with what there is to know of the workloads.

    Raises:
        InputError: with every problem of the spec, or files cannot be written.
        TpusimError: a search found no point. A point that fails says so in its row, and the others go on.

    Examples:
        >>> import tpusim
        >>> answer = tpusim.sweep({
        ...     "workloads": "tiny", "hardware": "tiny_4x4", "axes": {"array.count": [1, 2], "batch": [2, 4]},
        ... })
        >>> answer.to_frame()[["array.count", "batch", "cycles"]].values.tolist()
        [[1, 2, 224], [1, 4, 299], [2, 2, 229], [2, 4, 300]]
    """
    read = spec if isinstance(spec, Sweep) else load_sweep(spec)
    for each in read.notes:
        note(each)
    if parquet:
        need("--parquet", "pyarrow", "pyarrow.parquet")
    if read.search:
        need_optuna()
    kinds = known_formats(format) if format else ()
    if kinds and out is None:
        raise InputError("pictures go into a folder; give out=, or no format")
    if integer(workers) is None or workers < 1:
        raise InputError(f"workers: {workers!r:.80} is no number of processes; write a whole number, 1 or more")
    if not isinstance(cluster, str | None):
        raise InputError(f"cluster: {cluster!r:.80} is no address; write text, such as tcp://10.0.0.5:8786")
    with _executor(workers, cluster, note) as executor:
        if out is not None:
            return _swept(read, named(out), executor, resume, parquet, kinds, progress)
        with TemporaryDirectory() as folder:
            return _swept(read, Path(folder), executor, resume, False, kinds, progress, kept=False)


def _swept(
    sweep: Sweep, folder: Path, executor: Executor, resume: bool, parquet: bool, kinds: Sequence[str],
    progress: SweepProgress, kept: bool = True,
) -> SweepAnswer:  # fmt: skip
    make_folder(folder)
    with alone(folder), closing(Store(folder / FILE)) as store:
        began = time.monotonic()
        outcome = _compute(sweep, store, folder, executor, not resume, progress)
        seconds = time.monotonic() - began
        if not outcome.points:
            raise TpusimError(outcome.short)
        rows = rows_of(sweep, store, outcome.points)
        axis = "" if sweep.goals else tables.compares([*sweep.axes])
        told = tables.compared(rows, axis) if axis else tables.best(rows, [*sweep.axes], sweep.goals)
        notice = tables.word_notice(outcome.points, store.word_fills([point.key for point in outcome.points]))
        parts = part_notice(dict.fromkeys(point.jobs.hardware for point in outcome.points))
        more: Paragraphs = [[Sentences([*filter(None, [parts, notice])], wide=True)]]
        files = _write_files(sweep, outcome.points, store, rows, folder, parquet, kinds)
    failed = all(row["error"] for row in rows)
    points = None if failed else tables.read_points(folder / tables.POINTS_FILE, named=sweep.name)
    columns = [*tables.point_columns(sweep.axes, bool(sweep.goals))]
    framed = [{in_frame(key) if key in COLUMNS else key: row[key] for key in columns if key in row} for row in rows]
    shown = CommandAnswer([*told, *more], {"sweep": sweep.name, "setup": sweep.setup, "points": rows})
    names = tuple(files) if kept else ()
    return SweepAnswer(shown, framed, sweep, sweep.notes, points=points, outcome=outcome, files=names, seconds=seconds)


def _compute(
    sweep: Sweep, store: Store, folder: Path, executor: Executor, fresh: bool, progress: SweepProgress
) -> SweepOutcome:
    """Simulate missing points; an error says where the finished points are."""
    total = sweep.search.budget if sweep.search else points_open(sweep.points, store, fresh)

    def told(done: int, name: str, share: float) -> None:
        progress(done, total, name, share)

    try:
        if sweep.search:
            return run_search(sweep, store, executor, fresh, told)
        return run_sweep(sweep.points, store, executor, fresh, told)
    except TpusimError as error:
        if isinstance(error, DamagedStore) or not (folder / FILE).exists():
            raise
        raise type(error)(f"{error}; {where_kept(folder, fresh)}") from None


def where_kept(folder: Path, fresh: bool) -> str:
    """Say where the points are that were finished before an end."""
    return f"finished points are in {folder}; the same command{' without --fresh' * fresh} continues"


@contextmanager
def _executor(workers: int, cluster: str | None, note: Note) -> Iterator[Executor]:
    if cluster is None:
        with Processes(simulated, workers) as processes:
            yield processes
        return
    need("--cluster", "distributed", "distributed")
    # Imported here, because Dask is an extra.
    from tpusim.study.sweep.cluster import Cluster

    with Cluster(cluster) as members:
        if not members.workers:
            note(f"Waiting {_JOIN_SECONDS:g} seconds for a worker to join {cluster} ...")
            members.wait_for_workers(_JOIN_SECONDS)
        members.check_workers()
        yield members


# ---- files beside the store of a sweep: tables and pictures


def _write_files(
    sweep: Sweep,
    points: Sequence[Point],
    store: Store,
    rows: Sequence[Row],
    folder: Path,
    parquet: bool,
    kinds: Sequence[str],
) -> list[str]:
    """Write points.csv, layers.csv, with `parquet` both in its form as well, and the pictures in `kinds` of files.

    `points` are in the store, and have a row each. Nothing is written when the same points gave
    files that are still as they were. Returns the names; raises InputError when a file cannot be written.
    """

    def point_rows() -> Iterator[Row]:
        """A row for each point, with what the front of all was asked for, and the setup."""
        told = tables.told_of_all(sweep.goals, sweep.setup)
        return ({**row, **told} for row in rows)

    def layer_rows() -> Iterator[Row]:
        """A row for each layer of every point."""
        done = [point for point, row in zip(points, rows, strict=True) if not row["error"]]
        count = sum(len(point.jobs.work.layers) for point in done)
        for row in store.layers([point.key for point in done], count):
            point = done[row["place"]]
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
        if not kinds:
            return
        # Imported here, because matplotlib takes longer to import than a finished sweep takes to be looked up.
        from tpusim.report.plots.sweep import plots

        for path in write_pictures(folder, plots(sweep, rows), kinds):
            yield path.name

    results = [(point.key, row["error"]) for point, row in zip(points, rows, strict=True)]
    inputs = sources_digest("report/**/*.py", "result/**/*.py"), sweep, results, parquet, kinds
    return store.kept_files(inputs, written())
