"""The register engine against hardware: every port access of every lane, cycle by cycle, value by value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.strategies import conv, machine
from tpusim.flow.verify import expected as expected_of
from tpusim.flow.verify import operands_of
from tpusim.machines.tpu import register
from tpusim.machines.tpu.definition import DMA, RESULT, WEIGHT
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.program.program import Program
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.reference import Tensor

pytest.importorskip("amaranth", reason="the hardware witness needs Amaranth HDL: pip install amaranth")

from tests.hdl.bench import MOST_CYCLES, Access, Bench, Seen
from tests.hdl.plan import Plan
from tests.hdl.translation import Outside, plan_of
from tests.rules import rule

# ---- the register engine, overheard


def overhear(engine: register.RegisterMachine) -> list[Access]:
    """Run the register engine to its end; every access in the order (cycle, lane)."""
    accesses: list[Access] = []
    while not engine.finished:
        now = engine.now
        engine.run_to(now + 1)
        accesses += [access_of(engine, now, int(lane)) for lane in np.flatnonzero(engine.lanes.addresses[0] >= 0)]
    return accesses


def access_of(engine: register.RegisterMachine, now: int, lane: int) -> Access:
    """What the port of a lane did in the last cycle: the word still stands where it was read or written."""
    address, order = int(engine.lanes.addresses[0, lane]), engine.lanes.obeyed[0, lane]
    whole = order["client"] in (WEIGHT, DMA)
    word = engine.lanes.memory[address, lane, : None if whole else engine.program.word_fill]
    kind = "write" if order["client"] == RESULT or (order["client"] == DMA and not order["spill"]) else "read"
    # Elements that nothing has written are no numbers here, and zeros in the memories of the hardware.
    return now, lane, kind, address, tuple(int(element) for element in np.nan_to_num(word))


# ---- the comparison


def gemm(m: int, k: int, n: int) -> Gemm:
    return Gemm(name="gemm", m=m, n=n, k=k)


@dataclass(frozen=True)
class Case:
    """A layer on a machine, whose words take some time to be made ready."""

    layer: Gemm | Conv2d
    hardware: Hardware
    batch: int = 1
    word_cycles: int = 0

    @property
    def program(self) -> Program:
        return replace(CHANNEL_FIRST.lower(self.layer, self.batch, self.hardware)[0], word_cycles=self.word_cycles)

    @property
    def operands(self) -> dict[str, Tensor]:
        return operands_of(self.layer, self.batch, seed=3)

    @property
    def engine(self) -> register.RegisterMachine:
        """The register engine before its first cycle."""
        return register.RegisterMachine(self.program, self.hardware, self.operands)

    @property
    def outside(self) -> Outside:
        """HBM before the first cycle."""
        return Outside.of(self.program, self.hardware, self.operands)

    def run(self, plan: Plan, most_cycles: int = MOST_CYCLES) -> Seen:
        """What the hardware of `plan` does, at most in so many cycles."""
        return Bench(plan, self.outside, most_cycles).run()


def first_difference(seen: list[Access], expected: list[Access]) -> tuple[Access | None, Access | None] | None:
    """The first access on which the two disagree; the engine notes only the elements that it uses."""
    for here, there in zip(seen, expected, strict=False):
        if here[:4] != there[:4] or here[4][: len(there[4])] != there[4]:
            return here, there
    if len(seen) != len(expected):
        at = min(len(seen), len(expected))
        return (seen[at] if at < len(seen) else None), (expected[at] if at < len(expected) else None)
    return None


EVERYTHING: Any = {
    "array": {"count": 2},
    "vector_unit": {"unpack_cycles": 3, "pack_cycles": 4.4, "stack_cycles": "2/3"},
    "sequencer": {"launch_cycles": 23, "between_blocks": "drain", "block_cycles": 6},
}
"""All that a machine may do beyond the plain one."""

CASES = {
    "by_hand": Case(gemm(4, 4, 4), machine()),
    "sums": Case(gemm(8, 14, 7), machine()),
    "sums_one_buffer": Case(gemm(8, 14, 7), machine(array={"weight_buffers": 1})),
    "words_of_4": Case(gemm(12, 12, 4), machine(word_elements=4)),
    "words_of_4_one_buffer": Case(gemm(12, 12, 4), machine(word_elements=4, array={"weight_buffers": 1})),
    "words_of_1": Case(gemm(6, 10, 5), machine(word_elements=1)),
    "words_of_1_no_sums": Case(gemm(6, 4, 9), machine(word_elements=1)),
    "words_of_3": Case(gemm(9, 10, 5), machine(word_elements=3)),
    "words_wider_than_the_array": Case(gemm(16, 10, 5), machine(word_elements=8)),
    "slow_vector_unit": Case(gemm(8, 12, 4), machine(word_elements=4, alus=1)),
    "adds_fill_the_frame": Case(gemm(8, 12, 4), machine(word_elements=4, alus=4)),
    "adds_nearly_fill_the_frame": Case(gemm(8, 12, 4), machine(word_elements=4, alus=6)),
    "sums_wait_for_the_pass_before": Case(gemm(4, 16, 4), machine(word_elements=4, alus=3, bytes_per_cycle=1000)),
    "streams_wait_for_a_spill": Case(
        gemm(7, 3, 16),
        machine(
            word_elements=4,
            capacity_words=8,
            latency_cycles=1,
            hbm={"burst_bytes": 4},
            mapping={"loop_order": "block_major"},
        ),
    ),
    "slow_hbm": Case(gemm(8, 12, 8), machine(bytes_per_cycle=7, latency_cycles=40)),
    "fast_hbm": Case(gemm(8, 12, 8), machine(bytes_per_cycle=5000, latency_cycles=1)),
    "wide": Case(gemm(6, 10, 9), machine(4, 8)),
    "tall": Case(gemm(6, 20, 6), machine(8, 4, word_elements=4)),
    "padding_and_two_taps": Case(conv(2, 3, 4, 3, padding=1), machine(), batch=2),
    "padding_stride_and_dilation": Case(conv(5, 5, 3, 2, stride=2, padding=2, dilation=(2, 2)), machine(), batch=3),
    "padding_one_tap_one_buffer": Case(
        conv(2, 3, 4, 3, padding=1),
        machine(word_elements=4, array={"weight_buffers": 1}, mapping={"multi_tile": 1}),
        batch=3,
    ),
    "fills_of_padding_alone": Case(
        conv(7, 2, 6, 1, padding=2),
        machine(word_elements=4, capacity_words=30, latency_cycles=40, mapping={"loop_order": "block_major"}),
        batch=2,
    ),
    "tight_memory": Case(conv(3, 3, 6, 2, padding=1), machine(capacity_words=40, bytes_per_cycle=16), batch=2),
    "6x6_sums": Case(gemm(12, 14, 9), machine(6, 6, word_elements=4)),
    "6x6_sums_one_buffer": Case(gemm(12, 14, 6), machine(6, 6, array={"weight_buffers": 1})),
    "6x6_padding_and_two_taps": Case(conv(3, 3, 6, 3, padding=1), machine(6, 6, word_elements=4), batch=4),
    "launch": Case(gemm(6, 4, 4), machine(sequencer={"launch_cycles": 17})),
    "drain_between_blocks": Case(gemm(6, 6, 6), machine(capacity_words=14, sequencer={"between_blocks": "drain"})),
    "drain_between_blocks_one_buffer": Case(
        gemm(6, 6, 6),
        machine(
            capacity_words=14, bytes_per_cycle=1000, sequencer={"between_blocks": "drain"}, array={"weight_buffers": 1}
        ),
    ),
    "unpacking_sets_the_pace": Case(gemm(8, 6, 4), machine(vector_unit={"unpack_cycles": 3})),
    "packing_sets_the_pace": Case(gemm(8, 6, 8), machine(capacity_words=16, vector_unit={"pack_cycles": 5})),
    "conversion_as_fast_as_hbm": Case(
        gemm(7, 6, 4), machine(bytes_per_cycle=16, vector_unit={"unpack_cycles": 1, "pack_cycles": 2})
    ),
    "conversion_in_fractions": Case(gemm(7, 6, 4), machine(vector_unit={"unpack_cycles": 3.4, "pack_cycles": "13/3"})),
    "loop_of_blocks": Case(
        gemm(6, 6, 6), machine(capacity_words=14, sequencer={"between_blocks": "drain", "block_cycles": 9})
    ),
    "loop_behind_passes": Case(
        gemm(30, 3, 6), machine(capacity_words=30, bytes_per_cycle=1000, sequencer={"block_cycles": 9})
    ),
    "loop_one_buffer": Case(
        gemm(9, 6, 6), machine(capacity_words=14, sequencer={"block_cycles": 9}, array={"weight_buffers": 1})
    ),
    "copies_are_rotated": Case(
        conv(1, 6, 3, 3, padding=1),
        machine(capacity_words=40, vector_unit={"stack_cycles": 0.75}, mapping={"multi_tile": 4}),
    ),
    "transposed": Case(gemm(8, 4, 4), machine(), word_cycles=7),
    "transposed_sums": Case(gemm(8, 14, 4), machine(word_elements=4), word_cycles=11),
    "transposed_two_arrays": Case(gemm(9, 10, 6), machine(array={"count": 2}), word_cycles=5),
    "two_arrays": Case(gemm(12, 4, 4), machine(array={"count": 2})),
    "two_arrays_sums": Case(gemm(10, 10, 6), machine(array={"count": 2})),
    "two_arrays_sums_one_buffer": Case(gemm(10, 10, 6), machine(array={"count": 2, "weight_buffers": 1})),
    "two_arrays_words_of_1": Case(gemm(5, 7, 3), machine(3, 2, word_elements=1, array={"count": 2})),
    "two_arrays_words_of_8": Case(gemm(24, 6, 3), machine(2, 3, word_elements=8, alus=7, array={"count": 2})),
    "two_arrays_adds_fill_the_frame": Case(gemm(20, 8, 4), machine(word_elements=4, alus=3, array={"count": 2})),
    "two_arrays_adds_nearly_fill_the_frame": Case(
        gemm(20, 10, 4), machine(word_elements=4, alus=6, array={"count": 2})
    ),
    "two_arrays_padding": Case(conv(2, 3, 3, 3, padding=1), machine(word_elements=4, array={"count": 2}), batch=3),
    "three_arrays_sums": Case(gemm(20, 7, 4), machine(3, 3, word_elements=4, array={"count": 3})),
    "more_arrays_than_words": Case(gemm(4, 8, 3), machine(array={"count": 3})),
    "everything": Case(gemm(7, 7, 5), machine(3, 4, **EVERYTHING, capacity_words=20)),
    "everything_one_buffer": Case(
        gemm(7, 3, 3),
        machine(2, 2, capacity_words=16, **EVERYTHING | {"array": {"count": 2, "weight_buffers": 1}}),
    ),
    "everything_convolved": Case(
        conv(3, 3, 3, 2, padding=1), machine(**EVERYTHING, word_elements=4, capacity_words=24), batch=3
    ),
}


QUICK = {
    "slow_vector_unit", "streams_wait_for_a_spill", "padding_and_two_taps",
    "drain_between_blocks_one_buffer", "copies_are_rotated", "transposed_sums", "everything",
}  # fmt: skip
"""A case of each mechanism, some in `everything` alone; others, of edges and several mechanisms together, are long."""


@rule("T10", "T112", "T113")
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=[] if name in QUICK else [pytest.mark.long]) for name, case in CASES.items()],
)
def test_hardware_and_register_engine_agree(case: Case) -> None:
    """Every read and write: cycle, lane, address, value; the cycles, their split, and the outputs."""
    engine, outside = case.engine, case.outside
    expected = overhear(engine)
    seen = Bench(plan_of(case.program, case.hardware), outside).run()
    assert seen.flags == set()
    assert first_difference(seen.accesses, expected) is None
    timing = engine.timing()
    assert seen.cycles == timing.cycles
    assert {client: len(cycles) for client, cycles in seen.lane_0.items() if cycles} == {
        client: count for client, count in timing.units["port"].items() if count and client != "idle"
    }
    array = timing.units["systolic_array"]
    split = {name: seen.states[name] for name in seen.states if name != "idle"}
    assert split == {name: count for name, count in array.items() if count and name != "idle"}
    np.testing.assert_array_equal(outside.ofmap, expected_of(case.layer, case.operands))


def test_the_cases_cover_what_they_claim() -> None:
    """Passes that accumulate, padding, stacked taps, several blocks; frames that words, slots or adds make long."""
    plans = {name: plan_of(case.program, case.hardware) for name, case in CASES.items()}
    assert plans["sums"].accumulates
    assert plans["6x6_sums"].accumulates
    assert not plans["words_of_1_no_sums"].accumulates
    for name in ("padding_and_two_taps", "6x6_padding_and_two_taps"):
        starts = [{*each.starts} - {None} for each in plans[name].passes]
        assert any(len(each) == 2 for each in starts)
        assert any(min(start[1:]) < 0 for each in starts for start in each)
    assert any(each.hbm_bytes == 0 for each in plans["fills_of_padding_alone"].transfers)
    assert len({each.delay for each in plans["copies_are_rotated"].weights}) > 1
    assert plans["copies_are_rotated"].accumulates
    assert plans["transposed_sums"].accumulates
    assert plans["everything"].accumulates
    assert any(each.spills for each in plans["streams_wait_for_a_spill"].passes)
    assert sum(each.spill for each in plans["tight_memory"].transfers) > 2
    assert {1, 2, 3, 4, 8} == {plan.elements for plan in plans.values()}
    several = [plan for plan in plans.values() if plan.arrays > 1]
    assert {(plan.elements == plan.frame, plan.slots == plan.frame, plan.adds == plan.frame) for plan in several} >= {
        (True, False, False), (False, True, False), (False, False, True)
    }  # fmt: skip
    assert any(each.words % plan.arrays for plan in several for each in plan.passes)
    assert any(each.words < plan.arrays for plan in several for each in plan.passes)


@rule("T11")
def test_the_hardware_keeps_the_table_worked_by_hand() -> None:
    """docs/timing.md, section 7, without any engine."""
    case = CASES["by_hand"]
    seen = case.run(plan_of(case.program, case.hardware))
    assert seen.lane_0 == {
        "ifmap": [14, 16],
        "psum": [],
        "result": [21, 23],
        "weight": [8, 10],
        "dma": [6, 7, 9, 11, 24, 25],
    }
    assert seen.cycles == 35


class TooSoon(Plan):
    """Writes each result a frame before its sums are there."""

    @property
    def result_delay(self) -> int:
        return super().result_delay - self.frame


class OffTheGrid(Plan):
    """Takes another client's slot."""

    @property
    def result_delay(self) -> int:
        return super().result_delay + 1


@rule("T11")
@pytest.mark.parametrize(
    ("wrong", "flag", "name"),
    [
        (TooSoon, "lost", "words_of_4"),
        (OffTheGrid, "slot_twice", "two_arrays_sums"),
        pytest.param(TooSoon, "lost", "two_arrays_sums", marks=pytest.mark.long),
        pytest.param(OffTheGrid, "slot_twice", "words_of_4", marks=pytest.mark.long),
    ],
)
def test_hardware_that_breaks_a_rule_says_so(wrong: type[Plan], flag: str, name: str) -> None:
    """The flags can be raised."""
    case = CASES[name]
    plan = plan_of(case.program, case.hardware)
    broken = wrong(**{each: getattr(plan, each) for each in plan.__dataclass_fields__})
    assert any(flag in raised for raised in case.run(broken).flags)


def without_drain(plan: Plan) -> Plan:
    """No preload waits for a stream."""
    streams = {each.step for each in plan.passes}
    weights = (replace(each, after=tuple({*each.after} - streams)) for each in plan.weights)
    return replace(plan, weights=tuple(weights))


def without_delays(plan: Plan) -> Plan:
    """Every preload begins when it could."""
    return replace(plan, weights=tuple(replace(each, delay=0) for each in plan.weights))


def first_result_further_on(plan: Plan) -> Plan:
    """One pass that collects a word further on."""
    moved = replace(plan.passes[0], result_base=plan.passes[0].result_base + 1)
    return replace(plan, passes=(moved, *plan.passes[1:]), depth=plan.depth + 1)


WRONG: dict[str, tuple[str, Callable[[Plan], Plan]]] = {
    "address": ("by_hand", first_result_further_on),
    "launch": ("launch", lambda plan: replace(plan, launch=plan.launch - 1)),
    "drain": ("drain_between_blocks", without_drain),
    "loop": ("loop_of_blocks", without_delays),
    "loop behind passes": ("loop_behind_passes", without_delays),
    "rotation": ("copies_are_rotated", without_delays),
    "transposition": ("transposed", lambda plan: replace(plan, word_cycles=6)),
    "unpacking": ("unpacking_sets_the_pace", lambda plan: replace(plan, unpack_cycles=2)),
    "packing": ("packing_sets_the_pace", lambda plan: replace(plan, pack_cycles=4)),
    "arrays": ("two_arrays", lambda plan: replace(plan, arrays=1)),
}


QUICK_WRONG = "address", "drain", "loop", "unpacking"
"""What is spoilt of each kind: an access, an order, a delay, a pace."""


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        pytest.param(*each, id=what, marks=[] if what in QUICK_WRONG else [pytest.mark.long])
        for what, each in WRONG.items()
    ],
)
def test_hardware_that_ignores_a_mechanism_is_a_difference(name: str, spoil: Callable[[Plan], Plan]) -> None:
    """The cases need each mechanism, and the comparison sees it, at the latest where the engine's last access is."""
    case = CASES[name]
    expected = overhear(case.engine)
    last, *_ = expected[-1]
    seen = case.run(spoil(plan_of(case.program, case.hardware)), last + 2)
    assert first_difference(seen.accesses, expected) is not None
