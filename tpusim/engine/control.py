"""The control unit of the register engine: what lane 0 does in each cycle, decided cycle by cycle.

Every decision becomes a bundle that the lanes hand on, one lane a cycle: that is the skew. Nothing here
looks ahead: a step starts in the first cycle in which all it needs is there.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from tpusim.errors import DeadlockError, TpusimError
from tpusim.hardware import Hardware
from tpusim.machine.vector_memory import CLIENTS, DMA, FREE, IFMAP, NEVER, PSUM, RESULT, WEIGHT, Frame
from tpusim.program import AddressPattern, FilterFill, IfmapFill, Preload, Program, Spill, Stream, Transfer


@dataclass(frozen=True, slots=True)
class Bundle:
    """One cycle's order to a lane: who uses the port, and for what.

    `step` is the index of the stream, preload or transfer; `counts` the ifmap counters (row, col, group);
    `word` the number of the word within its step; `sequence` numbers result words across streams.
    """

    client: int = FREE
    step: int = -1
    word: int = 0
    counts: tuple[int, int, int] = (0, 0, 0)
    sequence: int = -1


IDLE = Bundle()


class PortConflict(TpusimError):
    """A single port was asked twice in one cycle."""


@dataclass(slots=True)
class _Word:
    """A result word on its way from the array to its memory."""

    step: int
    word: int
    sequence: int
    accumulate: bool
    summed: int = NEVER


class StreamUnit:
    """Issues streams on the frame grid and follows their words until they are written."""

    def __init__(self, program: Program, frame: Frame, sum_delay: int) -> None:
        self.program, self.frame, self.sum_delay = program, frame, sum_delay
        self.todo = deque(i for i, step in enumerate(program.steps) if isinstance(step, Stream))
        self.current = -1
        self.issued_at = -NEVER
        self.over_at = 0
        self.sums_ready = 0
        self.word = 0
        self.counts = (0, 0, 0)
        self.sequence = 0
        self.reading: deque[_Word] = deque()
        self.summing: deque[_Word] = deque()
        self.cause = "starved"
        self.use: Counter[str] = Counter()

    def waits_for(self, now: int, done: list[int]) -> str | None:
        """Why the next stream cannot be issued in this cycle; None when it can."""
        step = self.program.steps[self.todo[0]]
        assert isinstance(step, Stream)
        spills = [other for other in step.after if isinstance(self.program.steps[other], Spill)]
        fills = {*step.after, *self.program.steps[step.preload].after} - {*spills}
        if any(done[other] > now for other in fills):
            self.cause = "starved"
        elif done[step.preload] > now:
            self.cause = "waiting_weights"
        elif any(done[other] > now for other in spills) or (step.accumulate and now < self.sums_ready):
            self.cause = "blocked"
        elif (now + 1) % self.frame.period == 0:
            return None
        return self.cause

    def issue(self, now: int) -> None:
        """The next stream reads its first word in the cycle after this one."""
        self.current = self.todo.popleft()
        step = self.program.steps[self.current]
        assert isinstance(step, Stream)
        self.issued_at, self.over_at = now, now + step.words * self.frame.period
        self.sums_ready = now + 1 + self.sum_delay
        self.word, self.counts = 0, (0, 0, 0)

    def book(self, now: int) -> None:
        """Account for a cycle in which a stream runs."""
        offset = (now - self.issued_at) % self.frame.period
        if offset < self.frame.elements:
            self.use["busy"] += 1
        else:
            stalled = offset < self.frame.elements + self.frame.port_stall
            self.use["port_stall" if stalled else "blocked"] += 1

    def reads(self, now: int) -> bool:
        """Whether an ifmap word is due in this cycle."""
        running = self.current >= 0 and self.issued_at < now <= self.over_at
        return running and now % self.frame.period == Frame.IFMAP_SLOT

    def read(self) -> Bundle:
        """The next ifmap word; the nested counters move on."""
        step = self.program.steps[self.current]
        assert isinstance(step, Stream)
        bundle = Bundle(IFMAP, self.current, self.word, self.counts)
        self.reading.append(_Word(self.current, self.word, self.sequence, step.accumulate))
        self.sequence += 1
        self.word += 1
        self.counts = _next(self.counts, step.reads[0].pattern)
        return bundle


def _next(counts: tuple[int, int, int], pattern: AddressPattern) -> tuple[int, int, int]:
    row, col, group = counts
    _, cols, groups = pattern.counts
    if group + 1 < groups:
        return row, col, group + 1
    return (row, col + 1, 0) if col + 1 < cols else (row + 1, 0, 0)


class PreloadUnit:
    """Reads weight words and knows when the last weight enters the array."""

    def __init__(self, program: Program, rows: int, word_elements: int) -> None:
        self.program, self.rows, self.word_elements = program, rows, word_elements
        self.todo = deque(i for i, step in enumerate(program.steps) if isinstance(step, Preload))
        self.current = -1
        self.word = self.words = -(-rows // word_elements)
        self.injecting = 0
        self.left = 0
        self.use: Counter[str] = Counter()

    def tick(self) -> bool:
        """One weight of the register enters the array; True when it is the last of the preload."""
        if not self.injecting:
            return False
        self.injecting -= 1
        self.left -= 1
        return self.left == 0

    def start(self) -> None:
        """Begin with the next preload."""
        self.current = self.todo.popleft()
        self.word, self.left = 0, self.rows

    def wants(self) -> bool:
        """Whether the weight register can take a word at the end of this cycle."""
        return self.word < self.words and self.injecting == 0

    def read(self) -> Bundle:
        """The next weight word."""
        bundle = Bundle(WEIGHT, self.current, self.word)
        self.injecting = min(self.word_elements, self.rows - self.word * self.word_elements)
        self.word += 1
        return bundle


@dataclass(slots=True)
class _Moving:
    """A transfer under way: when it got the bus, for how long, and the words that crossed the port."""

    index: int
    step: Transfer
    started: int
    bus_cycles: int
    words: int = 0
    free_at: int = NEVER


class DmaUnit:
    """Takes transfers in order; each has the HBM bus in turn, and the port when nobody else wants it."""

    def __init__(self, program: Program, latency: int, bytes_per_cycle: Fraction) -> None:
        self.program, self.latency, self.rate = program, latency, bytes_per_cycle
        self.todo = deque(i for i, step in enumerate(program.steps) if isinstance(step, IfmapFill | FilterFill | Spill))
        self.moving: deque[_Moving] = deque()
        self.bus: _Moving | None = None
        self.use: Counter[str] = Counter()
        self.end = 0

    def clock(self, now: int, done: list[int]) -> None:
        """Free the bus, give it to the next transfer, and account for the cycle."""
        if self.bus is not None and now >= self.bus.free_at:
            self.bus = None
        if self.bus is None and self.todo:
            self._begin(now, done)
        if self.bus is not None:
            self.use["busy" if now < self.bus.started + self.bus.bus_cycles else "port_stall"] += 1

    def _begin(self, now: int, done: list[int]) -> None:
        step = self.program.steps[self.todo[0]]
        assert isinstance(step, IfmapFill | FilterFill | Spill)
        if any(done[other] > now for other in step.after):
            self.use["blocked"] += 1
        elif len(self.moving) > 1:
            self.use["port_stall"] += 1
        else:
            self.bus = _Moving(self.todo.popleft(), step, now, max(1, ceil(step.hbm_bytes / self.rate)))
            if not isinstance(step, Spill):
                self.bus.free_at = now + self.bus.bus_cycles
            self.moving.append(self.bus)

    def wants(self, now: int) -> bool:
        """Whether the oldest transfer has a word for the port in this cycle."""
        if not self.moving:
            return False
        head = self.moving[0]
        elapsed, total, words = now - head.started, head.bus_cycles, head.step.words
        if isinstance(head.step, Spill):
            return head.words < -(-min(elapsed + 1, total) * words // total)
        return head.words < max(0, min(elapsed - self.latency, total)) * words // total

    def move(self, now: int, done: list[int]) -> Bundle:
        """The next word of the oldest transfer; after its last the transfer is done."""
        head = self.moving[0]
        bundle = Bundle(DMA, head.index, head.words)
        head.words += 1
        if head.words == head.step.words:
            self.moving.popleft()
            done[head.index] = now + 1
            if isinstance(head.step, Spill):
                last_word = ceil(Fraction(head.bus_cycles, head.step.words))
                head.free_at = max(head.started + head.bus_cycles, now + 1 + last_word)
                self.end = max(self.end, head.free_at + self.latency)
        return bundle


class Control:
    """Lane 0's port, one cycle at a time: the stream's slots first, then preload, then DMA."""

    def __init__(self, program: Program, hardware: Hardware, frame: Frame, sum_delay: int) -> None:
        self.program, self.frame = program, frame
        self.single_buffer = hardware.array.weight_buffers == 1
        self.done = [NEVER] * len(program.steps)
        self.stream = StreamUnit(program, frame, sum_delay)
        self.preload = PreloadUnit(program, hardware.array.rows, hardware.vector_memory.word_elements)
        self.dma = DmaUnit(program, hardware.latency_cycles, hardware.hbm_bytes_per_cycle)
        self.port: Counter[str] = Counter()
        self.adding = 0
        self.issued = self.started = self.idle = 0
        self.patience = 1000 + hardware.latency_cycles + 4 * (frame.period + hardware.lanes)

    @property
    def finished(self) -> bool:
        """Whether every step is done and the bus is free."""
        return not self.dma.todo and self.dma.bus is None and not self.stream.todo and NEVER not in self.done

    def cycle(self, now: int, complete: int, completing: int) -> Bundle:
        """Lane 0's order; `complete` result words have been collected before this cycle, `completing` after."""
        if self.preload.tick():
            self.done[self.preload.current] = now
        self.dma.clock(now, self.done)
        self._issue(now)
        self._start_preload(now)
        bundle = self._arbitrate(now, complete, completing)
        if self.preload.left:
            self.preload.use["busy" if self.preload.injecting else "port_stall"] += 1
        self._watch(bundle, now)
        return bundle

    def _issue(self, now: int) -> None:
        stream = self.stream
        if now >= stream.over_at and stream.todo:
            cause = stream.waits_for(now, self.done)
            if cause is not None:
                stream.use[cause] += 1
                return
            stream.issue(now)
            self.issued += 1
        if now < stream.over_at:
            stream.book(now)

    def _start_preload(self, now: int) -> None:
        preload = self.preload
        if preload.left or not preload.todo:
            return
        step = self.program.steps[preload.todo[0]]
        room = self.issued == self.started and not (self.single_buffer and now < self.stream.over_at)
        if not room:
            preload.use["blocked"] += 1
        elif any(self.done[other] > now for other in step.after):
            preload.use["starved"] += 1
        else:
            preload.start()
            self.started += 1

    def _arbitrate(self, now: int, complete: int, completing: int) -> Bundle:
        """At most one access: fixed slots for the stream's clients, then preload, then DMA."""
        slot = now % self.frame.period
        asked = [
            bundle
            for bundle in (
                self._ifmap(now),
                self._psum(now, slot, completing),
                self._result(now, slot, complete),
            )
            if bundle
        ]
        if len(asked) > 1:
            raise PortConflict(f"cycle {now}: lane 0's port is asked by {len(asked)} clients at once")
        if asked:
            bundle = asked[0]
        elif self.preload.wants():
            bundle = self.preload.read()
        elif self.dma.wants(now):
            bundle = self.dma.move(now, self.done)
        else:
            return IDLE
        self.port[CLIENTS[bundle.client]] += 1
        return bundle

    def _ifmap(self, now: int) -> Bundle | None:
        return self.stream.read() if self.stream.reads(now) else None

    def _psum(self, now: int, slot: int, completing: int) -> Bundle | None:
        """A word whose last sum arrives in this cycle, or has, meets its partial sum."""
        reading = self.stream.reading
        if not self.frame.accumulates or slot != Frame.PSUM_SLOT or not reading or reading[0].sequence >= completing:
            return None
        word = reading.popleft()
        word.summed = now
        self.stream.summing.append(word)
        if not word.accumulate:
            return None
        self.adding += self.frame.add_cycles
        return Bundle(PSUM, word.step, word.word, sequence=word.sequence)

    def _result(self, now: int, slot: int, complete: int) -> Bundle | None:
        """A word that has been added is written back."""
        if slot != self.frame.result_slot:
            return None
        queue = self.stream.summing if self.frame.accumulates else self.stream.reading
        ready = queue and (
            now >= queue[0].summed + self.frame.add_cycles if self.frame.accumulates else queue[0].sequence < complete
        )
        if not ready:
            return None
        word = queue.popleft()
        step = self.program.steps[word.step]
        assert isinstance(step, Stream)
        if word.word == step.words - 1:
            self.done[word.step] = now + 1
        return Bundle(RESULT, word.step, word.word, sequence=word.sequence)

    def _watch(self, bundle: Bundle, now: int) -> None:
        busy = bundle is not IDLE or self.dma.bus or self.preload.injecting or now < self.stream.over_at
        self.idle = 0 if busy or self.stream.reading else self.idle + 1
        if self.idle > self.patience:
            stuck = [i for i, time in enumerate(self.done) if time == NEVER]
            raise DeadlockError(
                f"cycle {now}: nothing moves, {len(stuck)} steps never finish, the first is step {stuck[0]}"
            )
