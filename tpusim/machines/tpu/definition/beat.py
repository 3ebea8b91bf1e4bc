"""How the vector unit goes through the words of a step of its own, word after word (docs/timing.md, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from tpusim.machines.tpu.description import Hardware


@dataclass(frozen=True, slots=True)
class Beat:
    """What a result word takes of each lane: words to read, one after another, then cycles of the vector unit's work.

    The slots of the port repeat every `period` cycles: those of the reads come first, the write has one behind them.
    """

    reads: int
    work: int

    @property
    def period(self) -> int:
        """Cycles from one result word to the next: of the port, or of the work, whichever takes longer."""
        return max(self.reads + 1, self.work)

    @property
    def result_delay(self) -> int:
        """Cycles from a word's first read to the write of its result, in the first slot that is not a read's."""
        done = self.reads + self.work
        return done if done % self.period >= self.reads else done + self.reads - done % self.period


def ready_delay(words: int, hardware: Hardware) -> int:
    """Cycles in which the vector unit makes so many words of a block ready, padding too.

    Unpacking is a part of that: where words are unpacked on their way from HBM, it takes so much less.
    """
    unit = hardware.vector_unit
    return ceil(words * max(unit.ready_cycles - unit.unpack_cycles, Fraction(0)))


def beat_of(reads: int, operations: int, elements: int, hardware: Hardware) -> Beat:
    """The beat of a result word of `elements` in use, each of which takes so many ALU `operations`.

    All lanes work alike, each with its share of the ALUs. What a word takes to be fetched into place, and to be
    finished, sets the pace where that is more (`vector_unit.operand_cycles`, `result_cycles`).
    """
    unit = hardware.vector_unit
    adding = -(-operations * elements * hardware.lanes // unit.alus)
    return Beat(reads, max(adding, ceil(reads * unit.operand_cycles + unit.result_cycles)))
