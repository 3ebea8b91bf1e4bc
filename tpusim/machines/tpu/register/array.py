"""The PEs: activations move right, sums down."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.register.kernel import kernel
from tpusim.machines.tpu.register.window import Window
from tpusim.machines.tpu.register.wires import Wires

Floats = NDArray[np.floating[Any]]
Tags = NDArray[np.int8]


class PeArray:
    """Registers of every PE, [array, row, col]; a PE multiplies with the weight buffer that its activation names."""

    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        arrays, _, self.rows, self.cols = wires.weights.shape
        pes = arrays, self.rows, self.cols
        self.activations = Window(np.zeros(pes, wires.sums.dtype), axis=2)
        self.tags = Window(np.zeros(pes, np.int8), axis=2)
        self.sums = Window(np.zeros(pes, wires.sums.dtype), axis=1)
        self.way = self.quiet = self.rows + self.cols
        """Cycles in which nothing has entered: after those of the way of an activation and its sum, all is zero."""

    @property
    def working(self) -> int:
        """PEs that hold an activation."""
        return int(np.count_nonzero(self.tags.registers))

    def sample(self) -> None:
        """Work out what the registers will hold; the bottom row, which others see, is not touched.

        Nothing is worked out while all is zero and stays so.
        """
        self.quiet = 0 if self.wires.entering else self.quiet + 1
        if self.quiet > self.way:
            return
        _multiply(
            self.activations.cells, self.tags.cells, self.sums.cells, self.activations.head - 1, self.sums.head - 1,
            self.wires.activation, self.wires.activation_tag, self.wires.weights, self.wires.biases,
        )  # fmt: skip

    def commit(self) -> None:
        """All registers take their new value."""
        self.wires.summing = self.quiet <= self.way
        if not self.wires.summing:
            return
        for window in (self.activations, self.tags, self.sums):
            window.shift()
        left, last = self.tags.head, self.rows - 1
        self.wires.sums[:] = self.sums.cells[:, self.sums.head + last]
        self.wires.sums_tag[:] = self.tags.cells[:, last, left : left + self.cols]


@kernel
def _multiply(
    activations: Floats, tags: Tags, sums: Floats, right: int, down: int,
    entering: Floats, entering_tag: Tags, weights: Floats, biases: Floats,
) -> None:  # fmt: skip
    """In the windows that begin at `right` and `down`: the sum from above plus activation times weight."""
    arrays, buffers, rows, cols = weights.shape
    for array in range(arrays):
        tags[array, 0, right] = entering_tag[array, 0]
        for col in range(cols):
            one, other = biases[array, 0, col], biases[array, buffers - 1, col]
            sums[array, down, col] = one if tags[array, 0, right + col] <= 1 else other
        for row in range(rows):
            activations[array, row, right], tags[array, row, right] = entering[array, row], entering_tag[array, row]
            activation, tag = activations[array, row, right : right + cols], tags[array, row, right : right + cols]
            total, first, last = sums[array, down + row], weights[array, 0, row], weights[array, buffers - 1, row]
            for col in range(cols):
                # Both are loaded before one is chosen: without a branch the loop runs on vector registers.
                one, other = first[col], last[col]
                total[col] += activation[col] * (one if tag[col] <= 1 else other)
