"""The rules of docs/timing.md as processes of SimPy, with nothing for speed: to be read beside that page.

Each unit is a process that takes its steps in the order of the Program: an issue unit for each array with weights of
its own, the vector unit, the DMA, and one more for Keeps. Processes meet where a step waits for others, on the board:
it has an event for each step, which happens as soon as it is known when the step is done. Its value is that cycle,
which may lie ahead.

Issue units look ahead. Once they know all that a stream waits for, they know its time, and own its slots of the port in
the future, because nobody else may have them. The DMA has the lowest priority, so a cycle is its own only when it is
past. It is the one process that lets time pass. All times are lane 0's; the lanes' skew is added once, at the end.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

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
from tpusim.machines.tpu.event.columns import columns_of, record_of
from tpusim.machines.tpu.event.conflicts import ConflictCounter, Cycles
from tpusim.machines.tpu.event.log import (
    BLOCKED,
    CAUSES,
    PORT_STALL,
    STARVING,
    UNKNOWN,
    VECTOR_WORK,
    WAITING_WEIGHTS,
    Log,
    MoveTimes,
    Owners,
    PassTimes,
    PreloadTimes,
    WorkTimes,
)
from tpusim.machines.tpu.event.memories import BankedHbm, PipedMemory
from tpusim.machines.tpu.observation.timeline import STARVED, held_by, who_waits
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Vector
from tpusim.machines.tpu.program.tensors import HBM
from tpusim.machines.tpu.program.transfers import BankFill, Keep, LaneTransfer, Prefetch, Spill, Transfer

Found = TypeVar("Found")
Waits: TypeAlias = Generator[simpy.Event, int, Found]
"""What a process does until it has found something."""


class Inputs(NamedTuple):
    """What a step has waited for: its `data` are there from that cycle on, brought last by that step (-1 for none), and
    all `others` are done.
    """

    data: int
    by: int
    others: int


class Port:
    """A port of lane 0, and the owner of each of its cycles (section 2)."""

    def __init__(self) -> None:
        self._owners = bytearray()

    def own(self, client: int, cycles: Cycles | range | Sequence[int]) -> None:
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


class Board:
    """What processes share: when steps are done, who owns the ports, and the rows of the log."""

    def __init__(self, program: Program, hardware: Hardware) -> None:
        self.program, self.hardware, self.frames = program, hardware, program.frames(hardware)
        self.env = simpy.Environment()
        self.done = [self.env.event() for _ in program.rows]
        self.ports = {port_name(clients): Port() for clients in program.ports(hardware)}
        self.port = {each: self.ports[port_name(clients)] for clients in program.ports(hardware) for each in clients}
        self.held: dict[int, int] = {}
        """By each transfer to lanes or banks, the cause that held it to the end."""
        self.end = 0
        self.loads, self.passes = list[tuple[int, ...]](), list[tuple[int, ...]]()
        self.works, self.moves = list[tuple[int, ...]](), list[tuple[int, ...]]()
        self.reads: dict[int, list[int]] = {}

    def finish(self, step: int, done: int) -> None:
        """A step is done from cycle `done` on."""
        self.end = max(self.end, done)
        self.done[step].succeed(done)

    def waited(self, step: Step) -> Waits[Inputs]:
        """Wait until the times of all steps are known that a step waits for."""
        found = Inputs(0, -1, 0)
        for each in step.after:
            done = yield self.done[each]
            if self.program.rows.recipe(each).cause != STARVED:
                found = found._replace(others=max(found.others, done))
            elif done > found.data:
                found = found._replace(data=done, by=each)
        return found


class IssueUnit:
    """Issues the preloads and streams of an array, or of all arrays that share weights (sections 3 and 4).

    The array has `issued` its last step, and is through with it when `ended`; the first result is `written`, the last
    one `drained`. The weight path is `free` when the last preload is over. The last vector step is over when `worked`.
    """

    def __init__(self, board: Board, array: int) -> None:
        self.board, self.array, self.pace, self.cause = board, array, 0, STARVING
        self.issued = self.ended = self.free = self.drained = self.worked = 0
        self.written = -1
        self.weights: dict[int, tuple[Inputs, int]] = {}
        """What each preload has waited for, and when its weights are in the array."""
        self.conflicts = [ConflictCounter(board.hardware, frame.period) for frame in board.frames]
        # For each cycle of a frame, the cycles from there on that weights must leave to others.
        dealt = [frame.pointer_slots or board.hardware.array.queues > 1 for frame in board.frames]
        waits = (frame.weight_waits(array) for frame in board.frames)
        self.turns = [turns if own else (0,) for turns, own in zip(waits, dealt, strict=True)]

    def process(self) -> Waits[None]:
        """Issue each step as soon as it is known when all are done that it waits for; stand by in vector steps."""
        for index, step in enumerate(self.board.program.rows):
            if isinstance(step, Vector):
                yield self.board.done[index]
            elif self.board.program.arrays[index] == self.array:
                waited = yield from self.board.waited(step)
                if isinstance(step, Preload):
                    self.preload(index, step, waited)
                elif isinstance(step, Stream):
                    self.stream(index, step, waited)
        # With many arrays, a frame in progress may outlast the few words in it.
        self.board.end = max(self.board.end, self.ended)

    def preload(self, index: int, step: Preload, waited: Inputs) -> None:
        """Read the words of weights, one every W cycles, then that of the biases, each in the first free cycle."""
        hardware, turns = self.board.hardware, self.turns[self.board.program.numbers_of_paces[index]]
        ready = max(self.issued if hardware.array.weight_buffers > 1 else self.ended, self.free)
        start = max(ready, waited.data, waited.others) + step.delay
        reads = [self.claim(turns, start)]
        for _ in range(hardware.preload_words - 1):
            reads.append(self.claim(turns, reads[-1] + hardware.weight_word_cycles))
        last, bias = last_weight(reads[-1], hardware), UNKNOWN
        if step.bias is not None:
            bias = self.claim(turns, last)
            last = bias + BIAS_CYCLES
        self.board.loads.append((index, self.free, ready, waited.data, start, last, waited.by))
        self.board.reads[index] = [*reads, bias]
        self.free, self.weights[index] = last, (waited, last)
        self.board.finish(index, last)

    def claim(self, turns: Sequence[int], cycle: int) -> int:
        """Own, for weights, the first cycle from `cycle` on that is free, and this array's turn."""
        port = self.board.port[WEIGHT]
        cycle = port.free(cycle)
        while left := turns[cycle % len(turns)]:
            cycle = port.free(cycle + left)
        port.own(WEIGHT, [cycle])
        return cycle

    def stream(self, index: int, step: Stream, waited: Inputs) -> None:
        """Issue a pass, in the first frame that begins behind all that it waits for; waits count in this order."""
        number = self.board.program.numbers_of_paces[index]
        frame, anew, self.pace = self.board.frames[number], number != self.pace, number
        (data, by, _), last = self.weights[step.preload]
        data, by = max((waited.data, waited.by), (data, by))
        # Behind the pass ahead and all fills, its preload, then spills, vector steps, and the sums to which it adds.
        filled = max(self.ended, data)
        loaded = max(filled, last)
        others = max(waited.others, self.worked)
        cleared = max(loaded, others, self.written - frame.psum_delay if step.accumulate else 0)
        told = pointed = 0
        if step.reads.table:
            # Pointers are read in the last frame of the pass ahead, or later, when all else that the pass waits for is
            # there; where the pass ahead had another frame, so are the weights.
            told = self.slot(frame, max(data, others, loaded if anew else 0, self.ended + 1 - frame.period))
            pointed = told + frame.period - 1
        # Cycles that are lost to the grid of frames count for the last cause.
        if filled > self.ended:
            self.cause = self.board.held[by]
        if loaded > filled:
            self.cause = WAITING_WEIGHTS
        if cleared > loaded:
            self.cause = BLOCKED
        if pointed > cleared:
            self.cause = PORT_STALL
        start = self.slot(frame, max(cleared, pointed) + 1)
        self.board.passes.append((index, self.ended, filled, loaded, cleared, start, self.cause))
        frames, delivered = self.words(step, self.conflicts[number], frame, start)
        self.pointers(step, frame, told, start)
        self.issued, self.ended = start - 1, start - 1 + frames * frame.period
        self.written = delivered + frame.result_delay
        last = start + (frames - 1) * frame.period + (step.words - 1) % frame.together
        self.drained = last + frame.result_delay + 1
        self.board.finish(index, self.drained)

    def slot(self, frame: Frame, cycle: int) -> int:
        """The first slot, in `cycle` or later, for an ifmap word of the array."""
        return cycle + (self.array - cycle) % frame.period

    def words(self, step: Stream, counter: ConflictCounter, frame: Frame, start: int) -> tuple[int, int]:
        """Own the slots of a pass's words; return the frames that it takes, and when its first word is delivered."""
        frames, first = frame.frames(step.words), start
        if conflicts := counter.of(step):
            # Banks are owned while they are read, and words delivered in the first slot from then on.
            self.board.port[IFMAP].own(IFMAP, start + conflicts.reads)
            self.sums(step, frame, start + conflicts.delivered)
            return frames + conflicts.frames, first + int(conflicts.delivered[0])
        for array in range(min(frame.together, step.words)):
            words = start + array + frame.period * np.arange(frame.frames(step.words - array))
            self.board.port[IFMAP].own(IFMAP, words)
            self.sums(step, frame, words)
        return frames, first

    def sums(self, step: Stream, frame: Frame, words: Cycles) -> None:
        """Partial sums and results follow words of the ifmap after a fixed delay."""
        if step.accumulate:
            self.board.port[PSUM].own(PSUM, words + frame.psum_delay)
        self.board.port[RESULT].own(RESULT, words + frame.result_delay)

    def pointers(self, step: Stream, frame: Frame, told: int, start: int) -> None:
        """Words of pointers are read a frame ahead, those of the first frame in the frame that begins at `told`."""
        if step.reads.table:
            at, places = step.reads.table.reads(frame.together)
            ahead = np.where(at == 0, told, start + (at - 1) * frame.period)
            self.board.port[POINTER].own(POINTER, ahead + frame.pointer_slots.start + places)


def vector_unit(board: Board, arrays: Sequence[IssueUnit]) -> Waits[None]:
    """Do vector steps in order, each when all passes ahead of it are over, on every array (section 4)."""
    ahead: list[int] = []
    for index, step in enumerate(board.program.rows):
        if isinstance(step, Preload | Stream):
            ahead.append(index)
        if isinstance(step, Vector):
            waited = yield from board.waited(step)
            for each in ahead:
                yield board.done[each]
            vector_step(board, arrays, index, step, waited)
            ahead.clear()


def vector_step(board: Board, arrays: Sequence[IssueUnit], index: int, step: Vector, waited: Inputs) -> None:
    """Read scalars, then the operands of each turn, and write its results after a fixed delay; arrays stand by."""
    loaded = max(array.free for array in arrays)
    issued = max(waited.data, loaded, waited.others, *(max(array.ended, array.drained) for array in arrays))
    beat = step.beat(board.program.fill_of(index), board.hardware)
    first = issued + 1 + step.delay + beat.body
    scalars = range(first, first + step.scalars.words)
    board.port[VECTOR].own(VECTOR, scalars)
    start = scalars.stop
    for turn in range(beat.turns(step.words)):
        at, words = start + turn * beat.period, min(beat.together, step.words - turn * beat.together)
        board.port[VECTOR].own(VECTOR, range(at, at + beat.reads(words)))
        board.port[VECTOR].own(VECTOR, range(at + beat.result_delay, at + beat.result_delay + beat.writes(words)))
    done = start + beat.last(step.words) + 1
    for array in arrays:
        filled = max(array.ended, waited.data)
        board.works.append((index, array.array, array.ended, filled, max(filled, loaded), issued, start, done))
        array.issued, array.cause = issued, VECTOR_WORK
        array.ended = array.drained = array.worked = done
    board.finish(index, done)


def keeps(board: Board) -> Waits[None]:
    """Finish Keeps in order, each with the last step that it waits for (section 6)."""
    done = 0
    for index, step in board.program.rows.steps(Keep):
        waited = yield from board.waited(step)
        done = max(done, waited.data, waited.others)
        board.finish(index, done)


class Dma:
    """Carries out transfers in order, in cycles of the port that nobody else wants (section 5).

    The last transfer has `begun` on its bus; the last two to lanes or banks are done at `staged` and `last`. Each bus
    is `free` after its last transfer. What a spill has written can be read once it is `stored`. No transfer so far has
    waited, beyond `freed`, for steps that bring no data.
    """

    def __init__(self, board: Board) -> None:
        hardware, launch = board.hardware, board.hardware.sequencer.launch_cycles
        self.board = board
        self.memories = {bus: PipedMemory(hardware, pipe) for bus, pipe in hardware.pipes.items()}
        if device := hardware.hbm.dram:
            self.memories[HBM.bus] = BankedHbm(board.program, hardware, device, keep=False)
        self.begun, self.free = launch, dict.fromkeys(self.memories, launch)
        self.staged = self.last = self.freed = 0
        self.stored: dict[int, int] = {}

    def process(self) -> Waits[None]:
        """Begin each transfer when the steps are done that it waits for, and its bus is free."""
        for index, step in self.board.program.rows.steps(Transfer):
            waited = yield from self.board.waited(step)
            # What a fill reads must all be in the memory, that of the last lane, too.
            stored = max((self.stored.get(each, 0) for each in self.board.program.sources(step)), default=0)
            ready = max(self.free[step.bus], self.begun, waited.data, waited.others, stored)
            self.freed = max(self.freed, waited.others)
            # Two at most have data on their way; a prefetch has none on its way to lanes or banks.
            self.begun = ready if isinstance(step, Prefetch) else max(ready, self.staged)
            yield from self.move(index, step, ready)

    def move(self, index: int, step: Transfer, ready: int) -> Waits[None]:
        """Move a transfer that has its bus. The memory behind it says when each word may cross the port."""
        memory, start, free = self.memories[step.bus], self.begun, self.free[step.bus]
        if isinstance(step, Spill):
            wanted, come = memory.demands(step, start)
            words, done = yield from self.words(step, wanted)
            busy, stalled, ended, stored = memory.spill(step, start, words)
            self.board.end, self.stored[index] = max(self.board.end, stored), stored + self.board.hardware.skew
        else:
            wanted, come, ended = memory.fill(step, start)
            busy, stalled = ended - start, ended
            if isinstance(step, Prefetch):
                words, done = wanted[:0], int(wanted[-1])
            elif isinstance(step, BankFill):
                # Banks take words through ports of their own, a word a cycle.
                words, done = wanted[:0], self.first_free(Port(), wanted)[-1] + 1
            else:
                words, done = yield from self.words(step, wanted)
        self.free[step.bus] = ended
        held = self.freed, come + 1, int(wanted[-1]) + 1
        if not isinstance(step, Prefetch):
            self.staged, self.last = self.last, done
            self.board.held[index] = CAUSES.index(held_by(*held, done - 1))
        bus, taken = [*self.memories].index(step.bus), int(words[-1]) if len(words) else 0
        beside = bus, self.stored.get(index, 0), taken, self.board.held.get(index, 0)
        self.board.moves.append((index, free, ready, start, busy, stalled, ended, *held, done, *beside))
        self.board.finish(index, done)

    def words(self, step: Transfer, wanted: Cycles) -> Waits[tuple[Cycles, int]]:
        """Take the first free cycles of the port for words, and for each access of the work on them, in order.

        Return the cycles of the words, and the one after the last access.
        """
        accesses = step.accesses if isinstance(step, LaneTransfer) and step.work else ()
        each = wanted[[access.word for access in accesses]] if accesses else wanted
        port, env = self.board.port[DMA], self.board.env
        slots = self.first_free(port, each)
        # Others may own these cycles until they are past.
        while slots[-1] >= env.now:
            yield env.timeout(slots[-1] + 1 - env.now)
            slots = self.first_free(port, each)
        port.own(DMA, slots)
        words = np.array(slots)[[access.register < 0 for access in accesses]] if accesses else np.array(slots)
        return words, slots[-1] + 1

    def first_free(self, port: Port, wanted: Cycles) -> list[int]:
        """The first free cycles for words wanted at these cycles, in order, behind those of the transfer ahead."""
        slots, cycle = list[int](), self.last
        for each in wanted.tolist():
            slots.append(port.free(max(each, cycle)))
            cycle = slots[-1] + 1
        return slots


def timed(program: Program, hardware: Hardware) -> Log:
    """The log of a Program, with the owner of every cycle. Raises DeadlockError."""
    board = Board(program, hardware)
    arrays, dma = [IssueUnit(board, array) for array in range(hardware.array.queues)], Dma(board)
    for process in (*(array.process() for array in arrays), vector_unit(board, arrays), dma.process(), keeps(board)):
        board.env.process(process)
    board.env.run()
    if stuck := [step for step, done in enumerate(board.done) if not done.triggered]:
        raise DeadlockError(who_waits(program, stuck))
    owners = {name: port.owners for name, port in board.ports.items()}
    counts = np.zeros(len(CLIENTS), np.int64)
    for port in owners.values():
        counts += np.bincount(port, minlength=len(CLIENTS))
    counts[FREE] = 0
    owned = {client: count for client, count in zip(CLIENTS, counts.tolist(), strict=True) if count}
    reads = [board.reads[step] for step in sorted(board.reads)]
    return Log(
        cycles=board.end + hardware.skew,
        columns=columns_of(program, hardware),
        frames=board.frames,
        buses=tuple(dma.memories),
        loads=np.array(sorted(board.loads), record_of(PreloadTimes)),
        passes=np.array(sorted(board.passes), record_of(PassTimes)),
        works=np.array(board.works, record_of(WorkTimes)),
        moves=np.array(board.moves, record_of(MoveTimes)),
        owned=owned,
        owners=owners,
        reads=np.array(reads, np.int64).reshape(-1, hardware.preload_words + 1),
        hbm=dma.memories[HBM.bus].use,
    )
