"""Steps of a pipeline as a whole: turns of its stages, what they send, its bubble; and what goes to the host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.covering import few
from tests.flow.lowered_once import lowered_once
from tpusim import Workload, simulate
from tpusim.api.asked import asked_for, check_held, model_options
from tpusim.base.errors import CapacityError, CheckFailed, InputError
from tpusim.flow.chip_steps.network import exchanges_of, step_of
from tpusim.flow.hbm_need import hbm_need
from tpusim.flow.jobs import resolve
from tpusim.flow.pipeline import event, stepping
from tpusim.flow.pipeline.schedule import PipelinePlan, PipelineStage
from tpusim.flow.simulation import layers_of
from tpusim.machines.tpu.slices.slice import load_interconnect, load_slice
from tpusim.network.mesh import parse_mesh
from tpusim.network.pipeline_stages import of_stage
from tpusim.network.workload import ACCUMULATE, FORWARD, RELOAD, UPDATE
from tpusim.report.tables.step import step_paragraphs
from tpusim.result import rules
from tpusim.result.load import parse_result
from tpusim.result.records import Result, StepResult
from tpusim.study.explain.collectives import easier_hosts

SMALL: dict[str, int] = {"context": 64, "layers": 2, "width": 256, "heads": 8, "kv_heads": 4, "head": 32, "inner": 512,
                         "vocabulary": 640}  # fmt: skip
TINY: dict[str, int] = {"context": 8, "layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "head": 16, "inner": 64,
                        "vocabulary": 16}  # fmt: skip


def asked(mesh: dict[str, int], batch: int = 8, training: bool = True, **more: Any) -> Workload:
    options = model_options(training=training, dims={**SMALL, **more.pop("dims", {})}, mesh=mesh, **more)
    return asked_for("llama3_8b", "tpu_v5e", batch, None, options).work


def run(work: Workload, place: str, *changes: str) -> tuple[Result, StepResult]:
    slice = load_slice(place, changes)
    result = simulate(work, slice.chip, check=False, slice=slice)
    assert result.step is not None
    return result, result.step


@pytest.fixture(scope="module", autouse=True)
def once() -> Iterator[None]:
    """Stages, and all networks here, are of the same layers."""
    with lowered_once():
        yield


@pytest.fixture(scope="module")
def pipeline() -> tuple[Workload, Result, StepResult]:
    work = asked({"stage": 2, "data": 2})
    return work, *run(work, "v5e_2x2")


def plan_of(step: StepResult, beside: bool = True) -> PipelinePlan:
    stages = (PipelineStage(each.forward_cycles, each.backward_cycles, each.update_cycles, each.ahead_cycles,
                            each.back_cycles)
              for each in step.stages)  # fmt: skip
    return PipelinePlan(tuple(stages), step.microbatches, beside)


def test_a_step_takes_what_its_turns_take_in_order(pipeline: tuple[Workload, Result, StepResult]) -> None:
    work, result, step = pipeline
    log = event.run(plan_of(step))
    assert step.cycles == log.cycles
    assert [each.bubble_cycles for each in step.stages] == [log.bubble(at) for at in range(2)]
    assert step.parts["bubble"] == min(each.bubble_cycles for each in step.stages)
    assert [each.held for each in step.stages] == [2, 1]
    assert sum(step.parts.values()) == step.cycles
    assert (work.microbatches, step.microbatches, work.batch) == (4, 4, 1)
    assert step.items_per_second == pytest.approx(8 * 64 / step.seconds)
    assert [*rules.broken(result)] == []
    assert parse_result(result.to_json()).step == step


def test_turns_are_those_of_a_stage_by_itself(pipeline: tuple[Workload, Result, StepResult]) -> None:
    """Layers and collectives of a stage, timed as a network of their own that has no stages."""
    work, _, step = pipeline
    phases = dict(work.phases)
    for at, stage in enumerate(step.stages):
        for wanted, cycles in (((FORWARD,), stage.forward_cycles), (("backward", ACCUMULATE), stage.backward_cycles),
                               ((UPDATE,), stage.update_cycles)):  # fmt: skip
            part = of_stage(work, at).with_layers(lambda layer, those=wanted: phases[layer.name] in those)  # type: ignore[misc]
            sums = {name for name, phase in work.phases if phase == ACCUMULATE}
            mine = {layer.name for layer in part.layers}
            own = tuple(
                each for each in work.collectives
                if "stage" not in each.over and ({*each.reads} <= sums) == (wanted == (UPDATE,))
                and mine & {*each.reads, *each.read_by}
            )  # fmt: skip
            alone = replace(part, collectives=own, mesh=(("data", 2),))
            assert run(alone, "v5e_1x2")[1].cycles == pytest.approx(cycles, rel=0.02)


def test_what_stages_send_is_told_once_and_takes_place_for_each_microbatch(
    pipeline: tuple[Workload, Result, StepResult],
) -> None:
    _, _, step = pipeline
    (sent,) = (each for each in step.collectives if each.axes == ("stage",))
    assert (sent.times, sent.op, sent.bytes, sent.exposed_cycles) == (4, "permute", 2 * 64 * 256, 0)
    assert sent.cycles in {step.stages[0].ahead_cycles, step.stages[1].back_cycles}
    assert {each.times for each in step.collectives if "all_reduce" in each.name} == {1}


def test_a_chip_that_sends_and_nothing_else_waits_for_it(pipeline: tuple[Workload, Result, StepResult]) -> None:
    work, _, beside = pipeline
    result, step = run(work, "v5e_2x2", "overlap=none")
    assert step.cycles == event.run(plan_of(step, beside=False)).cycles > beside.cycles
    assert sum(step.parts.values()) == step.cycles
    assert step.parts["links"] > beside.parts["links"]
    assert [*rules.broken(result)] == []


def test_all_engines_come_to_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    work, place = asked({"stage": 2}, 2, training=False, phase="decode", dims=TINY), load_slice("v5e_1x2")
    result, step = run(work, "v5e_1x2")
    jobs = resolve(work, place.chip)
    made = exchanges_of(jobs, place)
    assert made is not None
    assert step_of(jobs, result.layers, made, "both") == step
    monkeypatch.setattr(stepping, "run", lambda plan: event.run(replace(plan, microbatches=plan.microbatches + 1)))
    with pytest.raises(CheckFailed, match="the engines disagree on when stages take turns"):
        step_of(jobs, result.layers, made, "both")


def test_tokens_go_through_stages_one_way(pipeline: tuple[Workload, Result, StepResult]) -> None:
    result, step = run(asked({"stage": 2}, 8, training=False, phase="decode", dims=TINY), "v5e_1x2")
    assert {each.backward_cycles for each in step.stages} == {0}
    assert step.cycles == event.run(plan_of(step)).cycles
    told = " ".join(str(each) for part in step_paragraphs(result) for each in part)
    assert "2 stages take 8 microbatches, one after another." in told
    trained = " ".join(str(each) for part in step_paragraphs(pipeline[1]) for each in part)
    assert "2 stages take 4 microbatches, one forward and one backward in turn." in trained


def test_layers_of_one_stage_are_no_pipeline() -> None:
    work = asked({"stage": 2}, 2, training=False).with_layers(lambda layer: layer.name == "gate_1")
    with pytest.raises(InputError, match="a pipeline is timed as a whole; take all layers"):
        run(work, "v5e_1x2")


# ---- the host


def test_what_goes_to_the_host_comes_back_for_the_way_back_one_ahead() -> None:
    work = asked({"data": 2}, 2, keep=["feed_forward_sum*"], offload=["feed_forward_sum*"])
    result, step = run(work, "v5e_1x2", "interconnect.host.bandwidth=1 GB/s")
    links, held = load_interconnect("v5e", ["host.bandwidth=1 GB/s"]), {each.name: each for each in step.collectives}
    away = [each for each in step.collectives if each.axes == ("host",)]
    size = 2 * 64 * 256
    assert len(away) == 4
    for each in away:
        assert (each.bytes, each.cycles, each.algorithm) == (size, links.host_cycles(size, links.chip.clock_hz), "pcie")
    # One goes out, and one comes back, at a time.
    for op in ("offload", "reload"):
        ways = sorted((each.start, each.end) for each in away if each.op == op)
        assert all(one[1] <= other[0] for one, other in pairwise(ways))
    # No reload begins on the way there.
    forward = sum(layer.cycles for layer in result.layers if layer.phase == FORWARD)
    assert all(each.start >= forward for each in away if each.op == RELOAD)
    assert held["feed_forward_sum_1.offload"].end <= held["feed_forward_sum_1.reload"].start
    assert step.parts["host"] == sum(each.exposed_cycles for each in away) > 0
    assert [*rules.broken(result)] == []
    fast = run(work, "v5e_1x2", "interconnect.host.bandwidth=100 TB/s")[1]
    assert fast.cycles < step.cycles


def test_without_links_to_a_host_nothing_is_offloaded() -> None:
    work = asked({}, offload="all")
    with pytest.raises(InputError, match="go to the host, and nobody says over which links of a chip; name a slice"):
        simulate(work, load_slice("v5e_2x2").chip, check=False)
    with pytest.raises(InputError, match=r"--offload: no way of TPU 7x to its host is known; offload nothing, or give"):
        run(asked({"data": 4}, offload="all"), "v7x_2x2x1")


def test_more_to_the_host_is_tried_where_something_goes_there() -> None:
    found = {each.what: each for each in easier_hosts(load_slice("v5e_2x2"))}
    (each,) = found.values()
    assert (each.what, each.settings) == (
        "twice the bandwidth to the host", {"interconnect.host.bandwidth": "32 GB/s"},
    )  # fmt: skip
    assert each.place == load_slice("v5e_2x2", each.settings)
    assert not [*easier_hosts(load_slice("v7x_2x2x1"))]


def test_layers_by_themselves_need_no_slice() -> None:
    work = asked({"data": 2}, 2, offload="all")
    assert len(layers_of(resolve(work, load_slice("v5e_1x2").chip))) <= len(work.layers)


# ---- a share that does not fit


@pytest.mark.parametrize(
    ("training", "mesh", "fits"), few(1, [(True, {"data": 8}, "fsdp=8"), (False, {"data": 8}, "data=4")])
)
def test_a_refusal_names_a_mesh_that_is_not_refused(training: bool, mesh: dict[str, int], fits: str) -> None:
    options = model_options(training=training, dims=SMALL, mesh=mesh)
    found = asked_for("llama3_8b", "tpu_v5e", 8, None, options)
    assert found.meshed is not None
    need = hbm_need(resolve(found.work, found.machine).work, found.machine).total
    small = asked_for("llama3_8b", "tpu_v5e", 8, [f"hbm.capacity={need - 1} B"], options)
    with pytest.raises(CapacityError) as error:
        check_held(resolve(small.work, small.machine), small)
    says = str(error.value)
    assert "of HBM in each chip of data=8, at batch 1" in says
    (named,) = re.findall(r"; --mesh (\S+) fits$", says)
    assert named.startswith(fits)
    again = model_options(training=training, dims=SMALL, mesh=parse_mesh(named))
    other = asked_for("llama3_8b", "tpu_v5e", 8, [f"hbm.capacity={need - 1} B"], again)
    check_held(resolve(other.work, other.machine), other)
