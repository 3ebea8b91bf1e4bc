"""Units beside the streams: preloads of weights, transfers, and notes of what stays on chip."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from tpusim.machines.tpu.definition import BIAS_CYCLES, DMA, NEVER, WEIGHT, Frame
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import STARVED, Held
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream, Vector
from tpusim.machines.tpu.program.transfers import (
    HBM,
    SCRATCH,
    Access,
    BankFill,
    Fill,
    Keep,
    LaneTransfer,
    Prefetch,
    Spill,
    Transfer,
)
from tpusim.machines.tpu.register.banks import Banks, Settings
from tpusim.machines.tpu.register.hbm import BankedMemory, HbmWords, Passage, PipedHbm
from tpusim.machines.tpu.register.wires import NOWHERE, Floats, Order, Scoreboard
from tpusim.memory.timing import Pipe


class PreloadUnit:
    """Preloads of an array, or of all that share weights, one at a time; all R rows are shifted in."""

    def __init__(
        self, program: Program, scoreboard: Scoreboard, hardware: Hardware, frames: Sequence[Frame], number: int,
        held: Callable[[int], str],
    ) -> None:  # fmt: skip
        """`frames` are those of the layers; `held` names what holds the transfers in a cycle."""
        self.scoreboard, self.word_elements, self.held = scoreboard, hardware.vector_memory.word_elements, held
        self.array, self.waits = number, frames[0].weight_waits(number)
        array = hardware.array
        self.rows, self.buffers, self.rate = array.rows, array.weight_buffers, array.weights_per_cycle
        starves = [step.cause == STARVED for step in program.steps]
        # Each preload with the fills that it waits for, the number of its array's streams and vector steps ahead of it,
        # and the cycles that it leaves to others.
        self.todo: deque[tuple[int, Preload, list[int], int, tuple[int, ...]]] = deque()
        waits = {id(frame): frame.weight_waits(number) for frame in frames}
        ahead = 0
        for index, step in enumerate(program.steps):
            if isinstance(step, Preload) and step.array == number:
                left = waits[id(frames[program.layer_of(index)])]
                self.todo.append((index, step, [other for other in step.after if starves[other]], ahead, left))
            ahead += isinstance(step, Vector) or (isinstance(step, Stream) and program.array_of(step) == number)
        self.started = self.delayed = 0
        self.row = self.rows
        self.biases = self.injecting = 0
        self.use: Counter[str] = Counter()

    @property
    def under_way(self) -> bool:
        """Whether weights or biases are still to be read or to enter the array."""
        return self.row < self.rows or self.biases > 0 or self.injecting > 0

    def tick(self, now: int) -> None:
        """Let weights of the register enter the array; with the last of them, the preload is done."""
        if self.injecting:
            self.injecting -= 1
            if not self.under_way:
                self.scoreboard.finish(self.index, now)

    def clock(self, now: int, issued: int, running: bool) -> None:
        """Start the next preload, once all steps ahead of it are issued and then its delay is over.

        By then a weight buffer is free, or will be when the stream is over.
        """
        # With one buffer the running stream still needs its weights; with two, the other buffer is free.
        if self.under_way or not self.todo:
            return
        index, step, fills, ahead, left = self.todo[0]
        if issued < ahead or (running and self.buffers == 1):
            self.use["blocked"] += 1
        elif self.scoreboard.waiting(fills, now):
            self.use[self.held(now)] += 1
        elif self.scoreboard.waiting(step.after, now):
            self.use["blocked"] += 1
        elif self.delayed < step.delay:
            self.delayed += 1
            self.use["blocked"] += 1
        else:
            self.delayed = 0
            self.todo.popleft()
            self.index, self.step, self.waits = index, step, left
            self.buffer = self.started % self.buffers
            self.started += 1
            self.row, self.biases = 0, self.step.bias_words

    def read(self, now: int) -> Order | None:
        """The next word of weights, or the bias word, if the word register can take it at the end of this cycle."""
        if self.injecting or self.waits[now % len(self.waits)] or (self.row >= self.rows and not self.biases):
            return None
        first, step = min(self.row, self.rows), self.step
        address = step.base + first // self.word_elements if first < step.rows else NOWHERE
        if first < self.rows:
            self.row += self.word_elements
            self.injecting = ceil(min(self.word_elements, self.rows - first) / self.rate)
        else:
            # The first element of the bias word goes to the register above the first row.
            self.biases, self.injecting, address = 0, BIAS_CYCLES, NOWHERE if step.bias is None else step.bias
        return Order(WEIGHT, self.index, step.cols, address, array=self.array, buffer=self.buffer, first=first)

    def book(self) -> None:
        """Book a cycle of a preload under way, once it is known whether the port was free."""
        if self.under_way:
            self.use["busy" if self.injecting else "port_stall"] += 1


UNDER_WAY = 2
"""Transfers that may have data on their way at once (docs/timing.md, section 5)."""


@dataclass(slots=True)
class _Moving:
    """A transfer under way.

    Where lanes have addresses of their own, `fed` has the setting and the word of its part, for each word; `accesses`
    are those still to be made where the vector unit works on the words.
    """

    index: int
    step: Transfer
    passage: Passage
    fed: list[tuple[int, int]]
    accesses: deque[Access]


class DmaUnit:
    """Carries out fills, spills and prefetches of one queue over two buses."""

    def __init__(
        self, program: Program, scoreboard: Scoreboard, hbm: HbmWords, banks: Banks | None, hardware: Hardware,
        settings: Settings,
    ) -> None:  # fmt: skip
        self.scoreboard, self.hbm, self.banks = scoreboard, hbm, banks
        self.hardware, self.settings = hardware, settings
        pipe, device = Pipe(hardware.latency_cycles, hardware.hbm_bytes_per_cycle), hardware.hbm.dram
        self.memory = BankedMemory(program, hardware, device) if device else PipedHbm(hardware, pipe)
        self.memories = {HBM: self.memory}
        if scratch := hardware.scratch_pipe:
            self.memories[SCRATCH] = PipedHbm(hardware, scratch)
        transfers = [(index, step) for index, step in enumerate(program.steps) if isinstance(step, Transfer)]
        starves = [step.cause == STARVED for step in program.steps]
        self.others = {index: [each for each in step.after if not starves[each]] for index, step in transfers}
        self.todo = deque((index, step, program.sources(step)) for index, step in transfers)
        self.turns = {bus: deque(index for index, step in transfers if step.bus == bus) for bus in self.memories}
        self.storing: dict[int, Passage] = {}
        self.stored: dict[int, int] = {}
        self.moving: deque[_Moving] = deque()
        self.fetching: dict[int, Passage] = {}
        self.bus: dict[str, _Moving | None] = dict.fromkeys(self.memories)
        self.use: dict[str, Counter[str]] = {bus: Counter() for bus in self.memories}
        self.held: Counter[int] = Counter()
        self.end, self.moved = 0, -1

    def clock(self, now: int) -> None:
        """Free the buses, give them to the next transfers, and account for the cycle."""
        for memory in self.memories.values():
            memory.clock(now)
        if now < self.hardware.sequencer.launch_cycles:
            return
        for bus, moving in self.bus.items():
            if moving is not None and moving.passage.over(now):
                self.bus[bus] = None
        for index, passage in [*self.storing.items()]:
            # The memory now knows when these spills are stored.
            if (stored := passage.stored) != NEVER:
                self.end = max(self.end, stored)
                self.stored[index] = stored + self.hardware.skew
                del self.storing[index]
        self._end_fetches(now)
        # Why the next transfer does not begin although its bus is free; it is booked below.
        why = ""
        while self.todo and self.bus[self.todo[0][1].bus] is None:
            index, step, sources = self.todo[0]
            if self.scoreboard.waiting(step.after, now) or any(now < self.stored.get(each, NEVER) for each in sources):
                # The queue is in order: a transfer that waits also holds up the ones behind it, on either bus.
                why = "blocked"
                break
            if len(self.moving) >= UNDER_WAY and not isinstance(step, Prefetch):
                why = "port_stall"
                break
            self.todo.popleft()
            self._begin(index, step, sources, now)
            self._end_fetches(now)
        for bus, turns in self.turns.items():
            if moving := self.bus[bus]:
                self._book(bus, "busy" if moving.passage.moves(now) else "port_stall", moving.index)
            elif turns:
                self._book(bus, why if turns[0] == self.todo[0][0] else "blocked", turns[0])

    def holder(self, now: int) -> str:
        """The cause that holds the oldest transfer to or from lanes or banks."""
        if self.moving:
            return self.moving[0].passage.held.by(now)
        for index, step, _ in self.todo:
            if self.scoreboard.waiting(self.others[index], now):
                return Held(NEVER, NEVER, NEVER).by(now)
            if not isinstance(step, Prefetch):
                break
        return Held(now, NEVER, NEVER).by(now)

    def running(self, now: int) -> bool:
        """Whether a bus is still busy in cycle `now`; `now` is at most the next cycle."""
        return any(moving is not None and not moving.passage.over(now) for moving in self.bus.values())

    @property
    def active(self) -> bool:
        """Whether a memory is at work for some transfer."""
        return bool(self.storing or self.fetching or any(self.bus.values()))

    def move(self, now: int) -> Order | None:
        """The next word of the oldest transfer, if it has one for the port. The last word completes the transfer."""
        if not self.moving or not isinstance(step := (head := self.moving[0]).step, LaneTransfer):
            return None
        if head.accesses:
            return self._worked(head, step, now)
        if not self._ready(now):
            return None
        word = self._next(head, now)
        address, place = int(self.hbm.addresses[head.index][word]), self.hbm.first[head.index] + word
        spill, (setting, nth) = isinstance(step, Spill), head.fed[word] if head.fed else (0, 0)
        return Order(DMA, head.index, step.lanes, address, setting, nth, number=place, stride=step.words, spill=spill)

    def _worked(self, head: _Moving, step: LaneTransfer, now: int) -> Order | None:
        """The next access of a transfer with work; what is written behind a part waits for nothing else."""
        word, address, register, stores = head.accesses[0]
        if self.moved == now or not (stores or head.passage.ready(now)):
            return None
        self.moved = now
        head.accesses.popleft()
        place, spill = self.hbm.first[head.index] + word, isinstance(step, Spill)
        order = Order(DMA, head.index, step.lanes, address, number=place, stride=step.words)
        if register < 0:
            head.passage.took(now)
        if not head.accesses:
            self._finish(head, now)
        if register < 0:
            return order._replace(spill=spill, works=True)
        return order._replace(register=register, beside=True, stores=stores)

    def store(self, now: int) -> None:
        """Store the next words of the oldest transfer in banks, one word in each, through ports of their own."""
        if not self.moving or not isinstance((head := self.moving[0]).step, BankFill) or not self._ready(now):
            return
        assert self.banks
        self.banks.store(head.index, self._next(head, now))

    def _next(self, head: _Moving, now: int) -> int:
        """Move the next word of a transfer; return its number."""
        word = head.passage.taken
        self.moved = now
        head.passage.took(now)
        if head.passage.taken == head.step.words:
            self._finish(head, now)
        return word

    def _finish(self, head: _Moving, now: int) -> None:
        """End a transfer with its last access."""
        self.moving.popleft()
        self.scoreboard.finish(head.index, now + 1)
        if isinstance(head.step, Spill):
            self.hbm.spilled.append(head.index)
            self.storing[head.index] = head.passage

    def _begin(self, index: int, step: Transfer, sources: Sequence[int], now: int) -> None:
        """Give a transfer its bus, and let a fill take its data from HBM."""
        self.turns[step.bus].popleft()
        fed, number = list[tuple[int, int]](), self.settings.number
        if isinstance(step, LaneTransfer) and any(part.feed for part in step.parts):
            parts = ((number[part.feed] if part.feed else 0, range(part.words)) for part in step.parts)
            fed = [(setting, word) for setting, words in parts for word in words]
        if isinstance(step, Fill):
            self.hbm.fetch(index, sources)
        elif isinstance(step, BankFill) and self.banks:
            self.banks.fetch(index, step)
        accesses = deque(step.accesses if isinstance(step, LaneTransfer) else ())
        moving = _Moving(index, step, self.memories[step.bus].begin(step, now), fed, accesses)
        self.bus[step.bus] = moving
        if isinstance(step, Prefetch):
            self.hbm.prefetch(index, step)
            self.fetching[index] = moving.passage
        else:
            self.moving.append(moving)

    def _book(self, bus: str, cause: str, index: int) -> None:
        """Book a cycle of a bus to a transfer."""
        self.use[bus][cause] += 1
        if bus == HBM:
            self.held[index] += 1

    def _ready(self, now: int) -> bool:
        """Whether the oldest transfer can move its next word in this cycle; only one word moves in a cycle."""
        head = self.moving[0]
        return self.moved != now and head.passage.ready(now)

    def _end_fetches(self, now: int) -> None:
        """Note which prefetches are over; a prefetch of padding alone ends in the cycle in which it begins."""
        for index in [index for index, passage in self.fetching.items() if passage.ready(now)]:
            del self.fetching[index]
            self.stored[index] = now
            self.hbm.prefetched(index)
            self.scoreboard.finish(index, now)


class KeepUnit:
    """Carries out Keeps: it moves nothing, but copies kept words into HBM's contents, so that they can be compared."""

    def __init__(self, program: Program, scoreboard: Scoreboard, hbm: HbmWords, together: int) -> None:
        """In a cycle, `together` lanes have their turn."""
        self.scoreboard, self.hbm, self.together = scoreboard, hbm, together
        self.todo = deque((index, step) for index, step in enumerate(program.steps) if isinstance(step, Keep))
        self.noting: deque[tuple[Keep, int]] = deque()

    def clock(self, now: int) -> None:
        """Finish Keeps that no longer wait for a step."""
        while self.todo and not self.scoreboard.waiting(self.todo[0][1].after, now):
            index, step = self.todo.popleft()
            self.scoreboard.finish(index, now)
            self.noting.append((step, now))

    def note(self, now: int, memory: Floats) -> None:
        """The lanes of each Keep whose turn it is, in `memory` [lane, word, W] before this cycle's reads and writes."""
        for step, since in self.noting:
            first = (now - since) * self.together
            for lane in range(first, min(first + self.together, len(memory))):
                self.hbm.keep(step, lane, memory)
        while self.noting and (now - self.noting[0][1] + 1) * self.together >= self.noting[0][0].lanes:
            self.noting.popleft()
