"""Minimal filtering: exact at every level, to the cycle in both engines, and faster where the array has most to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.agreement.test_agreement import fitted, suppose
from tests.agreement.test_hazards import hazards
from tests.strategies import cases, conv, fills, machine, machines_of_all_kinds, paddings, spills
from tpusim import simulate
from tpusim.base.errors import CapacityError
from tpusim.flow.verify import expected, operands_of
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering.minimal_filtering import F2, F4, MinimalFiltering, Recipe
from tpusim.machines.tpu.lowering.registry import LEAST, LOWERINGS, lowered, planned_of
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Fill, Preload, Spill, Step, Stream, Vector
from tpusim.network.ops import Conv1d, Conv2d, ConvTranspose2d, Gemm, Op
from tpusim.network.workload import Workload

SHORT = 3000
"""Cycles of a case; transforms take many steps even of one tile."""

TILES = {"winograd_2": F2, "winograd_4": F4}


@st.composite
def filtered(draw: st.DrawFn) -> Conv2d:
    """3 x 3 taps of stride 1, with any padding."""
    padding = draw(paddings(4))
    added = (9, 9) if isinstance(padding, str) else tuple(map(int, np.add(padding[:2], padding[-2:])))
    high, wide = (max(1, 3 - more) + draw(st.integers(0, 4)) for more in added)
    return Conv2d("conv", draw(st.integers(1, 6)), high, wide, draw(st.integers(1, 6)), (3, 3), padding=padding)


@settings(max_examples=cases(1 / 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=filtered(),
    batch=st.integers(1, 4),
    hardware=machines_of_all_kinds(8, st.sampled_from([1, 2, 3, 8])),
    name=st.sampled_from([*TILES]),
)
@example(layer=conv(5, 5, 3, 3, padding=1), batch=1, hardware=machine(4, 4), name="winograd_4")
@example(layer=conv(1, 1, 1, 3, padding=4), batch=1, hardware=machine(1, 1, word_elements=1), name="winograd_2")
def test_random_layers(layer: Conv2d, batch: int, hardware: Hardware, name: str) -> None:
    """Values at both levels, the engines to the cycle, no wait missing, steps told ahead, never below the least."""
    suppose(not hardware.banked)
    program, hardware = fitted(layer, batch, hardware, name)
    check_program(program, hardware)
    timing = event.run(program, hardware)
    suppose(timing.cycles < SHORT)
    assert LEAST[name](layer, batch, hardware) <= timing.cycles
    assert not [*hazards(program, hardware)]
    planned = planned_of(layer, batch, hardware, name)
    assert planned is not None
    assert planned.passes == len(program.streams)
    assert planned.transfers >= sum(not isinstance(step, Stream | Preload) for step in program.steps)
    operands = operands_of(layer, batch, seed=5)
    ofmap = expected(layer, operands)
    proven, registers = register.run(program, hardware, operands)
    assert proven == timing
    assert (timing.reads, timing.writes) == (program.use.port_reads, program.use.port_writes)
    np.testing.assert_array_equal(registers["ofmap"], ofmap)
    np.testing.assert_array_equal(datapath.run(program, hardware, operands)["ofmap"], ofmap)


def tight(name: str) -> tuple[Program, Hardware]:
    layer = conv(6, 6, 9, 3, padding=1)
    return fitted(layer, 4, machine(4, 4, word_elements=4, capacity_words=120), name)


@pytest.mark.parametrize("kind", [Fill, Preload, Stream, Vector, Spill])
@pytest.mark.parametrize("name", ["winograd_2"])
def test_no_kind_of_step_could_do_without_its_waits(name: str, kind: type[Step]) -> None:
    program, hardware = tight(name)
    assert not [*hazards(program, hardware)]
    steps = tuple(replace(step, after=()) if isinstance(step, kind) else step for step in program.steps)
    assert any(hazards(replace(program, steps=steps), hardware))


# ---- the transforms


def worked_out(recipe: Recipe, inputs: int) -> np.ndarray:
    """The matrix of what a recipe makes, line by line."""
    known = {f"x{number}": row for number, row in enumerate(np.eye(inputs))}
    for made, factors in recipe:
        known[made] = sum(factor * known[name] for name, factor in factors.items())
    outputs = sorted(name for name in known if name.startswith("y"))
    return np.array([known[name] for name in outputs])


@pytest.mark.parametrize("by", TILES.values(), ids=TILES)
def test_every_recipe_makes_what_the_matrix_says(by: MinimalFiltering) -> None:
    for recipe in by.data_recipes:
        np.testing.assert_array_equal(worked_out(recipe, by.reach), by.data)
    for recipe in by.inverse_recipes:
        np.testing.assert_array_equal(worked_out(recipe, by.reach), by.inverse)


@pytest.mark.parametrize("by", TILES.values(), ids=TILES)
def test_a_tile_by_hand(by: MinimalFiltering) -> None:
    """The outputs, times the scale, straight from the matrices."""
    random = np.random.default_rng(1)
    data, taps = random.integers(-99, 99, (by.reach, by.reach)), random.integers(-99, 99, (3, 3))
    one, other = np.array(by.data), np.array(by.inverse)
    made = other @ (by.transformed(taps[None, ..., None]).reshape(by.reach, by.reach) * (one @ data @ one.T)) @ other.T
    windows = np.lib.stride_tricks.sliding_window_view(data, (3, 3))
    np.testing.assert_array_equal(made, by.outputs_scale * (windows * taps).sum(axis=(2, 3)))


def test_published_factors() -> None:
    """Lavin and Gray: 2.25 and 4 times fewer multiplications; filters 16 / 9 and 4 times larger."""
    assert [9 * by.outputs**2 / by.products for by in (F2, F4)] == [2.25, 4]
    assert [by.outputs_scale for by in (F2, F4)] == [4, 576]


# ---- who it is for

OTHERS: dict[str, Op] = {
    "5x5": conv(8, 9, 8, 5),
    "1x1": conv(8, 9, 8, 1),
    "stride 2": conv(8, 9, 8, 3, stride=2),
    "dilated": conv(8, 9, 8, 3, dilation=2),
    "grouped": conv(8, 9, 8, 3, groups=2),
    "a sequence": Conv1d("sequence", 4, 9, 4, 3),
    "a product": Gemm("fc", m=4, n=4, k=4),
    "transposed": ConvTranspose2d("transposed", 4, 5, 5, 4, (3, 3)),
}


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("other", OTHERS)
def test_other_layers_are_refused(name: str, other: str) -> None:
    with pytest.raises(CapacityError) as error:
        lowered(OTHERS[other], 2, machine(), name)
    (problem,) = error.value.problems
    assert other == "transposed" or "takes convolutions of 3 x 3 taps, stride 1, dilation 1 and one" in str(problem)


def test_banks_are_refused() -> None:
    with pytest.raises(CapacityError, match="reads from lanes alone"):
        lowered(conv(8, 5, 8, 3), 2, machine(organization="banked"), "winograd_2")


# ---- how fast


def run(layer: Conv2d, lowering: str, alus: int = 256, **options: Any) -> Any:
    hardware = load_hardware("tpu_v2", {"vector_unit.alus": alus})
    (result,) = simulate(Workload("net", 8, (layer,)), hardware, lowering=lowering, **options).layers
    return result


@pytest.mark.parametrize(
    ("channels", "size", "alus", "best"),
    [
        (64, 56, 2048, "channel_last"),
        (512, 14, 256, "winograd_2"),
        (512, 14, 2048, "winograd_4"),
    ],
)
def test_auto_takes_the_fastest(channels: int, size: int, alus: int, best: str) -> None:
    layer = conv(channels, size, channels, 3, padding=1)
    direct, *tiles = (run(layer, name, alus, check=False) for name in ("channel_first", *TILES))
    found = run(layer, "auto", alus, check=False)
    assert found.lowering == best
    assert found.cycles <= min(each.cycles for each in (direct, *tiles))


def test_every_output_of_a_layer_of_vgg16() -> None:
    found = run(conv(512, 14, 256, 3, padding=1), "winograd_4", 2048)
    assert found.outputs_checked == found.outputs
    assert not found.outputs_mismatched
    assert found.pe_utilization > 1


def test_weights_come_once_a_block_and_the_ifmap_once() -> None:
    """Two row folds are transformed a block, for all of its four column folds."""
    layer, hardware = conv(256, 28, 512, 3, padding=1), load_hardware("tpu_v2")
    program, told = LOWERINGS["winograd_2"](layer, 8, hardware)
    weights = sum(step.hbm_bytes for step in fills(program, "transformed"))
    assert weights == told.blocking.blocks * 16 * 256 * 512 * 4
    assert len(fills(program, "ifmap")) == told.blocking.blocks * 2
    assert len(spills(program)) == told.blocking.blocks * 4
