"""What is fused to a layer rides on its results: right at every level, to the cycle, whatever the lowering."""

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
from tpusim.machines.tpu.lowering.registry import LOWERINGS, lowered
from tpusim.machines.tpu.lowering.riding import bias_words, riding
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream
from tpusim.machines.tpu.program.transfers import Along, Fill
from tpusim.machines.tpu.runs.prepared import as_floats
from tpusim.network.ops.array_op import Conv2d, ConvTranspose2d, Gemm
from tpusim.network.ops.deform_conv2d import DeformConv2d
from tpusim.network.ops.elementwise import Clip, LeakyRelu, Pointwise, Relu
from tpusim.network.ops.fused import Fused

RELU = Relu("relu", 1)
FINISHES = st.sampled_from([(), (RELU,), (LeakyRelu("leaky", 1, slope=0.25),), (RELU, Clip("clip", 1, max=6.0))])
CONV = conv(4, 6, 5, 3, padding=1)


def fused(layer: Conv2d | Gemm, *finish: Pointwise, adds: bool = False, bias: bool = False) -> Fused:
    return Fused(layer.name, layer, adds, finish, bias)


@settings(max_examples=cases(1 / 12), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=small_layers() | depthwise(6, 6) | transposed_convs(6, 3) | deform_convs(4, 3),
    batch=st.integers(1, 9),
    hardware=machines_of_all_kinds(),
    finish=FINISHES,
    adds=st.booleans(),
    bias=st.booleans(),
    data=st.data(),
)
def test_random_layers(
    layer: Layer, batch: int, hardware: Hardware, finish: tuple[Pointwise, ...], adds: bool, bias: bool,
    data: st.DataObject,
) -> None:  # fmt: skip
    """Values at both levels, the engines to the cycle, no wait missing."""
    suppose(adds or bias or bool(finish))
    if isinstance(layer, ConvTranspose2d | DeformConv2d):
        hardware = with_resident_taps(hardware)
    names = lowerings_of(layer) - ({"vector"} if adds else set()) - (IN_LANES if hardware.banked else set())
    suppose(bool(names))
    name = data.draw(st.sampled_from(["vector"] if "vector" in names else sorted(names)))
    suppose(layer.macs(batch) / hardware.pes < 800 and least_cycles(layer, batch, hardware) < MOST_CYCLES)
    whole = Fused(layer.name, layer, adds, finish, bias)
    _, least = fitted_by(LOWERINGS[name], layer, batch, hardware)
    hardware = with_room(whole, batch, least)
    program = in_layout(riding(LOWERINGS[name].drafts(layer, batch, least)[0], whole, hardware).lower()[0], hardware)
    short(program, hardware)
    right(whole, batch, program, hardware)


def with_room(layer: Fused, batch: int, hardware: Hardware) -> Hardware:
    """The machine with room for biases beside what it has."""
    more = bias_words(layer, batch, hardware) * hardware.word_bytes
    return with_capacity(hardware, hardware.vector_memory.capacity_bytes + more)


def right(layer: Fused, batch: int, program: Program, hardware: Hardware) -> None:
    """All agree, no wait is missing, and the timeline's slices are the accounts."""
    assert not [*hazards(program, hardware)]
    timing = agree(layer, batch, program, hardware, seed=3)
    slices_add_up(event.record(program, hardware).timeline(), timing)


@rule("T12")
def test_an_activation_is_free_where_a_frame_has_room_for_it() -> None:
    """The paper's machine has two ALUs a lane: two operations an element fit into the eight cycles of a word."""
    hardware, layer = load_hardware("tpu_v2"), Conv2d("conv", 64, 14, 14, 64, (3, 3), padding=(1, 1))
    alone = agreed_timing(lowered(layer, 8, hardware, "channel_first")[0], hardware)
    with_relu, _ = lowered(fused(layer, RELU), 8, hardware, "channel_first")
    timing = agreed_timing(with_relu, hardware)
    assert with_relu.frame(hardware).period == 8
    assert timing.cycles <= alone.cycles + with_relu.frame(hardware).period
    more, _ = lowered(fused(layer, RELU, Clip("clip", 1, max=6.0)), 8, hardware, "channel_first")
    assert more.frame(hardware).period == 16


@rule("T13")
def test_a_residual_is_brought_once() -> None:
    """It moves as many bytes as the ofmap does, and is worked out in no step of its own."""
    hardware, layer = load_hardware("tpu_v2"), Conv2d("conv", 64, 14, 14, 64, (3, 3), padding=(1, 1))
    program, explanation = lowered(fused(layer, RELU, adds=True), 8, hardware, "channel_first")
    brought = sum(step.hbm_bytes for step in fills(program, "other"))
    assert brought == program.use.hbm_write_bytes == 64 * 14 * 14 * 8 * 4
    assert explanation.aspects["fused"] == "add and relu ride on results"
    assert not program.vectors


def test_no_ride_on_scaled_results() -> None:
    with pytest.raises(UnsuitableError, match=r"leave fusion out, by sequencer\.fusion=none"):
        lowered(fused(CONV, RELU), 4, load_hardware("tpu_v2"), "winograd_2")


@rule("T12")
def test_the_vector_unit_finishes_what_it_has_made() -> None:
    """Steps more, but no trip through HBM."""
    hardware, layer = load_hardware("tpu_v2"), Conv2d("conv", 64, 14, 14, 64, (3, 3), padding=(1, 1), groups=64)
    alone, whole = (lowered(each, 8, hardware, "vector")[0] for each in (layer, fused(layer, RELU, bias=True)))
    assert len(whole.vectors) == 3 * len(alone.vectors)
    assert whole.use.hbm_write_bytes == alone.use.hbm_write_bytes
    assert whole.use.hbm_read_bytes == alone.use.hbm_read_bytes + 64 * 4


def test_reals_are_within_their_bound() -> None:
    numbers, hardware = numbers_of("f32", "array"), machine(4, 4)
    layer = fused(CONV, LeakyRelu("leaky", 1, slope=0.1), adds=True, bias=True)
    program, _ = lowered(layer, 3, hardware, "channel_first")
    verdict = check_layer(layer, 3, program, hardware, seed=1, numbers=numbers)
    assert verdict.mismatched == 0
    assert 0 < (verdict.error_share or 0) < 1
    operands = numbers.operands(layer, 3, 1)
    _, written = register.run(program, hardware, as_floats(operands))
    assert verdict_of(layer, operands, written, numbers).mismatched == 0
    computed = datapath.run(program, hardware, operands, in_array_order=True)
    np.testing.assert_array_equal(computed["ofmap"], written["ofmap"])


@rule("T14", "T39")
def test_biases_are_brought_once_and_take_no_time_of_the_vector_unit() -> None:
    """An addition, a bias and a ReLU fit into the eight cycles of a word, as an addition and a ReLU do."""
    hardware, layer = load_hardware("tpu_v2"), Conv2d("conv", 64, 14, 14, 192, (3, 3), padding=(1, 1))
    without, _ = lowered(fused(layer, RELU, adds=True), 8, hardware, "channel_first")
    program, told = lowered(fused(layer, RELU, adds=True, bias=True), 8, hardware, "channel_first")
    assert told.aspects["fused"] == "bias and add and relu ride on results"
    assert program.frame(hardware).period == without.frame(hardware).period == 8
    assert program.use.hbm_read_bytes == without.use.hbm_read_bytes + 192 * 4
    loads = [step for step in program.rows if isinstance(step, Preload) and step.bias is not None]
    sums = [step for step in program.streams if step.finish]
    assert len(loads) == len(sums)
    assert program.use.port_reads == without.use.port_reads + sum(step.cols for step in loads)
    assert program.lane_words("bias") == 2 * 128
    cycles, more = (agreed_timing(each, hardware).cycles for each in (without, program))
    assert cycles <= more < 1.01 * cycles


@rule("T14")
def test_no_more_biases_than_a_lane_has_words_for() -> None:
    hardware, layer = machine(4, 4), fused(CONV, bias=True)
    core, *_ = LOWERINGS["channel_first"].drafts(CONV, 3, hardware)
    words = core.lower()[0].words
    with pytest.raises(CapacityError, match=f"its biases take 2 words beside the {words} of a lane"):
        riding(core, layer, machine(4, 4, capacity_words=words)).lower()
    riding(core, layer, machine(4, 4, capacity_words=words + 2)).lower()


@rule("T39")
@pytest.mark.parametrize("what", ["finish", "other", "bias", "word"])
def test_the_check_sees_what_is_left_out(what: str) -> None:
    """One pass that finishes nothing or has no bias, one fill that brings the sums of its neighbour or wrong biases."""
    hardware, layer = machine(4, 4), fused(CONV, RELU, adds=True, bias=True)
    program, _ = lowered(layer, 3, hardware, "channel_first")
    steps = list(program.rows)
    for index, step in enumerate(steps):
        if what == "finish" and isinstance(step, Stream) and step.finish:
            steps[index] = replace(step, finish=())
            break
        if what == "bias" and isinstance(step, Preload) and step.bias is not None:
            steps[index] = replace(step, bias=None)
            break
        if what == "word" and isinstance(step, Fill) and step.tensor.name == "bias":
            steps[index] = replace(step, parts=(step.parts[0]._replace(lane=(Along(0, range(1, 5)),)),))
            break
        if what == "other" and isinstance(step, Fill) and step.tensor.name == "other":
            part = step.parts[0]
            steps[index] = replace(step, parts=(part._replace(base=part.base + 1), *step.parts[1:]))
            break
    assert check_layer(layer, 3, replace(program, rows=tuple(steps)), hardware, seed=3).mismatched > 0


def test_more_energy_for_what_is_finished() -> None:
    hardware = load_hardware("tpu_v2")
    sums = []
    for layer in (CONV, fused(CONV, RELU)):
        program, _ = lowered(layer, 8, hardware, "channel_first")
        sums.append(
            energy_of(layer.macs(8), program, agreed_timing(program, hardware), hardware, hardware.pes).counts[
                "vector_sums"
            ]
        )
    assert sums[1] - sums[0] == CONV.outputs(8)
