"""The way of the weights: down their column, each to the PE whose row its tag names; biases stay at the top."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.register.kernel import kernel
from tpusim.machines.tpu.register.window import Window
from tpusim.machines.tpu.register.wires import Wires

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int32]


class Weights:
    """One or two weight registers in every PE, which are wires to the multiplier.

    Beside them one moving register, and its tag, for each weight that enters a column in a cycle: [array, chain, row,
    col].
    """

    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        arrays, chains, cols = wires.weight.shape
        moving = arrays, chains, wires.weights.shape[2], cols
        self.weights = Window(np.zeros(moving, wires.sums.dtype), axis=2)
        self.tags = Window(np.full(moving, -1, np.int32), axis=2)
        self.rows, self.quiet = moving[2], moving[2]
        """Cycles in which nothing has entered: after as many as there are rows, nothing is on its way."""

    @property
    def moving(self) -> int:
        """Weights on their way."""
        return int(np.count_nonzero(self.tags.registers >= 0))

    def sample(self) -> None:
        """What enters the top of every column."""
        self.quiet = 0 if self.wires.loading else self.quiet + 1
        if self.quiet > self.rows:
            return
        at = self.weights.head - 1, self.tags.head - 1
        _enter(self.weights.cells, self.tags.cells, *at, self.wires.weight, self.wires.weight_tag)

    def commit(self) -> None:
        """All move down by one, if there are any; a weight that reaches its row is kept there."""
        if self.quiet > self.rows:
            return
        self.weights.shift()
        self.tags.shift()
        _begin(self.weights.cells, self.tags.cells, self.weights.head, self.wires.biases, self.rows)
        _keep(self.weights.cells, self.tags.cells, self.weights.head, self.wires.weights)


@kernel
def _enter(moving: Floats, tags: Ints, top: int, top_tag: int, weight: Floats, weight_tag: Ints) -> None:
    """Put what is on the wires above the first row."""
    arrays, chains, cols = weight.shape
    for array in range(arrays):
        for chain in range(chains):
            for col in range(cols):
                moving[array, chain, top, col], tags[array, chain, top_tag, col] = (
                    weight[array, chain, col],
                    weight_tag[array, chain, col],
                )


@kernel
def _begin(moving: Floats, tags: Ints, head: int, biases: Floats, rows: int) -> None:
    """What comes as if to the row behind the last is where sums begin; with new weights of the first row they begin at
    zero again.
    """
    arrays, buffers, cols = biases.shape
    for array in range(arrays):
        for chain in range(moving.shape[1]):
            for col in range(cols):
                row, buffer = divmod(tags[array, chain, head, col], buffers)
                if row == rows:
                    biases[array, buffer, col] = moving[array, chain, head, col]
                elif row == 0:
                    biases[array, buffer, col] = 0


@kernel
def _keep(moving: Floats, tags: Ints, head: int, weights: Floats) -> None:
    arrays, buffers, rows, cols = weights.shape
    for array in range(arrays):
        for chain in range(moving.shape[1]):
            for row in range(rows):
                weight, tag = moving[array, chain, head + row], tags[array, chain, head + row]
                for buffer in range(buffers):
                    kept, wanted = weights[array, buffer, row], np.int32(row * buffers + buffer)
                    for col in range(cols):
                        # Either is stored: without a branch the loop runs on vector registers.
                        new, old = weight[col], kept[col]
                        kept[col] = new if tag[col] == wanted else old
