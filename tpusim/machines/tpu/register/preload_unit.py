"""Reads weight words, one word register ahead of the array, then biases, and knows when the last of them enters it."""

from __future__ import annotations

from collections import Counter, deque
from math import ceil

from tpusim.machines.tpu.definition import BIAS_CYCLES, WEIGHT, Frame
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import STARVED
from tpusim.machines.tpu.program.passes import Preload, Stream
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.vector import Vector
from tpusim.machines.tpu.register.order import NOWHERE, Order
from tpusim.machines.tpu.register.scoreboard import Scoreboard


class PreloadUnit:
    """One preload at a time of an array, or of all that share weights; all R rows are shifted in."""

    def __init__(self, program: Program, scoreboard: Scoreboard, hardware: Hardware, frame: Frame, number: int) -> None:
        self.scoreboard, self.word_elements = scoreboard, hardware.vector_memory.word_elements
        self.array, self.waits = number, frame.weight_waits(number)
        array = hardware.array
        self.rows, self.buffers, self.rate = array.rows, array.weight_buffers, array.weights_per_cycle
        self.todo = deque(
            (index, step)
            for index, step in enumerate(program.steps)
            if isinstance(step, Preload) and step.array == number
        )
        self.fills = {
            index: [other for other in step.after if program.steps[other].cause == STARVED] for index, step in self.todo
        }
        self.turn = _ahead(program, number)
        self.started = self.delayed = 0
        self.row = self.rows
        self.biases = self.injecting = 0
        self.use: Counter[str] = Counter()

    @property
    def under_way(self) -> bool:
        """Whether weights or biases are still to be read or to enter the array."""
        return self.row < self.rows or self.biases > 0 or self.injecting > 0

    def tick(self, now: int) -> None:
        """Weights of the register enter the array; with the last ones, the preload is done."""
        if self.injecting:
            self.injecting -= 1
            if not self.under_way:
                self.scoreboard.finish(self.index, now)

    def clock(self, now: int, issued: int, running: bool) -> None:
        """Start the next preload once its delay is over and, before that, all that is issued ahead of it is: then a
        weight buffer is free, or will be when the stream is over.
        """
        if self.under_way or not self.todo:
            return
        if issued < self.turn[self.todo[0][0]] or (running and self.buffers == 1):
            self.use["blocked"] += 1
        elif self.scoreboard.waiting(self.fills[self.todo[0][0]], now):
            self.use["starved"] += 1
        elif self.scoreboard.waiting(self.todo[0][1].after, now):
            self.use["blocked"] += 1
        elif self.delayed < self.todo[0][1].delay:
            self.delayed += 1
            self.use["blocked"] += 1
        else:
            self.delayed = 0
            self.index, self.step = self.todo.popleft()
            self.buffer = self.started % self.buffers
            self.started += 1
            self.row, self.biases = 0, self.step.bias_words

    def read(self, now: int) -> Order | None:
        """The next weight word, or that of the biases, when the word register can take it at the end of this cycle."""
        if self.injecting or self.waits[now % len(self.waits)]:
            return None
        if self.row >= self.rows:
            return self._read_bias() if self.biases else None
        first, step = self.row, self.step
        address = step.base + first // self.word_elements if first < step.rows else NOWHERE
        self.row += self.word_elements
        self.injecting = ceil(min(self.word_elements, self.rows - first) / self.rate)
        return Order(WEIGHT, self.index, step.cols, address, array=self.array, buffer=self.buffer, first=first)

    def _read_bias(self) -> Order:
        """The word whose first element goes to the register above the first row."""
        self.biases, self.injecting, step = 0, BIAS_CYCLES, self.step
        address = NOWHERE if step.bias is None else step.bias
        return Order(WEIGHT, self.index, step.cols, address, array=self.array, buffer=self.buffer, first=self.rows)

    def book(self) -> None:
        """Account for a cycle of a preload under way, once it is known whether the port was free."""
        if self.under_way:
            self.use["busy" if self.injecting else "port_stall"] += 1


def _ahead(program: Program, array: int) -> dict[int, int]:
    """By preload, the streams of its array and the vector steps ahead of it."""
    ahead, issues = {}, 0
    for index, step in enumerate(program.steps):
        if isinstance(step, Preload):
            ahead[index] = issues
        issues += isinstance(step, Vector) or (isinstance(step, Stream) and program.array_of(step) == array)
    return ahead
