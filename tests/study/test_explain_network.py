"""Why a whole network takes as long as it does: each figure is that of a run, and each gain that of another run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import tpusim
from tests.covering import few
from tests.strategies import cases
from tests.study.relaxed import trying
from tpusim import Workload, load_hardware, load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.cli import app as cli
from tpusim.network.ops.array_op import Gemm
from tpusim.study.explain.network import ExplainedNetwork

ESTIMATE = "mapping.search=estimate"
TINY = ("--hardware", "tiny_4x4", "--set", ESTIMATE)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["explain", *arguments])


@cache
def answer_of(machine: str, *changes: str) -> Any:
    return tpusim.explain("tiny", machine, batch=2, set=[ESTIMATE, *changes])


def of(machine: str, *changes: str) -> ExplainedNetwork:
    found: ExplainedNetwork = answer_of(machine, *changes).found
    return found


def run_with(change: str, machine: str) -> int:
    """The cycles of a run that is asked for a change in the words of `how`."""
    options = {"batch": 2, "lowering": None, "weights": None, "caches": None}
    changes = [ESTIMATE]
    for word, value in re.findall(r"(?:--)?([\w.]+)[= ]([^ ]+(?: (?:[kMGT]i?B|ps|ns)(?:/s)?)?)", change):
        if word in options:
            options[word] = int(value) if word == "batch" else value
        else:
            changes.append(f"{word}={value}")
    lowering = options.pop("lowering")
    work = load_workload("tiny", **options)  # type: ignore[arg-type]
    return simulate(work, load_hardware(machine, changes), lowering=lowering, check=False).total.cycles  # type: ignore[arg-type]


@pytest.mark.parametrize("machine", few(1, ["tiny_4x4", "tpu_v6e"]))
def test_every_gain_of_the_whole_is_a_run_with_that_change(machine: str) -> None:
    found = of(machine)
    now = run_with("", machine)
    assert found.cycles == now == sum(each.cycles for each in found.costly)
    assert found.gains
    for each in found.gains:
        assert each.cycles == run_with(each.how, machine), each
        assert each.gain == pytest.approx((2 if each.per == "image" else 1) * now / each.cycles)
    assert [each.gain for each in found.gains] == sorted((each.gain for each in found.gains), reverse=True)


def test_equal_layers_are_one_kind_and_are_simulated_once() -> None:
    layers = [Gemm(f"fc{i}", m=8, n=16 if i % 2 else 24, k=8) for i in range(7)]
    one, many = (Workload("net", 1, each) for each in (layers[:2], layers))
    with trying("twice the HBM bandwidth", "a port for every client"):
        found = [tpusim.explain(each, "tiny_4x4", set=ESTIMATE).found for each in (one, many)]
    assert [each.kinds for each in found] == [2, 2]
    assert found[0].simulations == found[1].simulations
    assert {each.names for each in found[1].costly} == {("fc0", "fc2", "fc4", "fc6"), ("fc1", "fc3", "fc5")}
    assert sum(each.share for each in found[1].costly) == pytest.approx(1)


def test_the_costliest_come_first_and_five_are_explained() -> None:
    layers = [Gemm(f"fc{i}", m=8, n=8 * (i + 1), k=8) for i in range(6)]
    with trying("twice the HBM bandwidth"):
        found = tpusim.explain(Workload("net", 1, layers), "tiny_4x4", set=ESTIMATE).found
    assert [each.names for each in found.costly] == [(f"fc{i}",) for i in (5, 4, 3, 2, 1)]
    assert found.kinds == 6


def test_a_layer_has_the_verdict_that_it_has_by_itself() -> None:
    for costly in of("tiny_4x4").costly[:2]:
        alone = tpusim.explain("tiny", "tiny_4x4", layer=costly.names[0], batch=2, set=ESTIMATE).found
        assert alone.layer == costly.found.layer
        assert alone.gains == costly.found.gains


def test_a_machine_of_another_family_is_explained_alike() -> None:
    found = tpusim.explain("tiny", "v100", batch=2).found
    assert found.most is not None
    assert all(each.found.limit in (None, "", "input") for each in found.costly)
    assert found.cycles == simulate(load_workload("tiny", batch=2), load_hardware("v100"), check=False).total.cycles


def test_layers_that_overlap_are_timed_together() -> None:
    change = "sequencer.between_layers=overlap"
    with trying("twice the HBM bandwidth"):
        found = tpusim.explain("tiny", "tiny_4x4", batch=2, set=[ESTIMATE, change]).found
    assert found.cycles == run_with(change, "tiny_4x4")
    assert "layers that overlap" not in [each.name for each in found.gains]


def test_a_workload_that_is_loaded_has_no_other_batch() -> None:
    work, machine = load_workload("tiny", batch=2), load_hardware("tiny_4x4", ESTIMATE)
    with trying("twice the HBM bandwidth"):
        found = tpusim.explain(work, machine).found
    assert "twice the batch" not in [each.name for each in found.gains]
    assert "twice the batch" in [each.name for each in found.untried]
    for wrong in ({"batch": 3}, {"dims": {"a": 1}}, {"phase": "decode"}):
        with pytest.raises(InputError, match="it is loaded already"):
            tpusim.explain(work, machine, **wrong)  # type: ignore[arg-type]


def test_what_cannot_be_tried_says_why() -> None:
    changes = [ESTIMATE, "vector_memory.word_elements=4096", "vector_memory.capacity=16 GiB"]
    with trying("words twice as long"):
        found = tpusim.explain("tiny", "tiny_4x4", batch=2, set=changes).found
    assert any(each.name == "words twice as long" for each in found.untried)


def test_steps_are_told_and_end() -> None:
    told: list[tuple[int, int, str]] = []
    tpusim.explain("tiny", "tiny_4x4", batch=2, set=ESTIMATE, progress=lambda *step: told.append(step))
    at = [done for done, total, _ in told if total > 3]
    assert at == [*range(len(at))]
    assert all(done < total for done, total, _ in told)


GEMMS = st.builds(Gemm, st.just("one"), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))


@settings(max_examples=cases(1 / 24), deadline=None)
@given(st.lists(GEMMS, min_size=2, max_size=4), st.sampled_from([1, 2]))
def test_whatever_the_network_the_figures_add_up(gemms: list[Gemm], arrays: int) -> None:
    work = Workload("net", 1, [replace(each, name=f"g{i}") for i, each in enumerate(gemms)])
    machine = load_hardware("tiny_4x4", [ESTIMATE, f"array.count={arrays}"])
    found = tpusim.explain(work, machine).found
    run = simulate(work, machine, check=False)
    assert found.cycles == run.total.cycles
    assert [layer.cycles for layer in found.layers] == [layer.cycles for layer in run.layers]
    assert found.kinds == len({(each.m, each.n, each.k) for each in gemms})
    names = [name for each in found.costly for name in each.names]
    assert len({*names}) == len(names)
    assert all(one.cycles >= other.cycles for one, other in pairwise(found.costly))
    cycles = {layer.name: layer.cycles for layer in run.layers}
    for each in found.costly:
        assert each.cycles == sum(cycles[name] for name in each.names)
    for each in found.gains:
        assert each.gain == pytest.approx(found.cycles / each.cycles)


# ---- the command


def test_the_command_tells_what_the_function_tells(tmp_path: Path) -> None:
    answer = answer_of("tiny_4x4")
    told, page = tmp_path / "why.json", tmp_path / "why.html"
    shown = command("tiny", *TINY, "--batch", "2", "--json", str(told), "--out", str(page))
    assert shown.exit_code == 0
    assert json.loads(told.read_text()) == answer.to_dict()
    assert shown.stdout.rstrip().endswith(f"\n\n{page}")
    assert str(answer) in shown.stdout
    html = page.read_text()
    for each in answer.found.gains:
        assert each.name in html
    assert f"{answer.found.simulations:,} simulations" in html
    assert "<script" not in html


def test_screens_say_how_many_simulations_there_were() -> None:
    answer = answer_of("tiny_4x4")
    assert f"{answer.found.simulations:,} simulations, each of one layer, timing alone" in " ".join(str(answer).split())


def test_a_row_is_the_network_a_layer_or_a_change() -> None:
    answer = answer_of("tiny_4x4")
    frame = answer.to_frame()
    now = frame[(frame["change"] == "") & (frame["of"] == "tiny")]
    assert now["cycles"].tolist() == [answer.found.cycles]
    assert {*frame["of"]} == {"tiny", *(each.names[0] for each in answer.found.costly)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny", "--hardware", "tiny_5x5"], "did you mean tiny_4x4"),
        (["tiny", "--phase", "decode"], "the workload has no phases"),
        (["tiny", "--weights", "int3"], "did you mean int8"),
        (["tiny", "--out", "why.htm"], "it is written as .png, .svg, .pdf, .html, not as .htm"),
        (["tiny", "--layer", "fig*"], "--layer fig* matches 2 of them: fig10, fig11"),
        (["tiny", "--set", "vector_memory.capacity=32 B"], "the smallest tiling"),
        (["llama3_8b", "--phase", "decode", "--hardware", "tpu_v6e", "--set", "hbm.capacity=8 GiB"], "needs"),
    ],
)
def test_bad_input(arguments: list[str], message: str) -> None:
    shown = command(*arguments)
    assert shown.exit_code == 2
    assert message in shown.stderr
    assert not shown.stdout


@pytest.mark.long
def test_a_large_language_model_is_explained() -> None:
    answer = tpusim.explain("llama3_8b", "tpu_v6e", phase="decode", batch=1)
    found = answer.found
    assert found.costly[0].names[0] == "gate_1"
    assert found.costly[0].found.limit == "hbm"
    gains = {each.name: each for each in found.gains}
    assert gains["twice the HBM bandwidth"].gain > 1.5
    narrow = load_workload("llama3_8b", batch=1, phase="decode", weights="int8")
    run = simulate(narrow, load_hardware("tpu_v6e"), check=False)
    assert gains["weights as int8 in HBM"].cycles == run.total.cycles
