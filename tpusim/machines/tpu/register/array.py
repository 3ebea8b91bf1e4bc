"""The PEs: activations move right, sums down."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.register.kernel import kernel
from tpusim.machines.tpu.register.window import Window
from tpusim.machines.tpu.register.wires import Wires

Floats = NDArray[np.float32]
Tags = NDArray[np.int8]


class Array:
    """Registers of every PE; a PE multiplies with the weight buffer that its activation names."""

    def __init__(self, wires: Wires, array: int) -> None:
        self.activation, self.activation_tag = wires.activation[array], wires.activation_tag[array]
        self.weights, self.bottom, self.bottom_tag = wires.weights[array], wires.sums[array], wires.sums_tag[array]
        _, rows, cols = self.weights.shape
        self.activations = Window(np.zeros((rows, cols), np.float32), axis=1)
        self.tags = Window(np.zeros((rows, cols), np.int8), axis=1)
        self.sums = Window(np.zeros((rows, cols), np.float32), axis=0)

    @property
    def working(self) -> int:
        """PEs that hold an activation."""
        return int(np.count_nonzero(self.tags.registers))

    def sample(self) -> None:
        """Work out what the registers will hold; the bottom row, which others see, is not touched."""
        _multiply(
            self.activations.cells, self.tags.cells, self.sums.cells, self.activations.head - 1, self.sums.head - 1,
            self.activation, self.activation_tag, self.weights,
        )  # fmt: skip

    def commit(self) -> None:
        """All registers take their new value."""
        for window in (self.activations, self.tags, self.sums):
            window.shift()
        self.bottom[:] = self.sums.registers[-1]
        self.bottom_tag[:] = self.tags.registers[-1]


@kernel
def _multiply(
    activations: Floats, tags: Tags, sums: Floats, right: int, down: int,
    entering: Floats, entering_tag: Tags, weights: Floats,
) -> None:  # fmt: skip
    """In the windows that begin at `right` and `down`: the sum from above plus activation times weight."""
    buffers, rows, cols = weights.shape
    sums[down] = 0
    for row in range(rows):
        activations[row, right], tags[row, right] = entering[row], entering_tag[row]
        activation, tag = activations[row, right : right + cols], tags[row, right : right + cols]
        total, first, last = sums[down + row], weights[0, row], weights[buffers - 1, row]
        for col in range(cols):
            # Both are loaded before one is chosen: without a branch the loop runs on vector registers.
            one, other = first[col], last[col]
            total[col] += activation[col] * (one if tag[col] <= 1 else other)
