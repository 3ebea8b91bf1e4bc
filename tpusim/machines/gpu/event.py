"""The event engine: it goes from event to event, and skips rounds that only repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import TypeAlias

from tpusim.machines.gpu.definition import BlockPace, SmState, dram_cycles, move_cycles, pace_of, timed, waves
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.program import GpuProgram, MoveKernel, ProductKernel
from tpusim.machines.lowered import PlainTiming, Slot


def run(program: GpuProgram, gpu: Gpu) -> PlainTiming:
    """The timing of a layer, with launches."""
    return timed(program, gpu, resident)


def to_step(program: GpuProgram, gpu: Gpu) -> int:
    """Cycles that the stepping engine will do: those of every kind of resident set, once."""
    found: list[int] = []

    def of_set(pace: BlockPace, blocks: int) -> Counter[SmState]:
        made = resident(pace, blocks)
        found.append(made.total())
        return made

    timed(program, gpu, of_set)
    return sum(found)


# ---- blocks that share an SM, from the first load to the last result

Interval: TypeAlias = tuple[int, int, SmState]
"""Cycles [first, stop), and the state of a block in them."""
_LOAD, _READY = 0, 1
_Event = tuple[int, int, int]
"""(cycle, _LOAD or _READY, block)."""


def resident(pace: BlockPace, blocks: int) -> Counter[SmState]:
    """The cycles, by state, of `blocks` blocks of an SM that begin together in cycle 0."""
    return _Sm(pace, blocks).run()


def recorded(pace: BlockPace, blocks: int) -> list[Interval]:
    """Intervals of `blocks` blocks that begin together; no round is skipped."""
    sm = _Sm(pace, blocks)
    sm.seen = None
    sm.run()
    return sm.intervals


@dataclass
class _Block:
    """State of a block: k-steps whose loads were asked for, loads that wait to be stored, k-steps done."""

    asked: int = 0
    arrived: list[int] = field(default_factory=list)
    done: int = 0
    free: int | None = 0


class _Sm:
    """Events in order of time. The load port and the tensor cores serve requests in the order in which they come."""

    def __init__(self, pace: BlockPace, blocks: int) -> None:
        self.pace, self.blocks = pace, [_Block() for _ in range(blocks)]
        self.port, self.cores = 0, [0] * pace.together
        self.events: list[_Event] = [(0, _LOAD, at) for at in range(blocks) for _ in range(pace.ahead)]
        self.intervals: list[Interval] = []
        self.states = Counter[SmState]()
        self.seen: dict[tuple[object, ...], tuple[int, int]] | None = {}
        stages, period = pace.stages, pace.period
        self.regular = next((at for at in range(period, len(stages)) if stages[at] != stages[at - period]), len(stages))
        """Number of first k-steps that equal those a period before."""

    def run(self) -> Counter[SmState]:
        """Run until the last block has multiplied; then results are written, block by block."""
        steps, ends = len(self.pace.stages), []
        while self.events:
            now, kind, at = heappop(self.events)
            block = self.blocks[at]
            if kind == _READY:
                if at == 0 and self.seen is not None and block.done % self.pace.period == 0:
                    self._skip(now)
                end = self._multiply(now, at)
                if block.done == steps:
                    ends.append(end)
            elif block.asked < steps:
                # Ask for the operands of the block's next k-step.
                self.port = max(self.port, now) + self.pace.stages[block.asked][0]
                block.asked += 1
                block.arrived.append(self.port + self.pace.latency)
                self._ready(at)
        writer = 0
        for end in sorted(ends):
            writer = max(writer, end) + self.pace.epilogue
            # One block writes at a time.
            self.intervals.append((max(end, writer - self.pace.epilogue), writer, SmState.EPILOGUE))
        self.states += account(self.intervals, 0, writer)
        return self.states

    def _ready(self, at: int) -> None:
        """Let a block wait for the tensor cores once its operands are there and its last k-step is done."""
        block = self.blocks[at]
        if block.arrived and block.free is not None:
            heappush(self.events, (max(block.arrived.pop(0), block.free), _READY, at))
            block.free = None

    def _multiply(self, now: int, at: int) -> int:
        """Store, step and multiply a k-step as soon as there is room; return the cycle in which it is done."""
        pace, block = self.pace, self.blocks[at]
        begin = max(now, min(self.cores))
        stored = begin + pace.stages[block.done][1]
        end = stored + pace.step + pace.multiply
        self.cores[self.cores.index(min(self.cores))] = end
        self.intervals += [(begin, stored + pace.step, SmState.STAGE), (end - pace.multiply, end, SmState.BUSY)]
        block.done, block.free = block.done + 1, end
        heappush(self.events, (stored if pace.held else end, _LOAD, at))
        self._ready(at)
        return end

    def _skip(self, now: int) -> None:
        """Skip rounds: if everything is as it was before, only later, the next rounds are known to be alike."""
        assert self.seen is not None
        # Everything that decides the future, relative to the present.
        first = self.blocks[0].done
        picture: tuple[object, ...] = (
            max(0, self.port - now),
            tuple(sorted(max(0, free - now) for free in self.cores)),
            tuple(sorted((when - now, kind, at) for when, kind, at in self.events)),
        )
        for block in self.blocks:
            arrived = tuple(max(0, when - now) for when in block.arrived)
            free = block.free and max(0, block.free - now)
            picture = *picture, block.asked - first, block.done - first, arrived, free
        if picture not in self.seen:
            self.seen[picture] = now, first
            return
        before, done = self.seen[picture]
        round_, furthest = first - done, max(block.asked for block in self.blocks)
        rounds = max(0, (self.regular - furthest) // round_)
        alike = account(self.intervals, before, now)
        self.states = Counter({state: rounds * cycles for state, cycles in alike.items()})
        for block in self.blocks:
            block.asked += rounds * round_
            block.done += rounds * round_
        self.seen = None


# ---- what an SM does when


def account(intervals: list[Interval], begin: int, end: int) -> Counter[SmState]:
    """Cycles of [begin, end) by state; in cycles without an interval, operands are on their way."""
    found = Counter[SmState]()
    for first, stop, state in stretches(intervals):
        found[state] += max(0, min(stop, end) - max(first, begin))
    found[SmState.LOAD_WAIT] += end - begin - found.total()
    return found


def stretches(intervals: list[Interval]) -> Iterator[Interval]:
    """The state that counts in each cycle, of all blocks; where none does anything, operands are on their way."""
    edges = sorted(
        (when, change, state)
        for start, stop, state in intervals
        for when, change in ((start, 1), (stop, -1))
        if start < stop
    )
    # The order is the precedence: a cycle in which any block multiplies is a busy one.
    under_way = dict.fromkeys((SmState.BUSY, SmState.STAGE, SmState.EPILOGUE), 0)
    begin, doing, last = 0, SmState.LOAD_WAIT, (edges[-1][0] + 1, 0, SmState.BUSY)
    for (when, change, state), (then, *_) in pairwise([*edges, last]):
        under_way[state] += change
        # All edges of a cycle count before the state is read.
        if then == when:
            continue
        now = next((each for each, count in under_way.items() if count), SmState.LOAD_WAIT)
        if now != doing:
            if begin < when:
                yield begin, when, doing
            begin, doing = when, now


KERNEL, WAVE, SM = "kernel", "wave", "sm"
"""Names of the tracks."""


def timeline(program: GpuProgram, gpu: Gpu) -> dict[str, list[Slot]]:
    """Slots in order of time, track by track; together they last as long as the layer."""
    tracks: dict[str, list[Slot]] = {KERNEL: [], WAVE: [], SM: []}
    at = 0
    for kernel in program.kernels:
        if launch := kernel.launched * gpu.launch_cycles:
            tracks[SM].append((at, at + launch, "launch"))
        begin = at + launch
        slots = {SM: [(0, move_cycles(kernel, gpu), "move")]} if isinstance(kernel, MoveKernel) else _waves(kernel, gpu)
        end = max(stop for _, stop, _ in slots[SM]) + begin
        for track, found in slots.items():
            tracks[track] += [(begin + start, begin + stop, name) for start, stop, name in found]
        tracks[KERNEL].append((at, end, kernel.what))
        at = end
    return tracks


def _waves(products: ProductKernel, gpu: Gpu) -> dict[str, list[Slot]]:
    """Slots of the products of a layer, from the first wave on."""
    tracks: dict[str, list[Slot]] = {WAVE: [], SM: []}
    known: dict[tuple[tuple[int, int], ...], tuple[int, list[Slot]]] = {}
    at = 0
    for wave in waves(products, gpu):
        kind = tuple(wave.items())
        # Waves of equal blocks are alike, so that each kind is timed once.
        if kind not in known:
            pace, most = pace_of(products, gpu, sum(wave.values())), max(wave)
            cycles = max(resident(pace, blocks).total() for blocks in wave)
            known[kind] = (
                cycles,
                [(start, stop, state.name.lower()) for start, stop, state in stretches(recorded(pace, most))],
            )
        cycles, states = known[kind]
        blocks = sum(each * sms for each, sms in wave.items())
        tracks[WAVE].append((at, at + cycles, f"{blocks} blocks"))
        tracks[SM] += [(at + start, at + stop, name) for start, stop, name in states]
        at += cycles
    # The DRAM's time is a bound for the whole kernel, so what exceeds the blocks' own time comes at its end.
    if (needed := dram_cycles(products, gpu)) > at:
        tracks[SM].append((at, needed, "dram_wait"))
    return tracks
