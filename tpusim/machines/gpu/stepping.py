"""The second interpreter: an SM cycle by cycle, each block a little machine that knows only what it waits for."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tpusim.machines.gpu.definition import Pace, SmState, timed
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.program import GpuProgram
from tpusim.machines.lowered import PlainTiming

_OFTEN = 4096


def run(program: GpuProgram, gpu: Gpu, told: Callable[[int], None]) -> PlainTiming:
    """How long a layer takes; `told` now and then how many cycles of all kinds of resident sets are done."""
    done = 0

    def of_set(pace: Pace, blocks: int) -> Counter[SmState]:
        nonlocal done
        made = resident(pace, blocks, lambda cycles: told(done + cycles))
        done += made.total()
        return made

    return timed(program, gpu, of_set)


def resident(pace: Pace, blocks: int, told: Callable[[int], None] = lambda cycles: None) -> Counter[SmState]:
    """The cycles, by state, of `blocks` blocks of an SM that begin together in cycle 0."""
    sm, states, cycles = _Sm(pace, blocks), Counter[SmState](), 0
    while not sm.over:
        states[sm.clock()] += 1
        cycles += 1
        if cycles % _OFTEN == 0:
            told(cycles)
    return states


@dataclass
class _Block:
    """Registers of a block: k-steps asked for, there, and stored; what it does, and for how many cycles more."""

    pace: Pace
    asked: int = 0
    there: int = 0
    begun: int = 0
    room: int = field(init=False)
    storing: int = 0
    stepping: int = 0
    multiplying: int = 0
    queued: bool = False
    written: bool = False

    def __post_init__(self) -> None:
        self.room = self.pace.ahead

    @property
    def working(self) -> bool:
        """Whether it has its share of the tensor cores."""
        return bool(self.storing or self.stepping or self.multiplying)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to multiply."""
        return self.begun == len(self.pace.stages) and not self.working


class _Sm:
    """Its load port, what is on the way to the blocks, those that wait for the tensor cores, one that writes."""

    def __init__(self, pace: Pace, blocks: int) -> None:
        self.pace, self.blocks = pace, [_Block(pace) for _ in range(blocks)]
        self.requests: deque[tuple[_Block, int]] = deque()
        self.now = self.port = 0
        self.travelling: deque[tuple[_Block, int]] = deque()
        self.waiting: deque[_Block] = deque()
        self.writers: deque[_Block] = deque()
        self.writing = 0

    @property
    def over(self) -> bool:
        """Whether every block has written."""
        return all(block.written for block in self.blocks)

    def clock(self) -> SmState:
        """Do a cycle: who may begin something does, then all that is under way comes a cycle nearer."""
        self._begin()
        state = self._state()
        self.now, self.port = self.now + 1, max(0, self.port - 1)
        while self.travelling and self.travelling[0][1] == self.now:
            self.travelling.popleft()[0].there += 1
        for block in self.blocks:
            if block.storing:
                block.storing -= 1
                block.room += self.pace.held and not block.storing
            elif block.stepping:
                block.stepping -= 1
            elif block.multiplying:
                block.multiplying -= 1
                block.room += not self.pace.held and not block.multiplying
        if self.writing:
            self.writing -= 1
            if not self.writing:
                self.writers.popleft().written = True
                self.writing = self.pace.epilogue if self.writers else 0
        return state

    def _begin(self) -> None:
        for block in self.blocks:
            # Blocks ask for as many k-steps as they have room for, one block after another.
            while block.room and block.asked < len(self.pace.stages):
                block.room -= 1
                self.requests.append((block, self.pace.stages[block.asked][0]))
                block.asked += 1
        if not self.port and self.requests:
            # A port with nothing to do takes the next request.
            block, self.port = self.requests.popleft()
            self.travelling.append((block, self.now + self.port + self.pace.latency))
        for block in self.blocks:
            if block.there > block.begun and not block.working and not block.queued:
                block.queued = True
                self.waiting.append(block)
        while self.waiting and sum(block.working for block in self.blocks) < self.pace.together:
            block = self.waiting.popleft()
            block.queued = False
            block.storing = self.pace.stages[block.begun][1]
            block.stepping, block.multiplying = self.pace.step, self.pace.multiply
            block.begun += 1
        for block in self.blocks:
            if block.finished and not block.written and block not in self.writers:
                self.writers.append(block)
                self.writing = self.writing or self.pace.epilogue

    def _state(self) -> SmState:
        if any(not block.storing and not block.stepping and block.multiplying for block in self.blocks):
            return SmState.BUSY
        if any(block.working for block in self.blocks):
            return SmState.STAGE
        return SmState.EPILOGUE if self.writing else SmState.LOAD_WAIT
