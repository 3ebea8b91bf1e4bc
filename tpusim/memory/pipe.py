"""High-bandwidth memory: a fixed latency, then bytes at the full bandwidth (banks come later)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Pipe:
    """Latency in cycles; bytes a cycle as an exact fraction, so that no rounding ever accumulates."""

    latency: int
    bytes_per_cycle: Fraction

    def cycles(self, size_bytes: int) -> int:
        """Cycles the bus is busy with one transfer."""
        return max(1, -(-size_bytes * self.bytes_per_cycle.denominator // self.bytes_per_cycle.numerator))

    def arrivals(self, start: int, cycles: int, words: int) -> NDArray[np.int64]:
        """When word k of a fill, spread evenly over the transfer, is complete on the chip."""
        whole, rest = divmod(cycles, words)
        order = np.arange(1, words + 1, dtype=np.int64)
        return start + self.latency + order * whole - (-order * rest // words)

    def demands(self, start: int, cycles: int, words: int) -> NDArray[np.int64]:
        """When the bus can take word k of a spill."""
        whole, rest = divmod(cycles, words)
        order = np.arange(words, dtype=np.int64)
        return start + order * whole + order * rest // words
