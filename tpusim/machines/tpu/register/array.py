"""The array's units: PEs, the way of the weights down to them, and the de-serializers below.

Activations move right, sums down. Each unit knows of the others only what is on the wires.
"""

from __future__ import annotations

import numpy as np

from tpusim.machines.tpu.register.wires import Counts, Floats, Ints, SlidingWindow, Tags, Wires, kernel


class PeArray:
    """Registers of every PE, [array, row, col]; a PE multiplies by the weight of the buffer that its activation's tag
    names.
    """

    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        arrays, _, self.rows, self.cols = wires.weights.shape
        pes = arrays, self.rows, self.cols
        self.activations = SlidingWindow(np.zeros(pes, wires.sums.dtype), axis=2)
        self.tags = SlidingWindow(np.zeros(pes, np.int8), axis=2)
        self.sums = SlidingWindow(np.zeros(pes, wires.sums.dtype), axis=1)
        self.way = self.quiet = self.rows + self.cols
        """Cycles since something last entered. Beyond `way`, the longest path of an activation and its sum, all is
        zero.
        """

    @property
    def working(self) -> int:
        """PEs that hold an activation."""
        return int(np.count_nonzero(self.tags.registers))

    def sample(self) -> None:
        """Work out the next contents of the registers; the bottom row, which other units see, is not touched.

        While all registers are zero and stay so, nothing is done.
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
    """Add activation times weight to the sum from above, in the windows that begin at `right` and `down`."""
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


class WeightRegisters:
    """Weight registers, one or two in every PE, whose outputs are wires to the multiplier.

    Besides, each PE has a moving register with a tag for each weight that enters a column in a cycle: [array, chain,
    row, col].
    """

    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        arrays, chains, cols = wires.weight.shape
        moving = arrays, chains, wires.weights.shape[2], cols
        self.weights = SlidingWindow(np.zeros(moving, wires.sums.dtype), axis=2)
        self.tags = SlidingWindow(np.full(moving, -1, np.int32), axis=2)
        self.rows, self.quiet = moving[2], moving[2]
        """Cycles since a weight last entered. Beyond the number of rows, no weight is on its way."""

    @property
    def moving(self) -> int:
        """Weights on their way."""
        return int(np.count_nonzero(self.tags.registers >= 0))

    def sample(self) -> None:
        """Take in the weights and tags at the top of every column."""
        self.quiet = 0 if self.wires.loading else self.quiet + 1
        if self.quiet > self.rows:
            return
        self.weights.cells[:, :, self.weights.head - 1] = self.wires.weight
        self.tags.cells[:, :, self.tags.head - 1] = self.wires.weight_tag

    def commit(self) -> None:
        """Move all weights down by one row; a weight that reaches its row is kept there."""
        if self.quiet > self.rows:
            return
        self.weights.shift()
        self.tags.shift()
        _keep(self.weights.cells, self.tags.cells, self.weights.head, self.wires.weights, self.wires.biases)


@kernel
def _keep(moving: Floats, tags: Ints, head: int, weights: Floats, biases: Floats) -> None:
    """Keep each weight that has reached the row of its tag.

    A bias is tagged for the row behind the last, and becomes the register in which sums begin. A new weight of the
    first row resets that register to zero.
    """
    arrays, buffers, rows, cols = weights.shape
    for array in range(arrays):
        for chain in range(moving.shape[1]):
            for col in range(cols):
                row, buffer = divmod(tags[array, chain, head, col], buffers)
                if row == rows:
                    biases[array, buffer, col] = moving[array, chain, head, col]
                elif row == 0:
                    biases[array, buffer, col] = 0
            for row in range(rows):
                weight, tag = moving[array, chain, head + row], tags[array, chain, head + row]
                for buffer in range(buffers):
                    kept, wanted = weights[array, buffer, row], np.int32(row * buffers + buffer)
                    for col in range(cols):
                        # Either is stored: without a branch the loop runs on vector registers.
                        new, old = weight[col], kept[col]
                        kept[col] = new if tag[col] == wanted else old


class Deserializers:
    """A word register a column; a full word moves on to the vector unit."""

    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        arrays, cols, _, self.elements = wires.results.shape
        self.word = np.zeros((arrays, cols, self.elements), wires.sums.dtype)
        self.held = np.zeros((arrays, cols), np.int64)
        # Copies of what others drive: results must not depend on the order in which units are visited.
        self.sums, self.tags, self.summing = wires.sums.copy(), wires.sums_tag.copy(), False

    def complete(self, array: int) -> int:
        """Words lane 0 has collected from an array."""
        return int(self.wires.complete[array, 0])

    def completing(self, array: int) -> int:
        """Words as `complete` counts them, with the word whose last sum is just leaving the array."""
        last = self.wires.sums_tag[array, 0] and self.held[array, 0] == self.elements - 1
        return self.complete(array) + bool(last)

    def sample(self) -> None:
        """Look at the bottom of the array."""
        self.summing = self.wires.summing
        if self.summing:
            self.sums[:] = self.wires.sums
            self.tags[:] = self.wires.sums_tag

    def commit(self) -> None:
        """A sum joins its word; a full word goes to the vector unit."""
        if self.summing:
            _collect(self.sums, self.tags, self.word, self.held, self.wires.results, self.wires.complete)


@kernel
def _collect(sums: Floats, tags: Tags, word: Floats, held: Counts, results: Floats, complete: Counts) -> None:
    arrays, cols, places, elements = results.shape
    for array in range(arrays):
        for col in range(cols):
            if tags[array, col]:
                word[array, col, held[array, col]] = sums[array, col]
                held[array, col] += 1
                if held[array, col] == elements:
                    results[array, col, complete[array, col] % places] = word[array, col]
                    complete[array, col] += 1
                    held[array, col] = 0
