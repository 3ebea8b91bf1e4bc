"""Blocks that share an SM, from the first load to the last result, from event to event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tpusim.machines.gpu.definition import Pace
from tpusim.machines.gpu.event.account import Interval, account
from tpusim.machines.gpu.state import Resident, State

_LOAD, _READY = 0, 1
_Event = tuple[int, int, int]
"""When, which of the two, which block."""


def resident(pace: Pace, blocks: int) -> Resident:
    """`blocks` blocks of an SM that begin together in cycle 0."""
    return _Sm(pace, [_Block() for _ in range(blocks)]).run()


def recorded(pace: Pace, blocks: int) -> list[Interval]:
    """What each of them does when; nothing is left out."""
    sm = _Sm(pace, [_Block() for _ in range(blocks)])
    sm.seen = None
    sm.run()
    return sm.intervals


@dataclass
class _Block:
    """Where one is: k-steps whose loads were asked for, that wait to be stored, the one that comes next."""

    asked: int = 0
    arrived: list[int] = field(default_factory=list)
    done: int = 0
    free: int | None = 0


class _Sm:
    """Events in order of time; the load port serves requests as they come, and so do the tensor cores."""

    def __init__(self, pace: Pace, blocks: list[_Block]) -> None:
        self.pace, self.blocks = pace, blocks
        self.port, self.cores = 0, [0] * pace.together
        self.events: list[_Event] = [(0, _LOAD, at) for at in range(len(blocks)) for _ in range(pace.ahead)]
        self.intervals: list[Interval] = []
        self.skipped, self.states = 0, Counter[State]()
        self.seen: dict[tuple[object, ...], tuple[int, int]] | None = {}
        self.regular = _regular(pace)

    def run(self) -> Resident:
        """Until the last block has multiplied; then the results leave, block by block."""
        steps, ends = len(self.pace.stages), []
        while self.events:
            now, kind, at = heappop(self.events)
            if kind == _LOAD:
                self._load(now, at)
                continue
            if at == 0 and self.seen is not None and self.blocks[0].done % self.pace.period == 0:
                self._skip(now)
            end = self._multiply(now, at)
            if self.blocks[at].done == steps:
                ends.append((end, at))
        writer = 0
        for end, _ in sorted(ends):
            writer = max(writer, end) + self.pace.epilogue
            self.intervals.append((max(end, writer - self.pace.epilogue), writer, State.EPILOGUE))
        self.states += account(self.intervals, 0, writer)
        return Resident(writer + self.skipped, self.states)

    def _load(self, now: int, at: int) -> None:
        """A block asks for the operands of its next k-step, if there is one."""
        block = self.blocks[at]
        if block.asked == len(self.pace.stages):
            return
        self.port = max(self.port, now) + self.pace.stages[block.asked][0]
        block.asked += 1
        block.arrived.append(self.port + self.pace.latency)
        self._ready(at)

    def _ready(self, at: int) -> None:
        """Once its operands are there and its last k-step is done, a block waits for the tensor cores."""
        block = self.blocks[at]
        if block.arrived and block.free is not None:
            heappush(self.events, (max(block.arrived.pop(0), block.free), _READY, at))
            block.free = None

    def _multiply(self, now: int, at: int) -> int:
        """Store, step and multiply a k-step, as soon as there is room; the cycle when it is done."""
        pace, block = self.pace, self.blocks[at]
        begin = max(now, min(self.cores))
        stored = begin + pace.stages[block.done][1]
        end = stored + pace.step + pace.multiply
        self.cores[self.cores.index(min(self.cores))] = end
        self.intervals += [
            (begin, stored + pace.step, State.STAGE), (end - pace.multiply, end, State.BUSY),
        ]  # fmt: skip
        block.done, block.free = block.done + 1, end
        heappush(self.events, (stored if pace.held else end, _LOAD, at))
        self._ready(at)
        return end

    def _skip(self, now: int) -> None:
        """Where all is as it was before, but later, what comes is known: leave out as many rounds as are alike."""
        assert self.seen is not None
        picture = tuple(self._picture(now))
        if picture not in self.seen:
            self.seen[picture] = now, self.blocks[0].done
            return
        before, done = self.seen[picture]
        round_, furthest = self.blocks[0].done - done, max(block.asked for block in self.blocks)
        rounds = max(0, (self.regular - furthest) // round_)
        self.skipped = rounds * (now - before)
        alike = account(self.intervals, before, now)
        self.states = Counter({state: rounds * cycles for state, cycles in alike.items()})
        for block in self.blocks:
            block.asked += rounds * round_
            block.done += rounds * round_
        self.seen = None

    def _picture(self, now: int) -> Iterator[object]:
        """All that decides what comes, as it looks from here."""
        first = self.blocks[0].done
        yield max(0, self.port - now)
        yield tuple(sorted(max(0, free - now) for free in self.cores))
        yield tuple(sorted((when - now, kind, at) for when, kind, at in self.events))
        for block in self.blocks:
            arrived = tuple(max(0, when - now) for when in block.arrived)
            yield block.asked - first, block.done - first, arrived, block.free and max(0, block.free - now)


def _regular(pace: Pace) -> int:
    """K-steps from the first on that are as those a period before."""
    stages, period = pace.stages, pace.period
    return next((at for at in range(period, len(stages)) if stages[at] != stages[at - period]), len(stages))
