"""The result words of one array, from the read of their ifmap word until they are written."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from tpusim.machines.tpu.definition import NEVER, PSUM, RESULT, Frame
from tpusim.machines.tpu.program.passes import Stream
from tpusim.machines.tpu.register.order import Order
from tpusim.machines.tpu.register.scoreboard import Scoreboard


class Issued(Protocol):
    """A stream and its index in the Program."""

    @property
    def index(self) -> int: ...
    @property
    def step(self) -> Stream: ...


class Sums(Protocol):
    """Words that lane 0 has collected from an array: before this cycle, and when it is over."""

    def complete(self, array: int) -> int: ...
    def completing(self, array: int) -> int: ...


@dataclass(slots=True)
class _Word:
    """A word of a stream; `number` counts those of this array since the layer began."""

    at: Issued
    word: int
    number: int
    summed: int = NEVER


class ResultQueue:
    """First in, first out; each word waits for its last sum, its partial sum and the adds, and its turn at a port."""

    def __init__(self, frame: Frame, array: int, scoreboard: Scoreboard) -> None:
        self.frame, self.array, self.scoreboard = frame, array, scoreboard
        self.reading: deque[_Word] = deque()
        self.summing: deque[_Word] = deque()
        self.number = 0

    def read(self, at: Issued, word: int) -> None:
        """The ifmap word `word` of a stream is read in this cycle."""
        self.reading.append(_Word(at, word, self.number))
        self.number += 1

    def clock(self, now: int, sums: Sums) -> None:
        """Note since when a word that meets no partial sum could be finished."""
        for word in self.reading:
            if word.number < sums.complete(self.array):
                word.summed = min(word.summed, now)

    def psum(self, now: int, sums: Sums) -> Order | None:
        """A word whose last sum arrives in this cycle, or has arrived, meets its partial sum."""
        if not self.reading or self.reading[0].number >= sums.completing(self.array):
            return None
        word = self.reading.popleft()
        word.summed = now
        self.summing.append(word)
        step = word.at.step
        address = step.result_base + word.word
        order = Order(PSUM, word.at.index, step.cols, address, array=self.array, number=word.number)
        return order if step.accumulate else None

    def result(self, now: int, sums: Sums) -> Order | None:
        """A word that is complete, or whose adds are done, is written."""
        if not self._ready(now, sums):
            return None
        word = (self.summing if self.frame.accumulates else self.reading).popleft()
        step = word.at.step
        if word.word == step.words - 1:
            self.scoreboard.finish(word.at.index, now + 1)
        address = step.result_base + word.word
        return Order(
            RESULT, word.at.index, step.cols, address, array=self.array, number=word.number, accumulate=step.accumulate,
            finishes=bool(step.finish),
        )  # fmt: skip

    def _ready(self, now: int, sums: Sums) -> bool:
        if self.frame.accumulates:
            return bool(self.summing) and now >= self.summing[0].summed + self.frame.work(True, True)
        if self.frame.finish_cycles:
            return bool(self.reading) and now >= self.reading[0].summed + self.frame.finish_cycles
        return bool(self.reading) and self.reading[0].number < sums.complete(self.array)
