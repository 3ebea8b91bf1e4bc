"""Memories behind the lanes: they decide when words of fills come, and when spills are stored.

A memory is a pipe, or a DRAM with banks, which works out each transfer at once, burst by burst.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition import NEVER
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import HbmUse
from tpusim.machines.tpu.program.moves import TransferRuns
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.tensors import HBM
from tpusim.machines.tpu.program.transfers import Spill, Transfer
from tpusim.memory.dram.device import Device
from tpusim.memory.timing import Clocks, Pipe, last_shares, spread

Cycles = NDArray[np.int64]

_MOST_KEPT = 1 << 22
"""Most addresses of bursts that a run keeps."""


class ChannelSpan(NamedTuple):
    """A transfer in the channels that it uses: from the first burst accepted to the last one done, in cycles."""

    channels: Cycles
    first: Cycles
    last: Cycles


class PipedMemory:
    """A memory with a latency, and then the full bandwidth.

    Transfers begin in order, none before the bus is free; the times of a transfer never depend on a later one. `spans`
    has the channels of a DRAM that each transfer so far has used.
    """

    def __init__(self, hardware: Hardware, pipe: Pipe) -> None:
        self._hardware, self._pipe, self.spans = hardware, pipe, list[ChannelSpan]()

    @property
    def use(self) -> HbmUse | None:
        """The work of the DRAM so far; None where HBM is a pipe."""
        return None

    def fill(self, step: Transfer, start: int) -> tuple[Cycles, int, int]:
        """A fill that has the bus from cycle `start` on.

        Returns the cycles in which each of its words may cross the port, the cycle of the last word without its
        conversion, and the cycle in which the bus is free again.
        """
        busy, moving = self._busy(step), self._pipe.cycles(step.hbm_bytes)
        return self._pipe.arrivals(start, busy, step.words), start + self._pipe.latency + moving, start + busy

    def demands(self, step: Transfer, start: int) -> tuple[Cycles, int]:
        """Cycles in which the words of a spill are wanted that has the bus from `start` on, and the last without
        conversion."""
        last = start + (step.words - 1) * self._pipe.cycles(step.hbm_bytes) // step.words
        return self._pipe.demands(start, self._busy(step), step.words), last

    def spill(self, step: Transfer, start: int, taken: Cycles) -> tuple[int, int, int, int]:
        """A spill whose words crossed the port in the cycles `taken`; the last word must still cross the bus and be
        stored.

        Returns the cycles that the spill kept the bus busy, the cycle from which the port held it up, the cycle in
        which the bus is free again, and the cycle in which all of it is in the memory.
        """
        busy = self._busy(step)
        ended = max(start + busy, int(taken[-1]) + 1 - (-busy // step.words))
        return busy, start + busy, ended, ended + self._pipe.latency

    def _busy(self, step: Transfer) -> int:
        """Cycles of a transfer if only the pipe, or its conversion, holds it up."""
        return max(self._pipe.cycles(step.hbm_bytes), step.conversion_cycles(self._hardware))


class BankedHbm(PipedMemory):
    """A DRAM with channels, banks and rows, to which the addresses of every transfer go (docs/timing.md, section 5)."""

    def __init__(self, program: Program, hardware: Hardware, device: Device, keep: bool) -> None:
        # Imported here: the loops are compiled, and importing the compiler takes longer than many a layer.
        from tpusim.memory.dram.one_pass import OnePassDram

        # Words of spills are wanted at the peak bandwidth of all channels, whatever still waits to be stored.
        super().__init__(hardware, hardware.pipes[HBM.bus])
        self._keep, self._cycles, self._until = keep, 0, 0
        self._device, self._mapping, self._ahead = device, device.addresses(), device.requests.lookahead
        self._moves, self._dram = TransferRuns(program, hardware), OnePassDram(device)
        self._clocks = Clocks.of(hardware.clock_hz, device.clock_hz)
        # By the step's identity, as a Program's steps last longer than its run.
        self._known, self._kept = dict[int, Cycles](), 0

    def fill(self, step: Transfer, start: int) -> tuple[Cycles, int, int]:
        """A fill: a word has come with the last burst that holds a part of it; words are converted in turn."""
        conversion, bursts = step.conversion_cycles(self._hardware), self._bursts(step)
        first, come, free = self._served(bursts, step.words, write=False, start=start)
        arrivals = np.maximum(come, spread(first, conversion, step.words))
        return arrivals, int(come[-1]), max(start + max(1, conversion), free)

    def spill(self, step: Transfer, start: int, taken: Cycles) -> tuple[int, int, int, int]:
        """A spill: a burst is offered once its last word has been taken and converted."""
        bursts, last = self._bursts(step), int(taken[-1]) + 1
        ready = taken + 1 - (-step.conversion_cycles(self._hardware) // step.words)
        times = self._clocks.to_memory(ready)[last_shares(len(bursts), step.words)]
        _, done, free = self._served(bursts, 1, write=True, start=start, times=times)
        asked = start + self._busy(step)
        ended = max(asked, int(ready[-1]), free)
        stored = max(ended, int(done[-1]))
        return ended - start - max(0, last - asked), min(asked, ended), ended, stored

    def least_left(self, steps: Iterable[Transfer]) -> Cycles:
        """Least cycles from the end of each transfer, when the bus is free again, to that of the last one's data: of
        transfers that follow one another, int64[transfers].
        """
        from tpusim.memory.dram.least import least_left

        transfers = ((self._bursts(each), isinstance(each, Spill)) for each in steps)
        return self._clocks.to_machine(least_left(self._device, transfers))

    def _bursts(self, step: Transfer) -> Cycles:
        """Addresses of a transfer's bursts. Those of a step of a short Program are kept, as it is asked for again."""
        found = self._known.get(id(step))
        if found is None:
            found = self._moves.bursts(step)
            if self._kept + found.size <= _MOST_KEPT:
                self._known[id(step)], self._kept = found, self._kept + found.size
        return found

    @property
    def use(self) -> HbmUse:
        """The work of the DRAM so far."""
        return HbmUse.of(self._dram.counts(), self._dram.requested, self._cycles)

    def _served(
        self, bursts: Cycles, parts: int, write: bool, start: int, times: Cycles | None = None
    ) -> tuple[int, Cycles, int]:
        """Serve a transfer in the DRAM; `times` are in cycles of the memory.

        Returns the cycle in which the first burst is done; the cycle in which each of its equal `parts` is done, and
        all parts before it; and the first cycle after the last acceptance.
        """
        if not bursts.size:
            # The words of a transfer that is all padding are there at once.
            if self._keep:
                self.spans.append(ChannelSpan(bursts, bursts, bursts))
            return start, np.full(parts, start), 0
        served = self._dram.serve(bursts, write, self._clocks.to_memory(start), times)
        latest = served.latest(parts)
        # The first that is accepted is one of those that may go ahead at first.
        first, last = int(served.accepted[: self._ahead].min()), int(latest[-1])
        self._cycles += max(0, last - max(first, self._until))
        self._until = max(self._until, last)
        to_machine = self._clocks.to_machine
        if self._keep:
            from tpusim.memory.dram.rules import places

            channels, at = np.unique(places(self._mapping, bursts).channel, return_inverse=True)
            begun, over = np.full(len(channels), NEVER), np.zeros(len(channels), np.int64)
            np.minimum.at(begun, at, served.accepted)
            np.maximum.at(over, at, served.done)
            self.spans.append(ChannelSpan(channels, to_machine(begun), to_machine(over)))
        return to_machine(int(served.done[0])), to_machine(latest), to_machine(self._dram.last_accepted + 1)
