"""Axes of what a run is asked: each point is the run that is asked so; and the time until a prompt makes a token."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tpusim
from tests.strategies import cases
from tests.study.small_sweep import known
from tpusim import generate, load_hardware, load_workload, simulate, sweep
from tpusim.api import sweep as action
from tpusim.base.errors import InputError
from tpusim.machines.family import Machine
from tpusim.result.records import Total
from tpusim.study.sweep.points import load_sweep

SMALL = """
name: words
grows: context
sizes: {context: 6, tokens: context, width: 8, vocabulary: 40}
phases: {prefill: {tokens: context}, decode: {tokens: 1}}
layers:
  - {name: embedding, op: embedding, channels: width, images: vocabulary, rows: batch * tokens}
  - {name: queries, op: gemm, n: width}
  - {name: key_value, op: gemm, inputs: [embedding], n: 2 * width}
  - {name: past, op: cache, channels: 2 * width, tokens: context}
  - {name: keys, op: view, channels: width, width: context}
  - {name: values, op: view, inputs: [past], channels: width, width: context}
  - {name: attention, op: attention, inputs: [queries, keys, values], heads: 2, head: 4, queries: tokens, keys: context}
  - {name: out, op: gemm, n: vocabulary}
"""
MACHINE = "tpu_v6e"
ESTIMATE = "mapping.search=estimate"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("words") / "words.yaml"
    file.write_text(SMALL)
    return str(file)


@pytest.fixture(autouse=True)
def _simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action, "simulated", known)


@cache
def machine(*changes: str, name: str = "tiny_4x4") -> Machine:
    return load_hardware(name, [ESTIMATE, *changes])


def rows(workload: Any, axes: Mapping[str, object], **more: object) -> list[dict[str, Any]]:
    asked = {"workloads": workload, "hardware": machine(), "axes": axes, **more}
    return [dict(row) for row in sweep(asked).rows]


@cache
def total(workload: str, hardware: Machine, dtype: str = "integers", **options: Any) -> Total:
    work = load_workload(workload, batch=8, **options)
    return simulate(work, hardware, dtype=dtype, check=False).total


def cycles(workload: str, hardware: Machine, **options: Any) -> int:
    return total(workload, hardware, **options).cycles


def test_every_point_is_the_run_that_is_asked_so(words: str) -> None:
    axes = {"phase": ["prefill", "decode"], "weights": ["computed", "int8"], "caches": ["computed", "int4"]}
    found = rows(words, axes)
    asked = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    assert [{axis: row[axis] for axis in axes} for row in found] == asked
    # Each two values of two axes are together in one of these.
    for at in (0, 3, 5, 6):
        run = total(words, machine(), **asked[at])
        assert (found[at]["cycles"], found[at]["hbm_read_bytes"]) == (run.cycles, run.hbm_read_bytes)
    assert len({(row["cycles"], row["hbm_read_bytes"]) for row in found}) == len(found)
    # A prompt's time is that until a first token; a token's is no such time.
    assert [row["first_token_us"] for row in found[:4]] == [row["time_us"] for row in found[:4]]
    assert [row["first_token_us"] for row in found[4:]] == [None] * 4


@pytest.mark.parametrize("workload", [pytest.param("tiny", marks=pytest.mark.long), "words"])
def test_types_of_numbers_take_the_time_that_they_take_in_a_run(workload: str, words: str) -> None:
    types = ["integers", "bf16", "int8"]
    name = words if workload == "words" else workload
    hardware = machine(name=MACHINE)
    found = rows(name, {"dtype": types}, hardware=hardware)
    assert [row["cycles"] for row in found] == [cycles(name, hardware, dtype=each) for each in types]
    assert len({row["cycles"] for row in found}) > 1
    assert rows(name, {"batch": [8]}, dtype="bf16", hardware=hardware)[0]["cycles"] == found[1]["cycles"]
    # What a machine is made of does not follow its numbers.
    assert len({row["area_mm2"] for row in found}) == 1


@settings(max_examples=cases(1 / 24), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=st.integers(1, 12), batch=st.integers(1, 2), weights=st.sampled_from(["computed", "int8", "int4"]))
def test_a_prompt_takes_the_time_that_it_takes_in_a_generation(
    prompt: int, batch: int, weights: str, words: str
) -> None:
    (row,) = rows(words, {"prompt": [prompt]}, batch=batch, weights=weights, pareto=["first_token_us", "tokens_per_s"])
    made = generate(words, machine(), tokens=2, prompt=prompt, batch=batch, weights=weights).found
    assert row["first_token_us"] == pytest.approx(1e6 * made.first_seconds)
    assert row["tokens_per_s"] == pytest.approx(made.tokens_per_second)
    assert row["cycles"] == made.tokens[0].cycles


def test_a_prompt_for_all_points_is_one_of_an_axis(words: str) -> None:
    of_axis = rows(words, {"prompt": [5, 9], "batch": [1]})
    of_all = [rows(words, {"batch": [1]}, prompt=each)[0] for each in (5, 9)]
    assert [row["cycles"] for row in of_axis] == [row["cycles"] for row in of_all]
    assert [row["first_token_us"] for row in of_axis] == [row["first_token_us"] for row in of_all]


def test_what_is_there_is_not_computed_again(words: str, tmp_path: Path) -> None:
    spec: dict[str, Any] = {"workloads": words, "hardware": machine(), "axes": {"prompt": [4, 7]}}
    first, again = (sweep(spec, tmp_path).outcome for _ in range(2))
    assert (first.computed, first.reused) == (2, 0)
    assert (again.computed, again.reused) == (0, 2)
    more = sweep({**spec, "axes": {"prompt": [4, 7, 8]}}, tmp_path).outcome
    assert (more.computed, more.reused, more.failed) == (1, 2, 0)


def test_progress_counts_points_and_not_what_reads_their_prompts(words: str, tmp_path: Path) -> None:
    spec: dict[str, Any] = {"workloads": words, "hardware": machine(), "batch": 1}
    heard: list[tuple[int, int]] = []

    def hear(done: int, total: int, _name: str, _share: float) -> None:
        heard.append((done, total))

    axes = {"prompt": [4, 7], "weights": ["computed", "int8"]}
    made = sweep({**spec, "axes": axes}, tmp_path, progress=hear)
    assert (heard[0], heard[-1]) == ((0, 4), (4, 4))
    assert heard == sorted(heard)
    assert made.outcome.computed == 4
    # A store that has a part of a point: the point is still to be finished.
    sweep({**spec, "phase": "decode", "axes": {"sizes.context": [4]}}, tmp_path / "part")
    heard.clear()
    outcome = sweep({**spec, "axes": {"prompt": [4]}}, tmp_path / "part", progress=hear).outcome
    assert (outcome.computed, {total for _, total in heard}, heard[-1]) == (1, {1}, (1, 1))


def test_a_point_whose_prompt_fails_has_failed(words: str) -> None:
    # The scores of a long prompt do not fit, and those of a token behind it do.
    axes = {"prompt": [4, 100]}
    answer = sweep({"workloads": words, "hardware": machine("hbm.capacity=14 KiB"), "batch": 1, "axes": axes})
    good, bad = answer.rows
    assert good["error"] is None
    assert bad["error"].startswith("prompt: ")
    assert (bad["first_token_us"], bad["tokens_per_s"]) == (None, None)
    assert (answer.outcome.computed, answer.outcome.failed) == (1, 1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"axes": {"weights": ["int3"]}}, 'axes.weights: "int3" is no value of weights; did you mean int8'),
        ({"axes": {"caches, weights": ["int8", "half"]}}, '"half" is no value of caches'),
        ({"axes": {"dtype": ["bf17"]}}, 'axes.dtype: "bf17" is no value of dtype; did you mean bf16'),
        ({"axes": {"phase": ["prefil"]}}, 'there is no phase "prefil"; did you mean prefill'),
        ({"axes": {"phase": [3]}}, "3 is no name of a phase"),
        ({"axes": {"prompt": [0]}}, "axes.prompt: 0 is out of range"),
        ({"axes": {"prompt": [4], "phase": ["decode"]}}, "prompt says it"),
        ({"axes": {"sizes.context": [4]}, "prompt": 3}, "leave sizes.context out"),
        ({"axes": {"phase": ["decode"]}, "phase": "decode"}, "phase: says it for all points"),
        ({"axes": {"dtype": ["bf16"]}, "dtype": "bf16"}, "dtype: says it for all points"),
        ({"axes": {"batch": [1]}, "prompt": 3, "phase": "prefill"}, "prompt: a prompt is read in prefill"),
        ({"axes": {"batch": [1]}, "prompt": 0}, "prompt: 0 is out of range"),
        ({"axes": {"batch": [1]}, "prompt": 3, "workloads": "alexnet"}, "alexnet does not say which of its sizes"),
        ({"axes": {"batch": [1]}, "shapes": "3x4"}, "shapes are of the arguments of a function of JAX"),
        ({"axes": {"batch": [1]}, "weights": "int3"}, "weights: "),
        ({"axes": {"batch": [1]}, "dtype": "bf17"}, "dtype: unknown type"),
        ({"axes": {"batch": [1]}, "phase": "decode", "pareto": ["first_token_us", "pes"]}, "reads no prompt"),
        ({"axes": {"batch": [1]}, "phase": "prefill", "pareto": ["tokens_per_s", "pes"]}, "makes no token of each"),
        ({"axes": {"batch": [1]}, "workloads": load_workload("tiny", batch=2)}, "tiny is loaded already"),
    ],
)
def test_bad_specs(more: Mapping[str, Any], message: str, words: str) -> None:
    with pytest.raises(InputError) as raised:
        load_sweep({"workloads": words, "hardware": MACHINE, **more})
    assert message in str(raised.value)


# ---- a function of JAX


def test_a_sweep_takes_a_function_of_jax(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    file = tmp_path / "model.py"
    file.write_text("import jax.numpy as jnp\n\n\ndef model(x, w):\n    return jnp.maximum(x @ w, 0)\n")
    axes = {"array.count": [1, 2], "dtype": ["bf16", "int8"]}
    of_file = rows(f"{file}:model", axes, shapes="64x256,256x512", hardware=machine(name=MACHINE))
    shapes = [jax.ShapeDtypeStruct(each, "float32") for each in ((64, 256), (256, 512))]
    work = tpusim.from_jax(lambda x, w: jax.numpy.maximum(x @ w, 0), *shapes)
    of_function = rows(work, axes, hardware=machine(name=MACHINE))
    assert [row["cycles"] for row in of_file] == [row["cycles"] for row in of_function]
    expected = [
        simulate(work, machine(f"array.count={count}", name=MACHINE), dtype=dtype, check=False).total.cycles
        for count, dtype in product(*axes.values())
    ]
    assert [row["cycles"] for row in of_function] == expected
