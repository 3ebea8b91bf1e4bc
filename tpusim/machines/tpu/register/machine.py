"""All registers of the machine, and its clock.

In every cycle the units sample what they see of one another, then all commit: no result depends on the order
in which they are visited. The control unit decides for lane 0; what leaves the bottom of the array is what
is written back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CheckFailed, PortConflict
from tpusim.machines.tpu.definition.frame import Frame
from tpusim.machines.tpu.definition.systolic_array import SystolicArray
from tpusim.machines.tpu.definition.vector_unit import add_cycles
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import PORT_CLIENTS, Timing, split
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.register.array import Array
from tpusim.machines.tpu.register.bounds import check_lanes, check_machine
from tpusim.machines.tpu.register.contents import HbmWords
from tpusim.machines.tpu.register.control import Control
from tpusim.machines.tpu.register.deserializers import Deserializers
from tpusim.machines.tpu.register.dma_unit import DmaUnit
from tpusim.machines.tpu.register.generators import Settings
from tpusim.machines.tpu.register.lanes import Lanes
from tpusim.machines.tpu.register.order import IDLE, Order
from tpusim.machines.tpu.register.preload_unit import PreloadUnit
from tpusim.machines.tpu.register.scoreboard import Scoreboard
from tpusim.machines.tpu.register.stream_unit import Pass, StreamUnit
from tpusim.machines.tpu.register.weights import Weights
from tpusim.machines.tpu.register.wires import Wires

Values = NDArray[np.float32]


class Unit(Protocol):
    """Registers with a clock."""

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
        check_machine(hardware)
        check_lanes(program, hardware)
        self.program, self.hardware = program, hardware
        word, array = hardware.vector_memory.word_elements, hardware.array
        self.hbm = HbmWords.of(program, operands, word)
        settings = Settings.of(program, hardware.lanes)
        wires, arrays = Wires(array, program.word_fill), range(array.count)
        self.arrays = [Array(wires, number) for number in arrays]
        self.weights = [Weights(wires, number) for number in arrays]
        self.deserializers = [Deserializers(wires, number) for number in arrays]
        self.lanes = Lanes(wires, settings, self.hbm, hardware.lanes, program.words, word)
        self.control = _control(program, hardware, settings, self.hbm)
        self.units: Sequence[Unit] = (self.lanes, *self.arrays, *self.weights, *self.deserializers)
        self.now = 0

    @property
    def finished(self) -> bool:
        """Whether the last lane is done too, and the last word in HBM."""
        return self.control.finished and self.now >= self.control.end + self.hardware.lanes - 1

    @property
    def orders(self) -> NDArray[np.void]:
        """What each lane was told in the last cycle."""
        return self.lanes.orders.registers

    @property
    def working(self) -> int:
        """PEs of all arrays that hold an activation."""
        return sum(array.working for array in self.arrays)

    @property
    def moving(self) -> int:
        """Weights on their way in all arrays."""
        return sum(weights.moving for weights in self.weights)

    def tensor(self, name: str) -> Values:
        """A tensor as it lies in HBM now."""
        return self.hbm.tensor(self.program, name)

    def clock(self) -> None:
        """One cycle.

        Raises:
            CheckFailed: when a lane is sent to a word that does not exist.
            PortConflict: when a port, a serializer or a result register is asked too early, twice or too late.
            DeadlockError: when nothing has moved for longer than anything can take; names who waits for whom.
        """
        self.lanes.order(self._order())
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
        control, cycles = self.control, self.now
        units = {
            "systolic_array": control.stream.use,
            "preload": control.preload.use,
            "vector_unit": Counter(busy=control.stream.adding),
            "hbm": control.dma.use,
        }
        accounts = {name: split(use, cycles) for name, use in units.items()}
        accounts["port"] = split(control.port, cycles, PORT_CLIENTS)
        accesses = self.lanes.registers
        return Timing(cycles, accounts, int(accesses["read"].sum()), int(accesses["written"].sum()))

    def _order(self) -> Order:
        if self.control.finished:
            return IDLE
        complete, completing = zip(*((each.complete, each.completing) for each in self.deserializers), strict=True)
        return self.control.cycle(self.now, complete, completing)


def _control(program: Program, hardware: Hardware, settings: Settings, hbm: HbmWords) -> Control:
    """The control unit. The frame and the distance of its slots are the machine's definition, docs/timing.md."""
    array, lanes, word = hardware.array, hardware.lanes, hardware.vector_memory.word_elements
    adds = add_cycles(program.word_fill * array.count, lanes, hardware.vector_unit.alus)
    frame = Frame.of(program.word_fill, adds, program.accumulates, array.count)
    latency = SystolicArray(array.rows, array.cols, array.weight_buffers).word_latency(program.word_fill)
    scoreboard = Scoreboard(len(program.steps))
    passes = Pass.all_of(program, settings, array.weight_buffers)
    return Control(
        program,
        scoreboard,
        StreamUnit(passes, scoreboard, frame, frame.result_delay(latency) - frame.psum_delay(latency), lanes),
        PreloadUnit(program, scoreboard, array.rows, word, array.weight_buffers),
        DmaUnit(program, scoreboard, hbm, hardware),
        patience=1000 + hardware.latency_cycles + hardware.sequencer.launch_cycles + 4 * (frame.period + lanes),
    )
