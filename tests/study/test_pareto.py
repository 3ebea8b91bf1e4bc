"""The Pareto front is what its definition says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.strategies import cases
from tests.study.test_sweep_of_runs import SMALL
from tpusim.base.errors import InputError
from tpusim.machines.tpu.cost import area_of
from tpusim.machines.tpu.description import load_hardware
from tpusim.result.vocabulary.figures import COLUMNS, COSTS, FIGURES
from tpusim.study.sweep.points import load_sweep
from tpusim.study.sweep.reader import Goal, columns_of, costs, goal_named, goals_of
from tpusim.study.sweep.run import Costs, front_of, on_front


def by_definition(points: Costs) -> list[bool]:
    usable = [bool(np.isfinite(point).all()) for point in points]
    rivals = points[usable]
    return [
        fine and not any((rival <= point).all() and (rival < point).any() for rival in rivals)
        for point, fine in zip(points, usable, strict=True)
    ]


# Few different numbers, so that ties are frequent.
NUMBERS = st.sampled_from([0.0, 1.0, 2.0, 3.0, -1.0, 0.5, float("nan"), float("inf")])


SHAPES = st.tuples(st.integers(0, 25), st.integers(1, 3))


@settings(max_examples=cases(usual=25))
@given(SHAPES.flatmap(lambda shape: arrays(float, shape, elements=NUMBERS)))
def test_the_front_by_definition(points: Costs) -> None:
    assert on_front(points).tolist() == by_definition(points)


@pytest.mark.parametrize("goals", [1, 2, 3])
def test_the_front_of_many_random_points(goals: int) -> None:
    points = np.random.default_rng(goals).random((400, goals))
    assert on_front(points).tolist() == by_definition(points)


def row(workload: str, time: float | None, pes: int, error: str | None = None) -> dict[str, Any]:
    return {"workload": workload, "time_us": time, "tflops": -(time or 0), "pes": pes, "error": error}


def test_failed_points_are_on_no_front_and_each_workload_has_its_own() -> None:
    rows = [row("a", 1, 9), row("a", 2, 5), row("a", 3, 5), row("a", None, 1, "does not fit"), row("b", 9, 99)]
    goals = (Goal("time_us", True), Goal("pes", True))
    assert front_of(rows, goals) == [True, True, False, False, True]
    assert front_of(rows, (Goal("tflops", False), Goal("pes", True))) == [True, True, False, False, True]
    assert front_of([], goals) == []


def test_every_figure_can_be_a_goal() -> None:
    assert goals_of(dict.fromkeys((*FIGURES, *COSTS), "minimize"), [*COLUMNS], 1, 99)


def test_the_directions_of_columns() -> None:
    assert goals_of(["time_us", "tflops"], [*COLUMNS], 2, 3) == (Goal("time_us", True), Goal("tflops", False))
    assert goals_of({"tflops": "minimize", "batch": "maximize"}, [*COLUMNS, "batch"], 2, 3)[1] == Goal("batch", False)
    assert str(Goal("pes", True)) == "least pes"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["time_us", "time_us"], "1 different columns; give 2 to 3"),
        (["time_us", "pes", "lanes", "cycles"], "4 different columns"),
        (["time_us", "batch"], "write {batch: minimize} or maximize"),
        (["time_us", "port_idle_ratio"], "write {port_idle_ratio: minimize}"),
        (["time_us", "PES"], "did you mean pes?"),
        (["time_us", 3], "is no list of columns"),
        ({"time_us": None, "pes": True}, "write minimize or maximize"),
        (None, "is no list of columns"),
    ],
)
def test_what_is_no_goal(given: object, says: str) -> None:
    with pytest.raises(InputError) as error:
        goals_of(given, [*COLUMNS, "batch"], 2, 3)
    assert says in str(error.value)


def test_a_gpu_has_no_goals_that_only_a_tpu_has_figures_for() -> None:
    assert {"time_us", "pes", "hbm_read_bytes"} <= {*columns_of("gpu")} < {*columns_of("tpu")}
    for column in ("passes", "energy", "area", "port_idle_ratio", "row_hits"):
        assert column in columns_of("tpu")
        with pytest.raises(InputError, match=f'no column "{column}"'):
            goals_of({column: "minimize", "cycles": None}, columns_of("gpu"), 2, 3)


def test_what_a_machine_is_made_of() -> None:
    machine = load_hardware("tpu_v2", ["array.rows=64", "vector_memory.capacity=128 KiB"])
    known = (64 * 128, 128, 128 * 128 * 1024, 700 * 10**9, area_of(machine).total_mm2)
    assert costs(machine) == dict(zip(COSTS, known, strict=True))


def test_a_goal_is_read_back_as_it_is_written() -> None:
    for goal in (Goal("time_us", True), Goal("tokens_per_s", False), Goal("array.rows, array.cols", True)):
        assert goal_named(str(goal)) == goal
    assert goal_named("") is None
    assert goal_named("the cheapest") is None


def test_tokens_a_second_are_a_goal_of_sweeps_that_make_tokens(tmp_path: Path) -> None:
    words = tmp_path / "words.yaml"
    words.write_text(SMALL)
    file, rest = tmp_path / "s.yaml", "axes: {batch: [1, 8]}\npareto: [tokens_per_s, time_us]\n"
    file.write_text(f"workloads: [{words}]\nhardware: tpu_v6e\nphase: decode\n{rest}")
    assert [point.tokens for point in load_sweep(file).points] == [1, 8]
    for what in (f"workloads: [{words}]\nhardware: tpu_v6e\nphase: prefill\n", "workloads: [alexnet]\n"):
        file.write_text(what + rest)
        with pytest.raises(InputError, match=r"pareto: tokens_per_s: \w+ makes no token of each sequence"):
            load_sweep(file)
