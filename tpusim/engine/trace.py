"""What can be seen of the machine in one cycle."""

from __future__ import annotations

from dataclasses import dataclass

PORT_LETTERS = ".RPWkfs"
"""What a lane's port does: by its client, FREE to DMA; the last is a DMA access that spills."""

UNUSED = "-"
"""A slot that padding, or a lane that has no part in the step, leaves unused."""

MOST_CYCLES = 2000
"""In a picture; more cannot be told apart."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """A letter for each lane's port, PEs that hold an activation, weights on their way to their PE."""

    number: int
    ports: str
    working: int
    moving: int
