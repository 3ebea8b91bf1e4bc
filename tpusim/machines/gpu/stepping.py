"""The second interpreter: an SM cycle by cycle, in which each block is a state machine of its own."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tpusim.machines.gpu.definition import BlockPace, SmState, timed
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.program import GpuProgram
from tpusim.machines.lowered import PlainTiming

_OFTEN = 4096


def run(program: GpuProgram, gpu: Gpu, told: Callable[[int], None]) -> PlainTiming:
    """The timing of a layer; `told` is called now and then with the number of cycles done."""
    done = 0

    def of_set(pace: BlockPace, blocks: int) -> Counter[SmState]:
        nonlocal done
        made = resident(pace, blocks, lambda cycles: told(done + cycles))
        done += made.total()
        return made

    return timed(program, gpu, of_set)


def resident(pace: BlockPace, blocks: int, told: Callable[[int], None] = lambda cycles: None) -> Counter[SmState]:
    """Cycles, by state, of an SM with `blocks` blocks that begin together in cycle 0."""
    sm, states, cycles = _Sm(pace, blocks), Counter[SmState](), 0
    while not sm.over:
        states[sm.clock()] += 1
        cycles += 1
        if cycles % _OFTEN == 0:
            told(cycles)
    return states


@dataclass
class _Block:
    """Registers of a block: k-steps asked for, there, and begun; its present work, and the cycles left of it."""

    pace: BlockPace
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
        """Whether the block has its share of the tensor cores."""
        return bool(self.storing or self.stepping or self.multiplying)

    @property
    def finished(self) -> bool:
        """Whether everything is multiplied."""
        return self.begun == len(self.pace.stages) and not self.working


class _Sm:
    """An SM: its load port, loads on their way, blocks that wait for the tensor cores, and the block that writes."""

    def __init__(self, pace: BlockPace, blocks: int) -> None:
        self.pace, self.blocks = pace, [_Block(pace) for _ in range(blocks)]
        self.requests: deque[tuple[_Block, int]] = deque()
        self.now = self.port = 0
        self.travelling: deque[tuple[_Block, int]] = deque()
        self.waiting: deque[_Block] = deque()
        self.writers: deque[_Block] = deque()
        self.writing = 0

    @property
    def over(self) -> bool:
        """Whether every block has written its results."""
        return all(block.written for block in self.blocks)

    def clock(self) -> SmState:
        """Do a cycle: begin whatever may begin, then let everything under way come a cycle nearer."""
        # Beginnings come first, so that a step of n cycles is counted in exactly n states.
        self._begin()
        state = self._state()
        self.now, self.port = self.now + 1, max(0, self.port - 1)
        while self.travelling and self.travelling[0][1] == self.now:
            self.travelling.popleft()[0].there += 1
        for block in self.blocks:
            if block.storing:
                block.storing -= 1
                # A register stage is free once its operands are stored, a stage of shared memory only once they are
                # multiplied.
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
            # Blocks ask for as many k-steps as they have room for, block after block.
            while block.room and block.asked < len(self.pace.stages):
                block.room -= 1
                self.requests.append((block, self.pace.stages[block.asked][0]))
                block.asked += 1
        if not self.port and self.requests:
            # A free port takes the next request.
            block, self.port = self.requests.popleft()
            self.travelling.append((block, self.now + self.port + self.pace.latency))
        # The order of blocks is fixed, so ties fall as in the event engine.
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
