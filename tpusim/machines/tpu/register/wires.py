"""Wires, orders to ports, and records of registers: what the units of the register engine share.

Registers are arrays. Loops over them become machine code, in a `kernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tpusim.base.imports import compiled
from tpusim.machines.tpu.definition import FREE
from tpusim.machines.tpu.register.blocks import BLOCK, move

Floats = NDArray[np.floating[Any]]
Tags = NDArray[np.int8]
Ints = NDArray[np.int32]
Counts = NDArray[np.int64]
Records = NDArray[Any]
Record = Any
"""A record of registers: an element of `Records`."""

F = TypeVar("F", bound=Callable[..., object])

_REGISTER = Path(__file__).parent
_DRAM = _REGISTER.parents[2] / "memory" / "dram"
SOURCES = (_REGISTER, _REGISTER.parent / "definition.py", _REGISTER.parent / "program", _DRAM)
"""Sources that a kernel may import from: a change in them compiles it anew. A test compares them with the imports."""


def kernel(function: F) -> F:
    """Compile a loop over registers. The machine code is kept on disk, so only the very first run waits for the
    compiler.

    The loop must not create arrays: references are not counted. Other threads, such as the one that shows progress, run
    meanwhile.
    """
    return compiled(function, SOURCES, _REGISTER, _nrt=False, nogil=True)


def part(function: F) -> F:
    """Compile a part of a kernel, which Python never calls: this saves half of the compiler's time."""
    return compiled(
        function, SOURCES, _REGISTER, _nrt=False, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
    )


@part
def copy(to: NDArray[Any], of: NDArray[Any]) -> None:
    """Copy registers in a row: assigning arrays would create one."""
    place = 0
    while place + BLOCK <= len(to):
        move(to, of, place)
        place += BLOCK
    while place < len(to):
        to[place] = of[place]
        place += 1


_LINE = 64
"""Bytes of a line of the computer's cache."""


def cells(shape: tuple[int, ...], number: DTypeLike) -> NDArray[Any]:
    """Registers of this shape, all zero. They begin where a line of the cache does, so that a word takes no more lines
    than it has to.
    """
    size = prod(shape) * np.dtype(number).itemsize
    room = np.zeros(size + _LINE, np.int8)
    first = -room.ctypes.data % _LINE
    return room[first : first + size].view(number).reshape(shape)


def registers(names: str) -> np.dtype[Any]:
    """The type of a record of whole numbers with these names."""
    return np.dtype([(name, np.int64) for name in names.split()])


IN_FLIGHT = 4
"""Most result words that a lane holds between its de-serializer and its memory.

A word meets its partial sum within one frame of its last sum (the next slot 1), its adds and what finishes it take at
most one frame, and the result slot comes within one more: fewer than three frames, in which at most three more words
can be complete. Where each client has a port of its own, nothing waits for a slot.
"""


class Wires(NamedTuple):
    """Every wire is driven by one unit, when it commits, and read by others, when they sample; [array, ...] each, and
    of elements and their sums [array, plane, ...]: a plane for each of those that enter a row at once.
    """

    # PEs that everything crosses in a cycle.
    crossed: int
    # Ifmap serializers to row r: an element, and its tag, which goes with it and then with its sum: 1 and the weight
    # buffer that it is meant for, LAST more for the last element of a word; 0 for none.
    activation: Floats
    activation_tag: Tags
    # Weights to the chains of column c, to each array that shares them a cycle after the array before: a weight and its
    # place, 2 * row + buffer; a bias is for the row behind the last; -1 for nowhere.
    weight: Floats
    weight_tag: Ints
    # The weight registers to their multipliers.
    weights: Floats
    # Registers above the first row of PEs, one for each weight buffer: sums begin with their contents.
    biases: Floats
    # The bottom of column c: a sum, and whether it is one (its tag is not 0).
    sums: Floats
    sums_tag: Tags
    # De-serializers to the lanes: words that are complete, and their number since the layer began.
    results: Floats
    complete: Counts
    # Whether any ENTERING activation, or any LOADING weight, is on its wire; and whether any activation is on its way
    # through an array, so that sums may leave it (SUMMING).
    any: Counts

    @classmethod
    def of(
        cls, crossed: int, sizes: tuple[int, int, int], buffers: int, chains: int, planes: int, elements: int,
        number: type[Any],
    ) -> Wires:  # fmt: skip
        """All wires of arrays of these `sizes`, (arrays, rows, columns), with nothing on them."""
        count, rows, cols = sizes
        return cls(
            crossed, cells((count, planes, rows), number), cells((count, planes, rows), np.int8),
            cells((count, chains, cols), number), np.full((count, chains, cols), -1, np.int32),
            cells((count, buffers, rows, cols), number), cells((count, buffers, cols), number),
            cells((count, planes, cols), number), cells((count, planes, cols), np.int8),
            cells((count, cols, IN_FLIGHT, elements), number), np.zeros((count, cols), np.int64),
            np.zeros(3, np.int64),
        )  # fmt: skip


ENTERING, LOADING, SUMMING = range(3)

LAST = 2
"""What the last element of a word has more in its tag than the others."""

NOWHERE = -(2**62)
"""Address of a word that does not exist; no Program can name it by mistake."""

SPARE = 64
"""Least cells beside a window: that many shifts need no copy. More of them fall out of the computer's cache."""


def spare_of(step: int = 1) -> int:
    """Cells beside a window of registers that slides over them by `step`.

    Shifting moves the window, not the contents: register `i` is cell `head + i`, and the cells before the window become
    the first registers at the next shift. Until then they are the place for what enters. A window that has reached the
    first cell is copied from its end on, as it may overlap its new place.
    """
    return -(-SPARE // step) * step


ORDER = np.dtype(
    [
        *((name, np.int64) for name in ("address", "word", "pointer", "number", "found")),
        *((name, np.int32) for name in ("step", "lanes", "generator", "pattern", "array", "first", "together")),
        ("register", np.int32),
        *((name, np.int16) for name in ("element", "elements")),
        *((name, np.int8) for name in ("client", "buffer", "points", "works", "stores", "accumulate", "finishes")),
        *((name, np.int8) for name in ("spill", "beside")),
    ],
    align=True,
)
"""An access of a port: who makes it, and to what. Fields that a client does not need are as in IDLE.

client: FREE, IFMAP, POINTER, PSUM, RESULT, VECTOR, WEIGHT or DMA
step: number of the step in the Program
lanes: number of lanes that take part, from lane 0 on
address: address of the word; with NOWHERE, every lane finds its own (IFMAP, VECTOR, DMA)
generator, word: the address generators' setting, and the word of the pass, step or part (IFMAP, VECTOR, DMA)
pattern, found: the pattern by which the last lane has found its address, or -1, and that address: lanes of the same
    pattern take it over, as it goes from lane to lane with the order (IFMAP, VECTOR, DMA)
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
elements: elements of the word that enter the array (IFMAP)
accumulate: whether a partial sum is added to the result (RESULT)
finishes: whether the vector unit finishes the result (RESULT)
spill: whether the word goes to HBM (DMA)
"""

IDLE = np.zeros(1, ORDER)
"""No access, as an order."""
IDLE["client"], IDLE["step"], IDLE["address"], IDLE["element"], IDLE["pattern"] = FREE, -1, NOWHERE, -1, -1


def order_of(client: int, step: int, lanes: int, address: int = NOWHERE, **fields: int) -> Records:
    """An order, Records[1], with the given fields."""
    order = IDLE.copy()
    for name, value in {"client": client, "step": step, "lanes": lanes, "address": address, **fields}.items():
        order[name] = value
    return order
