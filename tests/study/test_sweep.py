"""Sweeps: what a spec may say, that every point is what a run of its own gives, and that nothing is lost."""

from __future__ import annotations

import csv
import dataclasses
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.study.small_sweep import NET, QUICK, SPEC, stored, sweep
from tests.written import by_hand
from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.input.source import shipped
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.study.sweep.axes import Constraint
from tpusim.study.sweep.parcels import simulated
from tpusim.study.sweep.points import FOLDER, Sweep, load_sweep
from tpusim.study.sweep.reader import MOST_POINTS
from tpusim.study.sweep.run import run_sweep
from tpusim.study.sweep.store import FILE, LOCK, Store, alone
from tpusim.study.worker_processes import Processes


@pytest.fixture(autouse=True)
def desk(undrawn: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with one network and one spec."""
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(NET)
    Path("quick.yaml").write_text(QUICK)
    Path("small.yaml").write_text(SPEC)
    return tmp_path


def rows(folder: str = "results/small") -> list[dict[str, Any]]:
    with (Path(folder) / "points.csv").open() as file:
        return list(csv.DictReader(file))


def test_every_point_is_what_a_run_gives() -> None:
    shown = sweep("small.yaml")
    assert shown.exit_code == 0, shown.output
    assert "9 points: 9 computed, 0 there already, 0 failed" in shown.stdout
    for row in rows()[::2]:
        changes = [f"{path}={row[path]}" for path in ("array.size", "vector_memory.word_elements")]
        total = simulate(load_workload("net.yaml", batch=2), load_hardware("quick.yaml", changes), check=False).total
        assert float(row["cycles"]) == total.cycles
        assert float(row["pe_utilization"]) == pytest.approx(total.pe_utilization)
        assert float(row["port_idle_ratio"]) == pytest.approx(total.vector_memory.port_idle_ratio)


MACHINES = """
name: machines
workloads: [net.yaml]
batch: 2
axes:
  hardware: [tiny_4x4, cramped.yaml, tpu_v6e]
"""


def test_machines_are_compared_and_what_one_refuses_is_told() -> None:
    cramped = (ROOT / "configs/tiny_4x4.yaml").read_text().replace("tiny_4x4", "cramped")
    Path("cramped.yaml").write_text(cramped.replace("4 KiB", "16 B"))
    Path("machines.yaml").write_text(MACHINES)
    shown = sweep("machines.yaml")
    assert shown.exit_code == 1
    assert "3 points: 2 computed, 0 there already, 1 failed" in shown.stdout
    assert "failed: net hardware=cramped: layer one: " in shown.stderr
    for row in rows("results/machines"):
        if row["hardware"] == "cramped":
            assert row["error"].startswith("layer one: ")
            continue
        total = simulate(load_workload("net.yaml", batch=2), load_hardware(row["hardware"]), check=False).total
        assert float(row["cycles"]) == total.cycles
        assert float(row["pes"]) == load_hardware(row["hardware"]).pes
    assert "0 computed, 2 there already, 1 failed" in sweep("machines.yaml").stdout
    Path("machines.yaml").write_text(MACHINES.replace("tpu_v6e]", "tpu_v6e, tpu_v2]"))
    assert "1 computed, 2 there already, 1 failed" in sweep("machines.yaml").stdout


GRAPH = """
name: graph
layers:
  - {name: one, op: conv2d, in_channels: 4, in_height: 6, in_width: 6, out_channels: 4, kernel: 3, padding: 1}
  - {name: relu, op: relu, inputs: [one]}
  - {name: two, op: conv2d, out_channels: 4, kernel: 1}
  - {name: sum, op: add, inputs: [two, relu]}
"""
TOGETHER = """
name: together
workloads: [graph.yaml]
hardware: quick.yaml
batch: 2
axes:
  sequencer.between_layers: [drain, overlap, stay]
  sequencer.fusion: [none, results]
  vector_memory.capacity: [4 KiB, 16 B]
"""


def test_layers_that_overlap_or_ride_are_swept_as_they_run() -> None:
    """A network is one job then; one that cannot be simulated is a point that fails, and says where."""
    Path("graph.yaml").write_text(GRAPH)
    Path("together.yaml").write_text(TOGETHER)
    shown = sweep("together.yaml")
    assert "12 points: 6 computed, 0 there already, 6 failed" in shown.stdout
    seen = rows("results/together")
    for row in (row for row in seen if not row["error"]):
        changes = [f"{path}={row[path]}" for path in ("sequencer.between_layers", "sequencer.fusion")]
        result = simulate(load_workload("graph.yaml", batch=2), load_hardware("quick.yaml", changes), check=False)
        assert float(row["cycles"]) == result.total.cycles
        assert float(row["hbm_read_bytes"]) == result.total.hbm_read_bytes
    assert len({row["cycles"] for row in seen}) == 7
    assert {row["error"].partition(":")[0] for row in seen if row["error"]} == {"layer one"}
    assert "12 points: 0 computed, 6 there already, 6 failed" in sweep("together.yaml").stdout


def test_what_layers_read_is_in_the_key_of_a_point() -> None:
    Path("graph.yaml").write_text(GRAPH)
    Path("together.yaml").write_text(TOGETHER)
    keys = {point.key for point in load_sweep("together.yaml").points}
    Path("graph.yaml").write_text(GRAPH.replace("[two, relu]", "[two, one]"))
    assert keys.isdisjoint({point.key for point in load_sweep("together.yaml").points})


def test_layers_are_stored_with_their_names() -> None:
    sweep("small.yaml")
    with sqlite3.connect("results/small/sweep.sqlite") as connection:
        names = connection.execute("SELECT name, cycles FROM layers WHERE key = (SELECT key FROM points LIMIT 1)")
        found = names.fetchall()
    assert [name for name, _ in found] == ["one", "two", "fc"]
    assert found[0][1] == found[1][1]


def test_a_second_run_computes_nothing_and_a_longer_one_only_what_is_missing() -> None:
    sweep("small.yaml")
    before = stored("results/small")
    assert "0 computed, 9 there already" in sweep("small.yaml").stdout
    assert stored("results/small") == before
    Path("small.yaml").write_text(SPEC.replace("[2, 4, 8]", "[2, 4, 8, 16]"))
    assert "3 computed, 9 there already" in sweep("small.yaml").stdout
    assert "12 computed, 0 there already" in sweep("small.yaml", "--fresh").stdout


def test_a_point_that_fails_is_told_and_stops_nothing() -> None:
    Path("small.yaml").write_text(SPEC + "  vector_memory.capacity: [16 B, 4 KiB]\n")
    shown = sweep("small.yaml")
    assert shown.exit_code == 1
    failed = [row for row in rows() if row["error"]]
    assert 0 < len(failed) < len(rows()) == 18
    assert "vector_memory.capacity=16 B: layer one: the smallest tiling needs" in shown.stderr
    assert f"{len(failed)} of 18 points failed" in shown.stderr


def test_another_lowering_makes_other_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def larger(layer: Any, batch: int, hardware: Any) -> Any:
        return CHANNEL_FIRST.lower(dataclasses.replace(layer, name="any"), 2 * batch, hardware)

    sweep("small.yaml")
    before = {row["cycles"] for row in rows()}
    monkeypatch.setitem(LOWERINGS, "larger", by_hand("larger", larger))
    Path("small.yaml").write_text(SPEC + "lowering: larger\n")
    assert "9 computed, 0 there already" in sweep("small.yaml").stdout
    assert not before & {row["cycles"] for row in rows()}


def test_constraints_leave_points_out() -> None:
    Path("small.yaml").write_text(SPEC + "where:\n  - array.size_ok\n".replace("array.size_ok", "lanes * 2 <= 8"))
    sweep("small.yaml")
    assert {row["array.size"] for row in rows()} == {"2", "4"}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("vector_memory.capacity * lanes == 32 MiB", True),
        ("vector_memory.capacity * lanes == 16 MiB", False),
        ("hbm.bandwidth >= 0.7 TB/s and clock == 700 MHz", True),
        ("not array.rows < array.cols", True),
        ("batch * 2 - 1 == 15 or pes < 1", True),
        ("hbm.latency < 1 us", True),
    ],
)
def test_what_a_constraint_means(text: str, holds: bool) -> None:
    assert Constraint.parse(text).holds(load_hardware("tpu_v2"), 8) is holds


@pytest.mark.parametrize(
    "text",
    ["", "1", "array.rowz == 4", "__import__(7)", "lanes ** 9 == 1", "(lambda: 1)() == 1", "lanes ==", "lanes == 'a'",
     "[1] == [1]", "lanes = 4", 7, None, "lanes.real == 1"],
)  # fmt: skip
def test_what_is_no_constraint(text: Any) -> None:
    with pytest.raises(InputError):
        Constraint.parse(text)


def test_zip_takes_values_side_by_side() -> None:
    Path("small.yaml").write_text(SPEC.replace("axes:", "combine: zip\naxes:"))
    sweep("small.yaml")
    pairs = [(row["array.size"], row["vector_memory.word_elements"]) for row in rows()]
    assert pairs == [("2", "1"), ("4", "2"), ("8", "4")]


MISTAKES = [
    ("axes:", "axis:", "did you mean axes"),
    ("array.size: [2, 4, 8]", "array.sise: [2, 4, 8]", "did you mean array.size"),
    ("array.size: [2, 4, 8]", "array.size: []", "is no axis"),
    ("array.size: [2, 4, 8]", "array.size: [2, four]", "four"),
    ("array.size: [2, 4, 8]", "array.size: {range: [9, 1]}", "range"),
    ("array.size: [2, 4, 8]", "array.size: {powers_of_two: [3, 9]}", "powers of two"),
    ("[net.yaml]", "[nets.yaml]", "no such file"),
    ("[net.yaml]", "[]", "write one workload"),
    ("quick.yaml", "tiny_5x5", "did you mean tiny_4x4"),
    ("batch: 2", "batch: 0", "out of range"),
    ("batch: 2", "lowering: chanel_first", "did you mean channel_first"),
    ("batch: 2", "lowering: [1]", "unknown lowering [1]; there is "),
    ("batch: 2", "combine: gird", "write grid or zip"),
    ("batch: 2", "combine: zip\nwhere: array.row == 1", "did you mean array.rows"),
    ("[2, 4, 8]", "[2, 4]\n  batch: {range: [1, 100000]}", "600,000 points; a sweep has at most 100,000"),
    ("[2, 4, 8]", "{range: [1, 1000000000]}", "3,000,000,000 points; a sweep has at most 100,000"),
]


@pytest.mark.parametrize(("old", "new", "says"), MISTAKES, ids=lambda value: str(value)[:40])
def test_mistakes_are_told_before_anything_runs(old: str, new: str, says: str) -> None:
    assert old in SPEC
    Path("small.yaml").write_text(SPEC.replace(old, new))
    shown = sweep("small.yaml")
    assert shown.exit_code == 2, shown.output
    assert says in shown.stderr
    assert not Path("results").exists()


def test_a_constraint_that_nothing_satisfies() -> None:
    Path("small.yaml").write_text(SPEC + "where: lanes > 1000\n")
    shown = sweep("small.yaml")
    assert shown.exit_code == 2
    assert "none of the 9 combinations of the axes' values satisfies lanes > 1000" in shown.stderr
    assert not Path("results").exists()


def test_a_place_that_cannot_be_written() -> None:
    assert "net.yaml: it is a file; name a folder" in sweep("small.yaml", "--out", "net.yaml").stderr
    Path("folder").mkdir()
    Path("folder/sweep.sqlite").write_text("this is not a database, but long enough to be read as one" * 50)
    shown = sweep("small.yaml", "--out", "folder")
    assert shown.exit_code == 2
    assert "cannot be used as the results of a sweep" in shown.stderr


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment_nothing_is_lost_or_twice(seed: int) -> None:
    """kill -9, then the same command: the same rows as an uninterrupted run. See test_sweep_store, too."""
    words = [sys.executable, "-m", "tpusim", "sweep", "small.yaml", "--workers", "2", "--out"]
    sweep("small.yaml", "--out", "whole")
    running = subprocess.Popen([*words, "killed"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(random.Random(seed).uniform(0.6, 1.6))
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert subprocess.run([*words, "killed"], capture_output=True, check=False).returncode == 0
    assert stored("killed") == stored("whole")
    assert rows("killed") == rows("whole")


def test_two_sweeps_in_one_folder_at_once() -> None:
    """The second does not compute all that the first computes; a killed one holds nothing."""
    with another() as first:
        second = sweep("small.yaml", "--out", ".")
        assert (second.exit_code, Path(FILE).exists()) == (2, False)
        assert "Error: .: another tpusim sweep is at work there; wait until it ends" in second.stderr
        assert sweep("small.yaml", "--out", "elsewhere").exit_code == 0
        os.kill(first, signal.SIGKILL)
    done = sweep("small.yaml", "--out", ".")
    assert (done.exit_code, "9 computed" in done.stdout) == (0, True), done.output
    assert stored(".") == stored("elsewhere")
    assert not Path(LOCK).exists()


@contextmanager
def another() -> Iterator[int]:
    """A process at work in this folder, which somebody else has to end."""
    here, there = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            with alone(Path()):
                os.write(there, b".")
                time.sleep(60)
        finally:
            os._exit(1)
    # A child that fails leaves a pipe that nobody writes into, whose reader need not wait.
    os.close(there)
    try:
        assert os.read(here, 1) == b"."
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(here)


def test_progress_is_the_share_of_the_work_that_is_done() -> None:
    found = load_sweep("small.yaml")
    told: list[tuple[int, str, float]] = []
    with closing(Store(Path(FILE))) as store, Processes(simulated, 1) as executor:
        run_sweep(found.points, store, executor, False, lambda *each: told.append(each))
    counts, names, shares = zip(*told, strict=True)
    assert (counts[-1], {*names[-1:]}, shares[-1]) == (9, {"net"}, pytest.approx(1))
    # It is told what is begun, too.
    assert told[0] == (0, "net", 0)
    assert 0 < shares[1] < 1
    assert list(shares) == sorted(shares)


def test_words_partly_used_are_told_once() -> None:
    """Two images, and two rows of a product, in words of 1, 2 and 4 elements: of a third of all half is empty."""
    told = [" ".join(sweep("small.yaml").stdout.split()) for _ in range(2)]
    for each in told:
        assert each.count("Words partly used") == 1
        assert "Words partly used in 3 of 9 points: as few as 2 of 4 elements hold anything (a layer of net at" in each
    Path("full.yaml").write_text(SPEC.replace("batch: 2", "batch: 4"))
    assert "Words partly used" not in sweep("full.yaml").stdout


LARGE: dict[str, tuple[tuple[str, str], ...]] = {
    "decode": (("hardware: [tpu_v5p_core, tpu_v6e,", "hardware: ["), ("[1, 32]", "[16, 32]"), ("[1024, ", "[")),
    "generations": (("workloads: [alexnet, densenet121, googlenet, resnet50, vgg16, yolov2, zfnet, ", "workloads: ["),),
    "search": (("rows: {range: [32, 256, 16]}", "rows: {range: [32, 256, 224]}"),),
}
"""What makes shipped sweeps that take long to make shorter: each axis and each machine or network is left."""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.long] * (each in LARGE)) for each in shipped(FOLDER)]
)
def test_shipped_sweeps_are_sound(name: str) -> None:
    sound(load_sweep(name))


@pytest.mark.parametrize("name", LARGE)
def test_large_shipped_sweeps_are_sound_in_part(name: str) -> None:
    text = (ROOT / FOLDER / f"{name}.yaml").read_text()
    for old, new in LARGE[name]:
        assert text.count(old) == 1
        text = text.replace(old, new)
    Path("part.yaml").write_text(text)
    sound(load_sweep("part.yaml"))


def sound(spec: Sweep) -> None:
    assert 1 < spec.size < MOST_POINTS
    assert len({(point.jobs.work, point.settings) for point in spec.points}) == (0 if spec.search else spec.size)


def test_pictures_of_one_axis_and_of_two() -> None:
    sweep("small.yaml")
    assert {path.name for path in Path("results/small").glob("*.svg")} == {"utilization_net.svg", "tflops_net.svg"}
    Path("small.yaml").write_text(SPEC.replace("  array.size: [2, 4, 8]\n", ""))
    sweep("small.yaml", "--out", "one")
    assert {path.name for path in Path("one").glob("*.svg")} == {"throughput.svg", "port_idle.svg"}
