"""The vector unit adds partial sums."""

from __future__ import annotations


def add_cycles(elements: int, lanes: int, alus: int) -> int:
    """Cycles to add one word in every lane: `alus` adds a cycle over all lanes (Table II: 256, 2 a lane)."""
    return -(-elements * lanes // alus)
