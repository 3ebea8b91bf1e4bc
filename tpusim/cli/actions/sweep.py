"""The action of `tpusim sweep`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tpusim.api.sweep import SweepAnswer, sweep, where_kept
from tpusim.base.errors import TpusimError
from tpusim.base.words import counted
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import present, say, show
from tpusim.report.tables.sweep import POINTS_FILE
from tpusim.study.sweep.points import load_sweep
from tpusim.study.sweep.store import FILE, DamagedStore

_MOST_FAILURES = 10
"""Failed points that the screen names one by one; points.csv has them all."""


def run_and_report(
    spec: str, out: Path | None, workers: int, cluster: str | None, *, fresh: bool, parquet: bool, kinds: Sequence[str]
) -> None:
    """Compute what is missing of a sweep, and leave its files in `out`, or in results/NAME.

    Raises:
        TpusimError: a point failed, and the others are there; or a search found no point.
    """
    read = load_sweep(spec)
    folder = out or Path("results") / read.name
    say(sys.stderr, read.summary)

    def note(text: str) -> None:
        say(sys.stderr, f"Note: {text}")

    with _interruptions_told(where_kept(folder, fresh)) as meter:
        made = sweep(read, folder, workers=workers, cluster=cluster, resume=not fresh, parquet=parquet, format=kinds,
                     progress=meter.step, note=note)  # fmt: skip
    present(sys.stdout, made.shown.paragraphs)
    outcome = made.outcome
    done = outcome.computed + outcome.failed
    counts = f"{outcome.computed:,} computed, {outcome.reused:,} there already, {outcome.failed:,} failed"
    rate = f", in {made.seconds:,.1f} s, {60 * done / made.seconds:,.0f} points a minute" if done else ""
    summary = f"{counted(len(outcome.points), 'point')}: {counts}{rate}"
    show(sys.stdout, "", f"In {folder}: {FILE}, {', '.join(made.files)}", summary)
    if outcome.short:
        say(sys.stderr, f"Note: {outcome.short}.")
    _report_failures(made, folder)


@contextmanager
def _interruptions_told(kept: str) -> Iterator[Meter]:
    """A meter of points that are stored; after Ctrl-C it says where the finished ones are `kept`."""
    with Meter(unit="points") as meter:
        try:
            yield meter
        except KeyboardInterrupt:
            say(sys.stderr, f"Interrupted after {meter.done:,} of {meter.total:,} points; {kept}.")
            raise


@contextmanager
def metered(total: int, store: Path, kept: str) -> Iterator[Meter]:
    """A meter of points that are simulated into a store; an early end says where the finished points are `kept`."""
    with _interruptions_told(kept) as meter:
        meter.total = total
        try:
            yield meter
        except TpusimError as error:
            if isinstance(error, DamagedStore) or not store.exists():
                raise
            raise type(error)(f"{error}; {kept}") from None


def _report_failures(made: SweepAnswer, folder: Path) -> None:
    """Raise TpusimError if there are any failures."""
    rows, axes = made.rows, made.found.axes
    failed = [row for row in rows if row["error"]]
    for row in failed[:_MOST_FAILURES]:
        settings = ", ".join(f"{axis}={row[axis]}" for axis in axes)
        say(sys.stderr, f"failed: {row['workload']} {settings}: {row['error']}")
    if len(failed) > _MOST_FAILURES:
        say(sys.stderr, f"... and {len(failed) - _MOST_FAILURES:,} more; points.csv has them all")
    if failed and len(failed) == len(rows):
        raise TpusimError(f"every one of {len(rows):,} points failed; their errors are in {folder / POINTS_FILE}")
    if failed:
        raise TpusimError(f"{len(failed):,} of {len(rows):,} points failed; the others are in {folder}")
