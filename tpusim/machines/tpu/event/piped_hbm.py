"""HBM as a pipe, and the scratch memory, for the event engine."""

from __future__ import annotations

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.calendar import Cycles
from tpusim.machines.tpu.event.hbm import Filled, Spilled
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.memory.pipe import Pipe


class PipedMemory:
    """A latency, then bytes at the full bandwidth."""

    use = None
    spans = ()

    def __init__(self, hardware: Hardware, pipe: Pipe) -> None:
        self._hardware, self._pipe = hardware, pipe

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
