"""The result words of one array, from the read of their ifmap word until they are written."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from tpusim.machines.tpu.definition.frame import NEVER, PSUM, RESULT, Frame
from tpusim.machines.tpu.program.steps import Stream
from tpusim.machines.tpu.register.order import Order
from tpusim.machines.tpu.register.scoreboard import Scoreboard


class Issued(Protocol):
    """A stream and its index in the Program."""

    @property
    def index(self) -> int: ...
    @property
    def step(self) -> Stream: ...


@dataclass(slots=True)
class _Word:
    """A word of a stream; `number` counts those of this array since the layer began."""

    at: Issued
    word: int
    number: int
    summed: int = NEVER


class ResultQueue:
    """First in, first out; each word waits for its last sum, its partial sum and the adds, and its slots."""

    def __init__(self, frame: Frame, array: int, scoreboard: Scoreboard) -> None:
        self.frame, self.array, self.scoreboard = frame, array, scoreboard
        self.psum_slot, self.result_slot = frame.psum_slot + array, frame.result_slot + array
        self.reading: deque[_Word] = deque()
        self.summing: deque[_Word] = deque()
        self.number = 0

    def read(self, at: Issued, word: int) -> None:
        """The ifmap word `word` of a stream is read in this cycle."""
        self.reading.append(_Word(at, word, self.number))
        self.number += 1

    def psum(self, now: int, completing: int) -> Order | None:
        """A word whose last sum arrives in this cycle, or has arrived, meets its partial sum."""
        reading = self.reading
        if not self.frame.accumulates or now % self.frame.period != self.psum_slot:
            return None
        if not reading or reading[0].number >= completing:
            return None
        word = reading.popleft()
        word.summed = now
        self.summing.append(word)
        step = word.at.step
        address = step.result_base + word.word
        order = Order(PSUM, word.at.index, step.cols, address, array=self.array, number=word.number)
        return order if step.accumulate else None

    def result(self, now: int, complete: int) -> Order | None:
        """A word that is complete, or whose adds are done, is written."""
        if now % self.frame.period != self.result_slot or not self._ready(now, complete):
            return None
        word = (self.summing if self.frame.accumulates else self.reading).popleft()
        step = word.at.step
        if word.word == step.words - 1:
            self.scoreboard.finish(word.at.index, now + 1)
        address = step.result_base + word.word
        return Order(
            RESULT, word.at.index, step.cols, address, array=self.array, number=word.number, accumulate=step.accumulate
        )

    def _ready(self, now: int, complete: int) -> bool:
        if self.frame.accumulates:
            return bool(self.summing) and now >= self.summing[0].summed + self.frame.add_cycles
        return bool(self.reading) and self.reading[0].number < complete
