"""The step of the vector unit, where it works by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tpusim.machines.tpu.definition import Beat, beat_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import Feed, first_word
from tpusim.machines.tpu.program.operations import Arity, Work, work_of
from tpusim.machines.tpu.program.pointers import ElementTable
from tpusim.machines.tpu.program.step import Step, Use


class Scalars(NamedTuple):
    """So many `numbers` of each lane, in `words` words from `base` on: the lane's own factors."""

    base: int = 0
    words: int = 0
    numbers: int = 0


NO_SCALARS = Scalars()


@dataclass(frozen=True, slots=True)
class Vector(Step):
    """The vector unit works by itself: every lane reads a word of each operand, and writes one, `words` times.

    It begins `delay` cycles after it could: what is done before, by the vector unit too.

    Attributes:
        operation: what it does, by its name in `operations`.
        operands: where the lanes find each operand; a lane that no group feeds, and padding, gets zeros.
        writes: where the results go; a lane that no group feeds, and padding, keeps none. What the step reads of the
            words that it writes, it reads in the same order: the results of a word come after all that is read for it.
        scalars: are read once, before all else.
        coefficients: of the operands, the same in every lane.
    """

    cause = "vector_work"
    queue = "vector"

    operation: str
    operands: tuple[Feed, ...]
    writes: Feed
    words: int
    scalars: Scalars = NO_SCALARS
    coefficients: tuple[float, ...] = ()
    delay: int = 0

    @property
    def counts(self) -> Arity:
        """What the operation is given."""
        return Arity(len(self.operands), self.scalars.numbers, len(self.coefficients))

    @property
    def lanes(self) -> int:
        """From lane 0 on, as many as may take part."""
        groups = (group for feed in (*self.operands, self.writes) for group in feed.groups)
        return max((group.first_lane + group.lanes for group in groups), default=0)

    @property
    def adds_on(self) -> bool:
        return self.writes in self.operands

    @property
    def result_base(self) -> int:
        """The first word that it writes."""
        return min((first_word(group.pattern) for group in self.writes.groups), default=0)

    @property
    def picks(self) -> ElementTable | None:
        """The pointers by which it picks elements: one table for all operands."""
        return next((each.picks for each in self.operands if each.picks), None)

    @property
    def reads(self) -> int:
        """The words that a lane reads for each word that it writes: first pointers, then operands."""
        pointers = self.picks.word_words if self.picks else 0
        return pointers + sum(each.picks.elements if each.picks else 1 for each in self.operands)

    def beat(self, elements: int, hardware: Hardware) -> Beat:
        """How it goes through its words, of which so many `elements` are in use."""
        return beat_of(self.reads, sum(self.operations(hardware)), elements, hardware)

    def operations(self, hardware: Hardware) -> Work:
        """What the ALUs do with an element."""
        return work_of(self.operation, self.counts, self.coefficients, hardware.vector_unit)

    @property
    def facts(self) -> Mapping[str, int | str]:
        return {"operation": self.operation, "operands": len(self.operands), "words": self.words}

    @property
    def use(self) -> Use:
        reads = sum(each.accesses for each in self.operands) + self.scalars.words * self.lanes
        reads += self.words * self.picks.word_words if self.picks else 0
        return Use(port_reads=reads, port_writes=self.writes.accesses)

    @property
    def words_read(self) -> Iterator[range]:
        yield range(self.scalars.base, self.scalars.base + self.scalars.words)
        for feed in self.operands:
            yield from feed.extents

    @property
    def words_written(self) -> Iterator[range]:
        return self.writes.extents
