"""The control unit: what lane 0 does in each cycle, decided cycle by cycle.

Nothing here looks ahead: a step starts in the first cycle in which all it needs is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tpusim.base.errors import DeadlockError, PortConflict
from tpusim.machines.tpu.definition.frame import CLIENTS, NEVER
from tpusim.machines.tpu.observation.deadlock import who_waits
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.register.dma_unit import DmaUnit
from tpusim.machines.tpu.register.order import IDLE, Order
from tpusim.machines.tpu.register.preload_unit import PreloadUnit
from tpusim.machines.tpu.register.scoreboard import Scoreboard
from tpusim.machines.tpu.register.stream_unit import StreamUnit


class Control:
    """Lane 0's port: the stream's slots first, then preload, then DMA."""

    def __init__(
        self,
        program: Program,
        scoreboard: Scoreboard,
        stream: StreamUnit,
        preload: PreloadUnit,
        dma: DmaUnit,
        patience: int,
    ) -> None:
        self.program = program
        self.scoreboard, self.stream, self.preload, self.dma = scoreboard, stream, preload, dma
        self.port: Counter[str] = Counter()
        self.patience, self.idle = patience, 0
        self.next = 0

    @property
    def finished(self) -> bool:
        """Whether every step is done, the last frame over, and the bus free."""
        return not self.scoreboard.open and self.dma.bus is None and not self.stream.running(self.next)

    @property
    def end(self) -> int:
        """When the last step is done and its last word in HBM."""
        return max(self.dma.end, self.stream.over_at, *self.scoreboard.done)

    def cycle(self, now: int, complete: Sequence[int], completing: Sequence[int]) -> Order:
        """Lane 0's order; of each array `complete` words were collected before this cycle, `completing` after it.

        Raises:
            PortConflict: when two clients own one slot.
            DeadlockError: when nothing has moved for longer than anything can take; names who waits for whom.
        """
        self.next = now + 1
        self.preload.tick(now)
        self.dma.clock(now)
        self.stream.clock(now)
        self.preload.clock(now, self.stream.issued, self.stream.running(now))
        order = self._arbitrate(now, complete, completing)
        self.preload.book()
        self._book(order, now)
        return order

    def _arbitrate(self, now: int, complete: Sequence[int], completing: Sequence[int]) -> Order:
        """At most one access a cycle."""
        stream = self.stream
        ifmap, psum, result = stream.ifmap(now), stream.psum(now, completing), stream.result(now, complete)
        first = ifmap or psum or result
        if first is None:
            return self.preload.read() or self.dma.move(now) or IDLE
        if [ifmap, psum, result].count(None) < 2:
            raise PortConflict(f"cycle {now}: two clients of the stream ask for lane 0's port at once")
        return first

    def _book(self, order: Order, now: int) -> None:
        """Account for the port's cycle, and see that something moves."""
        if order is not IDLE:
            self.port[CLIENTS[order.client]] += 1
            self.idle = 0
        elif self.dma.bus or self.preload.injecting or self.stream.running(now):
            self.idle = 0
        elif not self.stream.waiting:
            self.idle += 1
        if self.idle > self.patience:
            stuck = [step for step, done in enumerate(self.scoreboard.done) if done == NEVER]
            raise DeadlockError(f"cycle {now}: nothing moves, {who_waits(self.program, stuck)}")
