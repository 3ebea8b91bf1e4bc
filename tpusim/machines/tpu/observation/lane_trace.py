"""What can be seen of the machine in one cycle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PORT_LETTERS = ".RPWkfs"
"""What a lane's port does: by its client, FREE to DMA; the last is a DMA access that spills."""

UNUSED = "-"
"""A slot that padding, or a lane that has no part in the step, leaves unused."""

MEANINGS = {
    "R": "reads ifmap",
    "P": "reads a partial sum",
    "W": "writes a result",
    "k": "reads weights",
    "f": "is filled",
    "s": "is spilled",
    UNUSED: "leaves its slot unused (padding, or no part in the step)",
}
"""What a lane does, by its letter."""

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
