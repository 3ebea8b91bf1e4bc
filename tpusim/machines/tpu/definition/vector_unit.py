"""The vector unit adds partial sums, and converts numbers between HBM and the chip."""

from __future__ import annotations

from tpusim.machines.tpu.description import VectorUnit
from tpusim.machines.tpu.program.steps import IfmapFill, Spill, Transfer


def add_cycles(elements: int, lanes: int, alus: int) -> int:
    """Cycles to add one word in every lane: `alus` adds a cycle over all lanes (Table II: 256, 2 a lane)."""
    return -(-elements * lanes // alus)


def conversion_cycles(step: Transfer, unit: VectorUnit) -> int:
    """Cycles to unpack the ifmap words of a fill, or to pack the result words of a spill, all lanes at once."""
    match step:
        case IfmapFill():
            return step.words * unit.unpack_cycles
        case Spill():
            return step.words * unit.pack_cycles
        case _:
            return 0
