"""Clocks the hardware witness, plays HBM for it, and watches every port."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from amaranth.sim import Simulator

from tests.hdl.lane import Lane
from tests.hdl.machine import MatrixUnit
from tests.hdl.plan import Plan
from tests.hdl.translation import Outside

Access = tuple[int, int, str, int, tuple[int, ...]]
"""Cycle, lane, read or write, address, elements."""

CLIENTS = ("ifmap", "psum", "result", "weight", "dma")
MOST_CYCLES = 5_000


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

    def __init__(self, plan: Plan, outside: Outside, most_cycles: int = MOST_CYCLES) -> None:
        self.plan, self.outside, self.most_cycles, self.seen = plan, outside, most_cycles, Seen()
        self.unit = MatrixUnit(plan)
        self.contents = [[lane.contents[n] for n in range(plan.word)] for lane in self.unit.lanes]

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
        for now in range(self.most_cycles):
            self._watch_control(ctx, now)
            for lane in self.unit.lanes:
                if owners := ctx.get(lane.owners):
                    self._serve(ctx, lane, owners)
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

    def _watch_control(self, ctx: Any, now: int) -> None:
        streams = self.unit.sequencer.streams
        self.seen.states[streams.NAMES[ctx.get(streams.state)]] += 1
        owners = ctx.get(self.unit.lanes[0].owners)
        for n, client in enumerate(CLIENTS):
            if owners >> n & 1:
                self.seen.lane_0[client].append(now)

    def _serve(self, ctx: Any, lane: Lane, owners: int) -> None:
        """The DMA's word for this lane and cycle, if there is one."""
        if not owners >> CLIENTS.index("dma") & 1:
            return
        transfer, word = ctx.get(lane.order.dma_transfer), ctx.get(lane.order.dma_word)
        words = self.outside.words[transfer]
        ctx.set(lane.takes_part, int(words.lanes[lane.number, word]))
        ctx.set(lane.dma_address, int(words.addresses[word]))
        if self.plan.transfers[transfer].spill:
            words.values[lane.number, word] = self._contents(ctx, lane)
        else:
            ctx.set(lane.dma_word, [int(element) for element in words.values[lane.number, word]])

    def _watch(self, ctx: Any, lane: Lane, now: int) -> None:
        if ctx.get(lane.asks):
            kind = "write" if ctx.get(lane.writes) else "read"
            self.seen.accesses.append((now, lane.number, kind, ctx.get(lane.address), self._contents(ctx, lane)))

    def _contents(self, ctx: Any, lane: Lane) -> tuple[int, ...]:
        return tuple(ctx.get(element) for element in self.contents[lane.number])
