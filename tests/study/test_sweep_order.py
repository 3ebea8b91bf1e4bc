"""Points end in the order of their sweep, and are stored as they end: whoever stops it keeps what it was paid for."""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.study.small_sweep import QUICK, known, sweep
from tpusim.api import sweep as action
from tpusim.cli import app as cli
from tpusim.cli.progress import Meter
from tpusim.study.sweep.parcels import Assembly, Done, Parcel, WorkFinding, weight
from tpusim.study.sweep.points import Point, load_sweep
from tpusim.study.sweep.run import run_sweep
from tpusim.study.sweep.store import FILE, Store

MIXED = """
name: {name}
layers:
  - {{name: one, op: conv2d, in_channels: 5, in_height: {size}, in_width: 9, out_channels: 6, kernel: 3}}
  - {{name: act, op: sigmoid, channels: 6, height: 7, width: 7}}
  - {{name: pool, op: pool2d, channels: 6, in_height: 8, in_width: 8, kernel: 2, stride: 2, kind: max}}
  - {{name: norm, op: layer_norm, channels: 12, images: 4}}
  - {{name: fc, op: gemm, m: batch, n: 7, k: 9}}
"""
"""A network of several lowerings: the parcels of a point differ, the array's are long, others short."""
GRID = """
name: grid
workloads: [net.yaml, twin.yaml]
hardware: quick.yaml
batch: 2
axes:
  array.size: [2, 4]
  vector_memory.word_elements: [1, 2, 4]
"""


@pytest.fixture(autouse=True)
def desk(undrawn: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quick.yaml").write_text(QUICK)
    Path("net.yaml").write_text(MIXED.format(name="net", size=9))
    Path("twin.yaml").write_text(MIXED.format(name="twin", size=11))
    Path("grid.yaml").write_text(GRID)


@cache
def grid() -> tuple[Point, ...]:
    return load_sweep("grid.yaml").points


class TimeReport:
    """Workers whose parcels take as long as they are weighed, without doing them: it tells in which order they end."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.now = 0.0

    def outcomes(self, parcels: Sequence[Parcel]) -> Generator[Done]:
        waiting, running = iter(enumerate(parcels)), list[tuple[float, int, Parcel]]()

        def begin() -> None:
            for place, parcel in waiting:
                heapq.heappush(running, (self.now + weight(parcel), place, parcel))
                return

        for _ in range(self.workers):
            begin()
        while running:
            self.now, _, parcel = heapq.heappop(running)
            begin()
            yield parcel, ["not simulated"] * len(parcel)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_points_end_one_after_another(workers: int) -> None:
    points = {point.key: point for point in grid()}
    assembly, executor, keys = Assembly(points), TimeReport(workers), [*points]
    parcels = assembly.parcels(workers)
    # Otherwise any order would do.
    assert len({work.lowering for parcel in parcels for work in parcel}) > 1
    assert len(parcels) > len(points)
    ended: list[tuple[float, int]] = []
    for parcel, findings in executor.outcomes(parcels):
        ended += [(executor.now, keys.index(point.key)) for point, _ in assembly.add(parcel, findings)]
    assert sorted(place for _, place in ended) == [*range(len(points))]
    # Several at a time may end a few places early or late, but none waits for those behind it.
    assert all(abs(at - place) <= 2 * (workers - 1) for at, (_, place) in enumerate(ended))
    half = sum(time <= executor.now / 2 for time, _ in ended)
    assert half >= len(points) / 2 - workers - 1


@settings(max_examples=12)
@given(st.permutations(range(6)), st.integers(1, 4))
def test_a_parcel_that_a_point_needs_comes_ahead_of_those_that_only_later_points_need(
    order: list[int], many: int
) -> None:
    every = [(point.key, point) for point in grid()]
    points = dict(every[place] for place in order)
    assembly, keys = Assembly(points), [*points]
    done = [point.key for parcel in assembly.parcels(many) for point, _ in assembly.add(parcel, ["none"] * len(parcel))]
    assert done == keys


def test_each_point_is_in_the_store_before_the_next_is_begun() -> None:
    points = grid()
    keys = [point.key for point in points]
    seen: list[int] = []

    class Looking:
        workers = 1

        def outcomes(self, parcels: Sequence[Parcel]) -> Iterator[tuple[Parcel, Sequence[WorkFinding]]]:
            for parcel in parcels:
                yield parcel, known(parcel)
                with closing(sqlite3.connect(FILE)) as connection:
                    stored = {key for (key,) in connection.execute("SELECT key FROM points")}
                assert stored == {*keys[: len(stored)]}
                seen.append(len(stored))

    told: list[int] = []
    with closing(Store(Path(FILE))) as store:
        run_sweep(points, store, Looking(), False, lambda done, *_: told.append(done))  # type: ignore[arg-type]
    # Each number of stored points was there, and was told; the first is told before anything has ended.
    assert {*seen} | {0} == {*range(len(points) + 1)}
    assert told == [0, *seen]


def test_an_interrupted_sweep_keeps_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    parcels = Assembly({point.key: point for point in grid()}).parcels(1)
    left = len(parcels) // 2

    def interrupted(parcel: Parcel) -> Sequence[WorkFinding]:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        return known(parcel)

    monkeypatch.setattr(action, "simulated", interrupted)
    stopped = CliRunner().invoke(cli.app, ["sweep", "grid.yaml", "--out", "made", "--workers", "1"])
    assert stopped.exit_code == 130
    with closing(sqlite3.connect(Path("made") / FILE)) as connection:
        kept = int(connection.execute("SELECT count(*) FROM points").fetchone()[0])
    assert kept >= 5
    assert f"Interrupted after {kept} of 12 points; finished points are in made" in stopped.stderr
    assert f"12 points: {12 - kept} computed, {kept} there already" in sweep("grid.yaml", "--out", "made").stdout


def test_progress_says_how_many_points_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr("tpusim.cli.progress.QUIET_SECONDS", -1.0)
    monkeypatch.setattr("tpusim.cli.progress.FIRST_SECONDS", 60.0)
    monkeypatch.setattr("tpusim.cli.progress.say", lambda _, line: lines.append(line))
    with Meter(60, "points") as meter:
        meter.show(0, "net", 0.0)
        meter.show(7, "net", 0.1)
    assert lines[0].startswith("0/60 points stored, net")
    assert lines[1].startswith("7/60 points stored, net, ")
