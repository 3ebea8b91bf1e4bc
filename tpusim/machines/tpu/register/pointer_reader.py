"""Reads pointer words: those of a frame in the frame before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tpusim.machines.tpu.definition import POINTER, Frame
from tpusim.machines.tpu.program.passes import Stream
from tpusim.machines.tpu.program.pointers import PointerTable
from tpusim.machines.tpu.register.order import Order


class Told(Protocol):
    """A stream and its index in the Program."""

    @property
    def index(self) -> int: ...
    @property
    def step(self) -> Stream: ...


def registers(pointer_words: int) -> int:
    """Word registers of a reader that takes so many words a frame: for two frames, and one word that reaches into both
    of them from the frame before.
    """
    return 2 * pointer_words + 1


@dataclass(frozen=True, slots=True)
class TableRead:
    """A table whose first word was the reader's word number `first`."""

    table: PointerTable
    first: int

    def place(self, word: int) -> int:
        """Which of all numbers that were ever read is the first pointer to word `word` of the pass."""
        return self.first * self.table.per_word + word // self.table.repeat * self.table.together


class PointerReader:
    """Told of a stream a frame before its first ifmap word at the earliest; then keeps a frame ahead of it."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.at: Told | None = None
        self.told_at, self.issued_at = 0, -1
        self.word = self.number = self.first = 0

    def tell(self, at: Told, now: int) -> None:
        """From this cycle on, read for `at`; nothing is left to read for the stream before."""
        self.at, self.told_at, self.issued_at = at, now, -1
        self.word, self.first = 0, self.number

    def waited_for(self, at: Told, now: int) -> bool:
        """Whether the stream cannot be issued yet because its first pointers are not there."""
        if at.step.reads.table is None:
            return False
        return self.at is not at or now < self.told_at + self.frame.period - 1

    def issue(self, at: Told, now: int) -> TableRead | None:
        """The stream is issued; where it finds its pointers, if it reads any."""
        table = at.step.reads.table
        if table is None:
            return None
        self.issued_at = now
        return TableRead(table, self.first)

    def read(self, now: int) -> Order | None:
        """The next pointer word, in a slot of its own, if the next frame needs it."""
        if self.at is None or now % self.frame.period not in self.frame.pointer_slots:
            return None
        table, step = self.at.step.reads.table, self.at.step
        assert table is not None
        frame = 0 if self.issued_at < 0 else (now - self.issued_at - 1) // self.frame.period + 1
        last = min((frame + 1) * self.frame.together, step.words) - 1
        if self.word * table.per_word >= (last // table.repeat + 1) * table.together:
            return None
        order = Order(POINTER, self.at.index, 1, table.base + self.word, number=self.number)
        self.word += 1
        self.number += 1
        return order
