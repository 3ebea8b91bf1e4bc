"""HBM as the DMA of the event engine asks for it: when a fill's words come, and when a spill's are taken and stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.calendar import Cycles
from tpusim.machines.tpu.observation.timing import HbmUse
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.memory.pipe import Pipe


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


def hbm_of(program: Program, hardware: Hardware, keep: bool = False) -> Hbm:
    """What `hbm.model` says, with nothing moved yet; it may `keep` its spans."""
    device = hardware.hbm.dram
    if device is None:
        return PipedHbm(hardware)
    # Its loops are compiled, and importing the compiler takes longer than many a layer.
    from tpusim.machines.tpu.event.banked_hbm import BankedHbm

    return BankedHbm(program, hardware, device, keep)


class PipedHbm:
    """A latency, then bytes at the full bandwidth."""

    use = None
    spans = ()

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._pipe = Pipe(hardware.latency_cycles, hardware.hbm_bytes_per_cycle)

    def fill(self, step: Transfer, start: int) -> Filled:
        busy = self._busy(step)
        return Filled(self._pipe.arrivals(start, busy, step.words), start + busy)

    def demands(self, step: Transfer, start: int) -> Cycles:
        return self._pipe.demands(start, self._busy(step), step.words)

    def spill(self, step: Transfer, start: int, taken: Cycles) -> Spilled:
        """The last word still has to cross the bus and be stored."""
        busy = self._busy(step)
        ended = max(start + busy, int(taken[-1]) + 1 - (-busy // step.words))
        return Spilled(busy, start + busy, ended, ended + self._pipe.latency)

    def _busy(self, step: Transfer) -> int:
        return max(self._pipe.cycles(step.hbm_bytes), step.conversion_cycles(self._hardware))
