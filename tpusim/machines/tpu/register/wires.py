"""Registers that shift, wires, orders to ports, and the scoreboard: what the units of the register engine share.

Loops over registers become machine code, in a `kernel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import PortConflict
from tpusim.base.imports import compiled
from tpusim.machines.tpu.definition import FREE, NEVER
from tpusim.machines.tpu.description import Hardware

Floats = NDArray[np.floating[Any]]
Tags = NDArray[np.int8]
Ints = NDArray[np.int32]
Counts = NDArray[np.int64]
Records = NDArray[Any]

F = TypeVar("F", bound=Callable[..., object])

_REGISTER = Path(__file__).parent
SOURCES = (_REGISTER, _REGISTER.parent / "definition.py", _REGISTER.parent / "program")
"""Sources that a kernel may import from: a change in them compiles it anew. A test compares them with the imports."""


def kernel(function: F) -> F:
    """Compile a loop over registers. The machine code is kept on disk, so only the very first run waits for the
    compiler.
    """
    return compiled(function, SOURCES, _REGISTER)


SPARE = 64
"""Least cells beside the window: that many shifts need no copy."""


class SlidingWindow:
    """`length` registers along `axis`, seen through a window that slides over at least twice as many cells.

    Shifting by `step` cells moves the window, not the contents: register `i` is cell `head + i`, and the cells
    before the window, from `entry` on, become the first registers at the next `shift`. Until then they are the
    place for what enters.
    """

    def __init__(self, registers: Records, axis: int, step: int = 1) -> None:
        self.axis, self.step = axis, step
        self.length: int = registers.shape[axis]
        self.spare = -(-max(SPARE, self.length) // step) * step
        shape = (*registers.shape[:axis], self.spare, *registers.shape[axis + 1 :])
        self.cells = np.concatenate([np.zeros(shape, registers.dtype), registers], axis)
        self.head: int = self.spare

    @property
    def entry(self) -> int:
        """The first of the cells for what enters."""
        return self.head - self.step

    @property
    def registers(self) -> Records:
        """Contents of the registers, as a view."""
        return self.cells[self._at(self.head)]

    def shift(self) -> None:
        """Move every register's contents on by `step`; what stood before the first enters."""
        self.head -= self.step
        if self.head == 0:
            self.head = self.spare
            # The window has reached the first cell: its contents are copied once, to the far end.
            self.cells[self._at(self.head)] = self.cells[self._at(0)]

    def _at(self, head: int) -> tuple[slice, ...]:
        return (slice(None),) * self.axis + (slice(head, head + self.length),)


IN_FLIGHT = 4
"""Most result words that a lane holds between its de-serializer and its memory.

A word meets its partial sum within one frame of its last sum (the next slot 1), its adds and what finishes it take at
most one frame, and the result slot comes within one more: fewer than three frames, in which at most three more words
can be complete. Where each client has a port of its own, nothing waits for a slot.
"""


class Wires:
    """Every wire is driven by one unit, when it commits, and read by others, when they sample; [array, ...] each, and
    of elements and their sums [array, plane, ...]: a plane for each of those that enter a row at once.
    """

    def __init__(self, hardware: Hardware, elements: int, number: type[Any]) -> None:
        array = hardware.array
        count, rows, cols = array.count, array.rows, array.cols
        chains, planes = min(array.weights_per_cycle, hardware.vector_memory.word_elements), hardware.multipliers
        # PEs that everything crosses in a cycle.
        self.crossed = array.pes_per_cycle
        # Ifmap serializers to row r: an element, and its tag, which goes with it and then with its sum: 1 and the
        # weight buffer that it is meant for, LAST more for the last element of a word; 0 for none.
        self.activation = np.zeros((count, planes, rows), number)
        self.activation_tag = np.zeros((count, planes, rows), np.int8)
        # Whether any of them is an element; of the weights below, whether any belongs somewhere.
        self.entering = self.loading = False
        # Serializers of weights: one for all arrays that share weights, or one for each array.
        self.weight_serializers = array.queues
        # Weights to the chains of column c, to each array that shares them a cycle after the array before: a weight and
        # its place, row * buffers + buffer; a bias is for the row behind the last; -1 for nowhere.
        self.weight = np.zeros((count, chains, cols), number)
        self.weight_tag = np.full((count, chains, cols), -1, np.int32)
        # The weight registers to their multipliers.
        self.weights = np.zeros((count, array.weight_buffers, rows, cols), number)
        # Registers above the first row of PEs, one for each weight buffer: sums begin with their contents.
        self.biases = np.zeros((count, array.weight_buffers, cols), number)
        # The bottom of column c: a sum, and whether it is one (its tag is not 0).
        self.sums = np.zeros((count, planes, cols), number)
        self.sums_tag = np.zeros((count, planes, cols), np.int8)
        # Whether any activation is on its way through an array, and so sums may leave it.
        self.summing = False
        # De-serializers to the lanes: words that are complete, and their number since the layer began.
        self.results = np.zeros((count, cols, IN_FLIGHT, elements), number)
        self.complete = np.zeros((count, cols), np.int64)


LAST = 2
"""What the last element of a word has more in its tag than the others."""

NOWHERE = -(2**62)
"""Address of a word that does not exist; no Program can name it by mistake."""


class Order(NamedTuple):
    """An access of a port: who makes it, and to what. Fields that a client does not need keep their defaults.

    client: FREE, IFMAP, POINTER, PSUM, RESULT, VECTOR, WEIGHT or DMA
    step: number of the step in the Program
    lanes: number of lanes that take part, from lane 0 on
    address: address of the word; with NOWHERE, every lane finds its own (IFMAP, VECTOR, DMA)
    generator, word: the address generators' setting, and the word of the pass, step or part (IFMAP, VECTOR, DMA)
    array: number of the array whose serializers or results are meant (IFMAP, PSUM, RESULT, WEIGHT)
    buffer: the weight buffer to fill (WEIGHT) or to multiply with (IFMAP)
    first: the array row of a word's first weight, the number of rows for a bias (WEIGHT)
    pointer, together: number of its first pointer among all read, and count of its pointers, or 0 (IFMAP, VECTOR)
    number: number of the result or pointer word since the layer began (PSUM, RESULT, POINTER), of lane 0's
        word in HBM (DMA), of the result's register (VECTOR)
    register: vector register into which the word goes; for pointers, their own word register (VECTOR); register beside
        a transfer into which it goes, or from which it comes (DMA)
    element: element of the word that goes there; -1: the whole word (VECTOR)
    points: whether it is a word of pointers (VECTOR)
    works: whether it is the last operand, and the vector unit works out a result (VECTOR); whether the word is worked
        on (DMA)
    stores: whether a result is written (VECTOR), or a register beside a transfer (DMA)
    beside: whether the word is not moved, but stands beside those that are (DMA)
    stride: words in HBM from one lane's to the next lane's (DMA)
    elements: elements of the word that enter the array (IFMAP)
    accumulate: whether a partial sum is added to the result (RESULT)
    finishes: whether the vector unit finishes the result (RESULT)
    spill: whether the word goes to HBM (DMA)
    """

    client: int = FREE
    step: int = -1
    lanes: int = 0
    address: int = NOWHERE
    generator: int = 0
    word: int = 0
    array: int = 0
    buffer: int = 0
    first: int = 0
    pointer: int = 0
    together: int = 0
    number: int = 0
    stride: int = 0
    elements: int = 0
    register: int = 0
    element: int = -1
    points: bool = False
    works: bool = False
    stores: bool = False
    accumulate: bool = False
    finishes: bool = False
    spill: bool = False
    beside: bool = False


IDLE = Order()

ORDER = np.dtype([(name, np.int64) for name in Order._fields])
"""Type of an order in a lane's register."""

NOTHING = np.array(IDLE, ORDER)
"""IDLE in the form of a register."""


Client = Callable[[int], Order | None]
"""Gives a client's order for a cycle, or None; a client that is asked takes what it names."""


@dataclass(frozen=True, slots=True)
class Port:
    """A port, asked once a cycle. The stream's `owners` have cycles of their own; the `others` share the rest, in
    order.
    """

    owners: tuple[Client, ...]
    others: tuple[Client, ...]

    def grant(self, now: int) -> Order:
        """The order of the client whose turn it is.

        Raises:
            PortConflict: when two owners ask at once.
        """
        due: Order | None = None
        for client in self.owners:
            if order := client(now):
                if due:
                    raise PortConflict(f"cycle {now}: two clients of the stream ask for lane 0's port at once")
                due = order
        # WEIGHT comes before DMA here, as in PORTS: a late preload would stop the whole array.
        if due is None:
            for client in self.others:
                if order := client(now):
                    return order
        return due or IDLE


class Scoreboard:
    """Completion cycle of each step; NEVER while it is unknown."""

    def __init__(self, steps: int) -> None:
        self.done = [NEVER] * steps
        self.open = steps

    def finish(self, step: int, cycle: int) -> None:
        """`step` is done from `cycle` on."""
        self.done[step] = cycle
        self.open -= 1

    def waiting(self, steps: Iterable[int], now: int) -> bool:
        """Whether any of `steps` is not done in cycle `now`."""
        done = self.done
        for step in steps:  # noqa: SIM110  a generator would take twice as long, and this is asked every cycle
            if done[step] > now:
                return True
        return False
