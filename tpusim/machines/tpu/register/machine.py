"""All registers of the machine, its control, and its clock.

In every cycle the units sample what they see of one another, then all commit: no result depends on the order in which
they are visited. The control unit decides for lane 0; what leaves the bottom of the array is what is written back.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CheckFailed, DeadlockError, InputError, PortConflict, Problem
from tpusim.machines.tpu.definition import (
    CLIENTS,
    DMA,
    IFMAP,
    NEVER,
    POINTER,
    PSUM,
    RESULT,
    VECTOR,
    WEIGHT,
    Ports,
    word_latency,
)
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import ACCESSES, LOOK_EVERY, UNUSED, Cycle, Watch, unwatched
from tpusim.machines.tpu.observation.timing import Timing, port_accounts, unit_accounts, who_waits
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream, Vector
from tpusim.machines.tpu.register.array import Deserializers, PeArray, Weights
from tpusim.machines.tpu.register.banks import Banks, Settings
from tpusim.machines.tpu.register.dma_unit import DmaUnit, KeepUnit, PreloadUnit
from tpusim.machines.tpu.register.hbm import HbmWords
from tpusim.machines.tpu.register.lanes import Lanes
from tpusim.machines.tpu.register.stream_unit import AtHand, Pass, StreamUnit, Sums
from tpusim.machines.tpu.register.vector_unit import VectorIssue, VectorRegisters, VectorStepUnit
from tpusim.machines.tpu.register.wires import IDLE, Client, Order, Port, Scoreboard, Wires
from tpusim.memory.clocks import Clocks

Values = NDArray[np.floating[Any]]


class Counted(NamedTuple):
    """Cycles of each unit by what it did, those of the ports by who had them, before cycle `now`.

    Of arrays and weight paths there are as many as have weights of their own.
    """

    now: int
    hbm: Mapping[str, int]
    scratch_memory: Mapping[str, int]
    granted: Mapping[str, int]
    arrays: Sequence[Mapping[str, int]]
    preloads: Sequence[Mapping[str, int]]

    def since(self, before: Counted) -> Counted:
        """What was counted since then; `now` is how many cycles that are."""
        arrays = [*map(_less, self.arrays, before.arrays)], [*map(_less, self.preloads, before.preloads)]
        hbm, scratch = _less(self.hbm, before.hbm), _less(self.scratch_memory, before.scratch_memory)
        return Counted(self.now - before.now, hbm, scratch, _less(self.granted, before.granted), *arrays)

    def accounts(self, worked: Sequence[Counter[int]], ports: Ports, scratch: bool) -> dict[str, dict[str, int]]:
        """Every unit's split, of all cycles; `worked` are those in which the vector unit did, for each array, and
        `scratch` says whether there is a scratch memory.
        """
        vectors = [{"busy": each.total()} for each in worked]
        arrays = [*zip(self.arrays, self.preloads, vectors, strict=True)]
        buses = {"hbm": self.hbm, **({"scratch_memory": self.scratch_memory} if scratch else {})}
        return unit_accounts(arrays, buses, self.now) | port_accounts(self.granted, self.now, ports)


def _less(counted: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: cycles - before.get(name, 0) for name, cycles in counted.items()}


NOTHING = Counted(0, {}, {}, {}, ({},), ({},))
"""Before the first cycle of layers that overlap, which only do where all arrays share weights."""


class ByStep(NamedTuple):
    """Cycles that belong to steps, whenever they were: of HBM's queue, and of the vector unit, for each array."""

    held: Counter[int]
    worked: Sequence[Counter[int]]

    def of_layer(self, number: int, program: Program) -> ByStep:
        """What belongs to the steps of a layer."""
        held, *worked = (
            Counter({step: n for step, n in each.items() if program.layers[step] == number})
            for each in (self.held, *self.worked)
        )
        return ByStep(held, worked)

    def bus(self, program: Program) -> dict[str, int]:
        """The first by the labels of their transfers."""
        held: Counter[str] = Counter()
        for step, cycles in self.held.items():
            held[program.steps[step].label] += cycles
        return dict(held)


def shares(ends: Sequence[Counted], steps: ByStep, program: Program, hardware: Hardware) -> tuple[Timing, ...]:
    """Each layer's share, of what was counted until each ended."""
    found, ports = [], program.ports(hardware)
    for number, (before, end) in enumerate(pairwise([NOTHING, *ends])):
        counted, mine, use = end.since(before), steps.of_layer(number, program), program.uses[number]
        accounts = counted.accounts(mine.worked, ports, hardware.scratch_memory is not None)
        found.append(Timing(counted.now, accounts, mine.bus(program), use.port_reads, use.port_writes))
    return tuple(found)


class Control:
    """Lane 0's ports, each given as the clients that share it, first who goes first; and the units that use them."""

    def __init__(
        self,
        program: Program,
        scoreboard: Scoreboard,
        streams: Sequence[StreamUnit],
        preloads: Sequence[PreloadUnit],
        dma: DmaUnit,
        keeps: KeepUnit,
        ports: Sequence[Sequence[int]],
        patience: int,
    ) -> None:
        self.program = program
        self.scoreboard, self.streams, self.preloads, self.dma, self.keeps = scoreboard, streams, preloads, dma, keeps
        self.vector = streams[0].vector
        owners: dict[int, list[Client]] = {
            IFMAP: [each.ifmap for each in streams], POINTER: [streams[0].pointers.read],
            PSUM: [each.psum for each in streams], RESULT: [each.result for each in streams], VECTOR: [self.vector.ask],
        }  # fmt: skip
        others: dict[int, list[Client]] = {WEIGHT: [each.read for each in preloads], DMA: [dma.move]}
        self.ports = [
            Port(*(tuple(ask for each in port for ask in clients.get(each, ())) for clients in (owners, others)))
            for port in ports
        ]
        self.granted: Counter[str] = Counter()
        self.ends: list[Counted] = []
        issues = [index for index, step in enumerate(program.steps) if isinstance(step, Stream | Vector)]
        self._through = deque(issues.index(last) + 1 for last in program.last_passes[:-1])
        """The passes and vector steps up to the last of each of several layers that has not ended."""
        self.patience, self.idle = patience, 0
        self.next = 0

    @property
    def finished(self) -> bool:
        """Whether every step is done, the last frame over, the bus free, and known when all is in HBM."""
        return not (self.scoreboard.open or self.dma.running(self.next) or self.dma.storing or self.running(self.next))

    def running(self, now: int) -> bool:
        """Whether a stream occupies the rows of any array, or the vector unit works by itself."""
        for stream in self.streams:  # noqa: SIM110  a generator would take twice as long, and this is asked every cycle
            if stream.running(now):
                return True
        return False

    @property
    def end(self) -> int:
        """When the last step is done and its last word in HBM."""
        return max(self.dma.end, *(each.over_at for each in self.streams), *self.scoreboard.done)

    def counted(self, now: int) -> Counted:
        """What is booked before this cycle."""
        arrays, preloads = ([dict(each.use) for each in units] for units in (self.streams, self.preloads))
        hbm, scratch = map(dict, self.dma.use.values())
        return Counted(now, hbm, scratch, dict(self.granted), arrays, preloads)

    def cycle(self, now: int) -> list[Order]:
        """Lane 0's orders, one a port.

        Raises:
            PortConflict: when two clients own one slot.
            DeadlockError: when nothing has moved for longer than anything can take; names who waits for whom.
        """
        self.next = now + 1
        if self._through and self.streams[0].issued == self._through[0] and not self.running(now):
            self._through.popleft()
            self.ends.append(self.counted(now))
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
        self._book(orders, now)
        return orders

    def _book(self, orders: Sequence[Order], now: int) -> None:
        """Account for the ports' cycle, and see that something moves."""
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


class Registered(Protocol):
    """What has registers, all on one clock."""

    def sample(self) -> None:
        """Look at the wires; change nothing that anybody else can see."""

    def commit(self) -> None:
        """Take the new values, and drive the wires."""


class Machine:
    """A layer on a machine; `operands` are the tensors that HBM holds before, by their names.

    Raises:
        CheckFailed: when the Program names lanes that the machine does not have.
    """

    def __init__(self, program: Program, hardware: Hardware, operands: Mapping[str, Values]) -> None:
        check_program(program, hardware)
        self.program, self.hardware = program, hardware
        word = program.widest_word(hardware.vector_memory.word_elements)
        self.hbm = HbmWords.of(program, program.given(operands), word)
        settings = Settings.of(program, hardware.lanes)
        wires = Wires(hardware, program.word_fill, program.number)
        self.array, self.weights, deserializers = PeArray(wires), Weights(wires), Deserializers(wires)
        sizes = hardware.array.rows, hardware.banks, hardware.vector_memory.bank_ports
        self.banks = Banks(program, settings, self.hbm, *sizes, word) if hardware.banked else None
        self.control = _control(program, hardware, settings, self.hbm, self.banks, deserializers)
        ports = len(self.control.ports)
        reader, weights = _reader(program, hardware), hardware.vector_memory.word_elements
        vector = VectorRegisters(program, hardware.lanes, weights, word)
        self.lanes = Lanes(
            wires, settings, self.hbm, self.banks, vector, reader, ports, hardware.lanes, program.words, word, weights
        )
        self.units: Sequence[Registered] = (self.lanes, self.array, self.weights, deserializers)
        self.now = 0

    @property
    def finished(self) -> bool:
        """Whether the last lane is done too, and the last word in HBM."""
        return self.control.finished and self.now >= self.control.end + self.hardware.lanes - 1

    @property
    def orders(self) -> NDArray[np.void]:
        """What each port of each lane was told in the last cycle, [port, lane]."""
        return self.lanes.orders.registers

    def tensor(self, name: str) -> Values:
        """A tensor as it lies in HBM now."""
        return self.hbm.tensor(name)

    def clock(self) -> None:
        """Let one cycle pass.

        Raises:
            CheckFailed: when a lane is sent to a word that does not exist.
            PortConflict: when a port, a serializer or a result register is asked too early, twice or too late.
            DeadlockError: when nothing has moved for longer than anything can take; names who waits for whom.
        """
        control = self.control
        # Lane 0 has no orders while the other lanes catch up.
        self.lanes.order([IDLE] * len(control.ports) if control.finished else control.cycle(self.now))
        control.keeps.note(self.now, self.lanes.memory)
        try:
            for unit in self.units:
                unit.sample()
            for unit in self.units:
                unit.commit()
        except (CheckFailed, PortConflict) as error:
            raise type(error)(f"cycle {self.now}: {error}") from None
        self.now += 1

    def timing(self) -> Timing:
        """Cycles that the clock has counted, and every unit's split."""
        control, registers, ports = self.control, self.lanes.registers, self.program.ports(self.hardware)
        worked = [each.adding + control.vector.worked for each in control.streams]
        counted, steps = control.counted(self.now), ByStep(control.dma.held, worked)
        read, written = int(registers["read"].sum()), int(registers["written"].sum())
        if self.banks:
            read, written = read + self.banks.read, written + self.banks.written
            counted = counted._replace(granted=Counter({**control.granted, CLIENTS[IFMAP]: self.banks.cycles}))
        layers = shares([*control.ends, counted], steps, self.program, self.hardware) if self.program.layers else ()
        accounts = counted.accounts(steps.worked, ports, self.hardware.scratch_memory is not None)
        return Timing(self.now, accounts, steps.bus(self.program), read, written, control.dma.memory.use, layers)


def _reader(program: Program, hardware: Hardware) -> tuple[int, int, int]:
    """Word registers of the pointer reader, numbers of a word, and pointers that go with an ifmap order."""
    words = len(program.frame(hardware).pointer_slots)
    per_word = max((table.per_word for table in program.tables), default=1)
    together = max((table.together for table in program.tables), default=1)
    # For two frames, and one word that reaches into both of them from the frame before.
    return 2 * words + 1, per_word, together


def _longest_wait(program: Program, hardware: Hardware) -> int:
    """The cycles that may pass, before any of the frame, in which nothing moves and yet all is well: until HBM and the
    scratch memory have answered, and steps with a delay begin.
    """
    answered, device = hardware.latency_cycles, hardware.hbm.dram
    if device:
        answered = Clocks.of(hardware.clock_hz, device.clock_hz).to_machine(device.longest_wait)
    if hardware.scratch_pipe:
        answered = max(answered, hardware.scratch_pipe.latency)
    delay = max((step.delay for step in program.steps if isinstance(step, Preload | Vector)), default=0)
    return answered + hardware.sequencer.launch_cycles + delay


def _control(
    program: Program, hardware: Hardware, settings: Settings, hbm: HbmWords, banks: Banks | None, sums: Sums
) -> Control:
    """The control unit. The frame and the distance of its slots are the machine's definition, docs/timing.md."""
    array, lanes = hardware.array, hardware.lanes
    frame, latency = program.frame(hardware), word_latency(program.word_fill, hardware)
    scoreboard = Scoreboard(len(program.steps))
    sum_delay = frame.result_delay(latency) - frame.psum_delay(latency)
    works, vector = VectorIssue.all_of(program, settings, hardware), VectorStepUnit(scoreboard)
    streams, preloads = [], []
    for number in range(array.queues):
        issues: list[Pass | VectorIssue] = [*Pass.all_of(program, settings, array.weight_buffers, number), *works]
        arrays = range(number, number + array.together)
        streams.append(
            StreamUnit(
                sorted(issues, key=lambda each: each.index), scoreboard, frame, arrays, sum_delay, lanes, sums,
                banks or AtHand(), vector,
            )
        )  # fmt: skip
        preloads.append(PreloadUnit(program, scoreboard, hardware, frame, number))
    return Control(
        program,
        scoreboard,
        streams,
        preloads,
        DmaUnit(program, scoreboard, hbm, banks, hardware, settings),
        KeepUnit(program, scoreboard, hbm),
        program.ports(hardware),
        patience=1000 + _longest_wait(program, hardware) + 4 * (frame.period + lanes),
    )


_LETTERS = np.array([*ACCESSES])


def trace(machine: Machine, first: int = 0, watch: Watch = unwatched) -> Iterator[Cycle]:
    """Run `machine` to its end and show every cycle from `first` on; `watch` is told how many have passed.

    Raises:
        InputError: when clients have ports of their own, or the ifmap is read from banks: a lane has one letter.
        CheckFailed, DeadlockError, PortConflict: see Machine.clock.
    """
    if len(machine.control.ports) > 1:
        raise InputError([_refusal(machine.hardware)])
    while not machine.finished:
        number = machine.now
        machine.clock()
        if machine.now % LOOK_EVERY == 0:
            watch(machine.now)
        if number >= first:
            yield Cycle(number, _ports(machine), machine.array.working, machine.weights.moving)


def _refusal(hardware: Hardware) -> Problem:
    """Why there is no single letter for a lane."""
    if hardware.banked:
        what, field = "one port a lane, and here the ifmap is read through ports of banks", "organization"
    else:
        what, field = "one port a lane, and here each client has its own", "ports"
    return Problem(f"a trace of lanes shows {what}; a .perfetto-trace shows them all", f"vector_memory.{field}")


def _ports(machine: Machine) -> str:
    (orders,), (addresses,) = machine.orders, machine.lanes.addresses
    letters = _LETTERS[orders["client"] + orders["spill"]]
    return "".join(np.where((orders["client"] > 0) & (addresses < 0), UNUSED, letters))
