"""Issues streams, and follows each of their words until it is written."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from tpusim.engine.register.generators import Settings
from tpusim.engine.register.order import Order
from tpusim.engine.register.scoreboard import Scoreboard
from tpusim.machine.vector_memory import IFMAP, NEVER, PSUM, RESULT, Frame
from tpusim.program import FilterFill, IfmapFill, Preload, Program, Spill, Stream


@dataclass(frozen=True, slots=True)
class Pass:
    """A stream, with what it waits for told apart and the settings of its lanes."""

    index: int
    step: Stream
    fills: tuple[int, ...]
    spills: tuple[int, ...]
    generator: int
    buffer: int

    @classmethod
    def all_of(cls, program: Program, settings: Settings, buffers: int) -> list[Pass]:
        """The passes of a Program in order; preloads take the weight buffers in turn."""
        preloads = [index for index, step in enumerate(program.steps) if isinstance(step, Preload)]
        buffer = {index: number % buffers for number, index in enumerate(preloads)}
        passes = []
        for index, step in enumerate(program.steps):
            if isinstance(step, Stream):
                spills = tuple(other for other in step.after if isinstance(program.steps[other], Spill))
                needs = {*step.after, *program.steps[step.preload].after}
                fills = tuple(other for other in needs if isinstance(program.steps[other], IfmapFill | FilterFill))
                passes.append(cls(index, step, fills, spills, settings.number[step.reads], buffer[step.preload]))
        return passes


@dataclass(slots=True)
class _Word:
    """A result word on its way from the array to its memory; `number` counts them since the layer began."""

    at: Pass
    word: int
    number: int
    summed: int = NEVER


class StreamUnit:
    """One pass at a time, on the frame grid."""

    def __init__(self, passes: list[Pass], scoreboard: Scoreboard, frame: Frame, sum_delay: int, lanes: int) -> None:
        self.scoreboard, self.frame, self.sum_delay, self.lanes = scoreboard, frame, sum_delay, lanes
        self.todo = deque(passes)
        self.issued = 0
        self.issued_at = self.over_at = self.sums_ready = 0
        self.word = self.number = self.adding = 0
        self.counts = (0, 0, 0)
        self.reading: deque[_Word] = deque()
        self.summing: deque[_Word] = deque()
        self.cause = "starved"
        self.use: Counter[str] = Counter()

    def running(self, now: int) -> bool:
        """Whether a stream occupies the array's rows."""
        return now < self.over_at

    def clock(self, now: int) -> None:
        """Issue the next stream if it can be, and account for the cycle."""
        if now >= self.over_at and self.todo:
            cause = self._waits_for(now)
            if cause is not None:
                self.use[cause] += 1
                return
            self._issue(now)
        if now < self.over_at:
            self._book(now)

    def ifmap(self, now: int) -> Order | None:
        """The next ifmap word, when one is due in this cycle; the nested counters move on."""
        if not self.issued_at < now <= self.over_at or now % self.frame.period != Frame.IFMAP_SLOT:
            return None
        at, (row, col, group) = self.current, self.counts
        order = Order(
            IFMAP, at.index, self.lanes, generator=at.generator, row=row, col=col, group=group, buffer=at.buffer
        )
        self.reading.append(_Word(at, self.word, self.number))
        self.number += 1
        self.word += 1
        self.counts = _next(self.counts, at.step.reads[0].pattern.counts)
        return order

    def psum(self, now: int, completing: int) -> Order | None:
        """A word whose last sum arrives in this cycle, or has arrived, meets its partial sum."""
        frame, reading = self.frame, self.reading
        if not frame.accumulates or now % frame.period != frame.psum_slot:
            return None
        if not reading or reading[0].number >= completing:
            return None
        word = reading.popleft()
        word.summed = now
        self.summing.append(word)
        step = word.at.step
        if not step.accumulate:
            return None
        self.adding += frame.add_cycles
        return Order(PSUM, word.at.index, step.cols, step.result_base + word.word, number=word.number)

    def result(self, now: int, complete: int) -> Order | None:
        """A word that is complete, or whose adds are done, is written."""
        if now % self.frame.period != self.frame.result_slot or not self._written_next(now, complete):
            return None
        word = (self.summing if self.frame.accumulates else self.reading).popleft()
        step = word.at.step
        if word.word == step.words - 1:
            self.scoreboard.finish(word.at.index, now + 1)
        address = step.result_base + word.word
        return Order(RESULT, word.at.index, step.cols, address, number=word.number, accumulate=step.accumulate)

    def _written_next(self, now: int, complete: int) -> bool:
        if self.frame.accumulates:
            return bool(self.summing) and now >= self.summing[0].summed + self.frame.add_cycles
        return bool(self.reading) and self.reading[0].number < complete

    def _waits_for(self, now: int) -> str | None:
        """Why the next stream cannot be issued in this cycle; None when it can."""
        at, waiting = self.todo[0], self.scoreboard.waiting
        if waiting(at.fills, now):
            self.cause = "starved"
        elif waiting((at.step.preload,), now):
            self.cause = "waiting_weights"
        elif waiting(at.spills, now) or (at.step.accumulate and now < self.sums_ready):
            self.cause = "blocked"
        elif (now + 1) % self.frame.period == 0:
            return None
        return self.cause

    def _issue(self, now: int) -> None:
        """The next stream reads its first word in the cycle after this one."""
        self.current = self.todo.popleft()
        self.issued += 1
        self.issued_at, self.over_at = now, now + self.current.step.words * self.frame.period
        self.sums_ready = now + 1 + self.sum_delay
        self.word, self.counts = 0, (0, 0, 0)

    def _book(self, now: int) -> None:
        """Account for a cycle in which a stream runs."""
        offset = (now - self.issued_at) % self.frame.period
        if offset < self.frame.elements:
            self.use["busy"] += 1
        elif offset < self.frame.elements + self.frame.port_stall:
            self.use["port_stall"] += 1
        else:
            self.use["blocked"] += 1


def _next(counts: tuple[int, int, int], limits: tuple[int, int, int]) -> tuple[int, int, int]:
    """Count groups within cols within rows."""
    row, col, group = counts
    _, cols, groups = limits
    if group + 1 < groups:
        return row, col, group + 1
    return (row, col + 1, 0) if col + 1 < cols else (row + 1, 0, 0)
