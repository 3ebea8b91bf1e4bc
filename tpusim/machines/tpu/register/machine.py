"""All registers of the machine, and its clock.

In every cycle the units sample what they see of one another, then all commit: no result depends on the order
in which they are visited. The control unit decides for lane 0; what leaves the bottom of the array is what
is written back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CheckFailed, PortConflict
from tpusim.machines.tpu.definition import CLIENTS, IFMAP, word_latency
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.passes import Preload
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.vector import Vector
from tpusim.machines.tpu.register.accounts import shares
from tpusim.machines.tpu.register.array import PeArray
from tpusim.machines.tpu.register.banks import Banks
from tpusim.machines.tpu.register.contents import HbmWords
from tpusim.machines.tpu.register.control import Control
from tpusim.machines.tpu.register.deserializers import Deserializers
from tpusim.machines.tpu.register.dma_unit import DmaUnit
from tpusim.machines.tpu.register.generators import Settings
from tpusim.machines.tpu.register.keep_unit import KeepUnit
from tpusim.machines.tpu.register.lanes import Lanes
from tpusim.machines.tpu.register.order import IDLE, Order
from tpusim.machines.tpu.register.pointer_reader import registers
from tpusim.machines.tpu.register.preload_unit import PreloadUnit
from tpusim.machines.tpu.register.result_queue import Sums
from tpusim.machines.tpu.register.scoreboard import Scoreboard
from tpusim.machines.tpu.register.stream_unit import AtHand, Pass, StreamUnit
from tpusim.machines.tpu.register.vector_registers import VectorRegisters
from tpusim.machines.tpu.register.vector_unit import VectorIssue, VectorStepUnit
from tpusim.machines.tpu.register.weights import Weights
from tpusim.machines.tpu.register.wires import Wires
from tpusim.memory.clocks import Clocks

Values = NDArray[np.floating[Any]]


class Registered(Protocol):
    """What has registers, all on one clock."""

    def sample(self) -> None:
        """Look at the wires; change nothing that anybody else can see."""

    def commit(self) -> None:
        """Take the new values, and drive the wires."""


class Machine:
    """One layer on one machine; `operands` are the tensors that HBM holds before, by their names.

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
        self.banks = _banks(program, hardware, settings, self.hbm, word) if hardware.banked else None
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
        """One cycle.

        Raises:
            CheckFailed: when a lane is sent to a word that does not exist.
            PortConflict: when a port, a serializer or a result register is asked too early, twice or too late.
            DeadlockError: when nothing has moved for longer than anything can take; names who waits for whom.
        """
        self.lanes.order(self._orders())
        self.control.keeps.note(self.now, self.lanes.memory)
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
        counted, steps = control.counted(self.now), control.by_step
        read, written = int(registers["read"].sum()), int(registers["written"].sum())
        if self.banks:
            owned, read, written = self._with_banks(self.banks, read, written)
            counted = counted._replace(granted=owned)
        layers = shares([*control.ends, counted], steps, self.program, self.hardware) if self.program.layers else ()
        accounts = counted.accounts(steps.worked, ports, self.hardware.scratch_memory is not None)
        return Timing(self.now, accounts, steps.bus(self.program), read, written, control.dma.memory.use, layers)

    def _with_banks(self, banks: Banks, read: int, written: int) -> tuple[Counter[str], int, int]:
        """Cycles owned and accesses, those of the banks among them."""
        owned = Counter({**self.control.granted, CLIENTS[IFMAP]: banks.cycles})
        return owned, read + banks.read, written + banks.written

    def _orders(self) -> list[Order]:
        """Lane 0's orders; none while the other lanes catch up."""
        return [IDLE] * len(self.control.ports) if self.control.finished else self.control.cycle(self.now)


def _banks(program: Program, hardware: Hardware, settings: Settings, hbm: HbmWords, word: int) -> Banks:
    ports = hardware.vector_memory.bank_ports
    return Banks(program, settings, hbm, hardware.array.rows, hardware.banks, ports, word)


def _reader(program: Program, hardware: Hardware) -> tuple[int, int, int]:
    """Word registers of the pointer reader, numbers of a word, and pointers that go with an ifmap order."""
    words = len(program.frame(hardware).pointer_slots)
    per_word = max((table.per_word for table in program.tables), default=1)
    together = max((table.together for table in program.tables), default=1)
    return registers(words), per_word, together


def _longest_wait(program: Program, hardware: Hardware) -> int:
    """The cycles that may pass, before any of the frame, in which nothing moves and yet all is well."""
    delay = max((step.delay for step in program.steps if isinstance(step, Preload | Vector)), default=0)
    return _memory_wait(hardware) + hardware.sequencer.launch_cycles + delay


def _memory_wait(hardware: Hardware) -> int:
    """The cycles after which HBM and the scratch memory have answered, at the latest."""
    scratch = hardware.scratch_pipe.latency if hardware.scratch_pipe else 0
    if (device := hardware.hbm.dram) is None:
        return max(scratch, hardware.latency_cycles)
    return max(scratch, Clocks.of(hardware.clock_hz, device.clock_hz).to_machine(device.longest_wait))


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
