"""All registers of the machine, its control, and its clock.

In every cycle the units sample what they see of one another, then all commit: no result depends on the order in which
they are visited. The control unit decides for lane 0; what leaves the bottom of the array is what is written back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tpusim.base.errors import CheckFailed, DeadlockError, InputError, PortConflict, Problem
from tpusim.machines.lowered import LaneCycle, Told
from tpusim.machines.tpu.definition import CLIENTS, DMA, IFMAP, NEVER, POINTER, PSUM, RESULT, VECTOR, WEIGHT
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import LOOK_EVERY, Timing, accounts, unit_name, unwatched, who_waits
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Vector
from tpusim.machines.tpu.register.array import Deserializers, PeArray, WeightRegisters
from tpusim.machines.tpu.register.banks import Banks, Settings
from tpusim.machines.tpu.register.dma_unit import DmaUnit, KeepUnit, PreloadUnit
from tpusim.machines.tpu.register.hbm import HbmWords
from tpusim.machines.tpu.register.issue import StreamUnit, VectorRegisters, VectorStepUnit, issues_of
from tpusim.machines.tpu.register.lanes import Lanes
from tpusim.machines.tpu.register.wires import IDLE, Client, Floats, Order, Port, Scoreboard, Wires
from tpusim.memory.timing import Clocks
from tpusim.result.vocabulary.states import ACCESSES, UNUSED

Booked = Mapping[str, Counter[str]]
"""Cycles booked to each thing, by unit and by PORTS, before some cycle; the vector unit books by step instead."""

PORTS = "ports"
"""Key of all ports together, by the client that had them."""


class Control:
    """Control of lane 0's ports and of the units that use them. The frame is the machine's definition
    (docs/timing.md).
    """

    def __init__(
        self, program: Program, hardware: Hardware, settings: Settings, hbm: HbmWords, banks: Banks | None,
        sums: Deserializers, vector: VectorRegisters,
    ) -> None:  # fmt: skip
        array, lanes, frames = hardware.array, hardware.lanes, program.frames(hardware)
        self.program, self.scoreboard = program, Scoreboard(len(program.steps))
        self.vector = VectorStepUnit(vector, self.scoreboard)
        self.dma = DmaUnit(program, self.scoreboard, hbm, banks, hardware, settings)
        self.streams, self.preloads = list[StreamUnit](), list[PreloadUnit]()
        for number in range(array.queues):
            issues = issues_of(program, settings, hardware, frames, number)
            arrays = range(number, number + array.together)
            told = self.scoreboard, frames[0], arrays, lanes, sums, banks, self.vector, self.dma.holder
            self.streams.append(StreamUnit(issues, *told))
            self.preloads.append(PreloadUnit(program, self.scoreboard, hardware, frames, number, self.dma.holder))
        self.keeps = KeepUnit(program, self.scoreboard, hbm, array.pes_per_cycle)
        owners: dict[int, list[Client]] = {
            IFMAP: [each.ifmap for each in self.streams], POINTER: [self.streams[0].pointers.read],
            PSUM: [each.psum for each in self.streams], RESULT: [each.result for each in self.streams],
            VECTOR: [self.vector.ask],
        }  # fmt: skip
        others: dict[int, list[Client]] = {WEIGHT: [each.read for each in self.preloads], DMA: [self.dma.move]}
        self.ports = [
            Port(*(tuple(ask for each in port for ask in clients.get(each, ())) for clients in (owners, others)))
            for port in program.ports(hardware)
        ]
        self.granted: Counter[str] = Counter()
        self.ends: list[tuple[int, Booked]] = []
        # Passes and vector steps of each array up to the last of each layer, for all layers but the last.
        taken = [[each.index for each in stream.todo] for stream in self.streams]
        self._through = deque([bisect_right(mine, last) for mine in taken] for last in program.last_passes[:-1])
        # Longer than anything can take, so that a machine that stands still for as long is deadlocked.
        period = max(frame.period for frame in frames)
        self.patience, self.idle = 1000 + _longest_wait(program, hardware) + 4 * (period + lanes), 0
        self.next = 0

    @property
    def finished(self) -> bool:
        """Whether every step is done, the last frame over and the bus free, and the time of the last word in HBM is
        known.
        """
        return not (self.scoreboard.open or self.dma.running(self.next) or self.dma.storing or self.running(self.next))

    def running(self, now: int) -> bool:
        """Whether a stream occupies the rows of any array, or the vector unit works by itself."""
        for stream in self.streams:  # noqa: SIM110  a generator would take twice as long, and this is asked every cycle
            if stream.running(now):
                return True
        return False

    @property
    def end(self) -> int:
        """The cycle in which the last step is done and its last word is in HBM."""
        return max(self.dma.end, *(each.over_at for each in self.streams), *self.scoreboard.done)

    @property
    def booked(self) -> Booked:
        """Cycles booked so far."""
        uses: dict[str, Counter[str]] = {}
        for at, (stream, preload) in enumerate(zip(self.streams, self.preloads, strict=True)):
            units = {"systolic_array": stream.use, "preload": preload.use, "vector_unit": Counter[str]()}
            uses |= {unit_name(unit, at): use for unit, use in units.items()}
        return {unit: use.copy() for unit, use in {**uses, **self.dma.use, PORTS: self.granted}.items()}

    def cycle(self, now: int) -> list[Order]:
        """Orders of lane 0: one a port, then those of the vector unit's other slots.

        Raises:
            PortConflict: when two clients own one slot.
            DeadlockError: when nothing has moved for longer than any step can take; names who waits for whom.
        """
        self.next = now + 1
        through = self._through and not self.running(now) and self._through[0]
        if through and all(each.issued == count for each, count in zip(self.streams, through, strict=True)):
            self._through.popleft()
            self.ends.append((now, self.booked))
        # The order matters: what a unit finishes in this cycle, the units after it may use in this cycle.
        self.keeps.clock(now)
        for preload in self.preloads:
            preload.tick(now)
        self.dma.clock(now)
        for stream in self.streams:
            stream.clock(now, self.streams)
        for preload, stream in zip(self.preloads, self.streams, strict=True):
            preload.clock(now, stream.issued, stream.running(now))
        orders = [port.grant(now) for port in self.ports]
        self.dma.store(now)
        for preload in self.preloads:
            preload.book()
        # Count the grants; a cycle in which some unit is at work is no sign of a deadlock.
        self.idle += 1
        for order in orders:
            if order is not IDLE:
                self.granted[CLIENTS[order.client]] += 1
                self.idle = 0
        if self.idle and (
            self.dma.active
            or self.running(now)
            or any(preload.injecting for preload in self.preloads)
            or any(stream.waiting for stream in self.streams)
        ):
            self.idle = 0
        if self.idle > self.patience:
            stuck = [step for step, done in enumerate(self.scoreboard.done) if done == NEVER]
            raise DeadlockError(f"cycle {now}: nothing moves, {who_waits(self.program, stuck)}")
        return orders + self.vector.beside()

    @property
    def slots(self) -> int:
        """Orders of a cycle."""
        return len(self.ports) + self.vector.registers.most_beside


class RegisterMachine:
    """A layer on a machine; `operands` are the tensors that HBM holds at the start, by name.

    Raises:
        CheckFailed: when the Program names lanes that the machine does not have.
    """

    def __init__(self, program: Program, hardware: Hardware, operands: Mapping[str, Floats]) -> None:
        check_program(program, hardware)
        self.program, self.hardware = program, hardware
        word = program.widest_word(hardware.vector_memory.word_elements)
        self.hbm = HbmWords(program, program.given(operands), word)
        settings = Settings.of(program, hardware.lanes)
        wires = Wires(hardware, program.word_fill, program.number)
        self.array, self.weights, deserializers = PeArray(wires), WeightRegisters(wires), Deserializers(wires)
        array, memory = hardware.array, hardware.vector_memory
        sizes = array.rows, array.pes_per_cycle, hardware.banks, memory.bank_ports
        self.banks = Banks(program, settings, self.hbm, *sizes) if hardware.banked else None
        vector, frame = VectorRegisters(program, hardware, word), program.frames(hardware)[0]
        self.control = Control(program, hardware, settings, self.hbm, self.banks, deserializers, vector)
        slots = self.control.slots
        self.lanes = Lanes(program, frame, slots, settings, wires, self.hbm, self.banks, vector)
        self.units: Sequence[Lanes | PeArray | WeightRegisters | Deserializers]
        self.units = self.lanes, self.array, self.weights, deserializers
        self.now = 0

    @property
    def finished(self) -> bool:
        """Whether the last lane is done too, and the last word in HBM."""
        return self.control.finished and self.now >= self.control.end + self.hardware.skew

    def cycles(self, watch: Told = unwatched) -> Iterator[int]:
        """Run to the end; yield the number of each cycle once it is over. Raises what `clock` raises.

        `watch` is called every LOOK_EVERY cycles with the number of cycles that have passed.
        """
        while not self.finished:
            self.clock()
            if self.now % LOOK_EVERY == 0:
                watch(self.now)
            yield self.now - 1

    def clock(self) -> None:
        """Let one cycle pass.

        Raises:
            CheckFailed: when a lane is sent to a word that does not exist.
            PortConflict: when a port, a serializer or a result register is asked too early, twice or too late.
            DeadlockError: when nothing has moved for longer than anything can take; names who waits for whom.
        """
        control = self.control
        # Lane 0 has no more orders while the other lanes, which are skewed, catch up.
        self.lanes.order([IDLE] * control.slots if control.finished else control.cycle(self.now))
        control.keeps.note(self.now, self.lanes.memory)
        try:
            # All units sample before any commits, so the order in which they are visited cannot matter.
            for unit in self.units:
                unit.sample()
            for unit in self.units:
                unit.commit()
        except (CheckFailed, PortConflict) as error:
            raise type(error)(f"cycle {self.now}: {error}") from None
        self.now += 1

    def timing(self) -> Timing:
        """Cycles that the clock has counted, and how every unit spent them."""
        program, registers, booked = self.program, self.lanes.registers, self.control.booked
        read, written = int(registers["read"].sum()), int(registers["written"].sum())
        if self.banks:
            read, written = read + self.banks.read, written + self.banks.written
            booked[PORTS][CLIENTS[IFMAP]] = self.banks.cycles
        ends: list[tuple[int, Booked]] = [(0, {}), *self.control.ends, (self.now, booked)]
        layers = []
        # Layers of one Program are cut where the last pass of each ends, just as the event engine cuts them.
        for number, ((start, before), (end, then)) in enumerate(pairwise(ends) if program.layers else ()):
            steps = [step for step, layer in enumerate(program.layers) if layer == number]
            mine = {unit: use - before.get(unit, Counter()) for unit, use in then.items()}
            use = program.uses[number]
            layers.append(self._account(end - start, mine, steps, use.port_reads, use.port_writes))
        whole = self._account(self.now, booked, range(len(program.steps)), read, written)
        return replace(whole, hbm=self.control.dma.memory.use, layers=tuple(layers))

    def _account(self, cycles: int, booked: Booked, steps: Sequence[int], reads: int, writes: int) -> Timing:
        """Every unit's split of `cycles`; the vector unit's, and HBM's by the labels of transfers, are those of
        `steps`, whenever that was.
        """
        control, bus = self.control, Counter[str]()
        for step in steps:
            if step in control.dma.held:
                bus[self.program.steps[step].label] += control.dma.held[step]
        units = {unit: use for unit, use in booked.items() if unit != PORTS}
        for at, stream in enumerate(control.streams):
            worked = (stream.adding[step] + control.vector.worked[step] for step in steps)
            units[unit_name("vector_unit", at)] = Counter(busy=sum(worked))
        found = accounts(units, booked[PORTS], cycles, self.program.ports(self.hardware))
        return Timing(cycles, found, dict(bus), reads, writes)


def _longest_wait(program: Program, hardware: Hardware) -> int:
    """Most cycles, apart from a few frames, in which nothing moves and yet all is well.

    HBM and the scratch memory may have to answer, a layer to be launched, and a step with a delay to begin.
    """
    answered, device = hardware.latency_cycles, hardware.hbm.dram
    if device:
        answered = Clocks.of(hardware.clock_hz, device.clock_hz).to_machine(device.longest_wait)
    if hardware.scratch_pipe:
        answered = max(answered, hardware.scratch_pipe.latency)
    delay = max((step.delay for step in program.steps if isinstance(step, Preload | Vector)), default=0)
    return answered + hardware.sequencer.launch_cycles + delay


_LETTERS = np.array([*ACCESSES])


def trace(machine: RegisterMachine, first: int = 0, watch: Told = unwatched) -> Iterator[LaneCycle]:
    """Run `machine` to its end and yield every cycle from `first` on; `watch` is called with the number of cycles
    passed.

    Raises:
        InputError: when clients have ports of their own, or the ifmap is read from banks: a lane has one letter.
        CheckFailed, DeadlockError, PortConflict: see Machine.clock.
    """
    if len(machine.control.ports) > 1:
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
            yield LaneCycle(number, ports, machine.array.working, machine.weights.moving)
