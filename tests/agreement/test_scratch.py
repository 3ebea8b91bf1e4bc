"""Tensors in a scratch memory: both engines to the cycle, and the right values, wherever tensors lie."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.chains import Chain, Values, chains
from tests.agreement.engines import agree, agreed_timing, clocked
from tests.agreement.test_agreement import IN_LANES, Layer, fitted, least_cycles, short, suppose
from tests.agreement.test_chains import TIGHT, add_up, early, row
from tests.agreement.test_hazards import hazards
from tests.machines.tpu.test_timeline import slices_add_up
from tests.rules import rule
from tests.strategies import (
    among,
    cases,
    conv,
    deform_convs,
    dram,
    lowerings_of,
    machine,
    machines_of_all_kinds,
    small_layers,
    transposed_convs,
    with_resident_taps,
)
from tpusim.base.errors import CheckFailed
from tpusim.flow.verify import expected, operands_of, verdict_of
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.observation.timeline import CAUSES
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step, Stream
from tpusim.machines.tpu.program.tensors import HBM, LANES, SCRATCH, Place, Tensor
from tpusim.machines.tpu.program.transfers import Fill, InboundTransfer, Prefetch, Transfer
from tpusim.machines.tpu.schedule.joined import Joint, ReadOutcomes, linked, placed
from tpusim.machines.tpu.schedule.residence import in_scratch, prefetched, residence
from tpusim.machines.tpu.sections import ScratchMemory
from tpusim.memory.timing import Pipe
from tpusim.network.ops.array_op import Gemm
from tpusim.reference import Tensor as Array

MOST_CYCLES = 1_000


def with_scratch(
    hardware: Hardware, bytes_per_cycle: int = 256, latency_cycles: int = 2, capacity_bytes: int = 2**26
) -> Hardware:
    """A machine of 1 GHz with a scratch memory."""
    bandwidth, latency = bytes_per_cycle * 10**9, latency_cycles * 1000
    memory = ScratchMemory(capacity_bytes=capacity_bytes, bandwidth_bytes_per_s=bandwidth, latency_ps=latency)
    return hardware.model_copy(update={"scratch_memory": memory})


@st.composite
def scratch_memories(draw: st.DrawFn, hardware: Hardware) -> Hardware:
    """Slow and fast ones, near and far."""
    return with_scratch(hardware, draw(among(1, 7, 64, 1000, 5000)), draw(among(1, 2, 5, 40)))


def renumbered(step: Step, places: Mapping[int, int]) -> Step:
    """The step where steps have other numbers."""
    found = replace(step, after=tuple(sorted(places[each] for each in step.after)))
    return replace(found, preload=places[found.preload]) if isinstance(found, Stream) else found


def elsewhere(program: Program, hardware: Hardware, names: Collection[str], ahead: int) -> Program:
    """The same Program with some of its tensors in the scratch memory: what is there before the first step is brought
    fill by fill, each by a prefetch that goes ahead of it and of `ahead` other steps.
    """
    end, there = 0, dict[str, Tensor]()
    for each in (program.tensor(name) for name in sorted(names)):
        given = each.name not in program.makers and each.name not in program.written
        there[each.name] = replace(each, name=f"near {each.name}" if given else each.name, place=SCRATCH.at(end))
        end = there[each.name].extent(hardware.element_bytes).stop
    steps: list[Step | tuple[int, Prefetch]] = [*program.rows]
    for at, step in reversed([*enumerate(program.rows)]):
        if isinstance(step, InboundTransfer) and there.get(step.tensor.name, step.tensor).name != step.tensor.name:
            to = there[step.tensor.name]
            prefetch = Prefetch((), step.tensor, step.parts, step.hbm_bytes, to, regions=step.regions)
            steps.insert(max(0, at - ahead), (at, prefetch))
    numbers = [at for at, each in enumerate(steps) if isinstance(each, Step)]
    places, brought = (
        dict(enumerate(numbers)),
        {each[0]: at for at, each in enumerate(steps) if isinstance(each, tuple)},
    )
    old = {number: at for at, number in places.items()}
    found = []
    for number, each in enumerate(steps):
        step = each[1] if isinstance(each, tuple) else renumbered(each, places)
        if isinstance(each, Step) and isinstance(step, Transfer):
            more = (brought[old[number]],) if old[number] in brought else ()
            step = replace(step, tensor=there.get(step.tensor.name, step.tensor), after=(*step.after, *more))
        found.append(step)
    named = {each.name: each for each in (*program.tensors, *there.values())}
    return replace(program, tensors=tuple(named.values()), rows=tuple(found))


def right(layer: Layer, batch: int, program: Program, hardware: Hardware) -> None:
    """All agree, and the timeline's slices are the accounts, that of the scratch memory among them."""
    timing = agree(layer, batch, program, hardware, timing=short(program, hardware))
    assert "scratch_memory" in timing.units
    slices_add_up(event.record(program, hardware).timeline(), timing)


@st.composite
def lowered(draw: st.DrawFn) -> tuple[Layer, int, Program, Hardware]:
    """A layer, lowered in any way there is, for a machine with a scratch memory."""
    layer = draw(st.one_of(small_layers(), small_layers(), transposed_convs(), deform_convs()))
    batch = draw(st.integers(1, 9))
    hardware = with_resident_taps(draw(machines_of_all_kinds(16, among(1, 2, 3, 4, 8, 16))))
    names = lowerings_of(layer) - (IN_LANES if hardware.banked else set())
    suppose(bool(names))
    suppose(layer.macs(batch) / hardware.pes < 800)
    suppose(least_cycles(layer, batch, hardware) < MOST_CYCLES)
    program, hardware = fitted(layer, batch, hardware, draw(among(*sorted(names))))
    return layer, batch, program, draw(scratch_memories(hardware))


@rule("T126")
@settings(max_examples=cases(0.1), deadline=None, suppress_health_check=list(HealthCheck))
@given(case=lowered(), ahead=among(0, 1, 2, 5, 100), data=st.data())
def test_any_tensors_of_any_layer(case: tuple[Layer, int, Program, Hardware], ahead: int, data: st.DataObject) -> None:
    layer, batch, program, hardware = case
    names = data.draw(st.sets(among(*(each.name for each in program.tensors))))
    moved = elsewhere(program, hardware, names, ahead)
    check_program(moved, hardware)
    right(layer, batch, moved, hardware)


@settings(max_examples=cases(0.1), deadline=None, suppress_health_check=list(HealthCheck))
@given(case=lowered(), ahead=among(0, 1, 2, 5))
def test_what_a_run_puts_there(case: tuple[Layer, int, Program, Hardware], ahead: int) -> None:
    layer, batch, program, hardware = case
    moved = prefetched(in_scratch([Joint("layer", program, {})], hardware)[0].program, hardware, ahead)
    check_program(moved, hardware)
    assert sum(moved.use[:2]) <= sum(program.use[:2])
    right(layer, batch, moved, hardware)


@settings(max_examples=cases(0.1), deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=chains(), stays=st.booleans(), share=among(1, 1, 2, 5), data=st.data())
def test_random_chains(chain: Chain, stays: bool, share: int, data: st.DataObject) -> None:
    """What layers make for one another lies there, but what stays in the lanes; with room for all of it or less."""
    hardware = chain.hardware = data.draw(scratch_memories(chain.hardware))
    joints = [each._replace(leaves=data.draw(among(False, False, True))) for each in chain.joints]
    found = residence(joints, hardware) if stays else None
    layers = found.layers if found else placed(joints, hardware)
    ample = in_scratch(layers, hardware)
    ends = [each.extent(hardware.element_bytes).stop
            for layer in ample for each in layer.program.tensors if each.place != HBM]  # fmt: skip
    hardware = chain.hardware = with_capacity(hardware, max(1, max(ends, default=0) // share))
    moved = in_scratch(layers, hardware)
    program = linked(moved, hardware)
    timing = agreed_timing(program, hardware)
    suppose(timing.cycles < MOST_CYCLES)
    assert not [*hazards(program, hardware)]
    assert not [*early(program)]
    add_up(timing)
    values = Values.of(chain, program, found)
    _, registers = clocked(values.program, hardware, values.given, timing)
    written = datapath.run(values.program, hardware, values.given)
    for each in (*values.computed(registers), *values.computed(written)):
        assert verdict_of(each.layer, each.read, each.written, chain.numbers).mismatched == 0


def with_capacity(hardware: Hardware, capacity_bytes: int) -> Hardware:
    assert hardware.scratch_memory
    memory = hardware.scratch_memory.model_copy(update={"capacity_bytes": capacity_bytes})
    return hardware.model_copy(update={"scratch_memory": memory})


# ---- by hand

SMALL_ONE = with_scratch(machine(4, 4, word_elements=2, bytes_per_cycle=64, latency_cycles=5), 32, 1)
ONE_PASS = LOWERINGS["channel_first"].lower(Gemm("one_pass", m=4, n=4, k=4), 1, SMALL_ONE)[0]
"""The pass of docs/timing.md, section 7: a fill of 64 bytes each for filter and ifmap, and a spill of as many."""


@rule("T109", "T123", "T124")
def test_each_memory_has_a_bus_and_transfers_begin_in_order() -> None:
    """The table of docs/timing.md, section 5."""
    moved = elsewhere(ONE_PASS, SMALL_ONE, {"filter", "ofmap"}, ahead=0)
    log = event.logged(moved, SMALL_ONE)
    found = {moved.rows[each["step"]].label: each for bus in log.buses for each in log.on_bus(bus)}
    assert [(each["start"], each["ended"], each["done"]) for each in found.values()] == [
        (0, 1, 6),  # The prefetch: 5 of latency and one of the bus.
        (6, 7, 15),  # The fill of the ifmap begins with the one ahead of it, and its words go behind that one's.
        (6, 8, 10),  # The fill of the filter: words there at 6 + 1 + 1 and a cycle later, each written the cycle after.
        (26, 29, 28),
    ]
    assert list(found) == ["filter prefetch", "ifmap fill", "near filter fill", "ofmap spill"]
    assert log.cycles == 29 + 1 + 3
    timing = agreed_timing(moved, SMALL_ONE)
    assert timing.units["hbm"] == {**NOTHING, "busy": 2, "blocked": 5, "idle": 26}
    assert timing.units["scratch_memory"] == {**NOTHING, "busy": 4, "blocked": 24, "port_stall": 1, "idle": 4}
    assert sum(timing.bus.values()) == 7
    right(Gemm("one_pass", m=4, n=4, k=4), 1, moved, SMALL_ONE)


NOTHING = dict.fromkeys(CAUSES, 0)


@rule("T127")
def test_bytes_are_counted_where_they_go() -> None:
    moved = elsewhere(ONE_PASS, SMALL_ONE, {"filter", "ofmap"}, ahead=0)
    plain, use = ONE_PASS.use, moved.use
    assert (plain.hbm_read_bytes, plain.hbm_write_bytes) == (128, 64)
    assert (use.hbm_read_bytes, use.hbm_write_bytes) == (128, 0)
    assert (use.scratch_read_bytes, use.scratch_write_bytes) == (64, 64 + 64)
    assert (use.port_reads, use.port_writes) == (plain.port_reads, plain.port_writes)


SLOW_HBM = machine(8, 8, word_elements=4, capacity_words=60, bytes_per_cycle=4, latency_cycles=40)


@rule("T154")
def test_a_layer_that_reads_its_operands_again_is_faster() -> None:
    """Each of its blocks fills the filter; HBM is the slowest part of the machine."""
    layer, hardware = conv(6, 12, 8, 3, padding=1), with_scratch(SLOW_HBM)
    program = LOWERINGS["channel_first"].lower(layer, 4, SLOW_HBM)[0]
    moved = prefetched(program, hardware)
    check_program(moved, hardware)
    assert moved.use.hbm_read_bytes < program.use.hbm_read_bytes
    assert agreed_timing(moved, hardware).cycles < agreed_timing(program, SLOW_HBM).cycles
    operands = operands_of(layer, 4, seed=2)
    np.testing.assert_array_equal(datapath.run(moved, hardware, operands)["ofmap"], expected(layer, operands))


@rule("T153")
def test_layers_that_read_one_another_are_faster() -> None:
    """What is between them never sees HBM."""
    hardware = with_scratch(SLOW_HBM.model_copy(update={"vector_memory": TIGHT.vector_memory}))
    joints = [
        each._replace(leaves=at == 2) for at, each in enumerate(row(conv(6, 7, 6, 3, padding=1), 4, hardware, 3).joints)
    ]
    plain = linked(placed(joints, hardware), hardware)
    moved = linked(in_scratch(placed(joints, hardware), hardware), hardware)
    check_program(moved, hardware)
    assert [each.hbm_write_bytes > 0 for each in moved.uses] == [False, False, True]
    assert agreed_timing(moved, hardware).cycles < 0.8 * agreed_timing(plain, hardware).cycles
    assert agreed_timing(moved, hardware) == register.run(moved, hardware, given_to(moved))[0]


def given_to(program: Program) -> dict[str, Array]:
    """Operands of which nobody asks what they are."""
    made = {*program.written, *(each.tensor for each in program.handed)}
    return {each.name: np.ones(each.shape, np.float32) for each in program.tensors if each.name not in made}


@rule("T153")
def test_what_somebody_else_wants_stays_in_hbm() -> None:
    joints = row(conv(6, 7, 6, 3, padding=1), 4, TIGHT, 3).joints
    hardware = with_scratch(TIGHT)
    assert in_scratch(joints, hardware) == tuple(joints)
    alone = [each._replace(leaves=False) for each in joints]
    near = [each.program.tensor("ofmap").place != HBM for each in in_scratch(alone, hardware)]
    assert near == [True, True, False]
    other = [alone[0], alone[1], alone[2]._replace(reads={"ifmap": ReadOutcomes(("l0", "l1"), False, True)})]
    assert in_scratch(other, hardware) == tuple(other)
    alone[1] = alone[1]._replace(program=alone[1].program.lying({"ifmap"}, LANES))
    assert [each.program.tensor("ifmap").place.base is None for each in in_scratch(alone, hardware)] == [
        True,
        True,
        False,
    ]


@rule("T153")
def test_bytes_are_given_out_again_once_nobody_reads_them() -> None:
    """Of four layers in a row the third's outcome takes the place of the first's."""
    chain = row(conv(6, 7, 6, 3, padding=1), 4, TIGHT, 4)
    joints = placed([each._replace(leaves=False) for each in chain.joints], TIGHT)
    size = len(joints[0].program.tensor("ofmap").extent(4))
    hardware = with_scratch(TIGHT, capacity_bytes=2 * size)
    found = in_scratch(joints, hardware)
    assert [each.program.tensor("ofmap").place.base for each in found] == [0, size, 0, None]
    check_program(linked(found, hardware), hardware)
    half = in_scratch(joints, with_scratch(TIGHT, capacity_bytes=size))
    assert [each.program.tensor("ofmap").place.base for each in half] == [0, None, 0, None]
    assert in_scratch(joints, with_scratch(TIGHT, capacity_bytes=size - 1)) == tuple(joints)


# ---- another bus

LINK = Place("link", "scratch_read_bytes", "scratch_write_bytes")
"""A place behind a bus that no unit of the machine has heard of."""


class WithLink(Hardware):
    """A machine with one bus more, which is as fast as that of HBM."""

    @property
    def pipes(self) -> dict[str, Pipe]:
        """All buses."""
        return {**super().pipes, LINK.bus: super().pipes[HBM.bus]}


@settings(max_examples=cases(0.05), deadline=None, suppress_health_check=list(HealthCheck))
@given(case=lowered(), data=st.data())
def test_a_place_with_another_bus_is_a_record(case: tuple[Layer, int, Program, Hardware], data: st.DataObject) -> None:
    """Both engines and the data path, with any tensors behind it; with all of them it takes what HBM's bus took."""
    layer, batch, program, hardware = case
    linked_up = WithLink.model_construct(**dict(hardware))
    names = {each.name for each in program.tensors}
    some = program.lying(data.draw(st.sets(among(*sorted(names)))), LINK)
    check_program(some, linked_up)
    right(layer, batch, some, linked_up)
    every = program.lying(names, LINK)
    if hardware.hbm.dram is None:
        near, far = agreed_timing(program, hardware), agreed_timing(every, linked_up)
        assert (far.cycles, far.units["link"]) == (near.cycles, near.units["hbm"])
        assert {*far.units["hbm"].values()} == {0, far.cycles}
    assert every.use.scratch_read_bytes == program.use.hbm_read_bytes
    with pytest.raises(CheckFailed, match="transfers need a bus of link; there is hbm, scratch_memory"):
        check_program(every, hardware)


# ---- what is refused


def with_steps(program: Program, steps: Iterable[Step]) -> Program:
    return replace(program, rows=tuple(steps))


@rule("T125")
def test_what_nothing_has_brought_cannot_be_filled() -> None:
    moved = elsewhere(ONE_PASS, SMALL_ONE, {"filter"}, ahead=0)
    hasty = with_steps(moved, (replace(each, after=()) if isinstance(each, Fill) else each for each in moved.rows))
    with pytest.raises(CheckFailed, match="reads a near filter that it does not wait for"):
        check_program(hasty, SMALL_ONE)
    far = {each.name: replace(each, place=SCRATCH.at(0)) for each in ONE_PASS.tensors}
    fills = (replace(each, tensor=far["ifmap"]) if isinstance(each, Fill) else each for each in ONE_PASS.rows)
    with pytest.raises(CheckFailed, match="reads a ifmap that it does not wait for"):
        check_program(replace(with_steps(ONE_PASS, fills), tensors=tuple(far.values())), SMALL_ONE)


@rule("T125")
def test_values_are_those_that_were_brought() -> None:
    """A prefetch of fewer elements leaves the others unknown, in both interpreters that have values."""
    moved = elsewhere(ONE_PASS, SMALL_ONE, {"filter"}, ahead=0)

    def less(step: Step) -> Step:
        if not isinstance(step, Prefetch):
            return step
        (part,) = step.parts
        return replace(step, parts=(part._replace(lane=tuple(each.of(0) for each in part.lane)),))

    operands = operands_of(Gemm("one_pass", m=4, n=4, k=4), 1, seed=2)
    program = with_steps(moved, map(less, moved.rows))
    for written in (datapath.run(program, SMALL_ONE, operands), register.run(program, SMALL_ONE, operands)[1]):
        assert np.isnan(written["ofmap"]).any()
        assert not np.isnan(written["ofmap"]).all()


def test_tensors_that_do_not_fit_are_refused() -> None:
    moved = elsewhere(ONE_PASS, SMALL_ONE, {"filter", "ifmap"}, ahead=0)
    with pytest.raises(CheckFailed, match="takes bytes 64 to 128 of a scratch memory of 127"):
        check_program(moved, with_scratch(SMALL_ONE, capacity_bytes=127))
    with pytest.raises(CheckFailed, match="transfers need a bus of scratch_memory; there is hbm"):
        check_program(moved, SMALL_ONE.model_copy(update={"scratch_memory": None}))
    there = {each.name: replace(each, place=SCRATCH.at(0)) for each in moved.tensors if each.place != HBM}

    def at_once(step: Step) -> Step:
        if isinstance(step, Prefetch):
            return replace(step, to=there[step.to.name])
        return replace(step, tensor=there[step.tensor.name]) if isinstance(step, Fill) else step

    tensors = tuple(there.get(each.name, each) for each in moved.tensors)
    with pytest.raises(CheckFailed, match="take the same bytes of the scratch memory at once"):
        check_program(replace(with_steps(moved, map(at_once, moved.rows)), tensors=tensors), SMALL_ONE)


def test_an_outcome_is_looked_for_where_it_is() -> None:
    joints = [each._replace(leaves=False) for each in row(conv(6, 7, 6, 3, padding=1), 4, TIGHT, 2).joints]
    hardware = with_scratch(TIGHT)
    found = in_scratch(placed(joints, hardware), hardware)
    with pytest.raises(CheckFailed, match=r"l1\.ifmap does not lie where l0\.ofmap is"):
        check_program(linked([found[0], placed(joints, hardware)[1]], hardware), hardware)


@rule("T125")
def test_a_prefetch_of_padding_is_over_at_once() -> None:
    """A DRAM has no burst to move for it, so the fill behind it begins in the very same cycle."""
    device = dram(burst_bytes=SMALL_ONE.hbm.burst_bytes)
    hbm = SMALL_ONE.hbm.model_copy(update={"model": "banks", "device": device})
    hardware = SMALL_ONE.model_copy(update={"hbm": hbm})

    def beyond(step: Step) -> Step:
        if not isinstance(step, Transfer) or not step.tensor.name.endswith("filter"):
            return step
        (part,) = step.parts
        nowhere = tuple(each._replace(coordinates=range(100, 100 + len(each.coordinates))) for each in part.lane)
        return replace(step, parts=(part._replace(lane=nowhere),), hbm_bytes=0)

    moved = elsewhere(ONE_PASS, hardware, {"filter"}, ahead=0)
    program = with_steps(moved, map(beyond, moved.rows))
    timing, written = register.run(program, hardware, operands_of(Gemm("one_pass", m=4, n=4, k=4), 1, seed=2))
    assert timing == agreed_timing(program, hardware)
    assert not written["ofmap"].any()
