"""HBM as a pipe, and the scratch memory, for the register engine."""

from __future__ import annotations

from math import ceil

from tpusim.machines.tpu.definition import NEVER
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.transfers import Spill, Transfer
from tpusim.machines.tpu.register.hbm import Passage
from tpusim.memory.pipe import Pipe


class PipedMemory:
    """A latency, then bytes at the full bandwidth."""

    use = None

    def __init__(self, hardware: Hardware, pipe: Pipe) -> None:
        self.hardware, self.pipe = hardware, pipe

    def clock(self, now: int) -> None:
        """Nothing happens by itself."""

    def begin(self, step: Transfer, now: int) -> Passage:
        """The bus or the conversion, whichever takes longer."""
        moving = ceil(step.hbm_bytes / self.pipe.bytes_per_cycle)
        total = max(1, moving, step.conversion_cycles(self.hardware))
        kind = PipedSpill if isinstance(step, Spill) else PipedFill
        return kind(now, total, step.words, self.pipe.latency)


class PipedFill:
    """Words come evenly, after the latency."""

    stored = NEVER

    def __init__(self, started: int, total: int, words: int, latency: int) -> None:
        self.started, self.total, self.words, self.latency = started, total, words, latency

    def ready(self, word: int, now: int) -> bool:
        return word < max(0, min(now - self.started - self.latency, self.total)) * self.words // self.total

    def took(self, now: int) -> None:
        """It has left the bus long ago."""

    def moves(self, now: int) -> bool:
        return now < self.started + self.total

    def over(self, now: int) -> bool:
        return now >= self.started + self.total


class PipedSpill:
    """Words are wanted evenly; after the last, the bus is kept for as long as a word takes."""

    def __init__(self, started: int, total: int, words: int, latency: int) -> None:
        self.started, self.total, self.words, self.latency = started, total, words, latency
        self.taken, self.free_at, self.stored = 0, NEVER, NEVER

    def ready(self, word: int, now: int) -> bool:
        return word < -(-min(now - self.started + 1, self.total) * self.words // self.total)

    def took(self, now: int) -> None:
        self.taken += 1
        if self.taken == self.words:
            self.free_at = max(self.started + self.total, now + 1 - (-self.total // self.words))
            self.stored = self.free_at + self.latency

    def moves(self, now: int) -> bool:
        return now < self.started + self.total

    def over(self, now: int) -> bool:
        return now >= self.free_at
