"""The way of the weights: down their column, each to the PE whose row its tag names."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.register.kernel import kernel
from tpusim.machines.tpu.register.window import Window
from tpusim.machines.tpu.register.wires import Wires

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


class Weights:
    """A moving register and its tag in every PE; one or two weight registers, which are wires to the multiplier."""

    def __init__(self, wires: Wires, array: int) -> None:
        self.weight, self.weight_tag, self.kept = wires.weight[array], wires.weight_tag[array], wires.weights[array]
        _, rows, cols = self.kept.shape
        self.weights = Window(np.zeros((rows, cols), np.float32), axis=0)
        self.tags = Window(np.full((rows, cols), -1, np.int32), axis=0)

    @property
    def moving(self) -> int:
        """Weights on their way."""
        return int(np.count_nonzero(self.tags.registers >= 0))

    def sample(self) -> None:
        """What enters the top of every column."""
        self.weights.cells[self.weights.head - 1] = self.weight
        self.tags.cells[self.tags.head - 1] = self.weight_tag

    def commit(self) -> None:
        """All move down by one; a weight that reaches its row is kept there."""
        self.weights.shift()
        self.tags.shift()
        _keep(self.weights.cells, self.tags.cells, self.weights.head, self.kept)


@kernel
def _keep(moving: Floats, tags: Ints, head: int, weights: Floats) -> None:
    buffers, rows, cols = weights.shape
    for row in range(rows):
        weight, tag = moving[head + row], tags[head + row]
        for buffer in range(buffers):
            kept, wanted = weights[buffer, row], np.int32(row * buffers + buffer)
            for col in range(cols):
                # Either is stored: without a branch the loop runs on vector registers.
                new, old = weight[col], kept[col]
                kept[col] = new if tag[col] == wanted else old
