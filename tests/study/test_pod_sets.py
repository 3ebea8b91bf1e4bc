"""Pods held against what somebody measured: how rows are read, run and told, and how close we come."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
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
    compare_pods,
    measured_pods,
    pod_sets,
    simulated,
    workload_for,
)

TABLE = ROOT / "tpusim" / "study" / "validation" / "truth" / "multichip_measured.csv"
SMALL = {
    "layers": "2", "d_model": "256", "d_ff": "512", "heads": "4", "kv_heads": "2", "head_dim": "64", "vocab": "512",
}  # fmt: skip


def rows() -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(TABLE.read_text()))]


def row(name: str, **more: str) -> dict[str, str]:
    return {**next(each for each in rows() if each["id"] == name), **more}


def found() -> dict[str, PodRun]:
    return {each.name: each.run for each in measured_pods()[0]}


@pytest.fixture
def small_rows(tmp_path: Path) -> Iterator[list[MeasuredPod]]:
    """Two steps that differ in how many slices there are, a third with other layers, and a token."""
    more = {**SMALL, "chips": "4", "topology": "2x2", "parallelism": "fsdp=4", "seq": "128", "global_batch": "4"}
    step = row("maxtext-configs-v5e-01", **more, step_s="0.01")
    joined = {"chips": "8", "slices": "2", "parallelism": "fsdp=4 dcn_data=2", "global_batch": "8", "step_s": "0.02"}
    wider = {"d_ff": "1024", "step_s": "0.03"}
    token = row("sglang-jax-01", **SMALL, parallelism="tensor=2", chips="4", seq="64+64", samples_s="1000", tpot_ms="2")
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
    by_themselves = []
    for each in small_rows:
        place = load_slice(each.run.slice, [f"slices={each.run.slices}"])
        result = simulate(
            workload_for(each.run), load_hardware(each.run.machine), dtype=each.run.dtype, check=False, slice=place
        )
        assert result.step
        by_themselves.append(result.step.seconds)
    one, two, wider, token = small_rows
    assert one.run.share == two.run.share != wider.run.share
    together = [*simulated((), [one.run, two.run]), *simulated((), [wider.run]), *simulated((), [token.run])]
    assert [each.seconds for each in together] == by_themselves
    assert together[1].seconds > together[0].seconds
    assert not any(each.too_large for each in together)


def test_rows_are_told_beside_one_number(small_rows: list[MeasuredPod], monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [*pod_sets().values()]
    assert [each.name for each in sets] == ["pods_v5e", "pods_decode"]
    monkeypatch.setattr("tpusim.study.processes.cpu_count", lambda: 1)
    compared = compare_pods(sets, [], lambda *_: None)
    of_steps, of_token = compared
    ideal = [each.ideal for pod in small_rows for each in simulated((), [pod.run])]
    one, two, wider = of_steps.rows
    # The number of a row is the geometric mean of the others.
    assert one.roofline == pytest.approx(1e3 * ideal[0] * (0.02 / ideal[1] * 0.03 / ideal[2]) ** 0.5)
    assert two.roofline == pytest.approx(1e3 * ideal[1] * (0.01 / ideal[0] * 0.03 / ideal[2]) ** 0.5)
    # A row alone sets its own.
    (token,) = of_token.rows
    assert token.roofline == pytest.approx(token.theirs)
    for each in (one, two, wider, token):
        assert isinstance(each, ComparedPod)
        assert sum(share for _, share in each.parts) == pytest.approx(1)
        assert each.rest == pytest.approx(each.theirs - each.ours)
    told = with_pods(validated(compared), compared)
    text = " ".join(str(part) for part in told.paragraphs)
    assert "closer than one number in" in text


def test_what_is_set_changes_slices_and_machines(small_rows: list[MeasuredPod]) -> None:
    (plain,), (alone,), (slow,) = (
        simulated(changes, [small_rows[0].run])
        for changes in ((), ("slice.overlap=none",), ("hbm.bandwidth=100 GB/s",))
    )
    assert plain.seconds < alone.seconds
    assert plain.seconds < slow.seconds


def test_more_than_a_chip_holds_is_told(small_rows: list[MeasuredPod]) -> None:
    (found,) = simulated(("hbm.capacity=1 MB",), [small_rows[0].run])
    assert found.too_large


LIMITS: Mapping[str, tuple[float, float]] = {}
"""By set the mean error that is allowed, and the least rank."""


@pytest.mark.long
def test_pods_come_close() -> None:
    compared: Mapping[str, Comparison] = {
        each.numbers.name: each for each in compare_pods([*pod_sets().values()], [], lambda *_: None)
    }
    assert {*compared} == {*LIMITS}
    for name, (mean, rank) in LIMITS.items():
        assert compared[name].ours.mean < mean, name
        assert (compared[name].rank_correlation or 0) >= rank, name


def test_shares_of_one_slice_are_their_own() -> None:
    run = found()["maxtext-16b, 256 v5e, fsdp=256"]
    assert run.share == run
    assert replace(run, slices=2, mesh=(("data", 2), *run.mesh), batch=2 * run.batch).share == run
    assert run.chips == 256
