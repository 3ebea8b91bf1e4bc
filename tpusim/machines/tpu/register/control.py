"""The control unit: what lane 0 does in each cycle, decided cycle by cycle.

Nothing here looks ahead: a step starts in the first cycle in which all it needs is there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from tpusim.base.errors import DeadlockError
from tpusim.machines.tpu.definition import CLIENTS, DMA, IFMAP, NEVER, POINTER, PSUM, RESULT, VECTOR, WEIGHT
from tpusim.machines.tpu.observation.timing import who_waits
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
    """Lane 0's ports, each given as the clients that share it, first who goes first; and the units that use them."""

    def __init__(
        self,
        program: Program,
        scoreboard: Scoreboard,
        streams: Sequence[StreamUnit],
        preloads: Sequence[PreloadUnit],
        dma: DmaUnit,
        keeps: KeepUnit,
        ports: Sequence[Sequence[int]],
        patience: int,
    ) -> None:
        self.program = program
        self.scoreboard, self.streams, self.preloads, self.dma, self.keeps = scoreboard, streams, preloads, dma, keeps
        self.vector = streams[0].vector
        owners: dict[int, list[Client]] = {
            IFMAP: [each.ifmap for each in streams], POINTER: [streams[0].pointers.read],
            PSUM: [each.psum for each in streams], RESULT: [each.result for each in streams], VECTOR: [self.vector.ask],
        }  # fmt: skip
        others: dict[int, list[Client]] = {WEIGHT: [each.read for each in preloads], DMA: [dma.move]}
        self.ports = [
            Port(*(tuple(ask for each in port for ask in clients.get(each, ())) for clients in (owners, others)))
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
        return not (self.scoreboard.open or self.dma.running(self.next) or self.dma.storing or self.running(self.next))

    def running(self, now: int) -> bool:
        """Whether a stream occupies the rows of any array, or the vector unit works by itself."""
        for stream in self.streams:  # noqa: SIM110  a generator would take twice as long, and this is asked every cycle
            if stream.running(now):
                return True
        return False

    @property
    def end(self) -> int:
        """When the last step is done and its last word in HBM."""
        return max(self.dma.end, *(each.over_at for each in self.streams), *self.scoreboard.done)

    @property
    def by_step(self) -> ByStep:
        """What is booked to steps."""
        return ByStep(self.dma.held, [each.adding + self.vector.worked for each in self.streams])

    def counted(self, now: int) -> Counted:
        """What is booked before this cycle."""
        arrays, preloads = ([dict(each.use) for each in units] for units in (self.streams, self.preloads))
        hbm, scratch = map(dict, self.dma.use.values())
        return Counted(now, hbm, scratch, dict(self.granted), arrays, preloads)

    def cycle(self, now: int) -> list[Order]:
        """Lane 0's orders, one a port.

        Raises:
            PortConflict: when two clients own one slot.
            DeadlockError: when nothing has moved for longer than anything can take; names who waits for whom.
        """
        self.next = now + 1
        if self._through and self.streams[0].issued == self._through[0] and not self.running(now):
            self._through.popleft()
            self.ends.append(self.counted(now))
        self.keeps.clock(now)
        for preload in self.preloads:
            preload.tick(now)
        self.dma.clock(now)
        for stream in self.streams:
            stream.clock(now, self.streams)
        for preload, stream in zip(self.preloads, self.streams, strict=True):
            preload.clock(now, stream.issued, stream.running(now))
        orders = [port.grant(now) for port in self.ports]
        self.dma.store(now)
        for preload in self.preloads:
            preload.book()
        self._book(orders, now)
        return orders

    def _book(self, orders: Sequence[Order], now: int) -> None:
        """Account for the ports' cycle, and see that something moves."""
        self.idle += 1
        for order in orders:
            if order is not IDLE:
                self.granted[CLIENTS[order.client]] += 1
                self.idle = 0
        if self.idle and (
            self.dma.active
            or self.running(now)
            or any(preload.injecting for preload in self.preloads)
            or any(stream.waiting for stream in self.streams)
        ):
            self.idle = 0
        if self.idle > self.patience:
            stuck = [step for step, done in enumerate(self.scoreboard.done) if done == NEVER]
            raise DeadlockError(f"cycle {now}: nothing moves, {who_waits(self.program, stuck)}")


def _issues(program: Program) -> list[int]:
    """The passes and vector steps up to the last of each of several layers."""
    issues = [index for index, step in enumerate(program.steps) if isinstance(step, Stream | Vector)]
    return [issues.index(last) + 1 for last in program.last_passes]
