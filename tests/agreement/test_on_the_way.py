"""Work of the vector unit on what comes for a layer and on what goes: right at every level, to the cycle."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
from tests.machines.tpu.test_timeline import agree as assert_slices
from tests.strategies import (
    cases,
    conv,
    deform_convs,
    depthwise,
    lowerings_of,
    machines_of_all_kinds,
    small_layers,
    transposed_convs,
    with_resident_taps,
)
from tpusim.base.errors import CapacityError
from tpusim.flow.numbers import numbers_of
from tpusim.flow.verify import verdict_of
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.cut.traffic import in_layout
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS, lowered
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.runs.prepared import as_floats
from tpusim.network.ops.array_op import ConvTranspose2d
from tpusim.network.ops.deform_conv2d import DeformConv2d
from tpusim.network.ops.elementwise import Add, Clip, Mul, Pointwise, Relu, ScaleShift, Sub
from tpusim.network.ops.fused import Fused, Tally
from tpusim.reference import EXACT

RELU, SCALE, ADD, SUB = Relu("relu", 1), ScaleShift("scale", 1), Add("add", 1), Sub("sub", 1)
GATE = Mul("gate", 1, other="channel")
AHEAD: tuple[tuple[Pointwise, ...], ...] = (
    (), (RELU,), (SCALE, RELU), (ADD,), (SCALE, ADD, RELU), (SUB, GATE, Clip("clip", 1, max=3.0)),
)  # fmt: skip
BEHIND: tuple[tuple[Pointwise, ...], ...] = ((), (RELU,), (SUB,), (GATE, ADD, RELU))
TALLIES: tuple[tuple[Tally, ...], ...] = ((), ("sum",), ("sum", "squares"), ("products", "sum"))
CONV = conv(4, 6, 5, 3, padding=1)
BY_OTHERS = {"explicit", "indirect", "winograd_2", "winograd_4", "fft"}
"""Those whose ifmap, or whose results, go by way of others."""


def worked(layer: Layer, ahead: int = 0, behind: int = 0, tallies: int = 0, **more: object) -> Fused:
    return Fused(layer.name, layer, ahead=AHEAD[ahead], behind=BEHIND[behind], tallies=TALLIES[tallies], **more)  # type: ignore[arg-type]


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
    products = any(each in (SUB, ADD) for each in behind)
    tallies = tuple(each for each in tallies if each != "products" or products)
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
    agree(whole, batch, program, hardware)


def fitting(layer: Fused, batch: int, hardware: Hardware, name: str) -> tuple[Program, Hardware]:
    """The Program on a machine with little more memory than the layer itself takes at least."""
    _, least = fitted_by(LOWERINGS[name], layer.inner, batch, hardware)
    for more in range(40):
        machine = with_capacity(least, least.vector_memory.capacity_bytes + (2**more - 1) * least.word_bytes)
        try:
            return in_layout(lowered(layer, batch, machine, name)[0], machine), machine
        except CapacityError as error:
            suppose("in HBM" not in str(error))
            if "vector_memory.capacity" not in str(error):
                raise
    raise AssertionError


def agree(layer: Fused, batch: int, program: Program, hardware: Hardware) -> None:
    """Values at both levels, the engines to the cycle, the timeline's slices as the accounts, no wait missing."""
    check_program(program, hardware)
    assert not [*hazards(program, hardware)]
    operands = numbers_of("integers", "any").operands(layer, batch, 3)
    timing, registers = register.run(program, hardware, as_floats(operands))
    assert timing == event.run(program, hardware)
    assert (timing.reads, timing.writes) == (program.use.port_reads, program.use.port_writes)
    assert_slices(event.record(program, hardware).timeline(), timing)
    assert verdict_of(layer, operands, registers).mismatched == 0
    assert check_layer(layer, batch, program, hardware, seed=3).mismatched == 0
    if not layer.tallies:
        np.testing.assert_array_equal(datapath.run(program, hardware, operands)["ofmap"], registers["ofmap"])
