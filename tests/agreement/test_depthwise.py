"""Depthwise convolutions by the vector unit: right at every level, to the cycle, and faster than group by group."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agree
from tests.agreement.test_agreement import fitted, short, suppose
from tests.agreement.test_hazards import hazards
from tests.strategies import cases, conv, depthwise, machine, machines_of_all_kinds, spills
from tpusim import simulate
from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering import vector
from tpusim.machines.tpu.lowering.registry import lowered, planned_of
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step, Vector
from tpusim.machines.tpu.program.transfers import Fill, Spill, Transfer
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload


@settings(max_examples=cases(1 / 40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=depthwise(channels=20, size=4),
    batch=st.integers(1, 9),
    hardware=machines_of_all_kinds(8, st.sampled_from([1, 2, 3, 8])),
)
@example(layer=conv(6, 7, 6, 5, padding=2, groups=6), batch=3, hardware=machine(4, 4, vector_unit={"scalar_words": 1}))
@example(layer=conv(2, 1, 2, 1, padding=3, stride=2, groups=2), batch=1, hardware=machine(1, 1, word_elements=1))
def test_random_layers(layer: Conv2d, batch: int, hardware: Hardware) -> None:
    """Values at both levels, the engines to the cycle, no wait missing, all steps told ahead."""
    suppose(not hardware.banked)
    program, hardware = fitted(layer, batch, hardware, "vector")
    agree(layer, batch, program, hardware, seed=3, timing=short(program, hardware))
    assert not [*hazards(program, hardware)]
    planned = planned_of(layer, batch, hardware, "vector")[0]
    assert planned is not None
    assert not program.streams
    assert planned.transfers - len(program.rows) in range(len(spills(program)) + 1)


def tight(layer: Op, batch: int = 4) -> tuple[Program, Hardware]:
    hardware = machine(8, 8, word_elements=4, capacity_words=60)
    return vector.VECTOR.lower(layer, batch, hardware)[0], hardware


@pytest.mark.parametrize("kind", [Fill, Vector, Spill])
def test_no_kind_of_step_could_do_without_its_waits(kind: type[Step]) -> None:
    program, hardware = tight(conv(12, 9, 12, 3, padding=1, groups=12))
    assert not [*hazards(program, hardware)]
    steps = tuple(replace(step, after=()) if isinstance(step, kind) else step for step in program.rows)
    assert any(hazards(replace(program, rows=steps), hardware))


def test_taps_whose_weights_a_lane_cannot_keep_come_in_several_steps() -> None:
    layer = conv(8, 9, 8, 5, padding=2, groups=8)
    of_all, _ = tight(layer)
    counts = [step.counts for step in of_all.vectors[:4]]
    assert [(each.operands, each.scalars) for each in counts] == [(8, 8), (9, 8), (9, 8), (2, 1)]
    assert all(step.adds_on for step in of_all.vectors[1:4])
    much = machine(8, 8, word_elements=4, vector_unit={"scalar_words": 7})
    assert {step.counts.scalars for step in vector.VECTOR.lower(layer, 4, much)[0].vectors} == {25}


# ---- who it is for

MAPS = {
    "all channels in one group": conv(8, 5, 8, 3),
    "two channels a group": conv(8, 5, 8, 3, groups=4),
    "one channel": conv(1, 5, 4, 3),
    "a product": Gemm("fc", m=4, n=4, k=4),
}


@pytest.mark.parametrize("name", MAPS)
def test_other_layers_are_refused(name: str) -> None:
    with pytest.raises(CapacityError, match="takes several groups, of one input channel each; this one has"):
        lowered(MAPS[name], 2, machine(), "vector")


def test_banks_are_refused() -> None:
    with pytest.raises(CapacityError, match="reads from lanes alone"):
        lowered(conv(8, 5, 8, 3, groups=8), 2, machine(vector_memory={"organization": "banked"}), "vector")


def test_a_given_block_is_kept() -> None:
    layer, hardware = conv(256, 14, 256, 3, padding=1, groups=256), load_hardware("tpu_v2")
    given = hardware.with_overrides({f"mapping.block.{name}": value for name, value in GIVEN.items()})
    blocking = vector.VECTOR.lower(layer, 32, given)[1].blocking
    assert (blocking.rows, blocking.cols, blocking.images) == (3, 5, 16)
    assert blocking.blocks == 5 * 3 * 2


GIVEN = {"rows": 3, "cols": 5, "images": 16}


# ---- how fast

MOBILENET_V2 = {
    "56x56 of 144": conv(144, 56, 144, 3, padding=1, groups=144),
    "28x28 of 192, stride 2": conv(192, 28, 192, 3, padding=1, stride=2, groups=192),
    "7x7 of 960": conv(960, 7, 960, 3, padding=1, groups=960),
}


def run(layer: Conv2d, lowering: str, machine: str = "tpu_v2", **options: Any) -> Any:
    (result,) = simulate(Workload("net", 8, (layer,)), load_hardware(machine), lowering=lowering, **options).layers
    return result


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (at > 0)) for at, name in enumerate(MOBILENET_V2)]
)
def test_twenty_times_faster_than_group_by_group(name: str) -> None:
    layer = MOBILENET_V2[name]
    slow, fast = (run(layer, each, check=False).cycles for each in ("channel_first", "vector"))
    assert slow > 20 * fast


def test_auto_takes_it() -> None:
    found = run(conv(128, 7, 128, 3, padding=1, groups=128), "auto")
    assert found.lowering == "vector"
    assert found.outputs_checked == found.outputs
    assert found.passes == found.mapping_efficiency == 0
    assert found.stall_cycles["vector_work"] > 0.8 * found.cycles


def test_the_vector_unit_is_busy_most_of_the_time() -> None:
    """28 x 28 of 128: 17 operations an element, two ALUs a lane, 68 cycles for each of 784 words."""
    found = run(conv(128, 28, 128, 3, padding=1, groups=128), "vector", check=False)
    assert found.units["vector_unit"]["busy"] == 784 * 68
    assert found.cycles < 1.05 * 784 * 68


def test_transfers_are_as_many_as_blocks_need() -> None:
    program = vector.VECTOR.lower(MOBILENET_V2["56x56 of 144"], 8, load_hardware("tpu_v2"))[0]
    assert sum(isinstance(step, Transfer) for step in program.rows) == 2 * len(spills(program)) + 2
