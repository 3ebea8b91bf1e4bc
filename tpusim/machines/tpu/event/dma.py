"""The DMA of the event engine: transfers in order, each in the port's slots that nobody else owns."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import simpy

from tpusim.machines.tpu.definition.frame import DMA
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.board import Board, Process
from tpusim.machines.tpu.event.calendar import Cycles, Ports
from tpusim.machines.tpu.event.log import Move
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import BankFill, Spill, Transfer
from tpusim.memory.pipe import Pipe


class Dma:
    """Owns the HBM bus, and the slots of the port that are left."""

    def __init__(self, program: Program, hardware: Hardware, board: Board, port: Ports) -> None:
        self.moves: list[Move] = []
        self._stored: dict[int, int] = {}
        self._program, self._hardware, self._board, self._port = program, hardware, board, port
        self._hbm = Pipe(hardware.latency_cycles, hardware.hbm_bytes_per_cycle)

    def process(self) -> Process:
        """Two transfers at most hold data between HBM and the lanes."""
        bus_free = self._hardware.sequencer.launch_cycles
        last = staged = 0
        for index, step in enumerate(self._program.steps):
            if not isinstance(step, Transfer):
                continue
            yield from self._board.wait(step.after)
            ready = max(bus_free, self._board.latest(step.after), self._in_hbm(step))
            start = max(ready, staged)
            staged = last
            busy = max(self._hbm.cycles(step.hbm_bytes), step.conversion_cycles(self._hardware))
            taken = yield from self._words(step, start, busy, last)
            last = taken + 1
            ended = self._bus_ended(index, step, start, busy, last)
            self.moves.append(Move(index, bus_free, ready, start, busy, ended, last))
            self._board.finish(index, last)
            bus_free = ended

    def _words(self, step: Transfer, start: int, busy: int, earliest: int) -> Generator[simpy.Event, object, int]:
        """Take a slot for every word; predictions hold unless somebody reserves before they come true."""
        times = self._hbm.demands if isinstance(step, Spill) else self._hbm.arrivals
        wanted, env = times(start, busy, step.words), self._board.env
        if isinstance(step, BankFill):
            return _unhindered(wanted, earliest)
        while True:
            slots = self._port[DMA].slots_for(wanted, earliest)
            final = int(slots[-1])
            if final >= env.now:
                yield env.timeout(final + 1 - env.now)
            if self._port[DMA].changed_from > final:
                break
        self._port.take(DMA, slots)
        return final

    def _in_hbm(self, step: Transfer) -> int:
        """When all that a fill waits for of its own tensor is in HBM."""
        return max((self._stored[each] for each in self._program.sources(step)), default=0)

    def _bus_ended(self, index: int, step: Transfer, start: int, busy: int, last: int) -> int:
        """When the HBM bus is free again; a spill's last word still has to cross it and be stored."""
        if not isinstance(step, Spill):
            return start + busy
        ended = max(start + busy, last - (-busy // step.words))
        self._board.end = max(self._board.end, ended + self._hbm.latency)
        self._stored[index] = ended + self._hbm.latency + self._hardware.lanes - 1
        return ended


def _unhindered(wanted: Cycles, earliest: int) -> int:
    """The last cycle of words through a port of their own, each when it is wanted or in the cycle after the one before,
    none before `earliest`.
    """
    order = np.arange(len(wanted))
    return int((np.maximum(wanted, earliest) - order).max()) + len(wanted) - 1
