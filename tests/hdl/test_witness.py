"""The register engine against hardware: every port access of every lane, cycle by cycle, value by value."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np
import pytest

from tests.strategies import conv, machine
from tpusim import reference
from tpusim.machines.tpu import register
from tpusim.machines.tpu.definition.frame import DMA, WEIGHT
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.channel_first import lower
from tpusim.machines.tpu.program import contents as dma
from tpusim.machines.tpu.program.steps import FilterFill, IfmapFill, Preload, Program, Spill, Stream
from tpusim.network.ops import Conv2d, Gemm
from tpusim.reference import Tensor

pytest.importorskip("amaranth", reason="the hardware witness needs Amaranth HDL: pip install amaranth")

from amaranth.sim import Simulator

from tests.hdl import machine as hdl

Access = tuple[int, int, str, int, tuple[int, ...]]
"""Cycle, lane, read or write, address, elements."""

CLIENTS = ("ifmap", "psum", "result", "weight", "dma")
MOST_CYCLES = 5_000


# ---- the register engine, overheard


def overhear(engine: register.Machine) -> list[Access]:
    """Run the register engine to its end; every access in the order (cycle, lane)."""
    accesses: list[Access] = []
    while not engine.finished:
        now = engine.now
        engine.clock()
        accesses += [
            access_of(engine, now, int(lane)) for lane in np.flatnonzero(engine.lanes.ports["address"][0] >= 0)
        ]
    return accesses


def access_of(engine: register.Machine, now: int, lane: int) -> Access:
    """What the port of a lane did in the last cycle: the word still stands where it was read or written."""
    registers, order = engine.lanes.ports[0, lane], engine.orders[0, lane]
    address = int(registers["address"])
    whole = order["client"] in (WEIGHT, DMA)
    word = engine.lanes.memory[lane, address, : None if whole else engine.program.word_fill]
    kind = "write" if registers["writes"] else "read"
    return now, lane, kind, address, tuple(int(element) for element in word)


# ---- the hardware


def plan_of(program: Program, hardware: Hardware) -> hdl.Plan:
    """What the hardware must know of a Program before the first cycle."""
    numbered = list(enumerate(program.steps))
    preloads = [index for index, step in numbered if isinstance(step, Preload)]
    return hdl.Plan(
        rows=hardware.array.rows,
        cols=hardware.array.cols,
        word=hardware.vector_memory.word_elements,
        elements=program.word_fill,
        alus=hardware.vector_unit.alus,
        buffers=hardware.array.weight_buffers,
        depth=program.peak_words,
        latency=hardware.latency_cycles,
        weights=tuple(
            hdl.Weights(index, step.after, step.base, step.rows, step.cols)
            for index, step in numbered
            if isinstance(step, Preload)
        ),
        passes=tuple(
            pass_of(program, index, step, preloads.index(step.preload), hardware.lanes)
            for index, step in numbered
            if isinstance(step, Stream)
        ),
        transfers=tuple(
            hdl.Transfer(
                index,
                step.after,
                isinstance(step, Spill),
                step.words,
                # A fill of nothing but padding has no bytes, and yet the bus for a cycle.
                max(1, ceil(step.hbm_bytes / hardware.hbm_bytes_per_cycle)),
            )
            for index, step in numbered
            if isinstance(step, IfmapFill | FilterFill | Spill)
        ),
    )


def pass_of(program: Program, index: int, step: Stream, weights: int, lanes: int) -> hdl.Pass:
    """One stream; its lanes begin where their group's pattern does."""
    starts: list[tuple[int, int, int] | None] = [None] * lanes
    for group in step.reads:
        for lane in range(group.first_lane, group.first_lane + group.lanes):
            starts[lane] = (group.pattern.base, *group.pattern.start)
    needs = {*step.after, *program.steps[step.preload].after}
    spills = {other for other in step.after if isinstance(program.steps[other], Spill)}
    pattern = step.reads[0].pattern
    return hdl.Pass(
        step=index,
        fills=tuple(sorted(needs - spills)),
        spills=tuple(sorted(spills)),
        weights=weights,
        starts=tuple(starts),
        counts=pattern.counts,
        stride=pattern.step,
        extent=pattern.extent,
        result_base=step.result_base,
        cols=step.cols,
        accumulate=step.accumulate,
    )


@dataclass
class Outside:
    """HBM: the words of every transfer, those of a spill as they come."""

    program: Program
    words: list[dma.Words]
    steps: list[IfmapFill | FilterFill | Spill]

    @classmethod
    def of(cls, program: Program, hardware: Hardware, ifmap: Tensor, filter_: Tensor) -> Outside:
        lanes, word = hardware.lanes, hardware.vector_memory.word_elements
        steps = [step for step in program.steps if isinstance(step, IfmapFill | FilterFill | Spill)]
        words = [dma.words_of(program, step, ifmap, filter_, lanes, word) for step in steps]
        return cls(program, words, steps)

    @property
    def ofmap(self) -> Tensor:
        """What has been spilled."""
        ofmap = np.full(self.program.ofmap_shape, np.nan, np.float32)
        for step, words in zip(self.steps, self.words, strict=True):
            if isinstance(step, Spill):
                dma.store(self.program, step, words.values, ofmap)
        return ofmap


@dataclass
class Seen:
    """What the hardware did."""

    accesses: list[Access] = field(default_factory=list)
    lane_0: dict[str, list[int]] = field(default_factory=lambda: {client: [] for client in CLIENTS})
    states: Counter[str] = field(default_factory=Counter)
    cycles: int = 0
    flags: set[str] = field(default_factory=set)


class Bench:
    """Clocks the machine, plays HBM, and watches every port."""

    def __init__(self, plan: hdl.Plan, outside: Outside) -> None:
        self.plan, self.outside, self.seen = plan, outside, Seen()
        self.unit = hdl.MatrixUnit(plan)
        self.orders = {client: self.unit.sequencer.order[client] for client in CLIENTS}

    def run(self) -> Seen:
        """Until the control rests and the last lane has done the last order."""
        simulator = Simulator(self.unit)
        simulator.add_clock(1e-9)
        simulator.add_testbench(self._clock)
        simulator.run()
        self.seen.accesses.sort()
        return self.seen

    async def _clock(self, ctx: Any) -> None:
        left = self.plan.lanes
        for now in range(MOST_CYCLES):
            self._watch_lane_0(ctx, now)
            for lane in self.unit.lanes:
                self._serve(ctx, lane)
                self._watch(ctx, lane, now)
            left -= ctx.get(self.unit.sequencer.rests)
            if not left:
                break
            await ctx.tick()
        else:
            self.seen.flags.add("never ends")
        for lane in self.unit.lanes:
            raised = (flag for flag in ("asked_twice", "slot_twice", "lost") if ctx.get(getattr(lane, flag)))
            self.seen.flags.update(f"lane {lane.number}: {flag}" for flag in raised)
        self.seen.cycles = ctx.get(self.unit.sequencer.dma.in_hbm) + self.plan.lanes - 1

    def _watch_lane_0(self, ctx: Any, now: int) -> None:
        streams = self.unit.sequencer.streams
        self.seen.states[streams.NAMES[ctx.get(streams.state)]] += 1
        for client in CLIENTS:
            if ctx.get(self.orders[client]):
                self.seen.lane_0[client].append(now)

    def _serve(self, ctx: Any, lane: hdl.Lane) -> None:
        """The DMA's word for this lane and cycle, if there is one."""
        for served in (lane.dma_read, lane.dma_write):
            if ctx.get(served):
                ctx.set(served, 0)
        if not ctx.get(lane.dma):
            return
        transfer, word = ctx.get(lane.order.dma_transfer), ctx.get(lane.order.dma_word)
        words = self.outside.words[transfer]
        if not words.lanes[lane.number, word]:
            return
        ctx.set(lane.dma_address, int(words.addresses[word]))
        if self.plan.transfers[transfer].spill:
            ctx.set(lane.dma_read, 1)
            words.values[lane.number, word] = self._contents(ctx, lane)
        else:
            ctx.set(lane.dma_word, [int(element) for element in words.values[lane.number, word]])
            ctx.set(lane.dma_write, 1)

    def _watch(self, ctx: Any, lane: hdl.Lane, now: int) -> None:
        if ctx.get(lane.asks):
            kind = "write" if ctx.get(lane.writes) else "read"
            self.seen.accesses.append((now, lane.number, kind, ctx.get(lane.address), self._contents(ctx, lane)))

    def _contents(self, ctx: Any, lane: hdl.Lane) -> tuple[int, ...]:
        return tuple(ctx.get(lane.contents[n]) for n in range(self.plan.word))


# ---- the comparison


def gemm(m: int, k: int, n: int) -> Gemm:
    return Gemm(name="gemm", m=m, n=n, k=k)


@dataclass(frozen=True)
class Case:
    """A layer on a machine."""

    layer: Gemm | Conv2d
    hardware: Hardware
    batch: int = 1

    @property
    def program(self) -> Program:
        return lower(self.layer, self.batch, self.hardware)[1]

    @property
    def operands(self) -> tuple[Tensor, Tensor]:
        return reference.operands(self.layer, self.batch, seed=3)


def first_difference(seen: list[Access], expected: list[Access]) -> tuple[Access | None, Access | None] | None:
    """The first access on which the two disagree; the engine notes only the elements that it uses."""
    for here, there in zip(seen, expected, strict=False):
        if here[:4] != there[:4] or here[4][: len(there[4])] != there[4]:
            return here, there
    if len(seen) != len(expected):
        at = min(len(seen), len(expected))
        return (seen[at] if at < len(seen) else None), (expected[at] if at < len(expected) else None)
    return None


CASES = {
    "by_hand": Case(gemm(4, 4, 4), machine()),
    "sums": Case(gemm(8, 14, 7), machine()),
    "sums_one_buffer": Case(gemm(8, 14, 7), machine(weight_buffers=1)),
    "words_of_4": Case(gemm(12, 12, 4), machine(word_elements=4)),
    "words_of_4_one_buffer": Case(gemm(12, 12, 4), machine(word_elements=4, weight_buffers=1)),
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
        machine(word_elements=4, capacity_words=8, latency_cycles=1, burst_bytes=4, loop_order="block_major"),
    ),
    "slow_hbm": Case(gemm(8, 12, 8), machine(bytes_per_cycle=7, latency_cycles=40)),
    "fast_hbm": Case(gemm(8, 12, 8), machine(bytes_per_cycle=5000, latency_cycles=1)),
    "wide": Case(gemm(6, 10, 9), machine(4, 8)),
    "tall": Case(gemm(6, 20, 6), machine(8, 4, word_elements=4)),
    "padding_and_two_taps": Case(conv(2, 4, 4, 3, padding=1), machine(), batch=2),
    "padding_stride_and_dilation": Case(conv(5, 6, 3, 2, stride=2, padding=2, dilation=(2, 2)), machine(), batch=3),
    "padding_one_tap_one_buffer": Case(
        conv(2, 3, 5, 3, padding=1), machine(word_elements=4, weight_buffers=1, multi_tile=1), batch=4
    ),
    "fills_of_padding_alone": Case(
        conv(7, 2, 6, 1, padding=2),
        machine(word_elements=4, capacity_words=30, latency_cycles=40, loop_order="block_major"),
        batch=2,
    ),
    "tight_memory": Case(conv(3, 3, 6, 2, padding=1), machine(capacity_words=40, bytes_per_cycle=7), batch=2),
    "8x8_sums": Case(gemm(16, 20, 12), machine(8, 8, word_elements=4)),
    "8x8_sums_one_buffer": Case(gemm(16, 20, 8), machine(8, 8, word_elements=2, weight_buffers=1)),
    "8x8_padding_and_two_taps": Case(conv(4, 4, 8, 3, padding=1), machine(8, 8, word_elements=4), batch=4),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_hardware_and_register_engine_agree(case: Case) -> None:
    """Every read and write: cycle, lane, address, value; the cycles, their split, and the outputs."""
    program, (ifmap, filter_) = case.program, case.operands
    engine = register.Machine(program, case.hardware, ifmap, filter_)
    expected = overhear(engine)
    outside = Outside.of(program, case.hardware, ifmap, filter_)
    seen = Bench(plan_of(program, case.hardware), outside).run()
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
    np.testing.assert_array_equal(outside.ofmap, reference.compute(case.layer, ifmap, filter_))


def test_the_cases_cover_what_they_claim() -> None:
    """Passes that accumulate, padding, stacked taps, several blocks."""
    programs = {name: case.program for name, case in CASES.items()}
    assert programs["sums"].accumulates
    assert programs["8x8_sums"].accumulates
    assert not programs["words_of_1_no_sums"].accumulates
    for name in ("padding_and_two_taps", "8x8_padding_and_two_taps"):
        assert programs[name].multi_tile == 2
        patterns = [group.pattern for step in programs[name].streams for group in step.reads]
        assert any(pattern.accesses < pattern.words for pattern in patterns)
    fills = (step for step in programs["fills_of_padding_alone"].steps if isinstance(step, IfmapFill))
    assert any(step.hbm_bytes == 0 for step in fills)
    waiting = programs["streams_wait_for_a_spill"]
    assert any(isinstance(waiting.steps[other], Spill) for step in waiting.streams for other in step.after)
    assert sum(isinstance(step, Spill) for step in programs["tight_memory"].steps) > 2
    assert {1, 2, 3, 4, 8} == {program.word_fill for program in programs.values()}


def test_the_hardware_keeps_the_table_worked_by_hand() -> None:
    """docs/timing.md, section 7, without any engine."""
    case = CASES["by_hand"]
    plan = plan_of(case.program, case.hardware)
    seen = Bench(plan, Outside.of(case.program, case.hardware, *case.operands)).run()
    assert seen.lane_0 == {
        "ifmap": [14, 16],
        "psum": [],
        "result": [21, 23],
        "weight": [8, 10],
        "dma": [6, 7, 9, 11, 24, 25],
    }
    assert seen.cycles == 35


class TooSoon(hdl.Plan):
    """Writes each result a frame before its sums are there."""

    @property
    def result_delay(self) -> int:
        return super().result_delay - self.frame


class OffTheGrid(hdl.Plan):
    """Takes another client's slot."""

    @property
    def result_delay(self) -> int:
        return super().result_delay + 1


@pytest.mark.parametrize(("wrong", "flag"), [(TooSoon, "lost"), (OffTheGrid, "slot_twice")])
@pytest.mark.parametrize("name", ["sums", "words_of_4"])
def test_hardware_that_breaks_a_rule_says_so(wrong: type[hdl.Plan], flag: str, name: str) -> None:
    """The flags can be raised."""
    case = CASES[name]
    plan = plan_of(case.program, case.hardware)
    broken = wrong(**{each: getattr(plan, each) for each in plan.__dataclass_fields__})
    seen = Bench(broken, Outside.of(case.program, case.hardware, *case.operands)).run()
    assert any(flag in raised for raised in seen.flags)


def test_a_wrong_address_is_a_difference() -> None:
    """One pass that collects a word further on is seen in the very first write."""
    case = CASES["sums"]
    program, operands = case.program, case.operands
    plan = plan_of(program, case.hardware)
    moved = replace(plan.passes[0], result_base=plan.passes[0].result_base + 1)
    seen = Bench(
        replace(plan, passes=(moved, *plan.passes[1:]), depth=plan.depth + 1),
        Outside.of(program, case.hardware, *operands),
    ).run()
    difference = first_difference(seen.accesses, overhear(register.Machine(program, case.hardware, *operands)))
    assert difference is not None
    here, there = difference
    assert here is not None
    assert there is not None
    assert (here[2], here[3]) == ("write", there[3] + 1)
