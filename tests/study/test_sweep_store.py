"""What a sweep keeps, whatever happens to it: killed, interrupted, shared, on a full disk, on a foreign file."""

from __future__ import annotations

import csv
import dataclasses
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests import ROOT, forked
from tests.conftest import draw_nothing
from tests.study.small_sweep import NET, QUICK, SPEC, stored, sweep, swept_anew
from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.cli import app as cli
from tpusim.flow.jobs import Jobs, resolve
from tpusim.flow.simulation import run
from tpusim.result.vocabulary.figures import FIGURES
from tpusim.study.sweep.parcels import Assembly, simulated
from tpusim.study.sweep.points import load_sweep
from tpusim.study.sweep.run import run_sweep
from tpusim.study.sweep.store import _MODEL as MODEL
from tpusim.study.sweep.store import FILE, Store, key_of, sources_digest
from tpusim.study.worker_processes import Processes


@pytest.fixture(autouse=True)
def desk(undrawn: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two networks and two specs."""
    monkeypatch.chdir(tmp_path)
    lay_out()
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the longer sweep leaves where nothing happens to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("whole"))
        draw_nothing(patch)
        lay_out()
        assert sweep("long.yaml", "--out", "whole").exit_code == 0
        return Path("whole").resolve()


def lay_out() -> None:
    Path("net.yaml").write_text(NET)
    Path("quick.yaml").write_text(QUICK)
    Path("small.yaml").write_text(SPEC)
    Path("large.yaml").write_text(NET.replace("in_height: 9", "in_height: 40"))
    Path("long.yaml").write_text(SPEC.replace("[2, 4, 8]", "{range: [2, 11]}").replace("net.yaml", "large.yaml"))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tpusim", "sweep", *arguments]


def there(folder: str) -> int:
    """Points in a store that somebody is writing."""
    try:
        with closing(sqlite3.connect(f"file:{folder}/{FILE}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM points").fetchone()[0])
    except sqlite3.Error:
        return 0


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for(points: int, folder: str, running: subprocess.Popen[str]) -> None:
    """Until so many points are stored; a little later than that at random."""
    while there(folder) < points and running.poll() is None:
        time.sleep(0.002)
    time.sleep(random.Random(points).uniform(0, 0.02))


def test_killed_in_the_middle_nothing_is_lost_or_twice(whole: Path) -> None:
    """kill -9 of its only process; then the same rows as an uninterrupted run."""
    running = forked.begun("sweep", "long.yaml", "--workers", "1", "--out", "killed")
    while there("killed") < 8:
        assert os.waitpid(running, os.WNOHANG) == (0, 0), "it ended before it was killed"
        time.sleep(0.01)
    os.kill(running, signal.SIGKILL)
    os.waitpid(running, 0)
    continued(there("killed"), whole)


def continued(kept: int, whole: Path) -> None:
    """The same command ends what was killed."""
    assert 0 < kept < 30, "the kill came too late or too early to prove anything"
    last = sweep("long.yaml", "--out", "killed")
    assert f"{30 - kept} computed, {kept} there already" in last.stdout
    assert stored("killed") == stored(str(whole))
    for name in ("points.csv", "layers.csv"):
        assert Path("killed", name).read_text() == (whole / name).read_text()


@pytest.mark.long
@pytest.mark.parametrize("moments", [(8,), (1, 20)], ids=["once", "twice"])
def test_killed_again_and_again_nothing_is_lost_or_twice(moments: tuple[int, ...], whole: Path) -> None:
    """kill -9 early and late, of all its processes; then the same rows as an uninterrupted run."""
    counts = []
    for points in moments:
        running = started("long.yaml", "--workers", "2", "--out", "killed")
        wait_for(points, "killed", running)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        counts.append(there("killed"))
    assert counts[0] < 30, "the first kill came too late to prove anything"
    assert counts == sorted(counts)
    continued(counts[-1], whole)


@pytest.mark.long
@pytest.mark.parametrize("points", [1, 8])
def test_ctrl_c_keeps_what_is_finished_and_says_so(points: int) -> None:
    running = started("long.yaml", "--workers", "2", "--out", "stopped")
    wait_for(points, "stopped", running)
    os.killpg(running.pid, signal.SIGINT)
    shown, told = running.communicate(timeout=20)
    assert running.returncode == 130, told
    assert "there already" not in shown
    told_lines = [line for line in told.splitlines() if not line.endswith("...")]
    assert len(told_lines) == 2, told
    assert re.fullmatch(
        r"Interrupted after \d+ of 30 points; finished points are in stopped; the same command continues.",
        told_lines[1],
    )
    kept = there("stopped")
    assert points <= kept < 30
    assert f"{30 - kept} computed, {kept} there already" in sweep("long.yaml", "--out", "stopped").stdout


@pytest.mark.long
def test_several_sweeps_on_one_new_store_at_once() -> None:
    """One works; the other is refused while it does, and finds all of it done afterwards."""
    together = [started("small.yaml", "--workers", "1", "--out", "shared") for _ in range(2)]
    told = [each.communicate()[1] for each in together]
    refused = [each.returncode == 2 and "another tpusim sweep is at work there" in said
               for each, said in zip(together, told, strict=True)]  # fmt: skip
    assert not all(refused)
    assert all(each.returncode == 0 or no for each, no in zip(together, refused, strict=True)), told
    sweep("small.yaml", "--out", "alone")
    assert stored("shared") == stored("alone")


def test_a_full_disk_is_told_and_what_was_finished_goes_on(whole: Path) -> None:
    """A limit on the size of files stands for the disk."""

    def small_disk() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (130_000, 130_000))

    full = forked.tpusim("sweep", "long.yaml", "--workers", "1", "--out", "full", first=small_disk)
    assert full.returncode == 2, full.stderr
    assert "full/sweep.sqlite: cannot be written" in full.stderr
    assert "finished points are in full; the same command continues" in full.stderr
    assert "Traceback" not in full.stderr
    kept = there("full")
    assert 0 < kept < 30
    assert f"{30 - kept} computed, {kept} there already" in sweep("long.yaml", "--out", "full").stdout
    assert stored("full") == stored(str(whole))


@pytest.mark.parametrize("folder", ["net.yaml/below", "/proc/below", "/dev/null/below"])
def test_a_place_where_nothing_can_be_written(folder: str) -> None:
    shown = sweep("small.yaml", "--out", folder)
    assert shown.exit_code == 2
    assert "cannot be written" in shown.stderr
    assert "Traceback" not in shown.output


def database(path: str, *statements: str) -> bytes:
    Path(path).parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return Path(path).read_bytes()


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (["CREATE TABLE songs (name TEXT)"], "it holds something else"),
        (["CREATE TABLE points (key TEXT)"], "it holds something else than the results of a sweep, or those of an old"),
        ([f"PRAGMA application_id = {int.from_bytes(b'tpus')}", "PRAGMA user_version = 999", "CREATE TABLE t (a)"],
         "another version of tpusim wrote it"),
    ],
)  # fmt: skip
def test_a_store_of_something_else_is_left_as_it_is(statements: list[str], says: str) -> None:
    before = database("other/sweep.sqlite", *statements)
    shown = sweep("small.yaml", "--out", "other")
    assert shown.exit_code == 2
    assert says in shown.stderr
    assert "take another --out, or move it away" in shown.stderr
    assert Path("other/sweep.sqlite").read_bytes() == before
    assert [path.name for path in Path("other").iterdir()] == ["sweep.sqlite"]


def test_a_store_of_other_columns_is_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is simulated, and however many columns came or went without a thought of this."""
    Path("old").mkdir()
    with monkeypatch.context() as earlier:
        # The last, which is put back where it was.
        earlier.delitem(FIGURES, [*FIGURES][-1])
        found = find_spec("tpusim.study.sweep.store")
        assert found is not None
        assert found.loader is not None
        store = module_from_spec(found)
        found.loader.exec_module(store)
        store.Store(Path("old", FILE)).close()
    before = Path("old", FILE).read_bytes()
    shown = sweep("small.yaml", "--out", "old")
    assert shown.exit_code == 2
    assert "another version of tpusim wrote it" in shown.stderr
    assert "0/9" not in shown.stderr
    assert Path("old", FILE).read_bytes() == before
    assert [path.name for path in Path("old").iterdir()] == [FILE]


def test_a_second_run_writes_no_file_and_a_lost_one_comes_back() -> None:
    sweep("small.yaml")
    folder = Path("results/small")
    times = {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != FILE}
    assert {"points.csv", "layers.csv", "utilization_net.png"} <= set(times)
    sweep("small.yaml")
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != FILE} == times
    (folder / "layers.csv").unlink()
    (folder / "points.csv").write_text("changed")
    sweep("small.yaml")
    assert len((folder / "layers.csv").read_text().splitlines()) == 1 + 27
    assert len((folder / "points.csv").read_text().splitlines()) == 1 + 9


def test_resume_is_the_default_by_name() -> None:
    sweep("small.yaml")
    assert "0 computed, 9 there already, 0 failed" in sweep("small.yaml", "--resume").stdout
    again = sweep("small.yaml", "--fresh").stdout
    assert re.search(r"9 points: 9 computed, 0 there already, 0 failed, in [\d.]+ s, [\d,]+ points a minute", again)


def test_layers_as_csv() -> None:
    sweep("small.yaml")
    with Path("results/small/layers.csv").open() as file:
        found = list(csv.DictReader(file))
    settings = [(row["array.size"], row["vector_memory.word_elements"]) for row in found]
    assert settings[:4] == [("2", "1")] * 3 + [("2", "2")]
    assert [row["name"] for row in found[:3]] == ["one", "two", "fc"]
    machine = load_hardware("quick.yaml", ["array.size=8", "vector_memory.word_elements=4"])
    layers = simulate(load_workload("net.yaml", batch=2), machine, check=False).layers
    for row, layer in zip(found[-3:], layers, strict=True):
        assert int(row["cycles"]) == layer.cycles
        assert int(row["starved_cycles"]) == layer.stall_cycles["starved"]
        assert int(row["peak_bytes"]) == layer.vector_memory.peak_bytes
        assert float(row["pe_utilization"]) == layer.pe_utilization


def test_parquet_has_the_rows_of_csv_in_types() -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")
    axes = "  mapping.multi_tile: [auto]\n  hbm.bandwidth: [1 GB/s]\n  vector_memory.capacity: [16 B, 4 KiB]\n"
    Path("small.yaml").write_text(SPEC + axes)
    assert sweep("small.yaml", "--parquet").exit_code == 1
    for name in ("points", "layers"):
        table = parquet.read_table(f"results/small/{name}.parquet")
        with Path(f"results/small/{name}.csv").open() as file:
            lines = list(csv.reader(file))
        assert table.column_names == lines[0]
        columns = table.to_pydict()
        texts = [["" if cell is None else str(cell) for cell in columns[head]] for head in lines[0]]
        assert [list(row) for row in zip(*texts, strict=True)] == lines[1:]
        kinds = {field.name: str(field.type) for field in table.schema}
        assert kinds["array.size"] == kinds["cycles"] == kinds["batch"] == "int64"
        assert kinds["mapping.multi_tile"] == kinds["hbm.bandwidth"] == kinds["workload"] == "string"
        assert kinds["pe_utilization"] == kinds["time_us"] == "double"
    assert any(parquet.read_table("results/small/points.parquet")["error"].to_pylist())


def test_parquet_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    shown = sweep("small.yaml", "--parquet")
    assert shown.exit_code == 2
    assert "--parquet needs pyarrow" in shown.stderr
    assert "-m pip install pyarrow" in shown.stderr
    assert not Path("results").exists()


def test_every_shape_is_simulated_once_on_each_machine() -> None:
    """Also where two workloads, or two points of equal machines, share it."""
    Path("twin.yaml").write_text(NET.replace("name: net", "name: twin").replace("n: 7", "n: 8"))
    spec = SPEC.replace("[net.yaml]", "[net.yaml, twin.yaml]").replace("[2, 4, 8]", "[4, 8]")
    Path("small.yaml").write_text(spec + "  hbm.bandwidth: [1 GB/s, 1000 MB/s]\n")
    points = {point.key: point for point in load_sweep("small.yaml").points}
    works = [work for parcel in Assembly(points).parcels(workers=5) for work in parcel]
    shapes = [(work.hardware, job.batch, shape(job.layer)) for work in works for job in work.each]
    assert len(shapes) == len(set(shapes))
    machines = {point.jobs.hardware for point in points.values()}
    assert len(machines) == 2 * 3
    assert len(shapes) == 3 * len(machines)


def shape(layer: Any) -> Any:
    return dataclasses.replace(layer, name="any")


@pytest.mark.parametrize("workers", [1, 3, 50])
def test_few_points_are_cut_into_parcels_for_all_workers(workers: int) -> None:
    work, machine = load_workload("vgg16", batch=1), load_hardware("tpu_v2")
    Path("one.yaml").write_text("workloads: [vgg16]\naxes: {batch: [1]}\n")
    (point,) = load_sweep("one.yaml").points
    parcels = Assembly({point.key: point}).parcels(workers)
    shapes = {shape(layer) for layer in work.layers}
    found = [shape(job.layer) for parcel in parcels for work in parcel for job in work.each]
    assert {*found} == shapes
    assert len(found) == len(shapes)
    assert len(parcels) >= min(workers, len(shapes))
    assert all(work.hardware == machine for parcel in parcels for work in parcel)


def test_what_nobody_foresaw_fails_one_point_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(jobs: Jobs, **options: Any) -> Any:
        if jobs.hardware.array.rows == 4:  # type: ignore[attr-defined]
            raise ZeroDivisionError("a mistake")
        return run(jobs, **options)

    monkeypatch.setattr("tpusim.study.sweep.parcels.run", broken)
    shown = swept_anew("small.yaml")
    assert shown.exit_code == 1
    assert "layer one: ZeroDivisionError: a mistake" in shown.stderr
    assert "9 points: 6 computed, 0 there already, 3 failed" in shown.stdout
    assert "3 of 9 points failed" in shown.stderr


def test_many_failures_are_not_all_told() -> None:
    Path("long.yaml").write_text(Path("long.yaml").read_text() + "  vector_memory.capacity: [16 B]\n")
    shown = sweep("long.yaml")
    assert shown.exit_code == 1
    assert shown.stderr.count("failed: ") == 10
    assert "... and 20 more; points.csv has them all" in shown.stderr


def workers(running: subprocess.Popen[str]) -> list[int]:
    """The processes that simulate for a sweep."""
    listing = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(running.pid)]
    children = subprocess.run(listing, capture_output=True, text=True, check=False).stdout.splitlines()
    return [int(line.split()[0]) for line in children if "spawn_main" in line]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("ps") is None, reason="needs the command ps to find the workers")
def test_a_worker_that_dies_ends_the_sweep_with_a_sentence() -> None:
    running = started("long.yaml", "--workers", "2", "--out", "stopped")
    wait_for(2, "stopped", running)
    os.kill(workers(running)[0], signal.SIGKILL)
    _, told = running.communicate(timeout=30)
    assert running.returncode == 1, told
    assert (
        "a worker process was killed, perhaps for lack of memory; try fewer --workers; finished points are in" in told
    )
    assert "Traceback" not in told


@pytest.mark.long
@pytest.mark.skipif(shutil.which("ps") is None, reason="needs the command ps to find the workers")
def test_workers_end_with_a_sweep_that_is_killed() -> None:
    """In the middle of a layer, too, that takes far longer than they may."""
    Path("large.yaml").write_text(NET.replace("in_height: 9", "in_height: 60000"))
    Path("long.yaml").write_text(Path("long.yaml").read_text().replace("[2, 11]", "[2, 3]"))
    running = started("long.yaml", "--workers", "2", "--out", "killed")
    while len(found := workers(running)) < 2:
        time.sleep(0.02)
    time.sleep(0.7)
    assert running.poll() is None, running.communicate()
    running.kill()
    _, told = running.communicate(timeout=5)
    until = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in found):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert len([line for line in told.splitlines() if not line.startswith("0/")]) == 1, told


@pytest.mark.parametrize("whole", [False, True])
def test_parcels_and_findings_travel(whole: bool) -> None:
    machine, work = load_hardware("tiny_4x4"), load_workload("net.yaml", batch=2)
    jobs = resolve(work, machine, "channel_first")
    parcel = (jobs,) if whole else tuple(job.alone(machine) for job in jobs.each)
    again = pickle.loads(pickle.dumps(parcel))
    assert again == parcel
    assert pickle.loads(pickle.dumps(simulated(again))) == simulated(parcel)


def test_the_keys_follow_the_model() -> None:
    """Every module that has a say in cycles is in the digest; each pattern names files that exist."""
    package = ROOT / "tpusim"
    assert all([*package.glob(pattern)] for pattern in MODEL)
    code = "import sys; from tpusim.study.sweep import parcels; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    prefixes = ("tpusim.machines.", "tpusim.memory.", "tpusim.network.")
    deciding = {name for name in loaded if name.startswith(prefixes)}
    files = [file.relative_to(package).with_suffix("") for pattern in MODEL for file in package.glob(pattern)]
    covered = {".".join(("tpusim", *file.parts)).removesuffix(".__init__") for file in files}
    assert len(deciding) > 10
    assert deciding <= covered
    assert sources_digest("network/*.py") != sources_digest("memory/*.py")


def test_a_key_knows_everything_but_names() -> None:
    work, machine = load_workload("net.yaml", batch=2), load_hardware("tiny_4x4")
    jobs = resolve(work, machine, "channel_first")
    key = key_of(jobs)
    assert key == key_of(jobs.on(machine.model_copy(update={"name": "other"})))
    others = [
        key_of(resolve(load_workload("net.yaml", batch=3), machine, "channel_first")),
        key_of(jobs.on(load_hardware("tiny_4x4", ["hbm.latency=1 ns"]))),
        key_of(resolve(work, machine, "explicit")),
    ]
    assert len({key, *others}) == 4


def test_columns_are_typed_and_the_rest_is_json() -> None:
    sweep("small.yaml")
    query = "SELECT typeof(cycles), typeof(time_us), json_extract(detail, '$.blocking.word_fill') FROM layers"
    with closing(sqlite3.connect("results/small/sweep.sqlite")) as connection:
        assert set(connection.execute(query)) <= {("integer", "real", n) for n in (1, 2, 4)}
        names = {row[1] for row in connection.execute("PRAGMA table_info(points)")}
    assert set(FIGURES) <= names


def test_a_store_is_asked_for_some_of_its_points(tmp_path: Path) -> None:
    with closing(Store(tmp_path / FILE)) as store:
        run_sweep(load_sweep("small.yaml").points, store, Processes(simulated, 1), False, lambda *_: None)
        keys = [point.key for point in load_sweep("small.yaml").points]
        assert store.done([*keys, "unknown"]) == set(keys)
        assert [row["workload"] for row in store.points(keys[:2])] == ["net", "net"]


def test_a_store_that_is_removed_under_way_is_told_at_the_next_point(monkeypatch: pytest.MonkeyPatch) -> None:
    save = Store.save

    def removing(self: Store, *given: Any) -> None:
        save(self, *given)
        shutil.rmtree("results/small")

    monkeypatch.setattr(Store, "save", removing)
    shown = CliRunner().invoke(cli.app, ["sweep", "small.yaml", "--workers", "1"])
    assert shown.exit_code == 2
    assert "results/small/sweep.sqlite: was removed while the sweep ran" in shown.stderr
    assert "finished points are in" not in shown.stderr
    assert not Path("results/small").exists()


def test_a_closed_store_is_an_error(tmp_path: Path) -> None:
    store = Store(tmp_path / FILE)
    store.close()
    with pytest.raises(InputError, match="cannot be read"):
        store.done(["key"])
