"""Pods held against what somebody measured: how rows are read, run and told, and how close we come."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests import ROOT
from tpusim import load_hardware, simulate
from tpusim.cli import names
from tpusim.machines.tpu.slices.slice import load_slice
from tpusim.report.tables.validation import validated, with_pods
from tpusim.study.validation.cases import tables_from
from tpusim.study.validation.comparison import Comparison
from tpusim.study.validation.pods import (
    PODS,
    ComparedPod,
    MeasuredPod,
    PodRun,
    SimulatedPod,
    compare_pods,
    measured_pods,
    pod_sets,
    simulated,
    workload_for,
)

PAGE = ROOT / "docs" / "several_chips.md"
TABLE = ROOT / "tpusim" / "study" / "validation" / "truth" / "multichip_measured.csv"
SMALL = {
    "layers": "1", "d_model": "128", "d_ff": "256", "heads": "4", "kv_heads": "2", "head_dim": "32", "vocab": "256",
}  # fmt: skip

QUICK = ("mapping.search=estimate",)
"""Blocks that simulation chooses take most of the time."""


def rows() -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(TABLE.read_text()))]


def row(name: str, **more: str) -> dict[str, str]:
    return {**next(each for each in rows() if each["id"] == name), **more}


def found() -> dict[str, PodRun]:
    return {each.name: each.asked for each in measured_pods()[0]}


@pytest.fixture
def small_rows(tmp_path: Path) -> Iterator[list[MeasuredPod]]:
    """Two steps that differ in how many slices there are, a third with other layers, and a token."""
    more = {**SMALL, "chips": "4", "topology": "2x2", "parallelism": "fsdp=4", "seq": "64", "global_batch": "4"}
    step = row("maxtext-configs-v5e-01", **more, step_s="0.01")
    joined = {"chips": "8", "slices": "2", "parallelism": "fsdp=4 dcn_data=2", "global_batch": "8", "step_s": "0.02"}
    wider = {"d_ff": "512", "step_s": "0.03"}
    token = row("sglang-jax-01", **SMALL, parallelism="tensor=2", chips="4", seq="32+32", samples_s="1000", tpot_ms="2")
    table = [step, {**step, **joined}, {**step, **wider}, {**token, "parallelism": "tensor=2 data=2"}]
    table += [{**token, "chips": "4", "parallelism": "tensor=4", "kv_heads": "4"}]
    with (tmp_path / TABLE.name).open("w", newline="") as file:
        writer = csv.DictWriter(file, [*step])
        writer.writeheader()
        writer.writerows(table)
    with tables_from(tmp_path):
        yield measured_pods()[0]


def test_the_name_of_all_sets() -> None:
    assert names.POD_SETS == PODS
    assert all(name.startswith(PODS) for name in pod_sets())


def test_every_row_is_run_or_told_apart() -> None:
    asked, left_out = measured_pods()
    of_networks = [each for each in rows() if each["kind"] != "collective"]
    assert len(asked) + len(left_out) == len(of_networks)
    assert all(each.why for each in left_out)
    assert len(asked) >= 40


def test_rows_are_what_maxtext_was_asked_for() -> None:
    run = found()["maxtext-128b, 1,024 v5e, data=4 fsdp=16 tensor=16"]
    assert (run.workload, run.batch, run.slice, run.slices) == ("maxtext", 1024, "v5e_16x16", 4)
    assert run.mesh == (("data", 4), ("fsdp", 16), ("tensor", 16))
    assert dict(run.dims)["inner"] == 57344
    assert run.training
    training = dict(run.training)
    assert training["offload"] == ("query_[0-9]*", "key_[0-9]*", "value_[0-9]*")
    assert {*training["offload"]} < {*training["keep"]}
    # One slice of it has the layers of four.
    assert run.share == found()["maxtext-128b, 512 v5e, data=2 fsdp=16 tensor=16"].share
    # What MaxText calls the input of a layer is the output of the one ahead, and what comes into the first.
    (of_70b,) = (run for name, run in found().items() if name.startswith("llama3.1-70b, 128 v6e"))
    assert of_70b.training
    assert {"embedding", "feed_forward_sum*"} < {*dict(of_70b.training)["offload"]}
    # Of a token as many sequences are under way as tokens come in the time of one.
    (token,) = (run for name, run in found().items() if name.startswith("llama3.3-70b"))
    assert (token.batch, token.phase, dict(token.dims)["context"]) == (63, "decode", 1499)


def test_scores_stay_on_chip_where_the_configuration_says_so() -> None:
    assert {run.workload for name, run in found().items() if " v5e" in name} == {"maxtext"}
    assert {run.workload for name, run in found().items() if " v4, fsdp" in name} == {"llama3_8b"}


def test_a_row_that_is_unclear_is_left_out(small_rows: list[MeasuredPod]) -> None:
    _, left_out = measured_pods()
    assert [each.why for each in left_out] == ["how it is shared, or how many tokens come, is not told"]
    assert len(small_rows) == 4


def test_rows_are_simulated_as_a_user_would(small_rows: list[MeasuredPod]) -> None:
    """Layers that two rows share are timed once, and neither row takes another time than by itself."""
    one, two, wider, _ = small_rows
    assert one.asked.share == two.asked.share != wider.asked.share
    place = load_slice(two.asked.slice, [f"slices={two.asked.slices}"])
    machine = load_hardware(two.asked.machine, QUICK)
    by_itself = simulate(workload_for(two.asked), machine, dtype=two.asked.dtype, check=False, slice=place)
    assert by_itself.step
    together = simulated(QUICK, [one.asked, two.asked])
    assert together[1].seconds == by_itself.step.seconds > together[0].seconds
    assert dict(together[1].parts)["dcn"] == by_itself.step.parts["dcn"] / by_itself.step.cycles > 0
    assert not any(each.too_large for each in together)


def test_a_token_is_simulated(small_rows: list[MeasuredPod]) -> None:
    (found,) = simulated(QUICK, [small_rows[-1].asked])
    assert 0 < found.ideal < found.seconds
    assert dict(found.parts)["links"] > 0


def test_rows_are_told_beside_one_number(small_rows: list[MeasuredPod], monkeypatch: pytest.MonkeyPatch) -> None:
    ideal = {pod.asked: 0.001 * 2**at for at, pod in enumerate(small_rows)}
    parts = ("compute", 0.75), ("links", 0.25)

    def found(_: object, inputs: Sequence[tuple[PodRun, ...]], *__: object) -> Mapping[object, list[SimulatedPod]]:
        return {runs: [SimulatedPod(2 * ideal[run], ideal[run], parts, False) for run in runs] for runs in inputs}

    monkeypatch.setattr("tpusim.study.validation.pods.on_all_processors", found)
    sets = [*pod_sets().values()]
    assert [each.name for each in sets] == ["pods_v5e", "pods_decode"]
    compared = compare_pods(sets, [], lambda *_: None)
    of_steps, of_token = compared
    one, two, wider = of_steps.rows
    # The number of a row is the geometric mean of the others.
    slower = [each.theirs / 2**at for at, each in enumerate(of_steps.rows)]
    assert one.roofline == pytest.approx((slower[1] * slower[2]) ** 0.5)
    assert two.roofline == pytest.approx(2 * (slower[0] * slower[2]) ** 0.5)
    # A row alone sets its own.
    (token,) = of_token.rows
    assert token.roofline == pytest.approx(token.theirs)
    for each in (one, two, wider, token):
        assert isinstance(each, ComparedPod)
        assert each.parts == {"compute": 0.75, "links": 0.25}
        assert each.rest == pytest.approx(each.theirs - each.ours)
    told = with_pods(validated(compared), compared)
    text = " ".join(str(part) for part in told.paragraphs)
    assert "pods_v5e: closer than one number in" in text
    assert told.data["sets"][0]["rows"][0]["parts"] == {"compute": 0.75, "links": 0.25}


def test_what_is_set_changes_slices_and_machines(small_rows: list[MeasuredPod]) -> None:
    step, token = small_rows[0].asked, small_rows[-1].asked
    for row_, change in ((step, "slice.overlap=none"), (token, "hbm.bandwidth=100 GB/s")):
        (plain,), (slow,) = (simulated((*QUICK, *changes), [row_]) for changes in ((), (change,)))
        assert plain.seconds < slow.seconds


def test_more_than_a_chip_holds_is_told(small_rows: list[MeasuredPod]) -> None:
    (found,) = simulated((*QUICK, "hbm.capacity=1 MB"), [small_rows[0].asked])
    assert found.too_large


KNOWN: Mapping[str, float] = {
    "maxtext-16b, 256 v5e, fsdp=256": -0.09, "maxtext-32b, 64 v5p, fsdp=16 tensor=4": -0.01,
    "llama3.1-70b, 256 7x, fsdp=256": -0.02, "qwen3-8b, 4 v6e, 59 at once behind 1,024": -0.37,
    "llama3.3-70b, 8 v6e, 63 at once behind 999": -0.15,
}  # fmt: skip
"""Errors of some rows, to two digits: a row of each generation that takes a minute or less."""


@pytest.mark.long
@pytest.mark.parametrize("name", KNOWN)
def test_rows_come_as_close_as_is_told(name: str) -> None:
    (pod,) = (each for each in measured_pods()[0] if each.name == name)
    (found,) = simulated((), [pod.asked])
    assert found.seconds / pod.took - 1 == pytest.approx(KNOWN[name], abs=0.02)


@pytest.mark.long
def test_all_rows_are_run() -> None:
    """Every row runs, and none is off by more than the host's part of a token can be."""
    compared: Sequence[Comparison] = compare_pods([*pod_sets().values()], [], lambda *_: None)
    assert sum(len(each.rows) for each in compared) == len(measured_pods()[0])
    for each in compared:
        assert abs(each.ours.worst) < 0.6, each.ours.where
        told = re.search(rf"`{each.numbers.name}` \| (\d+) \| (\d+\.\d) \|", PAGE.read_text())
        assert told
        assert (int(told[1]), float(told[2])) == (len(each.rows), round(100 * each.ours.mean, 1))


def test_shares_of_one_slice_are_their_own() -> None:
    run = found()["maxtext-16b, 256 v5e, fsdp=256"]
    assert run.share == run
    assert replace(run, slices=2, mesh=(("data", 2), *run.mesh), batch=2 * run.batch).share == run
    assert run.chips == 256
