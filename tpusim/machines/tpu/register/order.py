"""What a port of lane 0 is told to do in a cycle. Every lane hands it on to the next: that is the skew."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tpusim.machines.tpu.definition import FREE

NOWHERE = -(2**62)
"""The address of a word that is not there: none that a Program could name by mistake."""


class Order(NamedTuple):
    """Who uses the port, and for what; fields that a client does not need stay as they are.

    client: FREE, IFMAP, POINTER, PSUM, RESULT, VECTOR, WEIGHT or DMA
    step: of the Program, for those who watch
    lanes: take part, from lane 0 on
    address: of the word, or NOWHERE; then every lane finds its own (IFMAP, VECTOR, DMA)
    generator, word: the address generators' setting, and the word of the pass, step or part (IFMAP, VECTOR, DMA)
    array: which array's serializers or results (IFMAP, PSUM, RESULT, WEIGHT)
    buffer: the weight buffer to fill (WEIGHT) or to multiply with (IFMAP)
    first: the array row of a word's first weight, the number of rows for a bias (WEIGHT)
    pointer, together: which of all numbers read is its first pointer, and how many there are; 0: none (IFMAP, VECTOR)
    number: of the array's result word or the pointer word since the layer began (PSUM, RESULT, POINTER), of lane 0's
        word in HBM (DMA), of the result's register (VECTOR)
    register: the vector register into which the word goes, of pointers the word register of its own (VECTOR)
    element: the one of the word that goes there; -1: all of it (VECTOR)
    points: whether it is a word of pointers (VECTOR)
    works: whether it is the last operand, and the vector unit works out a result (VECTOR)
    stores: whether a result is written (VECTOR)
    stride: words in HBM from one lane's to the next lane's (DMA)
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
    register: int = 0
    element: int = -1
    points: bool = False
    works: bool = False
    stores: bool = False
    accumulate: bool = False
    finishes: bool = False
    spill: bool = False


IDLE = Order()

ORDER = np.dtype([(name, np.int64) for name in Order._fields])
"""An order in a lane's register."""

NOTHING = np.array(IDLE, ORDER)
"""IDLE as a register holds it."""
