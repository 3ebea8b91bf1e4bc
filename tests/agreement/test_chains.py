"""Layers that overlap: one Program of several, right at every level, to the cycle, layer by layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.chains import Chain, Values, chains, nameless
from tests.agreement.engines import agreed_timing, clocked
from tests.agreement.test_agreement import suppose
from tests.agreement.test_hazards import hazards
from tests.agreement.test_own_weights import dealt
from tests.rules import rule
from tests.strategies import among, cases, conv, machine
from tpusim.base.errors import CheckFailed
from tpusim.flow.numbers import SMALL, Numbers, numbers_of
from tpusim.flow.verify import expected, verdict_of
from tpusim.machines.tpu import datapath, register
from tpusim.machines.tpu.datapath.memories import ends_in, ends_of_part
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step, Stream
from tpusim.machines.tpu.program.transfers import Fill, LaneTransfer, Spill
from tpusim.machines.tpu.schedule.joined import ReadOutcomes, linked, placed
from tpusim.network.ops.array_op import Conv2d

MOST_CYCLES = 1_000
"""Of a case for an engine that takes time for every cycle: longer ones cost most of it and show nothing more."""


@rule("T145")
@settings(max_examples=cases(0.24), deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=chains())
def test_random_chains(chain: Chain) -> None:
    """The engines to the cycle, layer by layer; values of every type at both levels; no wait missing."""
    program = chain.program
    timing = agreed_timing(program, chain.hardware)
    suppose(timing.cycles < MOST_CYCLES)
    assert not [*hazards(program, chain.hardware)]
    assert not [*early(program)]
    add_up(timing)
    values = Values.of(chain, program)
    _, registers = clocked(values.program, chain.hardware, values.given, timing)
    written = datapath.run(values.program, chain.hardware, values.given)
    for each in (*values.computed(registers), *values.computed(written)):
        assert verdict_of(each.layer, each.read, each.written, chain.numbers).mismatched == 0


def early(program: Program) -> Iterator[str]:
    """Fills that do not wait until HBM holds what they read of layers before: all that is there when the last spill
    which they wait for has brought it.
    """
    handed = {each.tensor: each for each in program.handed}
    spills: defaultdict[str, list[int]] = defaultdict(list)
    for index, step in enumerate(program.rows):
        if isinstance(step, Spill):
            spills[step.tensor.name].append(index)
        elif isinstance(step, Fill) and step.tensor.name in handed:
            read = handed[step.tensor.name]
            behind = max(program.sources(step), default=-1)
            for spill in (each for name in read.sources for each in spills[name] if each > behind):
                if not read.placed or elements(step) & elements(program.rows[spill]):
                    yield f"step {index}, {step.label}, reads what step {spill} spills, and does not wait for it"


def elements(step: Step) -> set[int]:
    """Those of its tensor that a transfer moves, by their places in it."""
    assert isinstance(step, LaneTransfer)
    shape, found = step.tensor.shape, set[int]()
    for part in step.parts:
        at = [np.zeros(1, np.int64)] * len(shape)
        for together in (part.lane, *((each,) for each in part.items)):
            still = [0] * len(together[0].coordinates)
            moves = [dict(together).get(axis, still) for axis in range(len(shape))]
            at = [np.add.outer(each, move).ravel() for each, move in zip(at, moves, strict=True)]
        inside = np.all([(each >= 0) & (each < size) for each, size in zip(at, shape, strict=True)], axis=0)
        found |= {*np.ravel_multi_index([each[inside] for each in at], shape).tolist()}
    return found


def add_up(timing: Timing) -> None:
    """The layers' shares to the whole, and each one's accounts to its cycles."""
    assert sum(each.cycles for each in timing.layers) == timing.cycles
    for share in timing.layers:
        for unit, account in share.units.items():
            assert sum(account.values()) == share.cycles, unit
            assert min(account.values()) >= 0, (unit, account)
    for unit, account in timing.units.items():
        for cause, cycles in account.items():
            assert sum(share.units[unit][cause] for share in timing.layers) == cycles


# ---- what would be seen

TIGHT = machine(8, 8, word_elements=4, capacity_words=75)


def row(layer: Conv2d, batch: int, hardware: Hardware, count: int = 2, numbers: Numbers = SMALL) -> Chain:
    """The same layer several times, each of which reads the one before."""
    chain, (draft, *_) = Chain(batch, hardware, numbers), LOWERINGS["channel_first"].drafts(layer, batch, hardware)
    made = nameless(draft)
    for at in range(count):
        chain.join(layer, made, {"ifmap": ReadOutcomes((f"l{at - 1}",))} if at else {})
    return chain


def three(reading: bool = True) -> Program:
    """Layers in blocks that hardly fit, each of which reads the one before, if they are to."""
    joints = row(conv(6, 7, 6, 3, padding=1), 4, TIGHT, 3).joints
    layers = [each if reading else each._replace(reads={}) for each in joints]
    return linked(placed(layers, TIGHT), TIGHT)


@rule("T142")
def test_a_layer_begins_by_its_own_frame_where_the_one_ahead_ends_by_another() -> None:
    """Words of six images, then of five, in each of two layers: weights of the second wait for the first's passes."""
    hardware = machine(word_elements=8, capacity_words=1024, alus=64)
    chain = row(conv(5, 6, 5, 3, padding=1), 11, hardware)
    program = chain.program
    assert len(program.frames(hardware)) == 2
    steps = zip(program.layers, program.rows, strict=True)
    fills = dict.fromkeys((layer, step.fill) for layer, step in steps if isinstance(step, Stream))
    assert [*fills] == [(0, 0), (0, 5), (1, 0), (1, 5)]
    values = Values.of(chain, program)
    _, registers = clocked(values.program, hardware, values.given)
    for each in values.computed(registers):
        assert verdict_of(each.layer, each.read, each.written, chain.numbers).mismatched == 0


@st.composite
def arrays_that_stand_still(draw: st.DrawFn) -> Chain:
    """Layers on arrays with weights of their own, whose frames go on long after the last word."""
    arrays, most = draw(st.integers(2, 4)), draw(among(4, 8, 16))
    hardware = machine(
        4,
        4,
        word_elements=most,
        alus=draw(among(4, 16, 64)),
        latency_cycles=1,
        array={
            "streamed": "all",
            "count": arrays,
            "weights": "own",
            "weights_per_cycle": draw(among(1, 4, 4)),
            "weight_buffers": draw(st.integers(1, 2)),
        },
        vector_memory={"ports": draw(among("shared", "separate", "separate"))},
    )
    return on_arrays(hardware, draw(st.lists(st.tuples(among(3, 3, 8), st.integers(0, arrays - 1)), min_size=2)))


def on_arrays(hardware: Hardware, layers: Sequence[tuple[int, int]]) -> Chain:
    """Layers of so many input channels, each with its first pass on such an array, and the others in turn."""
    chain = Chain(1, hardware)
    for channels, first in layers[:5]:
        layer = conv(channels, 2, 4, 1)
        draft, *_ = LOWERINGS["channel_first"].drafts(layer, 1, hardware)

        def finish(program: Program, draft: Draft = draft, first: int = first) -> Program:
            return draft.finished(dealt(program, lambda number, _: (first + number) % hardware.array.count))

        chain.join(layer, nameless(draft, finish), {})
    return chain


def agreed_shares(chain: Chain) -> Timing:
    """Engines agree to the cycle, layer by layer; no unit has more cycles than a layer."""
    timing = agreed_timing(chain.program, chain.hardware)
    add_up(timing)
    values = Values.of(chain, chain.program)
    assert register.run(values.program, chain.hardware, values.given)[0] == timing
    return timing


@rule("T142")
@settings(max_examples=cases(0.06), deadline=None, suppress_health_check=list(HealthCheck))
@given(chain=arrays_that_stand_still())
def test_an_array_may_begin_a_layer_while_another_ends_the_one_ahead(chain: Chain) -> None:
    agreed_shares(chain)


@rule("T145")
def test_a_frame_that_outlasts_its_words_is_shared_out_in_time() -> None:
    """The third layer streams on the first array while the second goes on in the other; both end with cycle 63."""
    hardware = machine(
        4,
        4,
        word_elements=16,
        alus=64,
        array={"streamed": "all", "count": 2, "weights": "own", "weights_per_cycle": 4},
        vector_memory={"ports": "separate"},
    )
    chain = on_arrays(hardware, [(3, 0), (3, 1), (3, 0)])
    timing = agreed_shares(chain)
    assert [layer.cycles for layer in timing.layers] == [31, 33, 7]
    arrays = [[layer.units[unit]["busy"] for unit in ("systolic_array", "systolic_array_1")] for layer in timing.layers]
    assert arrays == [[4, 0], [4, 4], [0, 0]]


def without(program: Program, kind: type[Step]) -> Program:
    """Steps of a kind no longer wait for those of other layers."""
    steps = (
        replace(step, after=tuple(each for each in step.after if program.layers[each] == layer))
        if isinstance(step, kind)
        else step
        for step, layer in zip(program.rows, program.layers, strict=True)
    )
    return replace(program, rows=tuple(steps))


@rule("T139")
@pytest.mark.parametrize("kind", [Fill, Stream])
def test_no_kind_of_step_could_do_without_its_waits(kind: type[Step]) -> None:
    program = three(reading=False)
    assert not [*hazards(program, TIGHT)]
    assert any(hazards(without(program, kind), TIGHT))


@rule("T140")
def test_what_others_make_is_waited_for() -> None:
    program = three()
    check_program(program, TIGHT)
    with pytest.raises(CheckFailed, match=r"reads a l1\.ifmap that it does not wait for"):
        check_program(without(program, Fill), TIGHT)


@rule("T140")
def test_a_fill_that_waits_for_some_of_what_it_reads_is_seen() -> None:
    """`check_program` looks for a wait alone, whichever it is."""
    program = three()
    assert not [*early(program)]
    spills = [at for at, step in enumerate(program.rows) if isinstance(step, Spill)]
    ends = {layer: next(at for at in spills if program.layers[at] == layer) for layer in range(3)}
    steps = [
        replace(step, after=(ends[layer - 1],)) if isinstance(step, Fill) and program.sources(step) else step
        for step, layer in zip(program.rows, program.layers, strict=True)
    ]
    hasty = replace(program, rows=tuple(steps))
    check_program(hasty, TIGHT)
    assert any(early(hasty))


def test_what_is_handed_on_has_the_margin_of_who_writes_it() -> None:
    """Strips of one image reach beyond the map, and so do spills of them."""
    layer, hardware = conv(3, 7, 3, 3, padding=1), machine(4, 4, word_elements=4)
    chain = row(layer, 1, hardware)
    values = Values.of(chain, chain.program)
    spilled = {part for step in values.program.rows if isinstance(step, Spill) and step.tensor.name == "l0.ofmap"
               for part in step.parts}  # fmt: skip
    reaches = [*ends_in(values.program, "l1.ifmap")]
    assert spilled
    for part in spilled:
        for axis, (low, high) in enumerate(ends_of_part(part, 4)):
            assert min(each[axis][0] for each in reaches) <= low
            assert high <= max(each[axis][1] for each in reaches)
    made = datapath.run(values.program, hardware, values.given)
    np.testing.assert_array_equal(made["l1.ofmap"], expected(layer, values.operands[1]))


def test_reals_are_handed_on_and_checked_against_what_was_made() -> None:
    """Not against what the reference would have made: that is within no bound of a layer behind."""
    hardware = machine(4, 4, word_elements=2)
    chain = row(conv(3, 5, 3, 3, padding=1), 2, hardware, 3, numbers_of("f32", "any"))
    values = Values.of(chain, chain.program)
    assert values.sources == {"l1.ifmap": "l0.ofmap", "l2.ifmap": "l1.ofmap"}
    for made in (datapath.run(values.program, hardware, values.given),
                 register.run(values.program, hardware, values.given)[1]):  # fmt: skip
        for layer, read, written in values.computed(made):
            verdict = verdict_of(layer, read, written, chain.numbers)
            assert verdict.mismatched == 0 < (verdict.error_share or 0)
        off = {**read, "ifmap": read["ifmap"] * np.float32(1.001)}
        assert verdict_of(layer, off, written, chain.numbers).mismatched > 0


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_what_would_have_to_be_rounded_is_not_handed_on(dtype: str) -> None:
    chain = row(conv(3, 5, 3, 3, padding=1), 2, machine(4, 4, word_elements=2), 2, numbers_of(dtype, "any"))
    values = Values.of(chain, chain.program)
    assert not values.sources
    assert values.program.with_given_operands() == values.program
    assert "l1.ifmap" in values.given


@rule("T143")
def test_weights_go_ahead_of_the_last_results() -> None:
    """The first of a layer come in before all of the layer ahead is spilled, and first blocks behind what they read."""
    program = row(conv(6, 9, 6, 3, padding=1), 4, machine(8, 8, word_elements=4, capacity_words=400)).program
    spilled = max(at for at, step in enumerate(program.rows) if isinstance(step, Spill) and program.layers[at] == 0)
    first = {
        name: next(at for at, step in enumerate(program.rows) if isinstance(step, Fill) and step.tensor.name == name)
        for name in ("l1.filter", "l1.ifmap")
    }
    assert first["l1.filter"] < spilled
    assert program.sources(program.rows[first["l1.ifmap"]])  # type: ignore[arg-type]
