"""What stands in the vector memories after the fills of an ifmap: which element in which word of which lane."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.datapath.memories import hbm_tensors, pack
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Fill
from tpusim.network.ops.array_op import ArrayOp
from tpusim.study.paper.claim import number

Numbers = NDArray[np.float32]
PADDING, EMPTY = 0, -1
"""Instead of the number of an element."""


def numbered_ifmap(layer: ArrayOp, batch: int) -> Numbers:
    """The ifmap [channel, row, col, image] whose elements are their own numbers, from 1."""
    shape = layer.tensors(batch).ifmap
    return np.arange(1, prod(shape) + 1, dtype=np.float32).reshape(shape)


def contents(program: Program, layer: ArrayOp, batch: int, hardware: Hardware) -> Numbers:
    """Numbers of elements [lane, word, element], PADDING or EMPTY, as the fills of the ifmap leave them.

    What a later fill puts over an earlier one is what stands there.
    """
    given = {"ifmap": numbered_ifmap(layer, batch), "filter": np.zeros(layer.tensors(batch).filter, np.float32)}
    tensors = hbm_tensors(program, program.given(given), ())
    memory = np.full((hardware.lanes, program.words, hardware.vector_memory.word_elements), EMPTY, np.float32)
    for step in program.steps:
        if isinstance(step, Fill) and step.tensor.name == "ifmap":
            for part in step.parts:
                values = tensors["ifmap"].read(part)
                for first in part.first_lanes:
                    words = memory[first : first + part.lanes, part.base : part.base + part.words]
                    pack(values, words, part)
    return memory


def most_lanes(memory: Numbers) -> int:
    """In how many lanes the element stands that stands in most."""
    numbers = {int(each): 0 for each in np.unique(memory) if each > PADDING}
    for lane in memory:
        for each in np.unique(lane):
            if each > PADDING:
                numbers[int(each)] += 1
    return max(numbers.values())


def place(element: float, shape: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Channel, row, col and image of an element of a shape, by its number."""
    channel, row, col, image = (int(each) for each in np.unravel_index(int(element) - 1, shape))
    return channel, row, col, image


def point_name(element: float, shape: tuple[int, int, int, int]) -> str:
    """What the paper calls an element of a channel: "1A" is the first of the first row; "0" is padding."""
    if element == PADDING:
        return number(0)
    _, row, col, _ = place(element, shape)
    return f"{row + 1}{chr(ord('A') + col)}"
