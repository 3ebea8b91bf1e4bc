"""Work of the vector unit on what comes for a layer and on what goes: right at every level, to the cycle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agree, agreed_timing
from tests.agreement.test_agreement import (
    IN_LANES,
    MOST_CYCLES,
    Layer,
    fitted_by,
    least_cycles,
    short,
    suppose,
    with_capacity,
)
from tests.agreement.test_hazards import hazards
from tests.checks import check_layer
from tests.machines.tpu.test_timeline import slices_add_up
from tests.rules import rule
from tests.strategies import (
    cases,
    conv,
    deform_convs,
    depthwise,
    fills,
    lowerings_of,
    machine,
    machines_of_all_kinds,
    small_layers,
    spills,
    transposed_convs,
    with_resident_taps,
)
from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.flow.numbers import numbers_of
from tpusim.flow.verify import verdict_of
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.cost import energy_of
from tpusim.machines.tpu.cut.traffic import in_layout
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS, lowered, meant
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.machines.tpu.runs.prepared import as_floats
from tpusim.network.ops.array_op import Conv2d, ConvTranspose2d
from tpusim.network.ops.deform_conv2d import DeformConv2d
from tpusim.network.ops.elementwise import Add, Clip, Masked, Mul, Pointwise, Relu, ScaleShift, Sub, Tanh
from tpusim.network.ops.fused import Fused, Tally
from tpusim.network.ops.gradients import Conv2dFilterGradient, Conv2dInputGradient
from tpusim.reference import EXACT, pointwise

RELU, SCALE, ADD, SUB = Relu("relu", 1), ScaleShift("scale", 1), Add("add", 1), Sub("sub", 1)
GATE = Mul("gate", 1, other="channel")
AHEAD: tuple[tuple[Pointwise, ...], ...] = (
    (), (RELU,), (SCALE, RELU), (ADD,), (SCALE, ADD, RELU), (SUB, GATE, Clip("clip", 1, max=3.0)),
)  # fmt: skip
BEHIND: tuple[tuple[Pointwise, ...], ...] = ((), (RELU,), (SUB,), (GATE, ADD, RELU), (ADD, Masked("mask", 1)))
TALLIES: tuple[tuple[Tally, ...], ...] = (
    (), ("sum",), ("sum", "squares"), ("products", "sum"), ("products", "sum", "products"),
)  # fmt: skip
CONV = conv(4, 6, 5, 3, padding=1)
BY_OTHERS = {"explicit", "indirect", "winograd_2", "winograd_4", "fft"}
"""Those whose ifmap, or whose results, go by way of others."""


def worked(layer: Layer, ahead: int = 0, behind: int = 0, tallies: int = 0, **more: object) -> Fused:
    return Fused(layer.name, layer, ahead=AHEAD[ahead], behind=BEHIND[behind], tallies=TALLIES[tallies], **more)  # type: ignore[arg-type]


@rule("T117", "T118")
@settings(max_examples=cases(1 / 12), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=small_layers() | depthwise(6, 6) | transposed_convs(6, 3) | deform_convs(4, 3),
    batch=st.integers(1, 9),
    hardware=machines_of_all_kinds(),
    ahead=st.sampled_from(AHEAD),
    behind=st.sampled_from(BEHIND),
    tallies=st.sampled_from(TALLIES),
    rides=st.sampled_from([{}, {"bias": True}, {"adds": True, "finish": (RELU,)}]),
    data=st.data(),
)
def test_random_layers(
    layer: Layer, batch: int, hardware: Hardware, ahead: tuple[Pointwise, ...], behind: tuple[Pointwise, ...],
    tallies: tuple[Tally, ...], rides: dict[str, object], data: st.DataObject,
) -> None:  # fmt: skip
    """Values at both levels, the engines to the cycle, no wait missing."""
    most = sum(each in behind for each in (SUB, ADD)) + any(isinstance(each, Masked) for each in behind)
    tallies = tuple(kind for at, kind in enumerate(tallies) if kind != "products" or tallies[:at].count(kind) < most)
    suppose(bool(ahead or behind or tallies))
    if isinstance(layer, ConvTranspose2d | DeformConv2d):
        hardware = with_resident_taps(hardware)
    suppose(not (hardware.banked and ahead))
    names = lowerings_of(layer) - BY_OTHERS - ({"vector"} if rides.get("adds") else set())
    names -= IN_LANES if hardware.banked else set()
    suppose(bool(names))
    name = data.draw(st.sampled_from(["vector"] if "vector" in names else sorted(names)))
    suppose(layer.macs(batch) / hardware.pes < 800 and least_cycles(layer, batch, hardware) < MOST_CYCLES)
    whole = Fused(layer.name, layer, ahead=ahead, behind=behind, tallies=tallies, **rides)  # type: ignore[arg-type]
    suppose(whole.terms(batch) * whole.sample_parts <= EXACT)
    program, hardware = fitting(whole, batch, hardware, name)
    short(program, hardware)
    right(whole, batch, program, hardware)


def fitting(layer: Fused, batch: int, hardware: Hardware, name: str) -> tuple[Program, Hardware]:
    """The Program on a machine with little more memory than the layer itself takes at least."""
    alone, least = fitted_by(LOWERINGS[name], layer.inner, batch, hardware)
    # What is long alone is not shorter with more to do; to find the memory for all of it takes many times as long.
    short(alone, least)
    for more in range(40):
        machine = with_capacity(least, least.vector_memory.capacity_bytes + (2**more - 1) * least.word_bytes)
        try:
            return in_layout(lowered(layer, batch, machine, name)[0], machine), machine
        except CapacityError as error:
            suppose("in HBM" not in str(error))
            if "vector_memory.capacity" not in str(error):
                raise
    raise AssertionError


def right(layer: Fused, batch: int, program: Program, hardware: Hardware) -> None:
    """All agree, no wait is missing, and the timeline's slices are the accounts."""
    assert not [*hazards(program, hardware)]
    timing = agree(layer, batch, program, hardware, seed=3, numbers=numbers_of("integers", "any"))
    slices_add_up(event.record(program, hardware).timeline(), timing)


@settings(max_examples=cases(1 / 24), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=st.sampled_from((Conv2dFilterGradient, Conv2dInputGradient)),
    channels=st.tuples(st.integers(1, 11), st.integers(1, 7)),
    kernel=st.sampled_from([1, 2, 3]),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    batch=st.integers(1, 6),
    hardware=machines_of_all_kinds(9),
    ahead=st.sampled_from([(), (RELU,), (SCALE, RELU), (ADD, Sub("s", 1, other="channel"), RELU)]),
    filters=st.sampled_from([(), (RELU,), (SCALE, ADD)]),
    behind=st.sampled_from([(), (SUB,), (Masked("m", 1),)]),
)
def test_gradients(
    layer: type[Conv2dFilterGradient | Conv2dInputGradient], channels: tuple[int, int], kernel: int, stride: int,
    padding: int, batch: int, hardware: Hardware, ahead: tuple[Pointwise, ...], filters: tuple[Pointwise, ...],
    behind: tuple[Pointwise, ...],
) -> None:  # fmt: skip
    """Both operands of a filter's gradient are made as they come, whichever way their channels stand."""
    if layer is Conv2dInputGradient:
        filters, hardware = (), with_resident_taps(hardware)
    suppose(bool(ahead or filters or behind) and not hardware.banked)
    core = layer("g", channels[0], 5, 6, channels[1], kernel, stride, padding)  # type: ignore[arg-type]
    whole = Fused("g", core, ahead=ahead, ahead_filter=filters, behind=behind)
    suppose(core.macs(batch) / hardware.pes < 800 and least_cycles(core, batch, hardware) < MOST_CYCLES)
    program, hardware = fitting(whole, batch, hardware, meant(core, "channel_first"))
    short(program, hardware)
    right(whole, batch, program, hardware)


def test_columns_of_the_filter_are_beside_few_channels() -> None:
    """Of three channels in words of eight, two strips of seven columns, if a word takes as long as a full one."""
    gradient = Conv2dFilterGradient("g", 3, 3, 9, 3, (3, 7), 2, (1, 3))
    layer = Fused("g", gradient, ahead=(SCALE, RELU), ahead_filter=(SCALE,))
    hardware = machine(8, 8, word_elements=8).with_overrides(["mapping.strips=one_image", "array.streamed=all"])
    program, told = lowered(layer, 3, hardware, "channel_first")
    assert (program.word_fill, told.blocking.strips) == (6, 2)
    right(layer, 3, program, hardware)


@rule("T121")
def test_a_map_that_is_made_as_it_comes_costs_next_to_nothing() -> None:
    """Three operations an element take a cycle and a half of a word, and the bus five; two are beside a pass of one."""
    hardware = load_hardware("tpu_v2_core")
    for layer in (Conv2d("c", 128, 28, 28, 128, (3, 3), padding=(1, 1)), Conv2d("c", 512, 28, 28, 128, (1, 1))):
        alone, made = (
            event.run(lowered(each, 128, hardware, "channel_first")[0], hardware).cycles
            for each in (layer, worked(layer, 2, 0, 2))
        )
        assert alone <= made < 1.003 * alone


@rule("T117", "T120")
def test_numbers_come_once_and_maps_with_what_they_meet() -> None:
    hardware, layer = load_hardware("tpu_v2"), Conv2d("conv", 64, 14, 14, 64, (3, 3), padding=(1, 1))
    program, told = lowered(worked(layer, 4, 2, 2), 8, hardware, "channel_first")
    brought = {name: sum(step.hbm_bytes for step in fills(program, name)) for name in ("ifmap", "ahead_1_other")}
    assert brought["ifmap"] == brought["ahead_1_other"]
    for name in ("ahead_0_scale", "ahead_0_shift"):
        assert sum(step.hbm_bytes for step in fills(program, name)) == 64 * 4
    assert sum(step.hbm_bytes for step in fills(program, "behind_0_other")) == 64 * 14 * 14 * 8 * 4
    assert sum(step.hbm_bytes for step in spills(program) if step.tensor.name == "tallies") == 2 * 64 * 4
    assert told.aspects["ifmap made"] == "by scale_shift and add and relu, as it comes"
    assert told.aspects["behind"] == "sub and sum and squares of results as they go"
    assert len(program.vectors) == 1


@rule("T119")
def test_padding_stays_zero() -> None:
    """A shift of what comes makes nothing of the zeros around a map, though strips of it store some."""
    layer = Fused("c", conv(2, 5, 3, 3, padding=2), ahead=(Add("a", 1, other="channel"),))
    for hardware in (machine(4, 4), machine(8, 8).with_overrides(["mapping.fetch=per_tap"])):
        program, _ = lowered(layer, 1, hardware, "channel_first")
        right(layer, 1, program, hardware)


def test_reals_are_within_their_bound() -> None:
    numbers, hardware = numbers_of("f32", "array"), machine(4, 4)
    layer = worked(CONV, 4, 3, 2)
    program, _ = lowered(layer, 3, hardware, "channel_first")
    verdict = check_layer(layer, 3, program, hardware, seed=1, numbers=numbers)
    assert verdict.first is None
    assert 0 < (verdict.error_share or 0) < 1
    operands = numbers.operands(layer, 3, 1)
    _, written = register.run(program, hardware, as_floats(operands))
    assert verdict_of(layer, operands, written, numbers).first is None
    computed = datapath.run(program, hardware, operands, in_array_order=True)
    for name in ("ofmap", "tallies"):
        np.testing.assert_array_equal(computed[name], written[name])


def test_the_bound_of_a_clip_is_that_of_what_it_leaves() -> None:
    """Below zero it leaves what is larger than its upper limit; above its lower limit, nothing is smaller."""
    sizes = np.float32([1, 8]).reshape(1, 1, 1, 2)
    for clip, bound in ((Clip("c", 1, max=3.0), [1, 8]), (Clip("c", 1, min=2.0), [2, 8])):
        found = pointwise.magnitudes(clip, {"ifmap": sizes}, (range(1), range(1), range(1), range(2)))
        np.testing.assert_array_equal(found.ravel(), np.float32(bound))


@rule("T118")
@pytest.mark.parametrize("what", ["ahead", "numbers", "behind", "map", "begins", "tally"])
def test_the_check_sees_what_is_wrong(what: str) -> None:
    """One transfer without its work, with its neighbour's numbers or map, or with sums that begin in the middle."""
    hardware, layer = machine(4, 4).with_overrides(["mapping.block.rows=2"]), worked(CONV, 2, 3, 1)
    program, _ = lowered(layer, 3, hardware, "channel_first")
    steps = list(program.rows)
    for index, step in enumerate(steps):
        if not isinstance(step, Fill | Spill) or not (work := step.work):
            continue
        words = [list(each) for each in work.words]
        if what == "ahead" and isinstance(step, Fill):
            steps[index] = replace(step, work=None)
        elif what == "numbers" and isinstance(step, Fill):
            words[0][0], words[0][1] = words[0][1], words[0][0]
        elif what == "behind" and isinstance(step, Spill):
            steps[index] = replace(step, work=work._replace(chain=work.chain[:-1]))
        elif what == "map" and isinstance(step, Spill):
            words[0][0] += 1
        elif what == "begins" and isinstance(step, Spill) and not any(work.begins):
            steps[index] = replace(step, work=work._replace(begins=(True,) * len(words)))
        elif what == "tally" and isinstance(step, Spill):
            steps[index] = replace(step, work=work._replace(tallies=("squares_more",)))
        else:
            continue
        if steps[index] is step:
            steps[index] = replace(step, work=work._replace(words=tuple(map(tuple, words))))
        break
    assert check_layer(layer, 3, replace(program, rows=tuple(steps)), hardware, seed=3).first is not None


def test_what_cannot_be_worked_on_is_refused() -> None:
    with pytest.raises(UnsuitableError, match="explicit works on nothing on its way; name another lowering"):
        lowered(worked(CONV, 1), 2, machine(4, 4), "explicit")
    with pytest.raises(UnsuitableError, match="its ifmap comes to banks"):
        lowered(worked(CONV, 1), 2, machine(4, 4, vector_memory={"organization": "banked"}), "channel_first")
    with pytest.raises(ValueError, match="tanh 1x1x1 cannot be done on the way; it can be"):
        Fused("c", CONV, ahead=(Tanh("t", 1),))
    with pytest.raises(ValueError, match="has no other map to take products with"):
        Fused("c", CONV, tallies=("products",))
    with pytest.raises(CapacityError, match=r"work on the way takes .* words beside the blocks of a lane"):
        lowered(worked(CONV, 2, 3, 2), 2, machine(4, 4, capacity_words=24), "channel_first")


@rule("T121")
def test_all_operations_are_counted() -> None:
    """In energy, too: of every element that comes, also of one that comes again."""
    hardware, sums = load_hardware("tpu_v2"), []
    for layer in (CONV, worked(CONV, 1)):
        program, _ = lowered(layer, 8, hardware, "channel_first")
        timing = agreed_timing(program, hardware)
        sums.append(energy_of(layer.macs(8), program, timing, hardware, hardware.pes).counts["vector_sums"])
    came = sum(part.words * part.lanes * 8 for step in fills(program, "ifmap") for part in step.parts)
    assert sums[1] - sums[0] == came >= 4 * 6 * 6 * 8
