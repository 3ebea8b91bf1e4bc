"""A memory behind the lanes, as the event engine's DMA asks for it: when words of fills come, and spills are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tpusim.machines.tpu.event.calendar import Cycles
from tpusim.machines.tpu.observation.timing import HbmUse
from tpusim.machines.tpu.program.transfers import Transfer


class Filled(NamedTuple):
    """A fill: cycles in which each of its words may cross the port, and when the bus is free again."""

    arrivals: Cycles
    ended: int


class Spilled(NamedTuple):
    """A spill: the cycles that it kept the bus busy, from when on the port held it up if it did, when the bus is free
    again, and when all of it is in HBM.
    """

    busy: int
    stalled: int
    ended: int
    stored: int


class Span(NamedTuple):
    """One transfer in the channels that it uses: from the first burst accepted to the last one done, in cycles."""

    channels: Cycles
    first: Cycles
    last: Cycles


class Hbm(Protocol):
    """Transfers begin in order, none before the bus is free; what it says of one never depends on a later one."""

    def fill(self, step: Transfer, start: int) -> Filled:
        """A fill that has the bus from cycle `start` on."""

    def demands(self, step: Transfer, start: int) -> Cycles:
        """When the words of a spill that has the bus from `start` on are wanted."""

    def spill(self, step: Transfer, start: int, taken: Cycles) -> Spilled:
        """The same spill once it is known in which cycles its words crossed the port."""

    @property
    def use(self) -> HbmUse | None:
        """What has happened in the DRAM; None where none is modelled."""

    @property
    def spans(self) -> Sequence[Span]:
        """The span of each transfer so far, if they are kept; none where no DRAM is modelled."""
