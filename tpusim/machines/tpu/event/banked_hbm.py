"""HBM with banks, in the event engine: each transfer at once, burst by burst, by the one-pass model of the DRAM."""

from __future__ import annotations

import numpy as np

from tpusim.machines.tpu.definition import NEVER
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.board import Span
from tpusim.machines.tpu.event.calendar import Cycles
from tpusim.machines.tpu.event.dma import Filled, Spilled
from tpusim.machines.tpu.observation.timing import HbmUse
from tpusim.machines.tpu.program.moves import Moves
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.memory.clocks import Clocks
from tpusim.memory.dram.device import Device
from tpusim.memory.dram.one_pass import OnePass, Served
from tpusim.memory.dram.places import places
from tpusim.memory.pipe import Pipe
from tpusim.memory.shares import last_burst_of, last_word_of


class BankedHbm:
    """A DRAM whose channels, banks and rows the addresses of every transfer go to, docs/timing.md section 5."""

    def __init__(self, program: Program, hardware: Hardware, device: Device, keep: bool) -> None:
        self._keep, self.spans = keep, list[Span]()
        self._mapping = device.addresses()
        self._hardware, self._moves, self._dram = hardware, Moves(program, hardware), OnePass(device)
        self._cycles = self._until = 0
        self._clocks = Clocks.of(hardware.clock_hz, device.clock_hz)
        self._peak = Pipe(0, hardware.hbm_peak_bytes_per_cycle)

    def fill(self, step: Transfer, start: int) -> Filled:
        """A word has come with the last burst that it has a share in, converted one after another from the first on."""
        conversion, bursts = step.conversion_cycles(self._hardware), self._moves.bursts(step)
        accepted, done = self._served(bursts, write=False, start=start)
        words = np.arange(1, step.words + 1, dtype=np.int64)
        # All of it may be padding.
        first, come = start, np.full(step.words, start)
        if done.size:
            latest = np.maximum.accumulate(done)[last_burst_of(step.words, len(done))]
            first, come = self._clocks.to_machine(int(done[0])), self._clocks.to_machine(latest)
        arrivals = np.maximum(come, first - (-words * conversion // step.words))
        return Filled(arrivals, max(start + max(1, conversion), self._after(accepted)))

    def demands(self, step: Transfer, start: int) -> Cycles:
        """At the peak bandwidth of all channels, whatever waits to be stored."""
        return self._peak.demands(start, self._asked(step), step.words)

    def spill(self, step: Transfer, start: int, taken: Cycles) -> Spilled:
        """A burst is offered once its last word has been taken, and converted."""
        bursts, last = self._moves.bursts(step), int(taken[-1]) + 1
        ready = taken + 1 - (-step.conversion_cycles(self._hardware) // step.words)
        times = self._clocks.to_memory(ready)[last_word_of(step.words, len(bursts))]
        accepted, done = self._served(bursts, write=True, start=start, times=times)
        asked = start + self._asked(step)
        ended = max(asked, int(ready[-1]), self._after(accepted))
        stored = max(ended, self._clocks.to_machine(int(done.max(initial=0))))
        return Spilled(ended - start - max(0, last - asked), min(asked, ended), ended, stored)

    @property
    def use(self) -> HbmUse:
        """What has happened in the DRAM."""
        return HbmUse.of(self._dram.counts(), self._dram.requested, self._cycles)

    def _served(self, bursts: Cycles, write: bool, start: int, times: Cycles | None = None) -> Served:
        """What the DRAM says of a transfer; `times` are the memory's."""
        served = self._dram.serve(bursts, write, self._clocks.to_memory(start), times)
        if bursts.size:
            first, last = int(served.accepted.min()), int(served.done.max())
            self._cycles += max(0, last - max(first, self._until))
            self._until = max(self._until, last)
        if self._keep:
            channels, at = np.unique(places(self._mapping, bursts).channel, return_inverse=True)
            begun, over = np.full(len(channels), NEVER), np.zeros(len(channels), np.int64)
            np.minimum.at(begun, at, served.accepted)
            np.maximum.at(over, at, served.done)
            self.spans.append(Span(channels, self._clocks.to_machine(begun), self._clocks.to_machine(over)))
        return served

    def _asked(self, step: Transfer) -> int:
        """Cycles in which a spill would be over if nothing but the peak bandwidth, or its conversion, held it up."""
        return max(self._peak.cycles(step.hbm_bytes), step.conversion_cycles(self._hardware))

    def _after(self, accepted: Cycles) -> int:
        """The first cycle after that of the last acceptance."""
        return self._clocks.to_machine(int(accepted.max(initial=-1)) + 1)
