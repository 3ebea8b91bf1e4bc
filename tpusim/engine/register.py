"""The register engine: every register of every PE, serializer and port, one clock at a time.

Each cycle samples all registers, then commits all of them, so no result depends on the order in which
units are visited. Lane 0's orders (engine/control.py) pass from lane to lane, one a cycle; each lane has its
own words, serializers and de-serializer. What leaves the bottom of the array is what is written back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpusim.engine.control import Bundle, Control
from tpusim.engine.timing import PORT_CLIENTS, Timing, split
from tpusim.hardware import Hardware
from tpusim.machine import dma
from tpusim.machine.systolic_array import SystolicArray
from tpusim.machine.vector_memory import DMA, FREE, IFMAP, PSUM, WEIGHT, Frame
from tpusim.machine.vector_unit import add_cycles
from tpusim.program import FilterFill, IfmapFill, Preload, Program, Spill, Stream

Tensor = NDArray[np.float32]
Ints = NDArray[np.int64]

Commit = Callable[[], None]

IN_FLIGHT = 4
"""Result words a lane's vector unit may hold between de-serializer and memory."""


def run(program: Program, hardware: Hardware, ifmap: Tensor, filter_: Tensor) -> tuple[Timing, Tensor]:
    """Time and ofmap [out_channel, row, col, image] of one Program."""
    machine = Machine(program, hardware, ifmap, filter_)
    while not machine.finished:
        machine.clock()
    return machine.timing(), machine.ofmap


@dataclass(frozen=True)
class _Addresses:
    """One stream's address generators: per lane the base and start, and whether it is fed at all."""

    base: Ints
    row: Ints
    col: Ints
    fed: NDArray[np.bool_]
    step: tuple[int, int]
    extent: tuple[int, int]
    groups: int

    @classmethod
    def of(cls, stream: Stream, lanes: int) -> _Addresses:
        base, row, col = (np.zeros(lanes, np.int64) for _ in range(3))
        fed = np.zeros(lanes, np.bool_)
        pattern = stream.reads[0].pattern
        for group in stream.reads:
            at = slice(group.first_lane, group.first_lane + group.lanes)
            base[at], fed[at] = group.pattern.base, True
            row[at], col[at] = group.pattern.start
        return cls(base, row, col, fed, pattern.step, pattern.extent, pattern.counts[2])

    def word(self, lane: int, counts: tuple[int, int, int]) -> int:
        """The word address for one lane, or -1 for padding and for lanes that are not fed."""
        i = int(self.row[lane]) + counts[0] * self.step[0]
        j = int(self.col[lane]) + counts[1] * self.step[1]
        if not (self.fed[lane] and 0 <= i < self.extent[0] and 0 <= j < self.extent[1]):
            return -1
        return int(self.base[lane]) + (i * self.extent[1] + j) * self.groups + counts[2]


class Machine:
    """All registers of the machine, and one clock step."""

    def __init__(self, program: Program, hardware: Hardware, ifmap: Tensor, filter_: Tensor) -> None:
        self.program, self.hardware = program, hardware
        self.ifmap, self.filter = ifmap, filter_
        rows, cols, lanes = hardware.array.rows, hardware.array.cols, hardware.lanes
        self.rows, self.cols, self.lanes = rows, cols, lanes
        self.word = hardware.vector_memory.word_elements
        self.elements = program.word_fill
        adds = add_cycles(self.elements, lanes, hardware.vector_unit.alus)
        self.frame = Frame.of(self.elements, adds, program.accumulates)
        latency = SystolicArray(rows, cols, hardware.array.weight_buffers).word_latency(self.elements)
        self.sum_delay = self.frame.result_delay(latency) - self.frame.psum_delay(latency)
        self.control = Control(program, hardware, self.frame, self.sum_delay)
        self.now = 0
        self.reads = self.writes = 0
        self.orders = [Bundle()] * lanes
        self.memory = np.zeros((lanes, program.peak_words, self.word), np.float32)
        # Serializers: the word, elements left to issue, and the weight buffer they are meant for.
        self.serial = np.zeros((rows, self.elements), np.float32)
        self.serial_left = np.zeros(rows, np.int64)
        self.serial_buffer = np.zeros(rows, np.int64)
        self.weight_serial = np.zeros((cols, self.word), np.float32)
        self.weight_at = np.zeros(cols, np.int64)
        self.weight_left = np.zeros(cols, np.int64)
        self.weight_row = np.zeros(cols, np.int64)
        self.weight_buffer = np.zeros(cols, np.int64)
        # The array: activations move right, sums down; moving weights carry their row and buffer.
        self.activation = np.zeros((rows, cols), np.float32)
        self.valid = np.zeros((rows, cols), np.bool_)
        self.buffer = np.zeros((rows, cols), np.int64)
        self.sums = np.zeros((rows, cols), np.float32)
        self.weights = np.zeros((hardware.array.weight_buffers, rows, cols), np.float32)
        self.moving = np.zeros((rows, cols), np.float32)
        self.moving_row = np.full((rows, cols), -1)
        self.moving_buffer = np.zeros((rows, cols), np.int64)
        # De-serializers, and the words the vector unit holds.
        self.collected = np.zeros((cols, self.elements), np.float32)
        self.collected_at = np.zeros(cols, np.int64)
        self.collected_words = np.zeros(cols, np.int64)
        self.results = np.zeros((cols, IN_FLIGHT, self.elements), np.float32)
        self.psums = np.zeros((cols, IN_FLIGHT, self.elements), np.float32)
        self.ofmap = np.full(program.ofmap_shape, np.nan, np.float32)
        self.preload_number = {
            index: number
            for number, index in enumerate(i for i, step in enumerate(program.steps) if isinstance(step, Preload))
        }
        self.addresses: dict[int, _Addresses] = {}
        self.transfers: dict[int, dma.Words] = {}
        self.drained = 0
        self.units: Sequence[Callable[[], Commit]] = (self._ports, self._array, self._weights, self._collectors)

    @property
    def finished(self) -> bool:
        """Whether lane 0 has no orders left and the last lane has executed the last one."""
        return self.control.finished and self.drained >= self.lanes

    def clock(self) -> None:
        """One cycle: the units sample the old registers in any order, then all commit."""
        arriving = self.valid[-1, 0]
        complete = int(self.collected_words[0])
        completing = complete + int(arriving and self.collected_at[0] == self.elements - 1)
        if self.control.finished:
            self.drained += 1
        order = self.control.cycle(self.now, complete, completing) if not self.control.finished else Bundle()
        self.orders = [order, *self.orders[:-1]]
        for commit in [sample() for sample in self.units]:
            commit()
        self.now += 1

    # ---- each unit samples registers, and returns what it commits to registers that only it writes

    def _array(self) -> Commit:
        """PEs: activations move right, sums down; a PE multiplies with the buffer its activation names."""
        issuing = self.serial_left > 0
        at = self.elements - self.serial_left
        value = np.where(issuing, self.serial[np.arange(self.rows), at % self.elements], 0)
        activation = np.column_stack([value, self.activation[:, :-1]])
        valid = np.column_stack([issuing, self.valid[:, :-1]])
        buffer = np.column_stack([self.serial_buffer, self.buffer[:, :-1]])
        above = np.vstack([np.zeros(self.cols, np.float32), self.sums[:-1]])
        weight = np.take_along_axis(self.weights, buffer[None], axis=0)[0]
        sums = above + activation * weight

        def commit() -> None:
            self.activation, self.valid, self.buffer, self.sums = activation, valid, buffer, sums

        return commit

    def _weights(self) -> Commit:
        """Weights move down their column with a tag; the PE of that row keeps its own."""
        issuing = self.weight_left > 0
        cols = np.arange(self.cols)
        head = self.weight_serial[cols, self.weight_at % self.word]
        moving = np.vstack([head, self.moving[:-1]])
        row = np.vstack([np.where(issuing, self.weight_row, -1), self.moving_row[:-1]])
        buffer = np.vstack([self.weight_buffer, self.moving_buffer[:-1]])
        keep = np.nonzero(row == np.arange(self.rows)[:, None])
        kept = moving[keep]

        def commit() -> None:
            self.moving, self.moving_row, self.moving_buffer = moving, row, buffer
            self.weights[(buffer[keep], *keep)] = kept

        return commit

    def _collectors(self) -> Commit:
        """De-serializers: the sum below the bottom row joins its word; a full word goes to the vector unit."""
        arriving = np.nonzero(self.valid[-1])[0]
        sums = self.sums[-1, arriving]
        at = self.collected_at[arriving]
        full = arriving[at == self.elements - 1]

        def commit() -> None:
            self.collected[arriving, at] = sums
            self.collected_at[arriving] = (at + 1) % self.elements
            self.results[full, self.collected_words[full] % IN_FLIGHT] = self.collected[full]
            self.collected_words[full] += 1

        return commit

    def _ports(self) -> Commit:
        """Every lane with an order makes its one access; serializers move on or take the word read."""
        loads: list[Callable[[], None]] = []
        for lane, order in enumerate(self.orders):
            if order.client != FREE:
                loads.append(self._access(lane, order))
        serial = np.maximum(self.serial_left - 1, 0)
        shifted = self.weight_left > 0

        def commit() -> None:
            self.serial_left = serial
            self.weight_at[shifted] += 1
            self.weight_row[shifted] += 1
            self.weight_left[shifted] -= 1
            for load in loads:
                load()

        return commit

    def _access(self, lane: int, order: Bundle) -> Commit:
        step = self.program.steps[order.step]
        if order.client == IFMAP:
            assert isinstance(step, Stream)
            return self._read_ifmap(lane, order, step)
        if order.client == WEIGHT:
            assert isinstance(step, Preload)
            return self._read_weights(lane, order, step)
        if order.client == DMA:
            assert isinstance(step, IfmapFill | FilterFill | Spill)
            return self._transfer(lane, order, step)
        assert isinstance(step, Stream)
        return self._read_psum(lane, order, step) if order.client == PSUM else self._write_result(lane, order, step)

    def _read_ifmap(self, lane: int, order: Bundle, step: Stream) -> Commit:
        if order.step not in self.addresses:
            self.addresses[order.step] = _Addresses.of(step, self.lanes)
        address = self.addresses[order.step].word(lane, order.counts)
        if lane >= self.rows:
            return _nothing
        self.reads += address >= 0
        word = self.memory[lane, address, : self.elements].copy() if address >= 0 else np.float32(0)
        buffer = self.preload_number[step.preload] % len(self.weights)

        def commit() -> None:
            self.serial[lane], self.serial_left[lane], self.serial_buffer[lane] = word, self.elements, buffer

        return commit

    def _read_weights(self, lane: int, order: Bundle, step: Preload) -> Commit:
        """A word of W weights of column `lane`; rows that the pass does not use get zeros, without a read."""
        if lane >= self.cols:
            return _nothing
        first = order.word * self.word
        real = lane < step.cols and first < step.rows
        self.reads += real
        word = np.zeros(self.word, np.float32)
        if real:
            count = min(self.word, step.rows - first)
            word[:count] = self.memory[lane, step.base + order.word, :count]
        left, buffer = min(self.word, self.rows - first), self.preload_number[order.step] % len(self.weights)

        def commit() -> None:
            self.weight_serial[lane], self.weight_at[lane], self.weight_left[lane] = word, 0, left
            self.weight_row[lane], self.weight_buffer[lane] = first, buffer

        return commit

    def _read_psum(self, lane: int, order: Bundle, step: Stream) -> Commit:
        if lane >= step.cols:
            return _nothing
        self.reads += 1
        word = self.memory[lane, step.result_base + order.word, : self.elements].copy()

        def commit() -> None:
            self.psums[lane, order.sequence % IN_FLIGHT] = word

        return commit

    def _write_result(self, lane: int, order: Bundle, step: Stream) -> Commit:
        """The collected word, with its partial sum added by the vector unit."""
        if lane >= step.cols:
            return _nothing
        self.writes += 1
        held = order.sequence % IN_FLIGHT
        word = self.results[lane, held] + self.psums[lane, held] if step.accumulate else self.results[lane, held].copy()

        def commit() -> None:
            self.memory[lane, step.result_base + order.word, : self.elements] = word

        return commit

    def _transfer(self, lane: int, order: Bundle, step: IfmapFill | FilterFill | Spill) -> Commit:
        words = self._words(order.step, step)
        if not words.lanes[lane, order.word]:
            return _nothing
        address = words.addresses[order.word]
        if isinstance(step, Spill):
            self.reads += 1
            words.values[lane, order.word] = self.memory[lane, address]
            if order.word == step.words - 1 and lane == len(step.box.channels) - 1:
                dma.store(self.program, step, words, self.ofmap)
            return _nothing
        self.writes += 1
        word = words.values[lane, order.word]

        def commit() -> None:
            self.memory[lane, address] = word

        return commit

    def _words(self, index: int, step: IfmapFill | FilterFill | Spill) -> dma.Words:
        if index not in self.transfers:
            if isinstance(step, IfmapFill):
                words = dma.ifmap_words(self.program, step, self.ifmap, self.lanes, self.word)
            elif isinstance(step, FilterFill):
                words = dma.filter_words(step, self.filter, self.lanes, self.word)
            else:
                words = dma.spill_words(step, self.lanes, self.word)
            self.transfers[index] = words
        return self.transfers[index]

    # ---- the accounts

    def timing(self) -> Timing:
        """Cycles until the last word is in HBM, and every unit's split."""
        control = self.control
        end = max(control.dma.end, max(control.done))
        cycles = end + self.lanes - 1
        units = {
            "systolic_array": control.stream.use,
            "preload": control.preload.use,
            "vector_unit": Counter(busy=control.adding),
            "hbm": control.dma.use,
        }
        accounts = {name: split(use, cycles) for name, use in units.items()}
        accounts["port"] = split(control.port, cycles, PORT_CLIENTS)
        return Timing(cycles, accounts, self.reads, self.writes)


def _nothing() -> None:
    """A lane that has no part in an order."""
