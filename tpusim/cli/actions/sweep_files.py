"""What a sweep leaves beside its store: tables and pictures, written again only when something in them may change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tpusim.base.files import replacing
from tpusim.cli.actions.plot import write_pictures
from tpusim.report.tables.sweep_export import Columns, layer_columns, point_columns, write_csv, write_parquet
from tpusim.study.sweep.keys import sources_digest
from tpusim.study.sweep.space import Point
from tpusim.study.sweep.spec import Sweep
from tpusim.study.sweep.store import Store

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
    digest = _digest(finished, parquet, kinds)
    before = finished.store.files(digest)
    if before and stamps(folder, before) == before:
        return list(before)
    names = [*_tables(finished, folder, parquet), *_pictures(finished, folder, kinds)]
    finished.store.remember_files(digest, stamps(folder, names))
    return names


def _tables(finished: Finished, folder: Path, parquet: bool) -> Iterator[str]:
    axes = finished.sweep.axes
    tables: list[tuple[str, Columns, Callable[[], Iterable[Row]]]] = [
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
    from tpusim.report.plots.sweep_plots import plots

    for path in write_pictures(folder, plots(finished.sweep, finished.rows), kinds):
        yield path.name


def _digest(finished: Finished, parquet: bool, kinds: Sequence[str]) -> str:
    """Return a digest of all that the files depend on."""
    results = [(key, row["error"]) for (_, key), row in zip(finished.points, finished.rows, strict=True)]
    drawn_by = sources_digest("report/**/*.py", "result/**/*.py")
    return sha256(repr((drawn_by, finished.sweep, results, parquet, kinds)).encode()).hexdigest()


def stamps(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return size and time of each file that is there."""
    found = ((name, folder / name) for name in names)
    return {name: f"{s.st_size} {s.st_mtime_ns}" for name, file in found if file.exists() for s in [file.stat()]}
