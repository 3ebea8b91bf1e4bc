"""The rules of docs/timing.md as processes of SimPy, with nothing for speed: to be read beside that page.

Each unit is a process that takes its steps in the order of the Program: an issue unit for each array with weights of its
own, the vector unit, the DMA, and one more for Keeps. Processes meet where a step waits for others. `done` has an event
for each step: it happens as soon as it is known when the step is done, and has that cycle, which may lie ahead, as its
value.

Issue units look ahead. Once they know all that a stream waits for, they know its time, and own its slots of the port in
the future, because nobody else may have them. The DMA has the lowest priority, so a cycle is its own only when it is
past. It is the one process that lets time pass. All times are lane 0's; the lanes' skew is added once, at the end.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import simpy

from tpusim.base.errors import DeadlockError
from tpusim.machines.tpu.definition import (
    BIAS_CYCLES,
    CLIENTS,
    DMA,
    FREE,
    IFMAP,
    POINTER,
    PSUM,
    RESULT,
    VECTOR,
    WEIGHT,
    Frame,
    last_weight,
    port_name,
)
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.calendar import ConflictCounter, Cycles, Owners
from tpusim.machines.tpu.event.dma import BankedHbm, PipedMemory
from tpusim.machines.tpu.observation.timeline import STARVED, Held, who_waits
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Vector
from tpusim.machines.tpu.program.transfers import HBM, BankFill, Keep, LaneTransfer, Prefetch, Spill, Transfer

Found = TypeVar("Found")
Waits: TypeAlias = Generator[simpy.Event, int, Found]
"""What a process does until it has found something."""


class Port:
    """A port of lane 0, and the owner of each of its cycles (docs/timing.md, section 2)."""

    def __init__(self) -> None:
        self._owners = bytearray()

    def own(self, client: int, cycles: range | Cycles | list[int]) -> None:
        """Own these cycles, which ascend."""
        if len(cycles):
            self._owners.extend(bytes(max(0, int(cycles[-1]) + 1 - len(self._owners))))
            np.frombuffer(self._owners, np.uint8)[np.array(cycles)] = client

    def free(self, cycle: int) -> int:
        """The first cycle from `cycle` on that nobody owns."""
        found = self._owners.find(FREE, cycle)
        return found if found >= 0 else max(cycle, len(self._owners))

    @property
    def owners(self) -> Owners:
        """Return the owner of each cycle, from the first on."""
        return np.frombuffer(bytes(self._owners), np.uint8)


class Run:
    """What the processes of a run share: its steps, its ports, and what has been found of both."""

    def __init__(self, program: Program, hardware: Hardware) -> None:
        self.program, self.hardware, self.frames = program, hardware, program.frames(hardware)
        self.env = simpy.Environment()
        self.done = [self.env.event() for _ in program.steps]
        self.ports = [Port() for _ in program.ports(hardware)]
        pairs = zip(self.ports, program.ports(hardware), strict=True)
        self.port = {client: port for port, clients in pairs for client in clients}
        self.held: dict[int, Held] = {}
        """What held each transfer, by the cycle from which it is done."""
        self.end = 0

    def finish(self, step: int, done: int) -> None:
        """A step is done from cycle `done` on."""
        self.end = max(self.end, done)
        self.done[step].succeed(done)

    def known(self, step: Step) -> Waits[tuple[int, int]]:
        """Wait until all times that a step needs are known: from when on its data are there, and all else is done."""
        data = others = 0
        for each in step.after:
            done = yield self.done[each]
            if self.program.steps[each].cause == STARVED:
                data = max(data, done)
            else:
                others = max(others, done)
        return data, others


class IssueUnit:
    """Issues the preloads and streams of an array, or of all arrays that share weights (sections 3 and 4).

    The array has `issued` its last step, and is through with it when `ended`; the first result is `written`, the last
    one `drained`. The weight path is `free` when the last preload is over. The last vector step is over when `worked`.
    """

    def __init__(self, run: Run, array: int) -> None:
        self.run, self.array, self.pace = run, array, 0
        self.issued = self.ended = self.free = self.drained = self.worked = 0
        self.written, self.cause = -1, STARVED
        self.filled: dict[int, int] = {}
        """From when on the data of each preload are there."""
        self.conflicts = [ConflictCounter(run.hardware, frame.period) for frame in run.frames]
        self.loads, self.passes, self.works, self.reads = list[Any](), list[Any](), list[Any](), list[int]()

    def process(self) -> Waits[None]:
        """Issue each step as soon as all times that it needs are known; vector steps take the array with them."""
        for index, step in enumerate(self.run.program.steps):
            if isinstance(step, Vector):
                yield self.run.done[index]
            elif self.run.program.arrays[index] == self.array:
                data, others = yield from self.run.known(step)
                if isinstance(step, Preload):
                    self.preload(index, step, data, others)
                elif isinstance(step, Stream):
                    self.stream(index, step, data, others)
        # With many arrays, a frame in progress may outlast the few words in it.
        self.run.end = max(self.run.end, self.ended)

    def preload(self, index: int, step: Preload, data: int, others: int) -> None:
        """Read the words of weights, one every W cycles, then that of the biases, each in the first free cycle."""
        hardware = self.run.hardware
        ready = max(self.issued if hardware.array.weight_buffers > 1 else self.ended, self.free)
        start = read = max(ready, data, others) + step.delay
        frame = self.run.frames[self.run.program.number_of_pace(index)]
        for word in range(hardware.preload_words):
            read = self.claim(frame, read + hardware.weight_word_cycles if word else start)
        last = last_weight(read, hardware)
        if step.bias is not None:
            last = self.claim(frame, last) + BIAS_CYCLES
        self.loads.append((index, self.free, ready, data, start, last))
        self.free, self.filled[index] = last, data
        self.run.finish(index, last)

    def claim(self, frame: Frame, cycle: int) -> int:
        """Own the first cycle from `cycle` on for weights that is free, and this array's turn."""
        port, turns = self.run.port[WEIGHT], (0,)
        if frame.pointer_slots or self.run.hardware.array.queues > 1:
            turns = frame.weight_waits(self.array)
        cycle = port.free(cycle)
        while left := turns[cycle % len(turns)]:
            cycle = port.free(cycle + left)
        port.own(WEIGHT, [cycle])
        self.reads.append(cycle)
        return cycle

    def stream(self, index: int, step: Stream, data: int, others: int) -> None:
        """Issue a pass. What it waits for counts in turn; cycles lost to the grid of frames count for the last cause."""
        pace = self.run.program.number_of_pace(index)
        frame, anew, self.pace = self.run.frames[pace], pace != self.pace, pace
        data, others = max(data, self.filled[step.preload]), max(others, self.worked)
        filled = max(self.ended, data)
        loaded = max(filled, self.run.done[step.preload].value)
        summed = self.written - frame.psum_delay if step.accumulate else 0
        cleared = max(loaded, others, summed)
        told = pointed = 0
        if step.reads.table:
            # Pointers are read in the last frame of the pass ahead, or later, when all else that the pass waits for is
            # there; at another frame than that of the pass ahead, so are its weights.
            told = self.slot(frame, max(data, others, loaded if anew else 0, self.ended + 1 - frame.period))
            pointed = told + frame.period - 1
        if filled > self.ended:
            self.cause = self.run.held[filled].by(filled - 1)
        if loaded > filled:
            self.cause = Preload.cause
        if cleared > loaded:
            self.cause = Stream.cause
        if pointed > cleared:
            self.cause = "port_stall"
        start = self.slot(frame, max(cleared, pointed) + 1)
        self.passes.append((index, self.ended, filled, loaded, cleared, start, self.cause))
        conflicts = self.conflicts[pace].of(step)
        frames, first = frame.frames(step.words), start
        if conflicts:
            frames, first = frames + conflicts.frames, start + int(conflicts.delivered[0])
            self.run.port[IFMAP].own(IFMAP, start + conflicts.reads)
            self.sums(step, frame, start + conflicts.delivered)
        else:
            self.pointers(step, frame, told, start)
            for array in range(min(frame.together, step.words)):
                words = start + array + frame.period * np.arange(frame.frames(step.words - array))
                self.run.port[IFMAP].own(IFMAP, words)
                self.sums(step, frame, words)
        self.issued, self.ended = start - 1, start - 1 + frames * frame.period
        self.written = first + frame.result_delay
        last = start + (frames - 1) * frame.period + (step.words - 1) % frame.together
        self.drained = last + frame.result_delay + 1
        self.run.finish(index, self.drained)

    def slot(self, frame: Frame, cycle: int) -> int:
        """The first slot, in `cycle` or later, for an ifmap word of the array."""
        return cycle + (self.array - cycle) % frame.period

    def sums(self, step: Stream, frame: Frame, words: Cycles) -> None:
        """Partial sums and results follow words of the ifmap after a fixed delay."""
        if step.accumulate:
            self.run.port[PSUM].own(PSUM, words + frame.psum_delay)
        self.run.port[RESULT].own(RESULT, words + frame.result_delay)

    def pointers(self, step: Stream, frame: Frame, told: int, start: int) -> None:
        """Words of pointers are read a frame ahead, those of the first frame in the frame that begins at `told`."""
        if step.reads.table:
            at, places = step.reads.table.reads(frame.together)
            ahead = np.where(at == 0, told, start + (at - 1) * frame.period)
            self.run.port[POINTER].own(POINTER, ahead + frame.pointer_slots.start + places)


def vector_unit(run: Run, arrays: Sequence[IssueUnit]) -> Waits[None]:
    """Do vector steps in order, each when all passes ahead of it are over, on every array (section 4)."""
    ahead: list[int] = []
    for index, step in enumerate(run.program.steps):
        if isinstance(step, Preload | Stream):
            ahead.append(index)
        if isinstance(step, Vector):
            data, others = yield from run.known(step)
            for each in ahead:
                yield run.done[each]
            vector_step(run, arrays, index, step, data, others)
            ahead.clear()


def vector_step(run: Run, arrays: Sequence[IssueUnit], index: int, step: Vector, data: int, others: int) -> None:
    """Read scalars, then the operands of each turn, and write its results after a fixed delay; arrays stand by."""
    loaded = max(array.free for array in arrays)
    issued = max(data, loaded, others, *(max(array.ended, array.drained) for array in arrays))
    scalars = range(issued + 1 + step.delay, issued + 1 + step.delay + step.scalars.words)
    run.port[VECTOR].own(VECTOR, scalars)
    beat, start = step.beat(run.program.fill_of(index), run.hardware), scalars.stop
    for turn in range(beat.turns(step.words)):
        at, words = start + turn * beat.period, min(beat.together, step.words - turn * beat.together)
        run.port[VECTOR].own(VECTOR, range(at, at + beat.reads(words)))
        run.port[VECTOR].own(VECTOR, range(at + beat.result_delay, at + beat.result_delay + beat.writes(words)))
    done = start + beat.last(step.words) + 1
    for array in arrays:
        filled = max(array.ended, data)
        its = array.array, array.ended, filled, max(filled, loaded), issued, start, done
        array.works.append((index, *its))
        array.issued, array.cause = issued, Vector.cause
        array.ended = array.drained = array.worked = done
    run.finish(index, done)


def keeps(run: Run) -> Waits[None]:
    """Finish Keeps in order, each with the last step that it waits for (section 6)."""
    done = 0
    for index, step in enumerate(run.program.steps):
        if isinstance(step, Keep):
            done = max(done, *(yield from run.known(step)))
            run.finish(index, done)


class Dma:
    """Carries out transfers in order, in cycles of the port that nobody else wants (section 5).

    The last transfer has `begun` on its bus; the last two to lanes or banks are over when `staged` and `last`. Each bus
    is `free` after its last transfer. What spills have written can be read once `stored`. No transfer so far waits for
    steps that bring no data after `freed`.
    """

    def __init__(self, run: Run) -> None:
        hardware, launch = run.hardware, run.hardware.sequencer.launch_cycles
        self.run, self.moves = run, list[Any]()
        self.memories = {bus: PipedMemory(hardware, pipe) for bus, pipe in hardware.pipes.items()}
        if device := hardware.hbm.dram:
            self.memories[HBM.bus] = BankedHbm(run.program, hardware, device, keep=False)
        self.begun, self.free = launch, dict.fromkeys(self.memories, launch)
        self.staged = self.last = self.freed = 0
        self.stored: dict[int, int] = {}

    def process(self) -> Waits[None]:
        """Begin each transfer when the steps are done for which it waits, and its bus is free."""
        for index, step in enumerate(self.run.program.steps):
            if isinstance(step, Transfer):
                data, others = yield from self.run.known(step)
                # What a fill reads must all be in the memory, that of the last lane, too.
                stored = max((self.stored.get(each, 0) for each in self.run.program.sources(step)), default=0)
                ready = max(self.free[step.bus], self.begun, data, others, stored)
                self.freed = max(self.freed, others)
                # Two at most have data on their way; a prefetch has none of lanes or banks.
                self.begun = ready if isinstance(step, Prefetch) else max(ready, self.staged)
                yield from self.move(index, step, ready)

    def move(self, index: int, step: Transfer, ready: int) -> Waits[None]:
        """Move a transfer that has the bus: the memory says when each word may cross the port."""
        memory, start, free = self.memories[step.bus], self.begun, self.free[step.bus]
        if isinstance(step, Spill):
            wanted, come = memory.demands(step, start)
            slots = yield from self.slots(step, wanted)
            words = [at for at, access in zip(slots, step.accesses, strict=True) if access.register < 0] if step.work else slots
            busy, stalled, ended, stored = memory.spill(step, start, np.array(words))
            self.stored[index] = stored + self.run.hardware.skew
            self.run.end = max(self.run.end, stored)
        else:
            wanted, come, ended = memory.fill(step, start)
            busy, stalled = ended - start, ended
            slots = wanted.tolist() if isinstance(step, Prefetch) else (yield from self.slots(step, wanted))
        # A prefetch has come with its last byte, which crosses no port.
        done = slots[-1] if isinstance(step, Prefetch) else slots[-1] + 1
        held = Held(self.freed, come + 1, int(wanted[-1]) + 1)
        self.moves.append((index, step.bus, free, ready, start, busy, stalled, ended, *held, done))
        self.free[step.bus] = ended
        if not isinstance(step, Prefetch):
            self.staged, self.last, self.run.held[done] = self.last, done, held
        self.run.finish(index, done)

    def slots(self, step: Transfer, wanted: Cycles) -> Waits[list[int]]:
        """Take the first free cycle of the port for each word, and for each access beside it, in order."""
        if isinstance(step, BankFill):
            # Banks take words through ports of their own, a word a cycle.
            return self.first_free(Port(), wanted)
        port, env = self.run.port[DMA], self.run.env
        if isinstance(step, LaneTransfer) and step.work:
            wanted = wanted[[access.word for access in step.accesses]]
        slots = self.first_free(port, wanted)
        # Until they are past, others may take these cycles.
        while slots[-1] >= env.now:
            yield env.timeout(slots[-1] + 1 - env.now)
            slots = self.first_free(port, wanted)
        port.own(DMA, slots)
        return slots

    def first_free(self, port: Port, wanted: Cycles) -> list[int]:
        """The first free cycles for words wanted at these cycles, in order, behind those of the transfer ahead."""
        slots, at = list[int](), self.last
        for cycle in wanted.tolist():
            at = port.free(max(cycle, at))
            slots.append(at)
            at += 1
        return slots


def simulated(program: Program, hardware: Hardware) -> tuple[Run, list[IssueUnit], Dma]:
    run = Run(program, hardware)
    arrays, dma = [IssueUnit(run, array) for array in range(hardware.array.queues)], Dma(run)
    for process in (*(array.process() for array in arrays), vector_unit(run, arrays), dma.process(), keeps(run)):
        run.env.process(process)
    run.env.run()
    if stuck := [step for step, done in enumerate(run.done) if not done.triggered]:
        raise DeadlockError(who_waits(program, stuck))
    return run, arrays, dma
