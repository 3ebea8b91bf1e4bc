"""A search tries as many points as it may, the same ones however they are computed, and finds good ones."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.study.small_sweep import QUICK
from tpusim.cli import app as cli
from tpusim.study.sweep.parcels import Done, Parcel, simulated
from tpusim.study.sweep.points import load_sweep
from tpusim.study.sweep.run import SweepOutcome, rows_of, run_search, run_sweep
from tpusim.study.sweep.store import Store
from tpusim.study.worker_processes import Processes

NET = """
name: net
layers:
  - {name: one, op: conv2d, in_channels: 9, in_height: 4, in_width: 4, out_channels: 12, kernel: 2}
"""
SPEC = """
name: hunt
mode: search
workloads: [net.yaml]
hardware: quick.yaml
batch: 4
search: {objectives: [time_us, pes], budget: 20, seed: 3, at_once: 4}
axes:
  array.rows: {range: [2, 24, 2]}
  array.cols: {range: [2, 24, 2]}
  vector_memory.word_elements: {powers_of_two: [1, 8]}
  mapping.multi_tile: [1, auto, rows]
where: pes <= 200
"""
BUDGET = 8
SHORTER = SPEC.replace("budget: 20", f"budget: {BUDGET}").replace("[2, 24, 2]", "[4, 24, 5]")
"""Of a space that is soon made: all its points are, whenever a search begins."""


@pytest.fixture(autouse=True)
def desk(undrawn: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with one network and one search."""
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(NET)
    Path("quick.yaml").write_text(QUICK)
    Path("hunt.yaml").write_text(SHORTER)
    return tmp_path


class InTurn:
    """Does parcels here, one after the other, the last first; so the order of outcomes is not theirs."""

    workers = 1

    def outcomes(self, parcels: Sequence[Parcel]) -> Generator[Done]:
        """See Executor."""
        yield from Processes(simulated, 1).outcomes(parcels[::-1])


def nothing(*_: object) -> None:
    """No progress."""


def searched(store: str, executor: Any = None, fresh: bool = False) -> tuple[SweepOutcome, list[dict[str, Any]]]:
    pytest.importorskip("optuna", reason="the extra search is not installed")
    sweep, opened = load_sweep("hunt.yaml"), Store(Path(store))
    try:
        outcome = run_search(sweep, opened, executor or InTurn(), fresh, nothing)
        return outcome, rows_of(sweep, opened, outcome.points)
    finally:
        opened.close()


def keys(outcome: SweepOutcome) -> list[str]:
    return [point.key for point in outcome.points]


def test_different_points_within_the_budget_and_the_constraint() -> None:
    outcome, rows = searched("a.sqlite")
    assert (outcome.computed, outcome.reused, outcome.failed) == (BUDGET, 0, 0)
    assert len({*keys(outcome)}) == len(rows) == BUDGET
    assert all(row["pes"] <= 200 for row in rows)
    assert any(row["pareto"] for row in rows)
    assert not all(row["pareto"] for row in rows)


def test_the_same_points_however_they_are_computed() -> None:
    alone, rows = searched("a.sqlite")
    both, others = searched("b.sqlite", Processes(simulated, 2))
    assert keys(alone) == keys(both)
    assert rows == others


def test_another_seed_is_another_walk() -> None:
    shorter = SHORTER.replace(f"budget: {BUDGET}", "budget: 4")
    Path("hunt.yaml").write_text(shorter)
    first, _ = searched("a.sqlite")
    Path("hunt.yaml").write_text(shorter.replace("seed: 3", "seed: 4"))
    assert keys(searched("b.sqlite")[0]) != keys(first)


def test_what_is_there_is_not_simulated_again() -> None:
    first, rows = searched("a.sqlite")
    again, same = searched("a.sqlite")
    assert (again.computed, again.reused) == (0, BUDGET)
    assert same == rows
    assert searched("a.sqlite", fresh=True)[0].computed == BUDGET
    Path("hunt.yaml").write_text(SHORTER.replace(f"budget: {BUDGET}", f"budget: {BUDGET + 4}"))
    longer, _ = searched("a.sqlite")
    assert keys(longer)[:BUDGET] == keys(first)
    assert (longer.computed, longer.reused) == (4, BUDGET)


def test_interrupted_and_begun_again_it_walks_the_same_way() -> None:
    pytest.importorskip("optuna", reason="the extra search is not installed")

    def interrupt(done: int, *_: object) -> None:
        if done == 5:
            raise KeyboardInterrupt

    opened = Store(Path("a.sqlite"))
    with pytest.raises(KeyboardInterrupt):
        run_search(load_sweep("hunt.yaml"), opened, InTurn(), False, interrupt)
    opened.close()
    outcome, rows = searched("a.sqlite")
    assert (outcome.reused, outcome.computed) == (5, BUDGET - 5)
    assert rows == searched("b.sqlite")[1]


def test_points_that_fail_are_kept_with_their_error_and_count() -> None:
    Path("hunt.yaml").write_text(SHORTER.replace("where:", "  vector_memory.capacity: [16 B, 4 KiB]\nwhere:"))
    outcome, rows = searched("a.sqlite")
    failed = [row for row in rows if row["error"]]
    assert 0 < len(failed) == outcome.failed < BUDGET == len(rows)
    assert "the smallest tiling needs" in failed[0]["error"]
    assert not any(row["pareto"] for row in failed)


def test_thin_spaces_are_searched_to_the_last_point_but_one() -> None:
    """Most combinations are ruled out or make no machine, and the budget is all points that are left but one."""
    text = SHORTER.replace("where: pes <= 200", "where: [array.rows == array.cols, array.rows >= 14, batch == 4]")
    text = text.replace(f"budget: {BUDGET}", "budget: 11").replace("[1, auto, rows]", "[rows]")
    Path("hunt.yaml").write_text(text)
    outcome, rows = searched("a.sqlite")
    assert len({*keys(outcome)}) == 11
    assert {row["array.rows"] for row in rows} <= {14, 19, 24}


SQUARE = """
workloads: [net.yaml]
hardware: quick.yaml
batch: 4
axes:
  array.rows: {range: [2, 30, 4]}
  array.cols: {range: [2, 30, 2]}
where: pes >= 40
"""


@pytest.mark.long
def test_it_finds_better_points_than_most() -> None:
    """With 15 of 105 machines it finds one of the best three, which as many random ones miss three times in five."""
    Path("grid.yaml").write_text(SQUARE)
    Path("hunt.yaml").write_text(f"{SQUARE}mode: search\nsearch: {{objectives: [pe_utilization], budget: 15, seed: 1}}")
    best = max(row["pe_utilization"] for row in searched("a.sqlite")[1])
    sweep, store = load_sweep("grid.yaml"), Store(Path("grid.sqlite"))
    outcome = run_sweep(sweep.points, store, InTurn(), False, nothing)
    everything = sorted((row["pe_utilization"] for row in rows_of(sweep, store, outcome.points)), reverse=True)
    store.close()
    assert best >= everything[2]


def command(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["sweep", "hunt.yaml", "--workers", "1", *arguments])


def test_the_command_gives_the_files_of_a_grid_with_the_front_marked() -> None:
    pytest.importorskip("optuna", reason="the extra search is not installed")
    shown = command()
    assert shown.exit_code == 0, shown.output
    assert f"{BUDGET} points: {BUDGET} computed" in shown.stdout
    assert "* on the Pareto front of least time_us and least pes" in shown.stdout
    with Path("results/hunt/points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == BUDGET
    assert {"array.rows", "pes", "sram_bytes", "pareto"} <= {*rows[0]}
    assert {path.name for path in Path("results/hunt").glob("*.png")} == {"axes_net.png", "pareto_net.png"}


TWICE = {
    "array.rows: {range: [2, 24, 2]}": "array.rows: {range: [2, 3]}\n  hbm.bandwidth: [1 GB/s, 1000 MB/s]",
    "24, 2]": "3]",
    "[1, auto, rows]": "[1]",
}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param(
            {"pes <= 200": "pes <= 6", "24, 2]": "400]"},
            "found 4 of 20 points and no other among 20,000 random combinations: 19,9.. do not satisfy pes <= 6, "
            ".. were tried before; widen the axes or the conditions, or ask for less",
            marks=pytest.mark.long,
        ),
        pytest.param({**TWICE, "20": "17"}, "found 16 of 17 points .*: 20,000 were tried before; ",
                     marks=pytest.mark.long),
        pytest.param(
            {**TWICE, "20": "45", "[1, 8]": "[1, 4096]"},
            r"found 44 of 45 points .*: \d+,\d+ .*, \d+,\d+ make no machine or layer; ",
            marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_a_search_that_cannot_reach_its_budget_says_why(changes: dict[str, str], says: str) -> None:
    """Conditions, points that are the same, machines that do not exist."""
    text = SPEC
    for old, new in changes.items():
        text = text.replace(old, new)
    Path("hunt.yaml").write_text(text)
    shown = command()
    assert re.search(f"^Note: the search {says}", shown.stderr, re.MULTILINE), shown.stderr


def test_a_search_that_finds_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpusim.study.sweep.run._MOST_DRAWN", 1)
    Path("hunt.yaml").write_text(SPEC.replace("pes <= 200", "pes == 36"))
    shown = command()
    assert shown.exit_code == 1
    assert shown.stderr.splitlines()[-1] == (
        "Error: the search found 0 of 20 points and no other among 1 random combinations: 1 do not satisfy pes == 36; "
        "widen the axes or the conditions, or ask for less"
    )


def test_a_search_all_of_whose_points_fail_says_so() -> None:
    Path("hunt.yaml").write_text(SHORTER.replace("where:", "  vector_memory.capacity: [16 B]\nwhere:"))
    shown = command()
    assert shown.exit_code == 1
    assert f"Error: every one of {BUDGET} points failed; their errors are in results/hunt/points.csv" in shown.stderr


def test_without_optuna_it_says_what_to_install_and_makes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    shown = command()
    assert shown.exit_code == 2
    assert "-m pip install optuna" in shown.stderr
    assert not Path("results").exists()
