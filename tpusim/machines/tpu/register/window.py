"""Shift registers that cost nothing to shift."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Registers = NDArray[Any]


SPARE = 64
"""Cells beside the window, at least: as many shifts cost no copy."""


class Window:
    """`length` registers along `axis`, seen through a window that slides over at least twice as many cells.

    Shifting by one cell moves the window, not the contents: register `i` is cell `head + i`, and the cell
    before the window, `head - 1`, becomes register 0 at the next `shift`. Until then it is the place for
    what enters.
    """

    def __init__(self, registers: Registers, axis: int) -> None:
        self.axis, self.length = axis, registers.shape[axis]
        self.spare = max(SPARE, self.length)
        shape = (*registers.shape[:axis], self.spare, *registers.shape[axis + 1 :])
        self.cells = np.concatenate([np.zeros(shape, registers.dtype), registers], axis)
        self.head = self.spare

    @property
    def registers(self) -> Registers:
        """What the registers hold, as a view."""
        return self.cells[self._at(self.head)]

    def shift(self) -> None:
        """Move every register's contents to the next; what stood before the first enters."""
        self.head -= 1
        if self.head == 0:
            self.head = self.spare
            self.cells[self._at(self.head)] = self.cells[self._at(0)]

    def _at(self, head: int) -> tuple[slice, ...]:
        return (slice(None),) * self.axis + (slice(head, head + self.length),)
