"""A port that does not forget."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tpusim.machine.vector_memory import Cycles, Port


class Calendar(Port):
    """The calendar of lane 0's port, kept from its first cycle to its last."""

    def __init__(self) -> None:
        super().__init__()
        self._past = bytearray()

    def take(self, client: int, cycles: Cycles) -> None:
        """Own exactly these cycles of the past, and keep all up to the last of them."""
        past = int(cycles[-1]) + 1 - self.settled
        kept = self._cells[:past].ljust(past, b"\0")
        np.frombuffer(kept, np.uint8)[cycles - self.settled] = client
        self._past += kept
        super().take(client, cycles)

    def owners(self) -> NDArray[np.uint8]:
        """Who owns each cycle; after the last that is owned there may be none."""
        return np.append(np.frombuffer(self._past, np.uint8), np.frombuffer(self._cells, np.uint8))
