"""Transfers in the event engine: in order, each in slots of the port that nobody else owns.

The memory behind the lanes decides when words of fills come and when spills are stored. It is a pipe, or a DRAM with
banks, which works out each transfer at once, burst by burst.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import simpy

from tpusim.machines.tpu.definition import DMA
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.board import Board, DmaTransfer, Process
from tpusim.machines.tpu.event.calendar import Cycles, Ports
from tpusim.machines.tpu.event.memories import BankedHbm, PipedMemory
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import HBM, BankFill, LaneTransfer, Prefetch, Spill, Transfer


class Dma:
    """The DMA: it owns the buses to all memories, and takes the slots of the port that are left."""

    def __init__(self, program: Program, hardware: Hardware, board: Board, port: Ports, keep: bool) -> None:
        self._stored: dict[int, int] = {}
        self._program, self._hardware, self._board, self._port = program, hardware, board, port
        self._memories = {bus: PipedMemory(hardware, pipe) for bus, pipe in hardware.pipes.items()}
        if device := hardware.hbm.dram:
            self._memories[HBM.bus] = BankedHbm(program, hardware, device, keep)
        self.hbm = self._memories[HBM.bus]
        self.moves: dict[str, list[DmaTransfer]] = {bus: [] for bus in self._memories}
        """Transfers by the bus that they take."""
        self.queue: list[DmaTransfer] = []
        """Transfers to and from lanes or banks, on any bus."""

    def process(self) -> Process:
        """Carry out transfers in order; at most two have data on their way from or to the lanes."""
        begun = self._hardware.sequencer.launch_cycles
        free = dict.fromkeys(self._memories, begun)
        last = staged = freed = 0
        to_come = self._to_come() if self._board.limited else {}
        for index, step in enumerate(self._program.steps):
            if not isinstance(step, Transfer):
                continue
            yield from self._board.wait(step.after)
            bus = step.bus
            # A fill must not read what a spill has not yet stored.
            there = max((self._stored.get(each, 0) for each in self._program.sources(step)), default=0)
            data, others = self._board.known(step.after)
            ready, freed = max(free[bus], begun, data, others, there), max(freed, others)
            begun = ready if isinstance(step, Prefetch) else max(ready, staged)
            memory = self._memories[bus]
            if isinstance(step, Spill):
                wanted, come = memory.demands(step, begun)
                words, slots = yield from self._words(step, wanted, last)
                busy, stalled, ended, stored = memory.spill(step, begun, words)
                self._board.end = max(self._board.end, stored)
                self._stored[index] = stored + self._hardware.skew
                # The last word is on its way to be stored.
                done = int(slots[-1]) + 1
            else:
                wanted, come, ended = memory.fill(step, begun)
                busy, stalled = ended - begun, ended
                if isinstance(step, Prefetch):
                    done = int(wanted[-1])
                elif isinstance(step, BankFill):
                    # Banks take words through a port of their own: each word as soon as it is wanted and the one before
                    # it is in.
                    behind = np.maximum(wanted, last) - np.arange(len(wanted))
                    done = int(behind.max()) + len(wanted)
                else:
                    _, slots = yield from self._words(step, wanted, last)
                    done = int(slots[-1]) + 1
            until = freed, come + 1, int(wanted[-1]) + 1, done
            move = DmaTransfer(index, free[bus], ready, begun, busy, stalled, ended, *until)
            self.moves[bus].append(move)
            if not isinstance(step, Prefetch):
                # The transfer after the next may begin once this one is done: two at most are staged.
                staged, last = last, done
                self.queue.append(move)
                self._board.moved[done] = move
            self._board.finish(index, done)
            free[bus] = ended
            if index in to_come:
                self._board.expect(ended + to_come[index])

    def _to_come(self) -> dict[int, int]:
        """Least cycles of the bus from the end of each transfer to the end of the last spill on that bus."""
        found, behind = dict[int, int](), dict[str, int]()
        for index, step in reversed([*enumerate(self._program.steps)]):
            if isinstance(step, Spill):
                behind.setdefault(step.bus, 0)
            if isinstance(step, Transfer) and step.bus in behind:
                found[index] = behind[step.bus]
                behind[step.bus] += self._memories[step.bus].least(step)
        return found

    def _words(
        self, step: Transfer, wanted: Cycles, earliest: int
    ) -> Generator[simpy.Event, object, tuple[Cycles, Cycles]]:
        """Take a slot for every word, and for every access beside it: the slots of the words, and all slots.

        A prediction holds unless a stream or preload reserves before it comes true.
        """
        env, accesses = self._board.env, step.accesses if isinstance(step, LaneTransfer) else ()
        if accesses:
            wanted = wanted[[each.word for each in accesses]]
        while True:
            slots = self._port[DMA].slots_for(wanted, earliest)
            final = int(slots[-1])
            # Sleep until the last predicted slot is past: then nobody can reserve before it any more.
            if final >= env.now:
                yield env.timeout(final + 1 - env.now)
            if self._port[DMA].changed_from > final:
                break
        self._port.take(DMA, slots)
        return (slots[[each.register < 0 for each in accesses]] if accesses else slots), slots
