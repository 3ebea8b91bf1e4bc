"""Issues streams and vector steps, in turn, and reads the ifmap words of streams, array after array."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tpusim.machines.tpu.definition import IFMAP, Frame
from tpusim.machines.tpu.observation.timing import STARVED
from tpusim.machines.tpu.program.passes import Preload, Stream
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.vector import Vector
from tpusim.machines.tpu.register.generators import Settings
from tpusim.machines.tpu.register.order import NOWHERE, Order
from tpusim.machines.tpu.register.pointer_reader import PointerReader, TableRead
from tpusim.machines.tpu.register.result_queue import ResultQueue, Sums
from tpusim.machines.tpu.register.scoreboard import Scoreboard
from tpusim.machines.tpu.register.vector_unit import VectorIssue, VectorStepUnit


@dataclass(frozen=True, slots=True)
class Pass:
    """A stream, with what it waits for told apart and the settings of its lanes."""

    index: int
    step: Stream
    data: tuple[int, ...]
    others: tuple[int, ...]
    generator: int
    buffer: int

    @property
    def weights(self) -> tuple[int, ...]:
        """Its preload."""
        return (self.step.preload,)

    @property
    def all(self) -> tuple[int, ...]:
        """What it waits for, but for its preload."""
        return (*self.data, *self.others)

    @classmethod
    def all_of(cls, program: Program, settings: Settings, buffers: int, array: int) -> list[Pass]:
        """The passes of an array in order; preloads take its weight buffers in turn. A pass waits for the last vector
        step ahead of it, too.
        """
        steps = enumerate(program.steps)
        preloads = [index for index, step in steps if isinstance(step, Preload) and step.array == array]
        buffer = {index: number % buffers for number, index in enumerate(preloads)}
        passes: list[Pass] = []
        worked: tuple[int, ...] = ()
        for index, step in enumerate(program.steps):
            if isinstance(step, Vector):
                worked = (index,)
            elif isinstance(step, Stream) and step.preload in buffer:
                others = (*(other for other in step.after if program.steps[other].cause != STARVED), *worked)
                needs = {*step.after, *program.steps[step.preload].after}
                data = tuple(other for other in needs if program.steps[other].cause == STARVED)
                passes.append(cls(index, step, data, others, settings.number[step.reads], buffer[step.preload]))
        return passes


class Source(Protocol):
    """Where ifmap words come from."""

    def ready(self, setting: int, word: int) -> bool:
        """Whether the word of a pass can be read in this cycle; asked every cycle until it is."""

    def hand_on(self) -> None:
        """It is read."""


class AtHand:
    """Every lane reads a word in its own memory, in the cycle in which it is told to."""

    def ready(self, setting: int, word: int) -> bool:
        """Always."""
        return True

    def hand_on(self) -> None:
        """Nothing is kept of it."""


class StreamUnit:
    """One pass at a time of `arrays` that share weights, in their slots of the frame, or one step of the vector unit,
    whenever all arrays can stand by.

    A frame at whose slot the word is not ready is lost.
    """

    def __init__(
        self,
        issues: list[Pass | VectorIssue],
        scoreboard: Scoreboard,
        frame: Frame,
        arrays: range,
        sum_delay: int,
        lanes: int,
        sums: Sums,
        source: Source,
        vector: VectorStepUnit,
    ) -> None:
        self.source = source
        self.scoreboard, self.frame, self.sum_delay, self.lanes = scoreboard, frame, sum_delay, lanes
        self.sums = sums
        self.todo = deque(issues)
        self.arrays, self.vector = arrays, vector
        self.issued = 0
        self.issued_at = self.over_at = self.sums_ready = 0
        self.word = self.lost = self.booked = 0
        # Words that are read and whose results are not written yet.
        self.held = 0
        self.adding: Counter[int] = Counter()
        self.queues = {array: ResultQueue(frame, array, scoreboard) for array in arrays}
        self.pointers = PointerReader(frame)
        self.pointed: TableRead | None = None
        self.reading: Order | None = None
        self.cause = "starved"
        self.use: Counter[str] = Counter()

    def running(self, now: int) -> bool:
        """Whether a stream occupies the array's rows, or the vector unit works by itself."""
        return self.vector.running or now < self.over_at

    def clock(self, now: int, together: Sequence[StreamUnit]) -> None:
        """Read a word of the stream that is on, issue the next if it can be, and account for the cycle.

        A vector step is issued to all units `together`.
        """
        if self.frame.finish_cycles and not self.frame.accumulates:
            for queue in self.queues.values():
                queue.clock(now, self.sums)
        # In a frame of one cycle the last word is read in the very cycle in which the next stream is issued.
        self.reading = self._read(now)
        if self.frame.pointer_slots:
            self._tell(now)
        if not self.running(now) and self.todo:
            cause = self._waits_for(now, together)
            if cause is not None:
                self.use[cause] += 1
                return
            if isinstance(at := self.todo[0], VectorIssue):
                self.vector.begin(at, now)
                for unit in together:
                    unit.stand_by()
            else:
                self._issue(at, now)
        if self.running(now):
            self._book()

    def ifmap(self, now: int) -> Order | None:
        """The ifmap word that is due in this cycle."""
        return self.reading

    def _tell(self, now: int) -> None:
        """A pass is told of when the one ahead is in its last frame or over, and all is in memory that it waits for."""
        if now % self.frame.period or now <= self.over_at - self.frame.period or not self.todo:
            return
        at = self.todo[0]
        if (
            isinstance(at, Pass)
            and at.step.reads.table
            and self.pointers.at is not at
            and not self.scoreboard.waiting(at.all, now)
        ):
            self.pointers.tell(at, now)

    def _read(self, now: int) -> Order | None:
        """The next ifmap word, when one is due in this cycle; the generators move on."""
        if not self.issued_at < now <= self.over_at or self.word == self.current.step.words:
            return None
        at, array = self.current, now % self.frame.period - Frame.IFMAP_SLOT
        ready = self.source.ready(at.generator, self.word)
        if array not in self.arrays:
            return None
        if not ready:
            self.over_at += self.frame.period
            self.lost += self.frame.period
            return None
        self.source.hand_on()
        if self.word == 0:
            self.sums_ready = now + self.sum_delay
        order = Order(IFMAP, at.index, self.lanes, NOWHERE, at.generator, self.word, array=array, buffer=at.buffer)
        if self.pointed:
            order = order._replace(pointer=self.pointed.place(self.word), together=self.pointed.table.together)
        self.queues[array].read(at, self.word)
        self.held += 1
        self.word += 1
        return order

    def psum(self, now: int) -> Order | None:
        """A partial sum that is due."""
        if not self.held or not self.frame.accumulates:
            return None
        for array in self.frame.psums_at(now):
            if array in self.arrays and (order := self.queues[array].psum(now, self.sums)):
                # The adds of a frame's words go on side by side.
                self.adding[order.step] += self.frame.add_cycles if array == self.arrays.start else 0
                return order
        return None

    def result(self, now: int) -> Order | None:
        """A result that is due."""
        if not self.held:
            return None
        for array in self.frame.results_at(now):
            if array in self.arrays and (order := self.queues[array].result(now, self.sums)):
                self.held -= 1
                first = array == self.arrays.start
                self.adding[order.step] += self.frame.finish_cycles if order.finishes and first else 0
                return order
        return None

    @property
    def waiting(self) -> bool:
        """Whether words are on their way through an array."""
        return bool(self.held) and any(queue.reading for queue in self.queues.values())

    def _waits_for(self, now: int, together: Sequence[StreamUnit]) -> str | None:
        """Why the next stream or vector step cannot be issued in this cycle; None when it can."""
        at, waiting = self.todo[0], self.scoreboard.waiting
        if waiting(at.data, now):
            self.cause = "starved"
        elif waiting(at.weights, now):
            self.cause = "waiting_weights"
        elif waiting(at.others, now):
            self.cause = "blocked"
        elif isinstance(at, VectorIssue):
            if not any(unit.running(now) for unit in together):
                return None
            self.cause = "blocked"
        elif at.step.accumulate and now < self.sums_ready:
            self.cause = "blocked"
        elif self.pointers.waited_for(at, now):
            self.cause = "port_stall"
        elif (now + 1 - self.arrays.start) % self.frame.period == 0:
            return None
        return self.cause

    def stand_by(self) -> None:
        """The vector step that is next is issued."""
        self.cause = self.todo.popleft().step.cause
        self.issued += 1

    def _issue(self, at: Pass, now: int) -> None:
        """The next stream reads its first word in the cycle after this one."""
        self.todo.popleft()
        self.current = at
        self.pointed = self.pointers.issue(self.current, now)
        self.issued += 1
        self.issued_at, self.over_at = now, now + self.frame.frames(self.current.step.words) * self.frame.period
        self.word = self.booked = 0

    def _book(self) -> None:
        """Account for a cycle in which the vector unit works, or a stream runs: lost, or one of the frames of its
        words.
        """
        if self.vector.running:
            self.use[self.cause] += 1
            return
        if self.lost:
            self.lost -= 1
            self.use["bank_conflict"] += 1
            return
        offset = self.booked % self.frame.period
        self.booked += 1
        if offset < self.frame.elements:
            self.use["busy"] += 1
        elif offset < self.frame.elements + self.frame.port_stall:
            self.use["port_stall"] += 1
        else:
            self.use["blocked"] += 1
