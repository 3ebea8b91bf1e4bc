"""The control unit: what lane 0 does in each cycle, decided cycle by cycle.

Nothing here looks ahead: a step starts in the first cycle in which all it needs is there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from tpusim.base.errors import DeadlockError
from tpusim.machines.tpu.definition.frame import CLIENTS, DMA, IFMAP, NEVER, POINTER, PSUM, RESULT, VECTOR, WEIGHT
from tpusim.machines.tpu.observation.deadlock import who_waits
from tpusim.machines.tpu.program.passes import Stream
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.vector import Vector
from tpusim.machines.tpu.register.accounts import ByStep, Counted
from tpusim.machines.tpu.register.dma_unit import DmaUnit
from tpusim.machines.tpu.register.keep_unit import KeepUnit
from tpusim.machines.tpu.register.order import IDLE, Order
from tpusim.machines.tpu.register.port import Client, Port
from tpusim.machines.tpu.register.preload_unit import PreloadUnit
from tpusim.machines.tpu.register.scoreboard import Scoreboard
from tpusim.machines.tpu.register.stream_unit import StreamUnit


class Control:
    """Lane 0's ports, each given as the clients that share it, first who goes first."""

    def __init__(
        self,
        program: Program,
        scoreboard: Scoreboard,
        stream: StreamUnit,
        preload: PreloadUnit,
        dma: DmaUnit,
        keeps: KeepUnit,
        ports: Sequence[Sequence[int]],
        patience: int,
    ) -> None:
        self.program = program
        self.scoreboard, self.stream, self.preload, self.dma, self.keeps = scoreboard, stream, preload, dma, keeps
        owners: dict[int, Client] = {
            IFMAP: stream.ifmap, POINTER: stream.pointers.read, PSUM: stream.psum, RESULT: stream.result,
            VECTOR: stream.vector.ask,
        }  # fmt: skip
        others: dict[int, Client] = {WEIGHT: preload.read, DMA: dma.move}
        self.ports = [
            Port(
                tuple(owners[each] for each in port if each in owners),
                tuple(others[each] for each in port if each in others),
            )
            for port in ports
        ]
        self.granted: Counter[str] = Counter()
        self.ends: list[Counted] = []
        self._through = deque(_issues(program)[:-1])
        self.patience, self.idle = patience, 0
        self.next = 0

    @property
    def finished(self) -> bool:
        """Whether every step is done, the last frame over, the bus free, and known when all is in HBM."""
        return not (
            self.scoreboard.open or self.dma.running(self.next) or self.dma.storing or self.stream.running(self.next)
        )

    @property
    def end(self) -> int:
        """When the last step is done and its last word in HBM."""
        return max(self.dma.end, self.stream.over_at, *self.scoreboard.done)

    @property
    def by_step(self) -> ByStep:
        """What is booked to steps."""
        return ByStep(self.dma.held, self.stream.adding + self.stream.vector.worked)

    def counted(self, now: int) -> Counted:
        """What is booked before this cycle."""
        use = self.stream.use, self.preload.use, *self.dma.use.values(), self.granted
        return Counted(now, *map(dict, use))

    def cycle(self, now: int) -> list[Order]:
        """Lane 0's orders, one a port.

        Raises:
            PortConflict: when two clients own one slot.
            DeadlockError: when nothing has moved for longer than anything can take; names who waits for whom.
        """
        self.next = now + 1
        if self._through and self.stream.issued == self._through[0] and not self.stream.running(now):
            self._through.popleft()
            self.ends.append(self.counted(now))
        self.keeps.clock(now)
        self.preload.tick(now)
        self.dma.clock(now)
        self.stream.clock(now)
        self.preload.clock(now, self.stream.issued, self.stream.running(now))
        orders = [port.grant(now) for port in self.ports]
        self.dma.store(now)
        self.preload.book()
        self._book(orders, now)
        return orders

    def _book(self, orders: Sequence[Order], now: int) -> None:
        """Account for the ports' cycle, and see that something moves."""
        self.idle += 1
        for order in orders:
            if order is not IDLE:
                self.granted[CLIENTS[order.client]] += 1
                self.idle = 0
        if self.dma.active or self.preload.injecting or self.stream.running(now) or self.stream.waiting:
            self.idle = 0
        if self.idle > self.patience:
            stuck = [step for step, done in enumerate(self.scoreboard.done) if done == NEVER]
            raise DeadlockError(f"cycle {now}: nothing moves, {who_waits(self.program, stuck)}")


def _issues(program: Program) -> list[int]:
    """The passes and vector steps up to the last of each of several layers."""
    issues = [index for index, step in enumerate(program.steps) if isinstance(step, Stream | Vector)]
    return [issues.index(last) + 1 for last in program.last_passes]
