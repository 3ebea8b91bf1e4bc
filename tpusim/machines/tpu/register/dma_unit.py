"""The DMA: transfers in order; each has the HBM bus in turn, and the port when nobody else wants it."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from tpusim.machines.tpu.definition.frame import DMA, NEVER
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import BankFill, Fill, LaneTransfer, Spill, Transfer
from tpusim.machines.tpu.register.banks import Banks
from tpusim.machines.tpu.register.contents import HbmWords
from tpusim.machines.tpu.register.generators import Settings
from tpusim.machines.tpu.register.hbm import Memory, Passage
from tpusim.machines.tpu.register.order import Order
from tpusim.machines.tpu.register.piped_hbm import PipedMemory
from tpusim.machines.tpu.register.scoreboard import Scoreboard

UNDER_WAY = 2
"""Transfers that may have words on their way at once, docs/timing.md section 5."""


@dataclass(slots=True)
class _Moving:
    """A transfer under way, and the words that crossed the port.

    Where lanes have addresses of their own, `fed` has for each word their setting, and the word of its part.
    """

    index: int
    step: Transfer
    passage: Passage
    fed: list[tuple[int, int]]
    words: int = 0


class DmaUnit:
    """One queue for fills and spills."""

    def __init__(
        self,
        program: Program,
        scoreboard: Scoreboard,
        hbm: HbmWords,
        banks: Banks | None,
        hardware: Hardware,
        settings: Settings,
    ) -> None:
        self.scoreboard, self.hbm, self.banks = scoreboard, hbm, banks
        self.hardware, self.settings = hardware, settings
        self.memory = _memory_of(program, hardware)
        transfers = ((index, step) for index, step in enumerate(program.steps) if isinstance(step, Transfer))
        self.todo = deque((index, step, program.sources(step)) for index, step in transfers)
        self.storing: dict[int, Passage] = {}
        self.stored: dict[int, int] = {}
        self.moving: deque[_Moving] = deque()
        self.bus: _Moving | None = None
        self.use: Counter[str] = Counter()
        self.held: Counter[int] = Counter()
        self.end, self.moved = 0, -1

    def clock(self, now: int) -> None:
        """Free the bus, give it to the next transfer, and account for the cycle."""
        self.memory.clock(now)
        if now < self.hardware.sequencer.launch_cycles:
            return
        if not self.running(now):
            self.bus = None
        self._settle()
        if self.bus is None and self.todo:
            self._begin(now)
        if self.bus is not None:
            self._book("busy" if self.bus.passage.moves(now) else "port_stall", self.bus.index)

    def running(self, now: int) -> bool:
        """Whether the bus is still taken in a cycle, the next at the latest."""
        return self.bus is not None and not self.bus.passage.over(now)

    def move(self, now: int) -> Order | None:
        """The next word of the oldest transfer, if it has one for the port; after its last the transfer is done."""
        if not self.moving or not isinstance(step := (head := self.moving[0]).step, LaneTransfer):
            return None
        if not self._ready(now):
            return None
        word = self._next(head, now)
        address, place = int(self.hbm.addresses[head.index][word]), self.hbm.first[head.index] + word
        spill, (setting, nth) = isinstance(step, Spill), head.fed[word] if head.fed else (0, 0)
        return Order(DMA, head.index, step.lanes, address, setting, nth, number=place, stride=step.words, spill=spill)

    def store(self, now: int) -> None:
        """The next words of the oldest transfer, if banks take them: one of each, through ports of their own."""
        if not self.moving or not isinstance((head := self.moving[0]).step, BankFill) or not self._ready(now):
            return
        assert self.banks
        self.banks.store(head.index, self._next(head, now))

    def _next(self, head: _Moving, now: int) -> int:
        """The number of the word that a transfer moves in this cycle."""
        word = head.words
        head.words += 1
        self.moved = now
        head.passage.took(now)
        if head.words == head.step.words:
            self._finish(now)
        return word

    def _begin(self, now: int) -> None:
        index, step, sources = self.todo[0]
        if self.scoreboard.waiting(step.after, now) or any(now < self.stored.get(each, NEVER) for each in sources):
            self._book("blocked", index)
        elif len(self.moving) >= UNDER_WAY:
            self._book("port_stall", index)
        else:
            self.todo.popleft()
            if isinstance(step, Fill):
                self.hbm.fetch(index, max(sources, default=-1))
            elif isinstance(step, BankFill) and self.banks:
                self.banks.fetch(index, step)
            self.bus = _Moving(index, step, self.memory.begin(step, now), self._fed(step))
            self.moving.append(self.bus)

    def _book(self, cause: str, index: int) -> None:
        """Account for a cycle that goes to a transfer."""
        self.use[cause] += 1
        self.held[index] += 1

    def _fed(self, step: Transfer) -> list[tuple[int, int]]:
        """For each word; nothing where all lanes share their addresses."""
        number = self.settings.number
        if not isinstance(step, LaneTransfer) or all(part.feed is None for part in step.parts):
            return []
        return [(number[part.feed] if part.feed else 0, word) for part in step.parts for word in range(part.words)]

    def _ready(self, now: int) -> bool:
        """Whether the bus has brought the next word, or, of a spill, can take it; only one word moves in a cycle."""
        head = self.moving[0]
        return self.moved != now and head.passage.ready(head.words, now)

    def _finish(self, now: int) -> None:
        head = self.moving.popleft()
        self.scoreboard.finish(head.index, now + 1)
        if isinstance(head.step, Spill):
            self.hbm.spilled.append(head.index)
            self.storing[head.index] = head.passage

    def _settle(self) -> None:
        """Note of which spills it has become known when they are in HBM."""
        for index, passage in [*self.storing.items()]:
            if (stored := passage.stored) != NEVER:
                self.end = max(self.end, stored)
                self.stored[index] = stored + self.hardware.lanes - 1
                del self.storing[index]


def _memory_of(program: Program, hardware: Hardware) -> Memory:
    """What `hbm.model` says, with nothing moved yet."""
    device = hardware.hbm.dram
    if device is None:
        return PipedMemory(hardware)
    from tpusim.machines.tpu.register.banked_hbm import BankedMemory

    return BankedMemory(program, hardware, device)
