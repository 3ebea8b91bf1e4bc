"""Transfers in the event engine, in order, each in the port's slots that nobody else owns.

The memory behind the lanes says when words of fills come, and when spills are stored: HBM as a pipe and the scratch
memory here, HBM with banks in `banked_hbm`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import simpy

from tpusim.machines.tpu.definition import DMA
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.board import Board, Move, Process
from tpusim.machines.tpu.event.calendar import Cycles, Ports
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import HBM, SCRATCH, BankFill, Prefetch, Spill, Transfer
from tpusim.memory.pipe import Pipe

if TYPE_CHECKING:
    from tpusim.machines.tpu.event.banked_hbm import BankedHbm

Moved = Generator[simpy.Event, object, tuple[int, int, int, int]]


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


class PipedMemory:
    """A latency, then bytes at the full bandwidth.

    Transfers begin in order, none before the bus is free; what is said of one never depends on a later one. `use` is
    what has happened in the DRAM, and `spans` tells of each transfer so far: None and none where there is no DRAM.
    """

    use = None
    spans = ()

    def __init__(self, hardware: Hardware, pipe: Pipe) -> None:
        self._hardware, self._pipe = hardware, pipe

    def fill(self, step: Transfer, start: int) -> Filled:
        """A fill that has the bus from cycle `start` on."""
        busy = self._busy(step)
        return Filled(self._pipe.arrivals(start, busy, step.words), start + busy)

    def demands(self, step: Transfer, start: int) -> Cycles:
        """When the words of a spill that has the bus from `start` on are wanted."""
        return self._pipe.demands(start, self._busy(step), step.words)

    def spill(self, step: Transfer, start: int, taken: Cycles) -> Spilled:
        """The spill once it is known in which cycles its words crossed the port; the last one still has to cross the
        bus and be stored.
        """
        busy = self._busy(step)
        ended = max(start + busy, int(taken[-1]) + 1 - (-busy // step.words))
        return Spilled(busy, start + busy, ended, ended + self._pipe.latency)

    def _busy(self, step: Transfer) -> int:
        return max(self._pipe.cycles(step.hbm_bytes), step.conversion_cycles(self._hardware))


class Dma:
    """Owns the buses of HBM and of the scratch memory, and the slots of the port that are left."""

    def __init__(self, program: Program, hardware: Hardware, board: Board, port: Ports, keep: bool) -> None:
        self._stored: dict[int, int] = {}
        self._program, self._hardware, self._board, self._port = program, hardware, board, port
        self.hbm: PipedMemory | BankedHbm
        if device := hardware.hbm.dram:
            # Its loops are compiled, and importing the compiler takes longer than many a layer.
            from tpusim.machines.tpu.event import banked_hbm

            self.hbm = banked_hbm.BankedHbm(program, hardware, device, keep)
        else:
            self.hbm = PipedMemory(hardware, Pipe(hardware.latency_cycles, hardware.hbm_bytes_per_cycle))
        self._memories = {HBM: self.hbm}
        if pipe := hardware.scratch_pipe:
            self._memories[SCRATCH] = PipedMemory(hardware, pipe)
        self.moves: dict[str, list[Move]] = {HBM: [], SCRATCH: []}
        """By the bus that they take."""

    def process(self) -> Process:
        """Transfers begin in order; two at most hold data on their way from or to the lanes."""
        begun = self._hardware.sequencer.launch_cycles
        free = dict.fromkeys(self._memories, begun)
        last = staged = 0
        for index, step in enumerate(self._program.steps):
            if not isinstance(step, Transfer):
                continue
            yield from self._board.wait(step.after)
            bus = step.bus
            # What spills write of what is read has to be in HBM, or in the scratch memory.
            there = max((self._stored.get(each, 0) for each in self._program.sources(step)), default=0)
            ready = max(free[bus], begun, self._board.latest(step.after), there)
            if isinstance(step, Prefetch):
                begun, (arrivals, ended) = ready, self.hbm.fill(step, ready)
                done = int(arrivals[-1])
                self.moves[bus].append(Move(index, free[bus], ready, ready, ended - ready, ended, ended, done))
            else:
                begun, staged = max(ready, staged), last
                move = self._spill if isinstance(step, Spill) else self._fill
                busy, stalled, ended, last = yield from move(index, step, begun, last)
                self.moves[bus].append(Move(index, free[bus], ready, begun, busy, stalled, ended, last))
                done = last
            self._board.finish(index, done)
            free[bus] = ended

    def _fill(self, index: int, step: Transfer, start: int, earliest: int) -> Moved:
        """Cycles that the bus is busy; when the port begins to hold it up; when it is free; when the last word is in
        place.
        """
        wanted, ended = self._memories[step.bus].fill(step, start)
        if isinstance(step, BankFill):
            # Through a port of their own: each when it is wanted or in the cycle after the one before.
            behind = np.maximum(wanted, earliest) - np.arange(len(wanted))
            return ended - start, ended, ended, int(behind.max()) + len(wanted)
        slots = yield from self._words(wanted, earliest)
        return ended - start, ended, ended, int(slots[-1]) + 1

    def _spill(self, index: int, step: Transfer, start: int, earliest: int) -> Moved:
        """What `_fill` tells, of a spill, whose words still have to be stored."""
        memory = self._memories[step.bus]
        slots = yield from self._words(memory.demands(step, start), earliest)
        busy, stalled, ended, stored = memory.spill(step, start, slots)
        self._board.end = max(self._board.end, stored)
        self._stored[index] = stored + self._hardware.lanes - 1
        return busy, stalled, ended, int(slots[-1]) + 1

    def _words(self, wanted: Cycles, earliest: int) -> Generator[simpy.Event, object, Cycles]:
        """Take a slot for every word; predictions hold unless somebody reserves before they come true."""
        env = self._board.env
        while True:
            slots = self._port[DMA].slots_for(wanted, earliest)
            final = int(slots[-1])
            if final >= env.now:
                yield env.timeout(final + 1 - env.now)
            if self._port[DMA].changed_from > final:
                break
        self._port.take(DMA, slots)
        return slots
