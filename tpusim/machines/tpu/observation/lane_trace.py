"""What can be seen of the machine in one cycle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tpusim.result.vocabulary.states import CLIENTS


@dataclass(frozen=True, slots=True)
class Access:
    """What a lane's port does in a cycle: in a word, in a sentence about the lane, and its tone in a picture."""

    word: str
    meaning: str
    tone: str


UNUSED = "-"
"""A slot that padding, or a lane that has no part in the step, leaves unused."""

ACCESSES = {
    ".": Access("free", "", "#ffffff"),
    "R": Access("ifmap", "reads ifmap", CLIENTS["ifmap"].look.light),
    "p": Access("pointer", "reads pointers", CLIENTS["pointer"].look.light),
    "P": Access("psum", "reads a partial sum", CLIENTS["psum"].look.light),
    "W": Access("result", "writes a result", CLIENTS["result"].look.light),
    "v": Access("vector", "works for the vector unit", CLIENTS["vector"].look.light),
    "k": Access("weight", "reads weights", CLIENTS["weight"].look.light),
    "f": Access("fill", "is filled", CLIENTS["dma"].look.light),
    "s": Access("spill", "is spilled", "#c49a6c"),
    UNUSED: Access("unused", "leaves its slot unused (padding, or no part in the step)", "#e8e8e8"),
}
"""By letter: first those of the port's clients, FREE to DMA, then a DMA access that spills. Legends skip the first."""

WORKING = "PEs that hold an activation (zeros of unused rows and columns included)"
MOVING = "weights on their way"

LOOK_EVERY = 1024
"""Cycles between two looks at a clock that runs."""

Watch = Callable[[int], None]
"""Told now and then how many cycles have passed."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """A letter for each lane's port; how many PEs are WORKING, how many weights MOVING."""

    number: int
    ports: str
    working: int
    moving: int


def unwatched(_: int) -> None:
    """Nobody looks at the clock."""
