"""A Program on a machine, clocked by compiled loops; and what only Python does: contents of memories behind the lanes,
and values that the vector unit makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tpusim.base.errors import CheckFailed, DeadlockError, InputError, PortConflict, Problem
from tpusim.machines.lowered import LaneCycle, Told
from tpusim.machines.tpu.definition import CLIENTS, DMA, IFMAP, NEVER, VECTOR
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import LOOK_EVERY, Timing, accounts, unit_name, unwatched, who_waits
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.tensors import HBM
from tpusim.machines.tpu.program.transfers import BankFill, Fill, Keep, Prefetch, Transfer
from tpusim.machines.tpu.register import banks, control
from tpusim.machines.tpu.register.array import Deserializers, PeArray, WeightRegisters
from tpusim.machines.tpu.register.banks import Banks, Settings
from tpusim.machines.tpu.register.board import (
    BEGINS,
    BOOKED,
    ENDS,
    EVENTS,
    FAILED,
    KEEPS,
    KEPT,
    LATEST_OVER,
    MOVED,
    OPEN,
    VECTOR_STEP,
    BoardRegisters,
)
from tpusim.machines.tpu.register.control import CONTROL, NOW, VALUE, Clock, MachineRegisters, advance
from tpusim.machines.tpu.register.hbm import BankedMemory, BankWords, HbmWords, outside_of
from tpusim.machines.tpu.register.lanes import READ, WRITTEN, Lanes
from tpusim.machines.tpu.register.tables import WaitTable, keeps_of, ports_of, preloads_of, streams_of, transfers_of
from tpusim.machines.tpu.register.transfers import DramRegisters
from tpusim.machines.tpu.register.vector import VectorRegisters, WorkRegisters
from tpusim.machines.tpu.register.wires import IDLE, NOWHERE, ORDER, Floats, Wires
from tpusim.memory.dram.clocked import Registers
from tpusim.memory.timing import Clocks
from tpusim.result.vocabulary.states import ACCESSES, UNUSED

Booked = Mapping[str, Counter[str]]
"""Cycles booked to each thing, by unit and by PORTS, before some cycle; the vector unit books by step instead."""

PORTS = "ports"
"""Key of all ports together, by the client that had them."""


class RegisterMachine:
    """A layer on a machine; `operands` are the tensors that HBM holds at the start, by name.

    Raises:
        CheckFailed: when the Program names lanes that the machine does not have.
    """

    def __init__(self, program: Program, hardware: Hardware, operands: Mapping[str, Floats]) -> None:
        check_program(program, hardware)
        self.program, self.hardware = program, hardware
        word, array = program.widest_word(hardware.vector_memory.word_elements), hardware.array
        self.hbm = HbmWords(program, program.given(operands), word)
        settings, self.vector = Settings.of(program, hardware.lanes), VectorRegisters(program, hardware, word)
        self.beside = WorkRegisters(program, self.hbm, hardware.lanes)
        self.bank_words = BankWords(program, self.hbm, max(1, hardware.banks))
        self.memory = BankedMemory(program, hardware, hardware.hbm.dram) if hardware.hbm.dram else None
        self.transfers = [step for _, step in program.rows.steps(Transfer)]
        ports, waits, frames = program.ports(hardware), WaitTable(program), program.frames(hardware)
        slots = len(ports) + self.vector.most_beside
        streams = streams_of(program, settings, hardware, waits, self.vector.most_together, self.vector.most_beside)
        preloads = preloads_of(program, hardware, waits)
        memories = self.hbm, self.bank_words, self.memory
        transfers, keeps = transfers_of(program, hardware, settings, waits, *memories), keeps_of(program, waits)
        steps, queues = len(program.rows), array.queues
        at = np.zeros(KEPT + 1, np.int64)
        at[[OPEN, MOVED, VECTOR_STEP]] = steps, -1, -1
        board = BoardRegisters(
            at, np.full(steps, NEVER), np.array(waits.steps, np.int64),
            np.zeros((2 * queues + len(hardware.pipes), len(BOOKED)), np.int64),
            np.zeros((queues, LATEST_OVER + 1), np.int64), np.zeros(steps, np.int64), np.zeros(len(CLIENTS), np.int64),
            np.zeros((4 + 3 * len(transfers.each), 2), np.int64), np.tile(IDLE, slots).astype(ORDER),
        )  # fmt: skip
        chains = min(array.weights_per_cycle, hardware.vector_memory.word_elements)
        wires = Wires.of(
            array.pes_per_cycle, (array.count, array.rows, array.cols), array.weight_buffers, chains,
            hardware.multipliers, program.word_fill, program.number,
        )  # fmt: skip
        lanes = Lanes.of(
            program, len(frames[0].pointer_slots), slots, settings, wires, self.hbm, self.vector, self.beside
        )
        rows = array.rows if hardware.banked else 0
        words = self.bank_words.turns, self.bank_words.addresses, self.bank_words.words
        sizes = rows, array.pes_per_cycle, max(1, hardware.banks), hardware.vector_memory.bank_ports
        # Longer than anything can take, so that a machine that stands still for as long is deadlocked.
        period = max(frame.period for frame in frames)
        patience = 1000 + _longest_wait(program, hardware) + 4 * (period + hardware.lanes)
        hooks = self.vector.finishes or bool(self.beside.steps)
        clock = Clock(np.array([0, CONTROL, 0]), np.arange(4), ports_of(program, hardware), keeps, patience, hooks)
        self.registers = MachineRegisters(
            clock, board, streams, preloads, transfers, lanes, PeArray.of(wires), WeightRegisters.of(wires),
            Deserializers.of(wires), wires, Banks.of(program, settings, words, *sizes),
        )  # fmt: skip
        self.known = np.full((int(transfers.burst[-1]), 2), -1)
        self.finished = False
        # Keeps that lanes take note of, each with the cycle in which lane 0 did.
        self._keeps = [(step, self.program.rows[step]) for step in keeps[:, 0].tolist()]
        self._noting = dict[int, int]()
        self._ends: list[tuple[int, Booked]] = []

    @property
    def now(self) -> int:
        """The next cycle."""
        return int(self.registers.clock.at[NOW])

    @property
    def lanes(self) -> Lanes:
        """Registers of the lanes."""
        return self.registers.lanes

    def cycles(self, watch: Told = unwatched) -> Iterator[int]:
        """Run to the end; yield the number of each cycle once it is over. Raises what `run_to` raises.

        `watch` is called every LOOK_EVERY cycles with the number of cycles that have passed.
        """
        while not self.finished:
            now = self.now
            self.run_to(now + 1)
            if self.now % LOOK_EVERY == 0:
                watch(self.now)
            yield now

    def run(self, watch: Told = unwatched) -> None:
        """Run to the end. Raises what `run_to` raises; `watch` is as for `cycles`."""
        while not self.finished:
            self.run_to(self.now + LOOK_EVERY)
            if self.now % LOOK_EVERY == 0:
                watch(self.now)

    def run_to(self, until: int) -> None:
        """Let cycles pass until cycle `until` begins, or all is done.

        Raises:
            CheckFailed: when a lane, or a row, is sent to a word that does not exist.
            PortConflict: when a port, a serializer or a result register is asked too early, twice or too late.
            DeadlockError: when nothing has moved for longer than anything can take; names who waits for whom.
        """
        stop = control.LAYER_OVER
        while stop != control.RESTED and not self.finished:
            stop = advance(*self.registers, self._dram(), until)
            if stop == control.OVER:
                self.finished = True
            elif stop == control.LAYER_OVER:
                self._ends.append((self.now, self.booked))
            elif stop == control.HAPPENED:
                self._happened()
            elif stop == control.SAMPLED:
                self._work_on_words()
            elif stop == control.COMMITTED:
                self._work()
            elif stop != control.RESTED:
                self._fail(stop)

    def _dram(self) -> DramRegisters:
        """The DRAM's registers; an offer replaces some of them."""
        if self.memory is None:
            return DramRegisters(False, 1, 1, Registers.none(), self.known)
        clocks = self.memory.clocks
        return DramRegisters(True, clocks.machine, clocks.memory, self.memory.dram.registers, self.known)

    def _happened(self) -> None:
        """Move contents of memories behind the lanes, as transfers begin and end, and let lanes take note of Keeps."""
        board, now = self.registers.board, self.now
        for kind, number in board.events[: board.at[EVENTS]].tolist():
            step, index = self.transfers[number], int(self.registers.transfers.each[number]["step"])
            if kind == ENDS:
                self.hbm.spilled.append(index)
            elif kind != BEGINS:
                self.hbm.prefetched(index)
            else:
                if isinstance(step, Fill):
                    self.hbm.fetch(index, self.program.sources(step))
                elif isinstance(step, BankFill):
                    self.bank_words.fetch(index, step)
                elif isinstance(step, Prefetch):
                    self.hbm.prefetch(index, step)
                if self.memory and step.bus == HBM.bus:
                    self.memory.begin(number, step, self.registers.transfers, self.known, now)
        board.at[EVENTS] = 0
        together, lanes = self.hardware.array.pes_per_cycle, self.hardware.lanes
        # The lanes of each Keep whose turn it is, before this cycle's reads and writes.
        for number in range(int(board.at[KEPT]), int(board.at[KEEPS])):
            step = self._keeps[number][1]
            assert isinstance(step, Keep)
            first = (now - self._noting.setdefault(number, now)) * together
            for lane in range(first, min(first + together, lanes)):
                self.hbm.keep(step, lane, self.lanes.memory)
            if number == board.at[KEPT] and first + together >= step.lanes:
                board.at[KEPT] += 1

    def _work_on_words(self) -> None:
        """Let the vector unit finish results that are being written, and work on words of transfers on their way."""
        lanes, obeyed = self.lanes, self.lanes.obeyed
        touched = lanes.addresses != NOWHERE
        if self.vector.finishes:
            at = ((obeyed["finishes"] > 0) & touched).nonzero()
            if len(at[0]):
                lanes.words[at] = self.vector.finished(lanes.words[at], obeyed["step"][at])
        if self.beside.steps:
            at = ((obeyed["client"] == DMA) & (obeyed["works"] > 0) & touched).nonzero()
            if len(at[0]):
                mine, numbers = obeyed[at], at[1]
                lanes.words[at] = self.beside.worked(numbers, lanes.words[at], mine["step"], mine["number"] + numbers)

    def _work(self) -> None:
        """Let the vector unit of every lane that has the last operand of a word make the result."""
        # Field by field: an order has some twenty, of which four are looked at.
        orders, at = self.lanes.orders, self.lanes.places
        ports, lanes = ((orders["works"][:, at] > 0) & (orders["client"][:, at] == VECTOR)).nonzero()
        if len(lanes):
            own = ports, at[lanes]
            self.vector.work(lanes, orders["step"][own], orders["number"][own])

    def _fail(self, stop: int) -> None:
        """Say what has gone wrong in a cycle."""
        registers, now, value = self.registers, self.now, int(self.registers.clock.at[VALUE])
        board, lanes = registers.board, registers.lanes
        if stop == control.TWO_CLIENTS:
            raise PortConflict(f"cycle {now}: two clients of the stream ask for lane 0's port at once")
        if stop == control.STUCK:
            stuck = [step for step, done in enumerate(board.done.tolist()) if done == NEVER]
            raise DeadlockError(f"cycle {now}: nothing moves, {who_waits(self.program, stuck)}")
        if stop == control.NO_BANK_WORD:
            row = int(board.at[FAILED]) - 1
            raise CheckFailed(f"row {row}: {outside_of(self.program.bank_words, int(registers.banks.wanted[row]))}")
        if stop == control.NOT_EMPTY:
            raise PortConflict(f"cycle {now}: lane {value}: a serializer gets a word before the last one has left it")
        port, lane = divmod(value, self.hardware.lanes)
        address, depth = lanes.addresses[port, lane], len(lanes.memory)
        if address != NOWHERE and not 0 <= address < depth:
            message = f"word {address} is outside the vector memory's words 0..{depth - 1}"
            raise CheckFailed(f"cycle {now}: lane {lane}: {message}")
        order = lanes.obeyed[port, lane]
        number, complete = order["number"], registers.wires.complete[order["array"], lane]
        message = f"result word {number} is written when {complete} are complete"
        raise PortConflict(f"cycle {now}: lane {lane}: {message}")

    @property
    def booked(self) -> Booked:
        """Cycles booked so far."""
        board, queues = self.registers.board, self.hardware.array.queues
        names = [unit_name(unit, at) for unit in ("systolic_array", "preload") for at in range(queues)]
        names += self.hardware.pipes
        uses = {name: _counted(BOOKED, use.tolist()) for name, use in zip(names, board.use, strict=True)}
        for queue, (work, latest, over) in enumerate(board.work.tolist()):
            uses[unit_name("vector_unit", queue)] = Counter(busy=work - min(latest, max(0, over - self.now)))
        order = [unit_name(unit, at) for at in range(queues) for unit in ("systolic_array", "preload", "vector_unit")]
        found = {name: uses[name] for name in (*order, *self.hardware.pipes)}
        return {**found, PORTS: _counted(CLIENTS, board.granted.tolist())}

    def timing(self) -> Timing:
        """Cycles that the clock has counted, and how every unit spent them."""
        program, booked, own = self.program, self.booked, self.registers.banks
        read, written = (int(self.lanes.accesses[:, each].sum()) for each in (READ, WRITTEN))
        if own.banked:
            read, written = read + int(own.at[banks.READ]), written + int(own.at[banks.WRITTEN])
            booked[PORTS][CLIENTS[IFMAP]] = int(own.at[banks.CYCLES])
        ends: list[tuple[int, Booked]] = [(0, {}), *self._ends, (self.now, booked)]
        layers = []
        # Layers of one Program are cut where the last pass of each ends, just as the event engine cuts them.
        for number, ((start, before), (end, then)) in enumerate(pairwise(ends) if program.layers else ()):
            steps = [step for step, layer in enumerate(program.layers) if layer == number]
            mine = {unit: use - before.get(unit, Counter()) for unit, use in then.items()}
            use = program.uses[number]
            layers.append(self._account(end - start, mine, steps, use.port_reads, use.port_writes))
        whole = self._account(self.now, booked, range(len(program.rows)), read, written)
        return replace(whole, hbm=self.memory.use if self.memory else None, layers=tuple(layers))

    def _account(self, cycles: int, booked: Booked, steps: Sequence[int], reads: int, writes: int) -> Timing:
        """Every unit's split of `cycles`; HBM's by the labels of transfers is that of `steps`, whenever that was."""
        board, bus = self.registers.board, Counter[str]()
        for step in steps:
            if board.held[step]:
                bus[self.program.rows[step].label] += int(board.held[step])
        units = {unit: use for unit, use in booked.items() if unit != PORTS}
        found = accounts(units, booked[PORTS], cycles, self.program.ports(self.hardware))
        return Timing(cycles, found, dict(bus), reads, writes)


def _counted(names: Sequence[str], counts: Sequence[int]) -> Counter[str]:
    return Counter({name: count for name, count in zip(names, counts, strict=True) if count})


def _longest_wait(program: Program, hardware: Hardware) -> int:
    """Most cycles, apart from a few frames, in which nothing moves and yet all is well.

    Memories may have to answer, a layer to be launched, and a step with a delay to begin.
    """
    answered = max(pipe.latency for pipe in hardware.pipes.values())
    if device := hardware.hbm.dram:
        answered = max(answered, Clocks.of(hardware.clock_hz, device.clock_hz).to_machine(device.longest_wait))
    delay = int(program.rows.table["delay"].max(initial=0))
    return answered + hardware.sequencer.launch_cycles + delay


_LETTERS = np.array([*ACCESSES])


def trace(machine: RegisterMachine, first: int = 0, watch: Told = unwatched) -> Iterator[LaneCycle]:
    """Run `machine` to its end and yield every cycle from `first` on; `watch` is called with the number of cycles
    passed.

    Raises:
        InputError: when clients have ports of their own, or the ifmap is read from banks: a lane has one letter.
        CheckFailed, DeadlockError, PortConflict: see RegisterMachine.run_to.
    """
    if len(machine.program.ports(machine.hardware)) > 1:
        of, field = "the ifmap is read through ports of banks", "organization"
        if not machine.hardware.banked:
            of, field = "each client has its own", "ports"
        message = f"a trace of lanes shows one port a lane, and here {of}; a .perfetto-trace shows them all"
        raise InputError([Problem(message, f"vector_memory.{field}")])
    for number in machine.cycles(watch):
        if number >= first:
            orders, addresses = machine.lanes.obeyed[0], machine.lanes.addresses[0]
            letters = _LETTERS[orders["client"] + orders["spill"]]
            ports = "".join(np.where((orders["client"] > 0) & (addresses < 0), UNUSED, letters))
            yield LaneCycle(number, ports, machine.registers.array.working, machine.registers.weights.under_way)
