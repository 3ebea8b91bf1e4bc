"""Two clocks that tick at a ratio of whole numbers; both begin their cycle 0 at once."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Cycle = TypeVar("Cycle", int, NDArray[np.int64])


class Clocks(NamedTuple):
    """While the machine's clock ticks `machine` times, the memory's ticks `memory` times, exactly."""

    machine: int
    memory: int

    @classmethod
    def of(cls, machine_hz: int, memory_hz: int) -> Clocks:
        """In lowest terms."""
        common = gcd(machine_hz, memory_hz)
        return cls(machine_hz // common, memory_hz // common)

    def to_memory(self, cycle: Cycle) -> Cycle:
        """The first cycle of the memory that does not begin before a cycle of the machine does."""
        return -(-cycle * self.memory // self.machine)

    def to_machine(self, cycle: Cycle) -> Cycle:
        """The first cycle of the machine that does not begin before a cycle of the memory does."""
        return -(-cycle * self.machine // self.memory)
