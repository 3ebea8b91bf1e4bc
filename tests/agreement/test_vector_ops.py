"""Ops of the vector unit: right at every level, to the cycle, whatever the window sees of the padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agree
from tests.agreement.test_agreement import fitted, short, suppose
from tests.agreement.test_corruption import change, edit_part, shift_items, shift_lanes
from tests.agreement.test_dram import with_banks
from tests.agreement.test_hazards import assert_waits_matter, hazards
from tests.checks import check_layer
from tests.covering import covering
from tests.rules import rule
from tests.strategies import cases, conv, dram, fills, machine, machines_of_all_kinds, pools, spills, vector_ops
from tpusim import load_hardware, simulate
from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.flow.jobs import resolve
from tpusim.flow.lowerings import known
from tpusim.flow.numbers import numbers_of
from tpusim.flow.verify import expected, operands_of, verdict_of
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering import pool_gradient
from tpusim.machines.tpu.lowering import vector_ops as lowering
from tpusim.machines.tpu.lowering.registry import LOWERINGS, drafts_of, lowered, planned_of
from tpusim.machines.tpu.lowering.vector import VectorUnits
from tpusim.machines.tpu.program.addresses import Counters, Feed
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step, Vector
from tpusim.machines.tpu.program.transfers import Fill, Part, Spill
from tpusim.machines.tpu.runs.prepared import as_floats
from tpusim.machines.tpu.sections import Slots
from tpusim.network.ops import OPS
from tpusim.network.ops.elementwise import (
    KEPT,
    ROWS,
    Add,
    Arithmetic,
    BatchNormGradient,
    Div,
    Gelu,
    GeluGradient,
    Masked,
    Mul,
    Relu,
    Rotary,
    ScaleShift,
    SoftCap,
    Sub,
    Where,
)
from tpusim.network.ops.moves import ChannelShuffle, Embedding, Move, Pad, Slice, Spread, Transpose, Upsample
from tpusim.network.ops.op import VectorOp
from tpusim.network.ops.pool2d import Pool2d, Pool2dChoice, Pool2dGradient
from tpusim.network.ops.training import AdamStep, BatchNormOffset, WeightedSum
from tpusim.network.workload import Workload

LOWERING = "vector_ops"
TIGHT = machine(8, 8, word_elements=4, capacity_words=60)
POOL = Pool2d("pool", "average", 12, 7, 7, (3, 3), (2, 2), (1, 1))


def least_padding() -> Hardware:
    """A machine on which maps of few channels have their columns in lanes."""
    return machine(4, 4, hbm={"channel_multiple": 8}).with_overrides(["mapping.layout=least_padding"])


def one_image() -> Hardware:
    """A machine whose strips may reach beyond the last output."""
    return machine(4, 4).with_overrides(["mapping.strips=one_image"])


@rule("T66")
def test_a_word_that_windows_share_is_widened_once() -> None:
    """Windows of 3 every 2: 5 rows of 6 that two windows read, and 7 columns of 9 that three do."""
    slots = Slots(loads=9, stores=1, lanes=8, register_bytes=16, registers=2)
    layer = Pool2d("pool", "max", 8, 5, 7, (3, 3), (2, 2))
    program, _ = lowered(layer, 4, machine(8, 8, word_elements=4, vector_unit={"slots": slots, "widen": 1}), LOWERING)
    assert {each.widened for each in program.vectors} == {Fraction(5 * 7, 6 * 9)}
    apart, _ = lowered(replace(layer, stride=(3, 3), in_height=6, in_width=9), 4, machine(8, 8), LOWERING)
    assert {each.widened for each in apart.vectors} == {1}


@rule("T74", "T81")
@settings(max_examples=cases(1 / 25), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=vector_ops(12, 4),
    batch=st.integers(1, 9),
    hardware=machines_of_all_kinds(8, st.sampled_from([1, 2, 3, 8])),
)
@example(layer=Pool2d("p", "max", 6, 5, 5, 3, 2, 1), batch=3, hardware=machine(4, 4, vector_unit={"scalar_words": 1}))
@example(layer=Pool2d("p", "average", 6, 6, 7, 3, 2, 1, ceil_mode=True), batch=1, hardware=machine(4, 4))
@example(layer=Add("a", 9, 5, 4, other="image"), batch=1, hardware=machine(4, 4, word_elements=8))
@example(layer=Sub("s", 3, 4, 7), batch=2, hardware=least_padding())
@example(layer=Add("a", 1, 1, 7), batch=1, hardware=least_padding())
@example(layer=Sub("s", 5, 3, 7), batch=1, hardware=least_padding())
@example(layer=Add("a", 9, 4, 8), batch=1, hardware=least_padding().with_overrides(["mapping.strips=one_image"]))
@example(layer=Add("a", 3, 2, 7), batch=8, hardware=least_padding())
@example(layer=ScaleShift("s", 3, 4, 5), batch=8, hardware=least_padding())
@example(layer=BatchNormGradient("g", 3, 2, 3), batch=16, hardware=least_padding())
@example(layer=Pool2dGradient("g", "max", 3, 5, 6, 3, 2, 1), batch=8, hardware=least_padding())
@example(layer=Pool2dGradient("g", "average", 3, 5, 6, 3, 2, 1), batch=8, hardware=least_padding())
@example(layer=Pool2d("p", "max", 1, 1, 3, (1, 2), 1), batch=2, hardware=one_image())
@example(
    layer=Pool2dChoice("c", "max", 5, 4, 6, 4, 2, 1), batch=1, hardware=machine(4, 4, vector_unit={"scalar_words": 1})
)
@example(
    layer=Pool2dGradient("g", "max", 2, 5, 6, 4, 1), batch=1, hardware=machine(4, 4, vector_unit={"scalar_words": 1})
)
@example(
    layer=Pool2dGradient("g", "average", 2, 4, 4, 4, 1, 2),
    batch=1,
    hardware=machine(4, 4, vector_unit={"scalar_words": 1}),
)
@example(layer=Pool2dGradient("g", "max", 3, 7, 7, 2, 3), batch=2, hardware=machine(4, 4))
@example(layer=Rotary("r", 12, 2, 3), batch=9, hardware=machine(8, 8, word_elements=4))
@example(layer=Rotary("r", 6, 1, 7), batch=2, hardware=machine(4, 4, word_elements=8, vector_unit={"scalar_words": 1}))
@example(layer=Rotary("r", 6), batch=1, hardware=machine(8, 8, word_elements=4, vector_unit={"scalar_words": 1}))
@example(layer=Rotary("r", 2, 1, 7), batch=1, hardware=least_padding())
@example(layer=BatchNormGradient("g", 5, 2, 3), batch=3, hardware=machine(4, 4, vector_unit={"scalar_words": 2}))
@example(layer=BatchNormGradient("g", 5, 2, 3), batch=3, hardware=machine(4, 4, vector_unit={"scalar_words": 3}))
@example(layer=BatchNormOffset("o", 5, images=1), batch=3, hardware=machine(4, 4, vector_unit={"scalar_words": 3}))
@example(layer=BatchNormOffset("o", 5, images=1), batch=3, hardware=machine(4, 4, vector_unit={"scalar_words": 1}))
@example(layer=GeluGradient("g", 5), batch=1, hardware=machine(4, 4))
def test_random_layers(layer: VectorOp, batch: int, hardware: Hardware) -> None:
    """Values at both levels, the engines to the cycle, no wait missing, all steps told ahead."""
    suppose(hardware.vector_unit.scalar_words >= {ScaleShift: 2, Masked: 3}.get(type(layer), 1))
    program, hardware = fitted(layer, batch, hardware, LOWERING)
    agree(layer, batch, program, hardware, seed=3, timing=short(program, hardware))
    assert not [*hazards(program, hardware)]
    planned = planned_of(layer, batch, hardware, LOWERING)[0]
    assert planned is not None
    assert not program.streams
    assert planned.transfers >= len(program.rows) > 0
    assert spills(program)


def crowding_machine() -> Hardware:
    """A machine on whose DRAM a portion of every pixel lies in one of four channels, if a pixel has 256 bytes."""
    few = machine(8, 8, hbm={"channel_multiple": 8}, vector_unit={"scalar_words": 2})
    return with_banks(few, dram(channels=4, columns=1, banks=16))


@rule("T128")
@pytest.mark.parametrize(
    "layer",
    [
        ScaleShift("s", 29, 5, 2), Sub("s", 31, 6, 1), Pool2d("p", "max", 30, 7, 6, 3, 2, 1), Rotary("r", 32, 3, 4),
        Pool2dGradient("g", "max", 30, 7, 6, 3, 2, 1),
        *(pytest.param(each, marks=pytest.mark.long) for each in (
            Relu("r", 29, 3, 5), Add("a", 32, 3, 4), Pool2dChoice("c", "max", 29, 7, 8, (3, 2), 2),
        )),
    ],
    ids=lambda layer: layer.op,
)  # fmt: skip
def test_portions_of_a_pixel_come_together_where_each_is_in_few_channels_of_a_dram(layer: VectorOp) -> None:
    """They take less than a unit for each, and engines and values agree."""
    hardware = crowding_machine()

    def units_of(*asked: Any) -> VectorUnits:
        return (pool_gradient._units_of if isinstance(layer, Pool2dGradient) else lowering.units_of)(*asked)

    def clear() -> None:
        lowering.units_of.cache_clear()
        pool_gradient._units_of.cache_clear()

    units = units_of(layer, 2, hardware)
    assert units.crowded > 2
    assert units.tiling.kept_folds == len(units.portions) == 4
    program, _ = lowered(layer, 2, hardware, LOWERING)
    timing = short(program, hardware)
    agree(layer, 2, program, hardware, seed=3, timing=timing)
    assert not [*hazards(program, hardware)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VectorUnits, "crowded", 1.0)
        clear()
        apart, _ = lowered(layer, 2, hardware, LOWERING)
        assert timing.cycles < event.run(apart, hardware).cycles
    clear()
    # Drafts with and without joined portions stand side by side; the memory for the longest is known ahead.
    asked = layer, 2, hardware.having("mapping", search="simulate"), LOWERING
    longest = max(len(each.lower()[0].rows) for each in drafts_of(*asked))
    assert planned_of(*asked)[0].transfers >= longest >= len(program.rows) > 0
    # Of an image more, portions lie in all channels.
    assert units_of(layer, 3, hardware).tiling.kept_folds == 1


def whole_fits(layer: VectorOp, batch: int, hardware: Hardware) -> bool:
    try:
        return bool(lowering.units_of(layer, batch, hardware).ranked)
    except CapacityError:
        return False


@rule("T80")
@settings(max_examples=cases(1 / 50), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=pools(12, 12),
    batch=st.integers(1, 9),
    room=st.integers(7, 30),
    words=st.sampled_from([1, 2, 8]),
    changes=st.sampled_from([[], ["mapping.loads=windows", "mapping.window=4 KiB"], ["mapping.search=estimate"]]),
)
@example(Pool2d("p", "average", 6, 11, 9, (11, 9)), 2, 30, 2, [])
@example(Pool2d("p", "min", 3, 4, 11, (1, 11), 1, (0, 2)), 1, 9, 2, [])
@example(Pool2d("p", "max", 2, 16, 16, 6, 5, 3, 2), 1, 20, 2, ["mapping.strips=one_image"])
@example(Pool2d("p", "average", 3, 11, 5, (5, 4), (4, 2), 2, 2, True, True), 9, 10, 8, ["mapping.layout=least_padding"])
def test_windows_that_no_lane_holds_are_joined_band_by_band(
    layer: Pool2d, batch: int, room: int, words: int, changes: list[str]
) -> None:
    hardware = machine(4, 4, word_elements=words, capacity_words=room).with_overrides(changes)
    suppose(not whole_fits(layer, batch, hardware))
    # Bands of one element need two words for these, two for results and one for a row.
    program, _ = lowered(layer, batch, hardware, LOWERING)
    agree(layer, batch, program, hardware, seed=3, timing=short(program, hardware))
    assert not [*hazards(program, hardware)]
    assert planned_of(layer, batch, hardware, LOWERING)[0].transfers >= len(program.rows) > 0


@rule("T80")
def test_a_large_window_is_cut_where_that_is_faster() -> None:
    """On a machine whose lanes hold it as a whole; a window of a few elements is left whole."""
    large, small = (Pool2d("p", "average", 256, size, size, size) for size in (112, 7))
    hardware = load_hardware("tpu_v6e")
    cut, whole = (lowering.VECTOR_OPS.drafts(each, 2, hardware) for each in (large, small))
    assert event.run(cut[0].lower()[0], hardware).cycles < 0.75 * event.run(cut[1].lower()[0], hardware).cycles
    assert len(whole) == 1


def brought(program: Program) -> int:
    """Bytes of the condition that are loaded."""
    return sum(step.hbm_bytes for step in fills(program, "condition"))


@rule("T74")
@pytest.mark.parametrize(
    ("condition", "hardware"),
    covering(
        1,
        KEPT,
        (
            machine(4, 4),
            machine(4, 4, vector_unit={"scalar_words": 1}),
            least_padding(),
            machine(8, 8, word_elements=4),
        ),
    ),
)
def test_a_condition_of_fewer_elements_is_read_once_for_all_that_share_it(condition: Any, hardware: Hardware) -> None:
    layer = Where("w", 5, 2, 5, condition=condition)
    program, _ = lowered(layer, 6, hardware, LOWERING)
    whole, _ = lowered(replace(layer, condition="each"), 6, hardware, LOWERING)
    # In other layouts both are padded in ways of their own.
    assert hardware.mapping.layout != "plain" or brought(program) <= brought(whole)
    agree(layer, 6, program, hardware, seed=3, timing=short(program, hardware))


FUNCTIONS: list[VectorOp] = [
    *(OPS[op]("l", 3, 4, 4) for op, row in ROWS.items() if row.kind is not Arithmetic and not row.exact),  # type: ignore[abstract,call-arg]
    Gelu("l", 3, 4, 4), Gelu("l", 3, 4, 4, approximate="tanh"), Div("l", 3, 4, 4, other="channel"),
    GeluGradient("l", 3, 4, 4), GeluGradient("l", 3, 4, 4, approximate="tanh"), AdamStep("l", 3, 4, 4, rate=-0.5),
    SoftCap("l", 3, 4, 4, cap=0.3),
]  # fmt: skip


@pytest.mark.parametrize("layer", FUNCTIONS, ids=lambda layer: f"{layer.op} {layer.text}")
def test_a_function_is_held_within_two_roundings(layer: VectorOp) -> None:
    """One more rounding than there is would be told: the next number but one is wrong, up or down."""
    program, _ = lowering.VECTOR_OPS.lower(layer, 2, TIGHT)
    operands = operands_of(layer, 2, seed=1)
    made = datapath.run(program, TIGHT, as_floats(operands))["ofmap"]
    verdict = verdict_of(layer, operands, {"ofmap": made})
    assert verdict.mismatched == 0
    assert verdict.error_share is not None
    assert verdict.error_share <= 0.51
    for beyond in (np.float32(np.inf), np.float32(-np.inf)):
        off = made
        for _ in range(3):
            off = np.nextafter(off, beyond)
        assert verdict_of(layer, operands, {"ofmap": off}).mismatched == made.size


COUNTED = {
    "exp": 7,
    "gelu": 15,
    "div": 3,
    "softplus": 22,
    "swiglu": 5 + 6,
    "geglu": 8 + 6,
    "soft_cap": 2 + 6,
}
"""ALU operations of some functions, counted by hand."""


@rule("T61", "T75")
def test_functions_take_what_the_machine_says() -> None:
    """8 ALUs, 4 words of 8 lanes: exp takes 7 operations, gelu 4 and the 11 of erf, gates those of tanh, too; without
    them none is lowered.

    Softplus takes 4, exp and a logarithm, which has no field, and is as dear as erf, the dearest that has.
    """
    hardware = machine(8, 8, word_elements=4, alus=8, vector_unit={"scalar_words": 3})
    first = {layer.op: layer for layer in reversed(FUNCTIONS)}
    for layer, operations in ((first[op], operations) for op, operations in COUNTED.items()):
        program, _ = lowering.VECTOR_OPS.lower(layer, 4, hardware)
        assert {step.beat(4, hardware).work for step in program.vectors} == {operations * 4}
    bare = TIGHT.with_overrides(["vector_unit.functions.exp=null"])
    with pytest.raises(CapacityError, match=r"vector_unit.functions.exp: the machine does not say how many ALU"):
        lowered(first["exp"], 2, bare, LOWERING)
    assert lowered(first["tanh"], 2, bare, LOWERING)


# ---- the check bites


def edit_feed(feed: Feed, **changes: Any) -> Feed:
    """Its only pattern with changes."""
    (group,) = feed.groups
    assert isinstance(group.pattern, Counters)
    return Feed((group._replace(pattern=group.pattern._replace(**changes)),))


def moved(feed: Feed) -> Feed:
    (group,) = feed.groups
    return edit_feed(feed, base=group.pattern.base + 1)  # type: ignore[union-attr]


def with_first_moved(step: Vector) -> Vector:
    return replace(step, operands=(moved(step.operands[0]), *step.operands[1:]))


CORRUPTIONS: dict[str, Callable[[Program], Program]] = {
    "an operand": lambda p: change(p, Vector, with_first_moved, 1),
    "a lost tap": lambda p: change(p, Vector, lambda v: replace(v, operands=v.operands[1:]), 1),
    "a result address": lambda p: change(p, Vector, lambda v: replace(v, writes=moved(v.writes)), 1),
    "a count": lambda p: change(p, Vector, lambda v: replace(v, coefficients=(v.coefficients[0] / 2,)), 1),
    "an operation": lambda p: change(p, Vector, lambda v: replace(v, operation="maximum", coefficients=()), 1),
    "a lane": lambda p: change(p, Fill, lambda f: edit_part(f, shift_lanes), of="ifmap"),
    "a row": lambda p: change(p, Fill, lambda f: edit_part(f, lambda part: shift_items(part, 1)), of="ifmap"),
    "a spilled row": lambda p: change(p, Spill, lambda s: edit_part(s, lambda part: shift_items(part, -1)), 1),
}


@cache
def sound() -> Program:
    """The Program that is corrupted below."""
    program, _ = lowering.VECTOR_OPS.lower(POOL, 4, TIGHT)
    assert check_layer(POOL, 4, program, TIGHT, seed=0).mismatched == 0
    return program


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_program_is_caught(name: str) -> None:
    corrupted = CORRUPTIONS[name](sound())
    assert check_layer(POOL, 4, corrupted, TIGHT, seed=0).mismatched > 0
    operands = operands_of(POOL, 4, seed=0)
    _, registers = register.run(corrupted, TIGHT, operands)
    assert (registers["ofmap"] != expected(POOL, operands)).any()


BACK = Pool2dGradient("back", "max", 12, 9, 9, (3, 3), (2, 2), (1, 1))


@cache
def sound_back() -> Program:
    """The same of a gradient."""
    program, _ = lowering.VECTOR_OPS.lower(BACK, 4, TIGHT)
    assert check_layer(BACK, 4, program, TIGHT, seed=0).mismatched == 0
    return program


@rule("T82")
@pytest.mark.parametrize(
    "step",
    [
        with_first_moved,
        lambda v: replace(v, operands=v.operands[2:], coefficients=v.coefficients[1:]),
        lambda v: replace(v, writes=moved(v.writes)),
        lambda v: replace(v, coefficients=v.coefficients[::-1]),
    ],
    ids=["a gradient", "a lost window", "a result address", "taps"],
)
def test_a_corrupted_gradient_is_caught(step: Callable[[Vector], Vector]) -> None:
    program = sound_back()
    at = next(at for at, each in enumerate(program.vectors) if len(each.operands) == 8)
    assert check_layer(BACK, 4, change(program, Vector, step, at), TIGHT, seed=0).mismatched > 0


@rule("T82", "T85")
def test_zeros_between_elements_are_not_made_ready() -> None:
    """A ninth of a map in threes: four cycles for each word that comes, and for each of a whole one."""
    hardware = machine(4, 4, word_elements=2, vector_unit={"ready_cycles": 4})
    spread = Spread("s", 4, 3, 3, step=(3, 3), out_height=9, out_width=9)
    delays = []
    for layer in (spread, Slice("c", 4, 9, 9, axis="height", stop=9)):
        program, _ = lowered(layer, 2, hardware, LOWERING)
        delays.append(sum(step.delay for step in program.vectors))
    assert delays == [4 * 9, 4 * 81]


ROTARY = Rotary("r", 12, 2, 3, 9, start=7)


@rule("T76")
def test_the_other_half_of_the_channels_comes_once_more() -> None:
    """Both halves of 16 channels of 4 B to 8 lanes, for 6 pixels of 4 images, in bursts of 4 B; two operations of
    multiplication and one of addition for each element.
    """
    hardware = machine(8, 8, word_elements=4, alus=8, hbm={"burst_bytes": 4}, vector_unit={"scalar_words": 3})
    program, told = lowered(Rotary("r", 16, 2, 3), 4, hardware, LOWERING)
    moved = {name: sum(each.hbm_bytes for each in fills(program, name)) for name in ("ifmap", "cos", "sin")}
    assert moved["ifmap"] == 2 * 16 * 6 * 4 * 4
    assert moved["cos"] == moved["sin"] == 16 * 3 * 4
    assert {step.beat(4, hardware).work for step in program.vectors} == {3 * 4}
    assert told.aspects["passes"] == "none: the vector unit makes each output of ifmap, cos, sin"


@rule("T76")
@pytest.mark.parametrize("at", range(4))
def test_a_rotation_by_other_operands_is_caught(at: int) -> None:
    """The element, its partner, the cosine and the sine."""
    hardware = machine(8, 8, word_elements=4)
    program, _ = lowered(ROTARY, 1, hardware, LOWERING)
    assert check_layer(ROTARY, 1, program, hardware, seed=0).mismatched == 0

    def other(step: Vector) -> Vector:
        return replace(step, operands=(*step.operands[:at], step.operands[at - 1], *step.operands[at + 1 :]))

    assert check_layer(ROTARY, 1, change(program, Vector, other), hardware, seed=0).mismatched > 0


MOVED: list[Move] = [
    Transpose("t", 6, 5, 4, order=("width", "channels", "images", "height")), ChannelShuffle("s", 8, 3, 3, groups=4),
    Slice("s", 12, 5, 5, start=2, stop=10, step=2), Pad("p", 6, 4, 4, padding=(0, 0, 2, 1)), Upsample("u", 6, 3, 3),
    Embedding("e", 6, 50, 9),
]  # fmt: skip


def moved_on(part: Part, at: int) -> Part:
    """Other elements for the same lanes, or words."""
    counters = [*part.lane, *part.items]
    counters[at] = counters[at]._replace(coordinates=tuple(each + 1 for each in counters[at].coordinates))
    return part._replace(lane=(counters[0],), items=tuple(counters[1:]))


@rule("T77")
@pytest.mark.parametrize(("layer", "at"), covering(1, MOVED, range(5)), ids=lambda each: getattr(each, "op", None))
def test_what_is_moved_elsewhere_is_caught(layer: Move, at: int) -> None:
    hardware = machine(8, 8, word_elements=4)
    program, _ = lowering.VECTOR_OPS.lower(layer, 3, hardware)
    assert check_layer(layer, 3, program, hardware, seed=0).mismatched == 0
    corrupted = change(program, Fill, lambda fill: edit_part(fill, lambda part: moved_on(part, at)), of="ifmap")
    assert check_layer(layer, 3, corrupted, hardware, seed=0).mismatched > 0


@rule("T78")
def test_of_a_table_only_the_rows_that_are_taken_are_read() -> None:
    """Rows of 48 elements of 4 B, each once for the rows that stand in 8 lanes and 4 portions, and burst by burst."""
    layer, hardware = Embedding("e", 48, 20, 32), machine(8, 8, word_elements=4, hbm={"burst_bytes": 64})
    program, _ = lowered(layer, 1, hardware.with_overrides(["mapping.block.images=48"]), LOWERING)
    taken = [len({*layer.words[at : at + 8]}) for at in range(0, 32, 8)]
    assert [each.hbm_bytes for each in fills(program, "ifmap")] == [48 * 4 * each for each in taken]
    assert sum(taken) < 32


@pytest.mark.parametrize("kind", [Fill, Vector, Spill])
def test_no_kind_of_step_could_do_without_its_waits(kind: type[Step]) -> None:
    program, _ = lowering.VECTOR_OPS.lower(POOL, 4, TIGHT)
    assert_waits_matter(program, TIGHT, kind)


# ---- who lowers what


@pytest.mark.parametrize("name", known())
def test_whatever_a_run_asks_for_they_have_one_way(name: str) -> None:
    work = Workload("net", 2, (Relu("relu", 3, 4, 4), conv(3, 4, 2, 1)))
    assert [job.lowering for job in resolve(work, machine(), name).each] == [LOWERING, name]


def test_lowerings_of_the_array_refuse_them_and_theirs_refuses_convolutions() -> None:
    for name in LOWERINGS.keys() - {LOWERING, "vector_rows", "vector_channels"}:
        with pytest.raises(UnsuitableError, match="relu is an op of the vector unit"):
            lowered(Relu("r", 3, 4, 4), 2, machine(), name)
    with pytest.raises(UnsuitableError, match="conv2d is an op of the array, and vector_ops lowers those"):
        lowered(conv(3, 4, 2, 1), 2, machine(), LOWERING)


def test_too_little_room_is_told() -> None:
    with pytest.raises(CapacityError, match=r"layer s: vector_unit.scalar_words: a lane keeps 1 word"):
        lowered(ScaleShift("s", 3, 4, 4), 2, machine(vector_unit={"scalar_words": 1}), LOWERING)
    with pytest.raises(CapacityError, match=r"layer m: the smallest tiling needs \d+ words"):
        lowered(Mul("m", 300, 9, 9), 2, machine(capacity_words=2), LOWERING)


# ---- what they cost, and what is told


@rule("T79")
def test_an_edge_has_steps_of_its_own() -> None:
    """9 x 9 in one block: corners see 4 elements, edges 6, the inside 9; five outputs a side."""
    large = machine(12, 12, word_elements=4, vector_unit={"scalar_words": 3})
    program, _ = lowering.VECTOR_OPS.lower(
        replace(POOL, in_height=9, in_width=9),
        4,
        large.with_overrides(["mapping.block.rows=5", "mapping.block.cols=5"]),
    )
    assert [(len(step.operands), step.words) for step in program.vectors] == [
        (4, 1), (6, 3), (4, 1), (6, 3), (9, 9), (6, 3), (4, 1), (6, 3), (4, 1),
    ]  # fmt: skip


@rule("T82")
def test_a_gradient_has_a_step_for_each_kind_of_element() -> None:
    """Of 9 rows under windows of 3, 2 apart, every other one is in two windows, but for the last; none with padding."""
    large = machine(12, 12, word_elements=4, vector_unit={"scalar_words": 3}).with_overrides(["mapping.block.rows=9"])
    large = large.with_overrides(["mapping.block.cols=9"])
    program, _ = lowering.VECTOR_OPS.lower(BACK, 4, large)
    assert [(len(step.operands), step.words) for step in program.vectors] == [
        (2, 25), (4, 20), (4, 20), (8, 16),
    ]  # fmt: skip
    whole = Pool2dGradient("mean", "average", 12, 7, 7, 7)
    program, _ = lowering.VECTOR_OPS.lower(whole, 4, machine(12, 12, word_elements=4))
    assert {(step.operation, len(step.operands)) for step in program.vectors} == {("mean", 1)}
    assert sum(step.words for step in program.vectors) == 49
    assert len(program.vectors) == len(spills(program))


def test_a_factor_of_one_takes_no_multiplication() -> None:
    hardware = machine(8, 8, word_elements=4, alus=8, vector_unit={"scalar_words": 3})
    for factors, operations in (((1.0, -1.0), 1), ((1.0, -0.1), 2), ((0.9, 0.1), 3)):
        program, _ = lowering.VECTOR_OPS.lower(WeightedSum("w", 3, 4, 4, 0, *factors), 4, hardware)
        assert {step.beat(4, hardware).work for step in program.vectors} == {operations * 4}


@rule("T84")
def test_columns_are_in_lanes_where_tiles_are_less_padded() -> None:
    fills = [
        step
        for step in lowering.VECTOR_OPS.lower(Add("a", 3, 4, 7), 2, least_padding())[0].rows
        if isinstance(step, Fill)
    ]
    assert {each.parts[0].lane[0].axis for each in fills} == {2}
    plain = machine(4, 4, hbm={"channel_multiple": 8})
    fills = [step for step in lowering.VECTOR_OPS.lower(Add("a", 3, 4, 7), 2, plain)[0].rows if isinstance(step, Fill)]
    assert {each.parts[0].lane[0].axis for each in fills} == {0}


@rule("T84")
@pytest.mark.parametrize(
    "layer",
    [Add("a", 3, 4, 7), BatchNormGradient("s", 3, 4, 5), Pool2dGradient("g", "max", 3, 7, 6, 3, 2, 1)],
    ids=lambda layer: layer.op,
)
def test_images_are_in_lanes_where_tiles_are_padded_least(layer: VectorOp) -> None:
    spills = [
        {each.parts[0].lane[0].axis for each in program.rows if isinstance(each, Spill)}
        for program, _ in (lowering.VECTOR_OPS.lower(layer, batch, least_padding()) for batch in (8, 3))
    ]
    assert spills[0] == {3}
    assert spills[1] != {3}


def test_a_layer_without_products_has_no_utilisation() -> None:
    work = Workload("net", 3, (POOL, Relu("relu", 12, 4, 4)))
    result = simulate(work, TIGHT, engine="both")
    for layer in result.layers:
        assert (layer.macs, layer.passes, layer.pe_utilization, layer.tflops) == (0, 0, 0, 0)
        assert layer.lowering == LOWERING
        assert layer.outputs_checked == layer.outputs > 0
    assert result.correct


@rule("T83")
@settings(max_examples=cases(1 / 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=vector_ops(6, 3), dtype=st.sampled_from(["f32", "bf16", "int8"]))
@example(Pool2d("pool", "average", 1, 3, 3, 3), "f32")
def test_numbers_of_any_type_are_rounded_as_the_reference_rounds(layer: VectorOp, dtype: str) -> None:
    """Whole numbers are equal; others as near as is proven."""
    numbers = numbers_of(dtype, "any")
    hardware = machine(4, 4, word_elements=2, vector_unit={"scalar_words": 3})
    program, _ = lowering.VECTOR_OPS.lower(layer, 3, hardware)
    verdict = check_layer(layer, 3, program, hardware, seed=1, numbers=numbers)
    assert (verdict.mismatched, verdict.checked) == (0, layer.outputs(3))
    operands = numbers.operands(layer, 3, seed=1)
    _, registers = register.run(program, hardware, as_floats(operands))
    assert verdict_of(layer, operands, registers, numbers).mismatched == 0
