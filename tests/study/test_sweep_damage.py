"""Whatever is damaged in what a sweep left: one line with what to do, or the right result; never anything else."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.conftest import draw_nothing
from tests.covering import few
from tests.invoked import tpusim
from tests.study.small_sweep import NET, QUICK, SPEC, sweep
from tpusim.result.vocabulary.figures import FIGURES
from tpusim.study.sweep.store import FILE

DAMAGES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "cut": lambda some, data: data[: some.randrange(len(data))],
    "empty": lambda some, data: b"",
    "noise": lambda some, data: some.randbytes(some.randrange(1, 5000)),
    "zeros": lambda some, data: bytes(len(data)),
    "other text": lambda some, data: b"name,size\nabc,12\n",
    "a byte": lambda some, data: changed(some, data, 1),
    "bytes": lambda some, data: changed(some, data, some.choice([3, 30, 300])),
    "more": lambda some, data: inserted(data, some.randrange(len(data)), some.randbytes(20)),
    "a hole": lambda some, data: hole(data, some.randrange(len(data))),
    "twice": lambda some, data: data + data,
}


def changed(some: random.Random, data: bytes, count: int) -> bytes:
    found = bytearray(data)
    for _ in range(count):
        found[some.randrange(len(found))] = some.randrange(256)
    return bytes(found)


def inserted(data: bytes, at: int, more: bytes) -> bytes:
    return data[:at] + more + data[at:]


def hole(data: bytes, at: int) -> bytes:
    return data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep in `sweep`, with the network and the spec beside it, and a run in `run`."""
    desk = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(desk)
        draw_nothing(patch)
        Path("net.yaml").write_text(NET)
        Path("quick.yaml").write_text(QUICK)
        Path("small.yaml").write_text(f"{SPEC}pareto: [time_us, pes]\n")
        assert swept().exit_code == 0
        assert tpusim("run", "net.yaml", "--hardware", "quick.yaml", "--batch", "2", "--out", "run").exit_code == 0
    return desk


@pytest.fixture
def desk(whole: Path, undrawn: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all that, to work in and to damage."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def swept(*arguments: str) -> Result:
    return sweep("small.yaml", "--out", "sweep", "--format", "svg", *arguments)


def told(shown: Result) -> str:
    """The one line of an error."""
    assert isinstance(shown.exception, SystemExit), shown.exception
    assert shown.exit_code == 2, shown.output
    (line,) = (line for line in shown.stderr.splitlines() if line.startswith("Error: "))
    assert len(line) < 500
    return line


def assert_right(shown: Result, whole: Path) -> None:
    assert shown.exit_code == 0, shown.output
    for name in ("points.csv", "layers.csv"):
        assert Path("sweep", name).read_bytes() == (whole / "sweep" / name).read_bytes()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))])
def test_any_file_of_a_sweep_damaged_at_random(seed: int, whole: Path, desk: Path) -> None:
    """Every way on a file at random, the store most often: the sweep goes on or is refused, and so is a reader."""
    some = random.Random(seed)
    names = sorted(path.name for path in (whole / "sweep").iterdir())
    for kind, damage in DAMAGES.items():
        shutil.rmtree("sweep")
        shutil.copytree(whole / "sweep", "sweep")
        file = Path("sweep", some.choice([FILE, FILE, "points.csv", *names]))
        file.write_bytes(damage(some, file.read_bytes()))
        reader = some.choice([("report", "sweep", "-o", "page.html"), ("plot", "sweep"), ("compare", "sweep", "sweep")])
        shown = tpusim(*reader)
        if shown.exit_code:
            assert "sweep" in told(shown), (kind, file)
        shown = swept()
        if shown.exit_code:
            assert f"sweep/{FILE}" in told(shown), (kind, file)
            assert "move it away, and the same command computes its points again" in shown.stderr
            Path("sweep", FILE).unlink()
            shown = swept()
        assert_right(shown, whole)
    assert tpusim("report", "sweep", "-o", "page.html").exit_code == 0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))])
def test_a_run_damaged_at_random(seed: int, desk: Path) -> None:
    some, file = random.Random(seed), Path("run/run.json")
    good = file.read_bytes()
    for kind, damage in DAMAGES.items():
        file.write_bytes(damage(some, good))
        for arguments in (("report", "run", "-o", "page.html"), ("plot", "run"), ("compare", "run", "run")):
            shown = tpusim(*arguments)
            assert shown.exit_code == 0 or "run/run.json" in told(shown), kind


OTHERS: list[Any] = [None, -1, 0, 1e-300, 10**29, 10**40, "", "x" * 3000, "\x1b[31m", [], {}, [1], {"a": 1}, True, 0.5]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every mapping or list inside, with each of its keys or indexes."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.long] * (seed > 6)) for seed in range(40)])
def test_a_run_with_another_value_or_without_one(seed: int, desk: Path) -> None:
    some, file = random.Random(seed), Path("run/run.json")
    result = json.loads(file.read_text())
    holder, key = some.choice([*places(result)])
    if seed % 3:
        holder[key] = some.choice(OTHERS)
    else:
        del holder[key]
    file.write_text(json.dumps(result))
    for arguments in (("report", "run", "-o", "page.html"), ("compare", "run", "run")):
        shown = tpusim(*arguments)
        assert shown.exit_code == 0 or told(shown).startswith("Error: run")


@pytest.mark.long
def test_every_file_of_a_sweep_a_directory(whole: Path, desk: Path) -> None:
    for name in sorted(path.name for path in (whole / "sweep").iterdir()):
        file = Path("sweep", name)
        file.unlink()
        file.mkdir()
        assert f"sweep/{name}: cannot be " in told(swept()), name
        shown = tpusim("report", "sweep", "-o", "page.html")
        assert shown.exit_code == 0 or name in told(shown)
        file.rmdir()
        assert_right(swept(), whole)


CELLS = (None, "text", b"\xff\xfe", -1, 2**62, 1e308, float("inf"), "", "9" * 50)


@pytest.mark.parametrize("first", few(1, range(6)))
@pytest.mark.parametrize("table", ["points", "layers"])
def test_every_column_of_the_store_with_other_values(table: str, first: int, whole: Path, desk: Path) -> None:
    """Rows of a sound database that are not those that were written."""
    columns = [
        "key",
        *FIGURES,
        "seal",
        *(["workload", "batch", "error"] if table == "points" else ["name", "position"]),
    ]
    some = random.Random(table)
    for column in dict.fromkeys([*columns[first::6], "seal"]):
        shutil.copy2(whole / "sweep" / FILE, Path("sweep", FILE))
        Path("sweep/layers.csv").unlink(missing_ok=True)
        with closing(sqlite3.connect(Path("sweep", FILE))) as connection, connection:
            value = some.choice(CELLS)
            connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid = 2", (value,))
        shown = swept()
        if shown.exit_code:
            assert "is damaged: " in told(shown), (column, value)
            assert "move it away, and the same command" in shown.stderr
            assert "the same command continues" not in shown.stderr
        else:
            assert_right(shown, whole)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE points",
        "ALTER TABLE layers RENAME COLUMN seal TO other",
        "DROP INDEX finished",
        "DELETE FROM layers WHERE rowid = 3",
        "UPDATE files SET name = '../' || name",
        "CREATE TRIGGER t BEFORE INSERT ON points BEGIN SELECT RAISE(ABORT, 'no'); END",
        *(
            pytest.param(statement, marks=pytest.mark.long)
            for statement in (
                "DROP TABLE layers",
                "DROP TABLE files",
                "ALTER TABLE points RENAME COLUMN seal TO other",
                "DELETE FROM points WHERE rowid = 3",
                "DELETE FROM files",
                "UPDATE files SET name = x'ff00' WHERE rowid = 1",
                "UPDATE files SET stamp = x'00ff'",
            )
        ),
    ],
)
def test_a_database_of_another_form(statement: str, whole: Path, desk: Path) -> None:
    Path("sweep/layers.csv").unlink()
    with closing(sqlite3.connect(Path("sweep", FILE))) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        try:
            connection.execute(statement)
        except sqlite3.IntegrityError:
            pytest.skip("the database itself refuses that")
    shown = swept("--fresh") if "TRIGGER" in statement else swept()
    if shown.exit_code:
        assert "move it away, and the same command computes its points again" in told(shown)
    else:
        assert_right(shown, whole)


def test_a_log_of_something_else_beside_the_store(whole: Path, desk: Path) -> None:
    for name in (f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal"):
        Path("sweep", name).write_bytes(random.Random(name).randbytes(5000))
        shown = swept()
        assert shown.exit_code == 0 or f"sweep/{FILE}" in told(shown), name


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
@pytest.mark.parametrize("mode", [0o000, 0o400])
def test_a_store_that_may_not_be_written(mode: int, desk: Path) -> None:
    Path("sweep", FILE).chmod(mode)
    assert "check the place and its permissions, or take another --out" in told(swept("--fresh"))


def test_a_sweep_given_to_plot(desk: Path) -> None:
    for source in ("sweep", "sweep/points.csv"):
        line = told(tpusim("plot", source))
        assert f"{source}: is of a sweep, and plot draws a run; the sweep has left its pictures there" in line
    shutil.copy("run/run.json", "sweep")
    assert tpusim("plot", "sweep").exit_code == 0


def readers() -> list[Result]:
    return [tpusim("report", "sweep", "-o", "page.html"), tpusim("compare", "sweep/points.csv", "sweep")]


@pytest.mark.parametrize("killed", [False, True])
def test_figures_changed_by_hand_are_not_handed_on(killed: bool, whole: Path, desk: Path) -> None:
    """Nor when the store still has its log, because the sweep was killed; nobody leaves anything there by looking."""
    file = Path("sweep/points.csv")
    good = file.read_text()
    cycles = good.splitlines()[1].split(",")[good.split(",").index("cycles")]
    if killed:
        log_left_behind(Path("sweep", FILE))
    file.write_text(good.replace(cycles, f"1{cycles}"))
    there = sorted(Path("sweep").iterdir())
    for shown in readers():
        said = "sweep/points.csv: was changed after the sweep had written it; remove it, and the same `tpusim sweep`"
        assert f"{said} writes it anew" in told(shown)
    assert sorted(Path("sweep").iterdir()) == there
    assert_right(swept(), whole)
    assert {shown.exit_code for shown in readers()} == {0}


def log_left_behind(store: Path) -> None:
    """As `kill -9` leaves it: what a connection has written, and not yet put where it belongs."""
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("UPDATE files SET stamp = stamp")
        connection.commit()
        kept = {path: path.read_bytes() for path in store.parent.glob(f"{store.name}*")}
    for path, contents in kept.items():
        path.write_bytes(contents)


def test_points_of_which_no_store_tells_anything(desk: Path) -> None:
    """They are taken as they are: copied, alone, or beside the store of an earlier version."""
    file = Path("sweep/points.csv")
    shutil.copytree("sweep", "copy")
    assert tpusim("compare", "copy", "sweep").exit_code == 0
    changed_points = file.read_text().replace("net", "net2")
    file.with_name("mine.csv").write_text(changed_points)
    assert tpusim("report", "sweep/mine.csv", "-o", "page.html").exit_code == 0
    file.write_text(changed_points)
    with closing(sqlite3.connect(Path("sweep", FILE))) as connection, connection:
        connection.execute("UPDATE files SET stamp = '588 1700000000000000000'")
    assert {shown.exit_code for shown in readers()} == {0}
    Path("sweep", FILE).unlink()
    assert {shown.exit_code for shown in readers()} == {0}


def test_a_sweep_cut_off_while_it_draws_leaves_points_that_are_read(desk: Path) -> None:
    """They are new, and what was remembered of the old ones counts no more."""
    Path("small.yaml").write_text(f"{SPEC}pareto: [time_us, pes]\n".replace("[2, 4, 8]", "[2, 4]"))
    Path("sweep/captions.txt").unlink()
    Path("sweep/captions.txt").mkdir()
    assert swept().exit_code == 2
    assert len(Path("sweep/points.csv").read_text().splitlines()) == 7
    assert {shown.exit_code for shown in readers()} == {0}


def test_a_table_of_somebody_else(desk: Path) -> None:
    """Nobody is told to remove it."""
    Path("topology.csv").write_text("Layer, M, N, K,\nfc, 8, 1000, 512,\n")
    assert "give a directory or a points.csv that `tpusim sweep` wrote" in told(tpusim("report", "topology.csv"))
    assert "not a tpusim result" in told(tpusim("plot", "topology.csv"))
