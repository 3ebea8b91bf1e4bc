"""Times of the words of a transfer: HBM as a pipe of bytes, two clocks with a ratio, and words that share bursts."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import gcd
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Cycle = TypeVar("Cycle", int, NDArray[np.int64])


class Pipe(NamedTuple):
    """HBM as a latency in cycles and bytes a cycle, an exact fraction, so that no rounding ever accumulates."""

    latency: int
    bytes_per_cycle: Fraction

    def cycles(self, size_bytes: int) -> int:
        """Cycles the bus is busy with one transfer."""
        return max(1, -(-size_bytes * self.bytes_per_cycle.denominator // self.bytes_per_cycle.numerator))

    def arrivals(self, start: int, cycles: int, words: int) -> NDArray[np.int64]:
        """Cycles in which each word of a fill is complete on the chip, int64[words]; words are spread evenly over
        `cycles`.
        """
        return spread(start + self.latency, cycles, words)

    def demands(self, start: int, cycles: int, words: int) -> NDArray[np.int64]:
        """Cycles in which the bus can take each word of a spill that takes `cycles`: int64[words]."""
        return start + _parts(cycles, words)[:-1]


def spread(start: int, cycles: int, words: int) -> NDArray[np.int64]:
    """Cycles in which words are complete that take `cycles` together, evenly, from `start` on: int64[words]."""
    return start - _parts(-cycles, words)[1:]


@lru_cache(maxsize=64)
def _parts(cycles: int, words: int) -> NDArray[np.int64]:
    """The parts of `cycles` that 0, 1, and up to all words take, rounded down: int64[words + 1]; cached, because many
    transfers are alike.
    """
    order = np.arange(words + 1, dtype=np.int64)
    whole, rest = divmod(cycles, words)
    return order * whole + order * rest // words


class Clocks(NamedTuple):
    """Two clocks whose cycle 0 begins at the same time.

    While the machine's clock ticks `machine` times, the memory's ticks `memory` times, exactly.
    """

    machine: int
    memory: int

    @classmethod
    def of(cls, machine_hz: int, memory_hz: int) -> Clocks:
        """The ratio of two clocks in lowest terms."""
        common = gcd(machine_hz, memory_hz)
        return cls(machine_hz // common, memory_hz // common)

    def to_memory(self, cycle: Cycle) -> Cycle:
        """The first cycle of the memory that does not begin before a cycle of the machine does."""
        return -(-cycle * self.memory // self.machine)

    def to_machine(self, cycle: Cycle) -> Cycle:
        """The first cycle of the machine that does not begin before a cycle of the memory does."""
        return -(-cycle * self.machine // self.memory)


@lru_cache(maxsize=8)
def last_shares(parts: int, others: int) -> NDArray[np.int64]:
    """The last of `others` that overlaps each of `parts`, if both together are equally long: int64[parts].

    This is the last word of each burst, for example; there is at least one of `others`. Cached, because many transfers
    are alike.
    """
    return np.asarray(-(-np.arange(1, parts + 1, dtype=np.int64) * others // parts) - 1)
