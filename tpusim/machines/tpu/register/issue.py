"""Streams and vector steps, issued in turn: pointers, ifmap words array by array, results; and the vector unit with its
registers and its accesses to the port.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tpusim.machines.tpu.definition import IFMAP, NEVER, POINTER, PSUM, RESULT, VECTOR, Beat, Frame
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import STARVED
from tpusim.machines.tpu.program.addresses import Picked
from tpusim.machines.tpu.program.operations import OPERATIONS, finished
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream, Vector
from tpusim.machines.tpu.register.array import Deserializers
from tpusim.machines.tpu.register.banks import Banks, Settings
from tpusim.machines.tpu.register.wires import IDLE, NOWHERE, Counts, Floats, Order, Scoreboard

TURNS = 4
"""Turns of a step whose results a lane has registers for: words wait for their slots while the next are read and worked
out.
"""


class VectorRegisters:
    """Registers of the vector unit: `words` [lane, register, W], scalars first, then one an operand of each word that
    is made side by side with others; `results` [lane, register, W], of TURNS turns.
    """

    def __init__(self, program: Program, hardware: Hardware, width: int) -> None:
        """Words hold up to `width` numbers; words of scalars hold only the machine's `word_elements`."""
        self.program, self.word_elements, lanes = program, hardware.vector_memory.word_elements, hardware.lanes
        self.finishes = any(each.finish for each in program.streams)
        numbered = enumerate(program.steps)
        beats = [each.beat(program.fill_of(at), hardware) for at, each in numbered if isinstance(each, Vector)]
        self.most_together = max((each.together for each in beats), default=0)
        # Accesses of a cycle beyond the first, at most: a turn may have fewer than there are slots.
        accesses = (
            min(each.loads, each.together * each.operands) + min(each.stores, each.together)
            for each in beats
            if each.beside
        )
        self.most_beside = max(accesses, default=1) - 1
        used = zip(program.vectors, beats, strict=True)
        registers = max((each.scalars.words + beat.together * len(each.operands) for each, beat in used), default=0)
        self.words = np.zeros((lanes, registers, width), program.number)
        self.results = np.zeros((lanes, TURNS * self.most_together, width), program.number)
        tables = {each.picks for each in program.vectors if each.picks}
        # Lane 0 alone has pointers: those of a result word, word by word.
        sizes = [(each.word_words, each.per_word, each.together) for each in tables]
        pointer_words, per_word, self.together = (max(every) for every in zip((0, 0, 0), *sizes, strict=True))
        self.pointers = np.zeros((pointer_words, per_word), program.number)

    def work(self, lanes: Counts, steps: Counts, numbers: Counts) -> None:
        """Compute results of lanes that have all operands of a word, into the result registers given by `numbers`.

        Lanes are skewed, so they may be in different steps.
        """
        # One call a step, for all lanes that are in it: the operation is vectorized over them.
        for index in np.unique(steps).tolist():
            step, mine = self.program.steps[index], steps == index
            assert isinstance(step, Vector)
            # The registers [lane, register, W] of these lanes.
            words, (_, held, count) = self.words[lanes[mine]], step.scalars
            scalars = words[:, :held, : self.word_elements].reshape(len(words), -1)[:, :count].T
            first = held + numbers[mine] % self.most_together * len(step.operands)
            every = np.arange(len(words))
            operands = (words[every, first + number][:, None] for number in range(len(step.operands)))
            values = OPERATIONS[step.operation].values(operands, scalars, step.coefficients)
            self.results[lanes[mine], numbers[mine]] = values[:, 0]

    def finished(self, words: Floats, steps: Counts) -> Floats:
        """Finish results [lane, W] of streams. Elements beyond a result's own are changed, too, but never stored."""
        for index in np.unique(steps).tolist():
            step, mine = self.program.steps[index], steps == index
            assert isinstance(step, Stream)
            words[mine] = finished(words[mine][:, None], step.finish)[:, 0]
        return words


def _reads(index: int, step: Vector, settings: Settings) -> list[Order]:
    """Reads for a result word, in order: pointers, which only lane 0 reads, then operands, picked ones element by
    element.
    """
    lanes, orders = step.lanes, list[Order]()
    if table := step.picks:
        points = Order(VECTOR, index, 1, points=True)
        orders += [points._replace(address=table.base + at, register=at) for at in range(table.word_words)]
    for number, feed in enumerate(step.operands):
        read = Order(VECTOR, index, lanes, generator=settings.number[feed], register=step.scalars.words + number)
        if feed.picks is None:
            orders.append(read)
            continue
        operand = next(group.pattern.operand for group in feed.groups if isinstance(group.pattern, Picked))
        for element in range(feed.picks.elements):
            first, together = feed.picks.first(operand, element), feed.picks.together
            orders.append(read._replace(element=element, pointer=first, together=together))
    return [*orders[:-1], orders[-1]._replace(works=True)]


@dataclass(frozen=True, slots=True)
class Issue:
    """A step to be issued, and the steps that it waits for: for data, for weights, for others."""

    index: int
    data: tuple[int, ...]
    weights: tuple[int, ...]
    others: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class VectorIssue(Issue):
    """A vector step with its pace and the settings of its lanes."""

    step: Vector
    beat: Beat
    reads: list[Order]
    writes: int


@dataclass(frozen=True, slots=True)
class PassSettings(Issue):
    """A stream with its frame, the elements in use in its words, the settings of its lanes and its weight buffer."""

    step: Stream
    frame: Frame
    elements: int
    generator: int
    buffer: int


def issues_of(
    program: Program, settings: Settings, hardware: Hardware, frames: Sequence[Frame], array: int
) -> list[PassSettings | VectorIssue]:
    """Passes of an array and all vector steps, in order; preloads take the array's weight buffers in turn.

    A pass also waits for the last vector step ahead of it. A vector step also waits for the last preload and stream of
    each array ahead of it, and for the last vector step.
    """
    starves, number = [step.cause == STARVED for step in program.steps], settings.number
    issues: list[PassSettings | VectorIssue] = []
    buffer: dict[int, int] = {}
    weights: dict[int, int] = {}
    ahead: dict[int, int] = {}
    worked: tuple[int, ...] = ()
    for index, step in enumerate(program.steps):
        data, others = ([each for each in step.after if starves[each] == brings] for brings in (True, False))
        if isinstance(step, Preload):
            weights[step.array] = index
            if step.array == array:
                buffer[index] = len(buffer) % hardware.array.weight_buffers
        elif isinstance(step, Stream):
            ahead[program.array_of(step)] = index
            if step.preload in buffer:
                data += [each for each in program.steps[step.preload].after if starves[each]]
                waits, frame = (*others, *worked), frames[program.layer_of(index)]
                own = frame, program.fill_of(index), number[step.reads], buffer[step.preload]
                issues.append(PassSettings(index, tuple(data), (step.preload,), waits, step, *own))
        elif isinstance(step, Vector):
            waits, beat = (*others, *ahead.values()), step.beat(program.fill_of(index), hardware)
            orders, writes = _reads(index, step, settings), number[step.writes]
            issues.append(VectorIssue(index, tuple(data), tuple(weights.values()), waits, step, beat, orders, writes))
            # The vector step waited for every stream so far, so later ones need to wait for it alone.
            ahead, worked = {0: index}, (index,)
    return issues


class VectorStepUnit:
    """Carries out vector steps, one at a time."""

    def __init__(self, registers: VectorRegisters, scoreboard: Scoreboard) -> None:
        self.scoreboard, self.registers = scoreboard, registers
        self.at: VectorIssue | None = None
        self.first = 0
        self.worked: Counter[int] = Counter()
        # Accesses of a cycle beyond the first.
        self._beside: list[Order] = []

    @property
    def running(self) -> bool:
        """Whether a step is under way."""
        return self.at is not None

    def begin(self, at: VectorIssue, now: int) -> None:
        """Issue a step; it asks for the port from the cycle in which its delay is over."""
        self.at, self.first = at, now + 1 + at.step.delay

    def ask(self, now: int) -> Order | None:
        """The first access of the step that is due in this cycle; the last access completes the step."""
        due = [] if self.at is None or now < self.first else [*self._due(self.at, now - self.first, now)]
        self._beside = due[1:]
        return due[0] if due else None

    def beside(self) -> list[Order]:
        """All other accesses of this cycle, one for each slot."""
        return self._beside + [IDLE] * (self.registers.most_beside - len(self._beside))

    def _due(self, at: VectorIssue, since: int, now: int) -> Iterator[Order]:
        """Accesses that are due a number of cycles after the first."""
        step, beat = at.step, at.beat
        if since < step.scalars.words:
            yield Order(VECTOR, at.index, step.lanes, step.scalars.base + since, register=since)
            return
        turn, place = divmod(since - step.scalars.words, beat.period)
        begun = turn * beat.together
        for access in range(place * beat.loads, (place + 1) * beat.loads):
            side, operand = divmod(access, beat.operands)
            if side < beat.together and begun + side < step.words:
                yield self._read(at, at.reads[operand], turn, side)
        turn, place = divmod(since - step.scalars.words - beat.result_delay, beat.period)
        begun = turn * beat.together
        if turn < 0 or begun >= step.words:
            return
        if place == 0:
            self.worked[at.index] += beat.work
        for side in range(place * beat.stores, min((place + 1) * beat.stores, beat.together, step.words - begun)):
            if begun + side == step.words - 1:
                self.scoreboard.finish(at.index, now + 1)
                self.at = None
            number = self._register(turn, side)
            yield Order(VECTOR, at.index, step.lanes, NOWHERE, at.writes, begun + side, number=number, stores=True)

    def _read(self, at: VectorIssue, order: Order, turn: int, side: int) -> Order:
        """The read of an operand, or of pointers, for a word that is made beside others."""
        word, picks = turn * at.beat.together + side, at.step.picks
        if picks and order.points:
            return order._replace(address=order.address + word * picks.word_words)
        register = order.register + side * len(at.step.operands)
        return order._replace(word=word, register=register, number=self._register(turn, side))

    def _register(self, turn: int, side: int) -> int:
        """The register of a result."""
        return turn % TURNS * self.registers.most_together + side


@dataclass(slots=True)
class _Word:
    """A word of a stream; `number` counts those of this array since the layer began."""

    at: PassSettings
    word: int
    number: int
    summed: int = NEVER


class ResultQueue:
    """A word of a stream; `number` counts the array's words since the layer began."""

    def __init__(self, frame: Frame, array: int, scoreboard: Scoreboard) -> None:
        self.frame, self.array, self.scoreboard = frame, array, scoreboard
        self.reading: deque[_Word] = deque()
        self.summing: deque[_Word] = deque()
        # A word stays in `reading` until its last sum arrives, then in `summing` until its adds are done.
        self.number = 0

    def read(self, at: PassSettings, word: int) -> None:
        """Note that ifmap word `word` of a stream is read in this cycle."""
        self.reading.append(_Word(at, word, self.number))
        self.number += 1

    def clock(self, now: int, sums: Deserializers) -> None:
        """Note since when a word without a partial sum could be finished."""
        for word in self.reading:
            if word.number < sums.complete(self.array):
                word.summed = min(word.summed, now)

    def psum(self, now: int, sums: Deserializers) -> Order | None:
        """Read the partial sum of a word whose last sum arrives in this cycle, or has arrived."""
        if not self.reading or self.reading[0].number >= sums.completing(self.array):
            return None
        word = self.reading.popleft()
        word.summed = now
        self.summing.append(word)
        step = word.at.step
        address = step.result_base + word.word
        order = Order(PSUM, word.at.index, step.cols, address, array=self.array, number=word.number)
        return order if step.accumulate else None

    def result(self, now: int, sums: Deserializers) -> Order | None:
        """Write a word that is complete, or whose adds are done."""
        queue = self.summing if self.frame.accumulates else self.reading
        if not queue:
            return None
        if self.frame.accumulates or self.frame.finish_cycles:
            ready = now >= queue[0].summed + self.frame.work(self.frame.accumulates, True)
        else:
            ready = queue[0].number < sums.complete(self.array)
        if not ready:
            return None
        word = queue.popleft()
        step = word.at.step
        if word.word == step.words - 1:
            self.scoreboard.finish(word.at.index, now + 1)
        address = step.result_base + word.word
        return Order(
            RESULT, word.at.index, step.cols, address, array=self.array, number=word.number, accumulate=step.accumulate,
            finishes=bool(step.finish),
        )  # fmt: skip


class PointerReader:
    """Reads pointers of one stream: first in the frame ahead of its first ifmap word, then always a frame ahead."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.at: PassSettings | None = None
        self.told_at, self.issued_at = 0, -1
        self.word = self.number = self.first = 0

    def tell(self, at: PassSettings, now: int) -> None:
        """Read pointers for `at` from this cycle on; all pointers of the stream before have been read."""
        self.at, self.told_at, self.issued_at = at, now, -1
        self.word, self.first = 0, self.number

    def waited_for(self, at: PassSettings, now: int) -> bool:
        """Whether a stream cannot be issued yet because its first pointers are not there."""
        if at.step.reads.table is None:
            return False
        return self.at is not at or now < self.told_at + self.frame.period - 1

    def read(self, now: int) -> Order | None:
        """The next pointer word, in a slot for pointers, if the next frame needs it."""
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


class StreamUnit:
    """Passes of `arrays` that share weights, one at a time in their slots of the frame, and vector steps whenever all
    arrays can stand by.

    A frame is lost if its word is not ready at its slot.
    """

    def __init__(
        self, issues: list[PassSettings | VectorIssue], scoreboard: Scoreboard, frame: Frame, arrays: range, lanes: int,
         sums: Deserializers, banks: Banks | None, vector: VectorStepUnit, held: Callable[[int], str],
    ) -> None:  # fmt: skip
        """`banks` deliver ifmap words; without any, every lane reads its own in the cycle it is told to.

        `held` names what holds the transfers in a cycle.
        """
        self.scoreboard, self.frame, self.lanes = scoreboard, frame, lanes
        self.sums, self.banks, self.todo = sums, banks, deque(issues)
        self.arrays, self.vector, self.held_by = arrays, vector, held
        self.issued = 0
        self.issued_at = self.over_at = self.sums_ready = 0
        self.word = self.lost = self.booked = 0
        # Words that have been read and whose results are not written yet.
        self.held = 0
        self.adding: Counter[int] = Counter()
        self.queues = {array: ResultQueue(frame, array, scoreboard) for array in arrays}
        self.pointers = PointerReader(frame)
        # Number of the first pointer of the running stream, among all pointers ever read.
        self.pointed = 0
        self.reading: Order | None = None
        self.cause = "starved"
        self.use: Counter[str] = Counter()

    def running(self, now: int) -> bool:
        """Whether a stream occupies the array's rows, or the vector unit works by itself."""
        return self.vector.running or now < self.over_at

    def clock(self, now: int, together: Sequence[StreamUnit]) -> None:
        """Read a word of the running stream, issue the next one if possible, and book the cycle.

        A vector step is issued to all units `together`.
        """
        if self.frame.finish_cycles and not self.frame.accumulates:
            for queue in self.queues.values():
                queue.clock(now, self.sums)
        self._take_frame(now)
        # Read before issuing: in a frame of one cycle, the last word is read in the very cycle in which the next stream
        # is issued.
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
                # The first word is read in the cycle after this one.
                self.current = at
                self.todo.popleft()
                if table := at.step.reads.table:
                    self.pointers.issued_at, self.pointed = now, self.pointers.first * table.per_word
                self.issued += 1
                self.issued_at, self.over_at = now, now + self.frame.frames(at.step.words) * self.frame.period
                self.word = self.booked = 0
        if self.running(now):
            self._book()

    def _take_frame(self, now: int) -> None:
        """Go on by the frame of the next pass once it has weights: by then no word of another frame is on its way."""
        at = self.todo[0] if self.todo else None
        if not isinstance(at, PassSettings) or at.frame is self.frame:
            return
        if self.running(now) or self.scoreboard.waiting(at.weights, now):
            return
        self.frame = at.frame
        for queue in self.queues.values():
            queue.frame = at.frame

    def ifmap(self, now: int) -> Order | None:
        """The ifmap word that is due in this cycle."""
        return self.reading

    def _tell(self, now: int) -> None:
        """Tell the pointer reader of the next pass, once the pass ahead is in its last frame or over and all data is in
        memory.
        """
        if now % self.frame.period or now <= self.over_at - self.frame.period or not self.todo:
            return
        at = self.todo[0]
        if not isinstance(at, PassSettings) or not at.step.reads.table or self.pointers.at is at:
            return
        if not self.scoreboard.waiting((*at.data, *at.others), now):
            self.pointers.tell(at, now)

    def _read(self, now: int) -> Order | None:
        """The next ifmap word, if one is due in this cycle; the generators move on."""
        if not self.issued_at < now <= self.over_at or self.word == self.current.step.words:
            return None
        at, array = self.current, now % self.frame.period - Frame.IFMAP_SLOT
        ready = self.banks is None or self.banks.ready(at.generator, self.word)
        if array not in self.arrays:
            return None
        if not ready:
            # The whole stream moves back by a frame, so that all slots stay where they are in the frame.
            self.over_at += self.frame.period
            self.lost += self.frame.period
            return None
        if self.banks:
            self.banks.hand_on()
        if self.word == 0:
            self.sums_ready = now + self.frame.result_delay - self.frame.psum_delay
        order = Order(
            IFMAP, at.index, self.lanes, NOWHERE, at.generator, self.word, array, at.buffer, elements=at.elements
        )
        if table := at.step.reads.table:
            first = self.pointed + self.word // table.repeat * table.together
            order = order._replace(pointer=first, together=table.together)
        self.queues[array].read(at, self.word)
        self.held += 1
        self.word += 1
        return order

    def psum(self, now: int) -> Order | None:
        """The access for a partial sum that is due."""
        if not self.held or not self.frame.accumulates:
            return None
        for array in self.frame.turn(now, self.frame.psum_slot):
            if array in self.arrays and (order := self.queues[array].psum(now, self.sums)):
                # All adds of a frame go on side by side, so they are booked once, with the first array.
                self.adding[order.step] += self.frame.add_cycles if array == self.arrays.start else 0
                return order
        return None

    def result(self, now: int) -> Order | None:
        """The access for a result that is due."""
        if not self.held:
            return None
        for array in self.frame.turn(now, self.frame.result_slot):
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
            self.cause = self.held_by(now)
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
        """Stand by while the vector step that was next is carried out."""
        self.cause = self.todo.popleft().step.cause
        self.issued += 1

    def _book(self) -> None:
        """Book a cycle in which the vector unit works or a stream runs: a lost cycle, or one of a word's frame."""
        if self.vector.running:
            self.use[self.cause] += 1
            return
        if self.lost:
            self.lost -= 1
            self.use["bank_conflict"] += 1
            return
        offset = self.booked % self.frame.period
        self.booked += 1
        if offset < self.frame.issue_cycles:
            self.use["busy"] += 1
        elif offset < self.frame.issue_cycles + self.frame.port_stall:
            self.use["port_stall"] += 1
        else:
            self.use["blocked"] += 1
