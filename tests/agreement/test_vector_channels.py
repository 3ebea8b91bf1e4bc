"""Sums over channels: right at every level, to the cycle, and near one pass over the map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.agreement.test_corruption import change, edit_part, shift_items, shift_lanes
from tests.agreement.test_hazards import assert_waits_matter
from tests.agreement.test_vector_ops import moved, with_first_moved
from tests.agreement.test_vector_rows import assert_agreement
from tests.checks import check_layer
from tests.covering import covering
from tests.rules import rule
from tests.strategies import cases, channel_ops, fills, machine, machines_of_all_kinds, spills
from tpusim import load_hardware, simulate
from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.flow.numbers import numbers_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering import vector_channels as lowering
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step, Vector
from tpusim.machines.tpu.program.transfers import Fill, Part, Spill
from tpusim.machines.tpu.runs.fastest_draft import prepared
from tpusim.network.ops.channels import ChannelMaskedSums, ChannelMean, ChannelProducts, ChannelSum, ChannelVariance
from tpusim.network.ops.elementwise import Relu
from tpusim.network.workload import Workload

LOWERING = "vector_channels"
SMALL = machine(8, 8, word_elements=4, capacity_words=60)
PRODUCTS = ChannelProducts("products", 12, 7, 5, centred=True)
"""Two portions, of several pieces."""
MASKED = ChannelMaskedSums("masked", 12, 7, 5)


@rule("T69")
def test_sums_of_long_columns_wait_for_the_addition_ahead() -> None:
    """A body of 1,024 words has eight columns of 1,024 rows, one of 8,192: two cycles a word, or half of one, in which
    4 ALUs add and convert.
    """
    bodies = [f"vector_unit.slots.{name}_cycles={cycles}" for name, cycles in (("body", 1), ("sum", 0))]
    hardware = load_hardware("tpu_v5e", ["hbm.bandwidth=100 TB/s", *bodies])
    short, long = (
        prepared(ChannelSum("sum", 1024, images=rows), 1, hardware, LOWERING).timing.units["systolic_array"]
        for rows in (1024, 8192)
    )
    assert 512 <= short["vector_work"] < 700
    assert 2 * 8192 <= long["vector_work"] < 1.1 * 2 * 8192


@rule("T87", "T89")
@settings(max_examples=cases(1 / 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=channel_ops(20, 7),
    batch=st.integers(1, 9),
    hardware=machines_of_all_kinds(8, st.sampled_from([1, 2, 3, 8])),
)
@example(layer=ChannelSum("s", 60), batch=4, hardware=machine(2, 2, word_elements=2))
@example(
    layer=ChannelVariance("v", 5, 9, 7),
    batch=6,
    hardware=machine(4, 4, word_elements=4, vector_unit={"scalar_words": 1}),
)
@example(layer=ChannelVariance("v", 3, 6, 5), batch=4, hardware=machine(4, 16, word_elements=2))
@example(layer=ChannelMaskedSums("m", 5, 3, 3), batch=8, hardware=machine(4, 4, word_elements=4))
@example(layer=ChannelMaskedSums("m", 9, 1, 3), batch=7, hardware=machine(4, 4, word_elements=2))
@example(layer=ChannelProducts("p", 9, 4, 4, centred=True), batch=1, hardware=machine(4, 4, capacity_words=16))
def test_random_layers(layer: ChannelSum, batch: int, hardware: Hardware) -> None:
    """Values at both levels, bit for bit, the engines to the cycle, no wait missing, all steps told ahead."""
    assert_agreement(layer, batch, hardware, LOWERING)


@pytest.mark.parametrize(
    ("layer", "dtype"),
    covering(
        1,
        [ChannelSum("s", 12, 7, 5), ChannelMean("m", 12, 7, 5), ChannelVariance("v", 12, 7, 5), PRODUCTS, MASKED],
        ["f32", "bf16", "int8"],
    ),
    ids=lambda each: getattr(each, "op", None),
)
def test_numbers_of_any_type_are_within_the_bound(layer: ChannelSum, dtype: str) -> None:
    program, _ = lowering.VECTOR_CHANNELS.lower(layer, 8, SMALL)
    verdict = check_layer(layer, 8, program, SMALL, seed=1, numbers=numbers_of(dtype, "any"))
    assert (verdict.mismatched, verdict.checked) == (0, 12 * len(layer.sums))


CORRUPTIONS: dict[str, Callable[[Program], Program]] = {
    "an operand": lambda p: change(p, Vector, with_first_moved, 1),
    "a lost element": lambda p: change(p, Vector, lambda v: replace(v, operands=v.operands[2:]), 0),
    "a result address": lambda p: change(p, Vector, lambda v: replace(v, writes=moved(v.writes)), 0),
    "a lane": lambda p: change(p, Fill, lambda f: edit_part(f, shift_lanes), of="ifmap"),
    "a row": lambda p: change(p, Fill, lambda f: edit_part(f, lambda part: shift_items(part, 1)), of="other"),
    "a number": lambda p: change(p, Fill, lambda f: edit_part(f, shift_lanes), of="about"),
    "a sum on the way": lambda p: change(p, Spill, lambda s: edit_part(s, shift_lanes), 0),
}


@cache
def sound() -> Program:
    """The Program that is corrupted below."""
    program, _ = lowering.VECTOR_CHANNELS.lower(PRODUCTS, 8, SMALL)
    assert check_layer(PRODUCTS, 8, program, SMALL, seed=0).mismatched == 0
    return program


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_program_is_caught(name: str) -> None:
    program = sound()
    corrupted = CORRUPTIONS[name](program)
    assert corrupted != program
    assert check_layer(PRODUCTS, 8, corrupted, SMALL, seed=0).mismatched > 0


@pytest.mark.parametrize("kind", [Fill, Vector, Spill])
def test_no_kind_of_step_could_do_without_its_waits(kind: type[Step]) -> None:
    program, _ = lowering.VECTOR_CHANNELS.lower(PRODUCTS, 8, SMALL)
    assert_waits_matter(program, SMALL, kind)


def test_who_lowers_what_and_what_is_told() -> None:
    with pytest.raises(UnsuitableError, match="channel_sum is lowered by vector_channels, not by vector_ops"):
        lowered(ChannelSum("s", 3), 2, machine(), "vector_ops")
    with pytest.raises(UnsuitableError, match="relu is lowered by vector_ops, not by vector_channels"):
        lowered(Relu("r", 3, 4, 4), 2, machine(), LOWERING)
    with pytest.raises(CapacityError, match=r"layer s: the smallest tiling needs \d+ words"):
        lowered(ChannelSum("s", 3), 2, machine(capacity_words=2), LOWERING)
    result = simulate(Workload("net", 4, (PRODUCTS, ChannelMean("mean", 9, 4, 4))), SMALL, engine="both")
    assert result.correct
    assert [layer.lowering for layer in result.layers] == [LOWERING] * 2


@rule("T86", "T87")
def test_maps_come_once_and_elements_of_words_meet_once() -> None:
    """Words have as many images as divide the batch: 3 of 9, and one of 7, whose sums meet nobody."""
    program, _ = lowering.VECTOR_CHANNELS.lower(PRODUCTS, 9, SMALL.with_overrides(["hbm.burst=4 B"]))
    assert program.word_fill == 3
    assert sum(step.hbm_bytes for step in fills(program, "ifmap")) == 12 * 7 * 5 * 9 * 4
    assert [step.tensor.name for step in spills(program)] == ["exchanged"] * 2 + ["ofmap"] * 2
    alone, _ = lowering.VECTOR_CHANNELS.lower(PRODUCTS, 7, SMALL)
    assert (alone.word_fill, [step.tensor.name for step in spills(alone)]) == (1, ["ofmap"] * 2)


def of_next_lanes(part: Part) -> Part:
    """Each lane has what the next one should have, and the last what the first should."""
    turned = (each._replace(coordinates=(*each.coordinates[1:], each.coordinates[0])) for each in part.lane)
    return part._replace(lane=tuple(turned))


@rule("T86")
def test_few_channels_have_several_lanes_each() -> None:
    """8 lanes are enough for two shares of three channels, of 4 rows each; 7 rows have no equal shares."""
    layer = ChannelProducts("p", 3, 8, 5, centred=True)
    program, told = lowering.VECTOR_CHANNELS.lower(layer, 4, SMALL)
    assert told.aspects["folds"] == "1 portion of at most 8 channels, one a lane, in 2 shares of 4 rows"
    assert {step.lanes for step in program.vectors} == {6, 3}
    assert check_layer(layer, 4, program, SMALL, seed=0).mismatched == 0
    for name in ("ifmap", "about", "exchanged"):
        corrupted = change(program, Fill, lambda fill: edit_part(fill, of_next_lanes), of=name)
        assert check_layer(layer, 4, corrupted, SMALL, seed=0).mismatched > 0
    alone, _ = lowering.VECTOR_CHANNELS.lower(replace(layer, height=7), 4, SMALL)
    assert {step.lanes for step in alone.vectors} == {3}


TURNED = SMALL.with_overrides(["mapping.layout=least_padding", "hbm.channel_multiple=8", "hbm.burst=4 B"])
"""Tensors lie so that lanes are padded least."""


@rule("T88")
@pytest.mark.parametrize(
    "layer",
    [
        ChannelSum("s", 6, 5, 3),
        ChannelVariance("v", 6, 5, 3),
        replace(PRODUCTS, height=2, width=3),
        replace(MASKED, height=2, width=2),
    ],
)
def test_images_are_in_lanes_where_these_are_padded_less(layer: ChannelSum) -> None:
    """8 of 16 images; words have half of six channels, or four of twelve; the sums of 8 lanes meet step by step."""
    program, told = lowering.VECTOR_CHANNELS.lower(layer, 16, TURNED)
    assert program.word_fill == (4 if layer.channels == 12 else 3)
    assert "an image a lane" in told.aspects["folds"]
    assert_agreement(layer, 16, TURNED, LOWERING)
    corrupted = change(program, Fill, lambda fill: edit_part(fill, of_next_lanes), of="exchanged")
    assert check_layer(layer, 16, corrupted, TURNED, seed=0).mismatched > 0
    usual, _ = lowering.VECTOR_CHANNELS.lower(layer, 16, TURNED.with_overrides(["mapping.layout=plain"]))
    came, padded = (sum(step.hbm_bytes for step in fills(each, "ifmap")) for each in (program, usual))
    assert prod(layer.shapes(16)["ifmap"]) * 4 == came < padded


def test_a_sum_takes_little_more_than_a_pass() -> None:
    """On the paper's machine, HBM sets the pace: 56 x 56 x 128 elements of 16 images, four bytes each."""
    hardware = load_hardware("tpu_v2")
    work = Workload("net", 16, (ChannelSum("sum", 128, 56, 56),))
    (layer,) = simulate(work, hardware, check=False).layers
    bus = 56 * 56 * 128 * 16 * 4 / float(hardware.hbm_bytes_per_cycle)
    assert bus < layer.cycles < 1.1 * bus
