"""The vector unit's steps of its own: what lane 0's port is asked for them, cycle by cycle."""

from __future__ import annotations

from dataclasses import dataclass

from tpusim.machines.tpu.definition.beat import Beat
from tpusim.machines.tpu.definition.frame import VECTOR
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import STARVED
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream, Vector
from tpusim.machines.tpu.register.generators import Settings
from tpusim.machines.tpu.register.order import NOWHERE, Order
from tpusim.machines.tpu.register.scoreboard import Scoreboard
from tpusim.machines.tpu.register.vector_registers import RESULTS


@dataclass(frozen=True, slots=True)
class VectorIssue:
    """A vector step, with what it waits for told apart, its pace and the settings of its lanes."""

    index: int
    step: Vector
    data: tuple[int, ...]
    weights: tuple[int, ...]
    others: tuple[int, ...]
    beat: Beat
    reads: tuple[int, ...]
    writes: int

    @classmethod
    def all_of(cls, program: Program, settings: Settings, hardware: Hardware) -> list[VectorIssue]:
        """Those of a Program in order; each waits for the last preload, stream and vector step ahead of it, too."""
        works: list[VectorIssue] = []
        weights: tuple[int, ...] = ()
        ahead: tuple[int, ...] = ()
        number = settings.number
        for index, step in enumerate(program.steps):
            if isinstance(step, Preload):
                weights = (index,)
            elif isinstance(step, Stream):
                ahead = (index,)
            elif isinstance(step, Vector):
                data = tuple(other for other in step.after if program.steps[other].cause == STARVED)
                others = tuple(other for other in step.after if program.steps[other].cause != STARVED)
                reads = tuple(number[feed] for feed in step.operands)
                beat = step.beat(program.word_fill, hardware)
                works.append(cls(index, step, data, weights, (*others, *ahead), beat, reads, number[step.writes]))
                ahead = (index,)
        return works


class VectorStepUnit:
    """One step at a time."""

    def __init__(self, scoreboard: Scoreboard) -> None:
        self.scoreboard = scoreboard
        self.at: VectorIssue | None = None
        self.first = self.worked = 0

    @property
    def running(self) -> bool:
        """Whether a step is under way."""
        return self.at is not None

    def begin(self, at: VectorIssue, now: int) -> None:
        """A step is issued; the port is asked from the cycle on in which its delay is over."""
        self.at, self.first = at, now + 1 + at.step.delay

    def ask(self, now: int) -> Order | None:
        """The word that is due in this cycle; with the last, the step is done."""
        if self.at is None or now < self.first:
            return None
        at, step, since = self.at, self.at.step, now - self.first
        if since < step.scalars.words:
            return Order(VECTOR, at.index, step.lanes, step.scalars.base + since, register=since)
        return self._operand(at, since - step.scalars.words) or self._result(at, since - step.scalars.words, now)

    def _operand(self, at: VectorIssue, since: int) -> Order | None:
        word, operand = divmod(since, at.beat.period)
        if operand >= at.beat.reads or word >= at.step.words:
            return None
        return Order(
            VECTOR, at.index, at.step.lanes, NOWHERE, at.reads[operand], word, number=word % RESULTS,
            register=at.step.scalars.words + operand, works=operand == at.beat.reads - 1,
        )  # fmt: skip

    def _result(self, at: VectorIssue, since: int, now: int) -> Order | None:
        word, behind = divmod(since - at.beat.result_delay, at.beat.period)
        if behind or not 0 <= word < at.step.words:
            return None
        self.worked += at.beat.work
        if word == at.step.words - 1:
            self.scoreboard.finish(at.index, now + 1)
            self.at = None
        return Order(
            VECTOR, at.index, at.step.lanes, NOWHERE, at.writes, word, number=word % RESULTS, stores=True
        )  # fmt: skip
