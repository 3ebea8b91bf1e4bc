"""The array's units: PEs, the way of the weights down to them, and the de-serializers below.

Activations move right, sums down. Each unit knows of the others only what is on the wires.
"""

from __future__ import annotations

import numpy as np

from tpusim.machines.tpu.register.wires import LAST, Counts, Floats, Ints, SlidingWindow, Tags, Wires, kernel


class PeArray:
    """Registers of PEs; a PE multiplies with the weight buffer that its activation names.

    Activations and their tags [array, plane, row, col]: all columns that a wavefront crosses in a cycle see the same.
    Sums [array, plane, group, col], of groups of rows whose products are added up in a cycle.
    """

    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        _, _, self.rows, self.cols = wires.weights.shape
        number, (arrays, planes, _), crossed = wires.sums.dtype, wires.activation.shape, wires.crossed
        pes, across = (arrays, planes, self.rows, self.cols), min(crossed, self.cols)
        self.activations = SlidingWindow(np.zeros(pes, number), axis=3, step=across)
        self.tags = SlidingWindow(np.zeros(pes, np.int8), axis=3, step=across)
        self.sums = SlidingWindow(np.zeros((arrays, planes, -(-self.rows // crossed), self.cols), number), axis=2)
        self.way = self.quiet = self.sums.length + -(-self.cols // crossed)
        """Cycles in which nothing has entered: after those of the way of an activation and its sum, all is zero."""

    @property
    def working(self) -> int:
        """PEs that hold an activation."""
        return int(np.count_nonzero(self.tags.registers.any(axis=1)))

    def sample(self) -> None:
        """Work out the next contents of the registers; the bottom row, which other units see, is not touched.

        While all registers are zero and stay so, nothing is done.
        """
        self.quiet = 0 if self.wires.entering else self.quiet + 1
        if self.quiet > self.way:
            return
        _multiply(
            self.activations.cells, self.tags.cells, self.sums.cells, self.activations.entry, self.sums.entry,
            self.activations.step, self.wires.crossed, self.wires.activation, self.wires.activation_tag,
            self.wires.weights, self.wires.biases,
        )  # fmt: skip

    def commit(self) -> None:
        """All registers take their new value."""
        self.wires.summing = self.quiet <= self.way
        if not self.wires.summing:
            return
        for window in (self.activations, self.tags, self.sums):
            window.shift()
        self.wires.sums[:] = self.sums.registers[:, :, -1]
        self.wires.sums_tag[:] = self.tags.registers[:, :, -1]


@kernel
def _multiply(
    activations: Floats, tags: Tags, sums: Floats, right: int, down: int, across: int, crossed: int,
    entering: Floats, entering_tag: Tags, weights: Floats, biases: Floats,
) -> None:  # fmt: skip
    """In the windows that begin at `right` and `down`: the sum from above plus activation times weight, row by row of
    the `crossed` ones; what enters is in the `across` first columns at once.
    """
    _, buffers, rows, cols = weights.shape
    arrays, planes, _ = entering.shape
    for array in range(arrays):
        for plane in range(planes):
            tags[array, plane, 0, right : right + across] = entering_tag[array, plane, 0]
            for col in range(cols):
                one, other = biases[array, 0, col], biases[array, buffers - 1, col]
                sums[array, plane, down, col] = one if tags[array, plane, 0, right + col] & 1 else other
            for row in range(rows):
                activation = activations[array, plane, row, right : right + cols]
                tag = tags[array, plane, row, right : right + cols]
                activation[:across], tag[:across] = entering[array, plane, row], entering_tag[array, plane, row]
                total = sums[array, plane, down + row // crossed]
                first, last = weights[array, 0, row], weights[array, buffers - 1, row]
                for col in range(cols):
                    # Both are loaded before one is chosen: without a branch the loop runs on vector registers.
                    one, other = first[col], last[col]
                    total[col] += activation[col] * (one if tag[col] & 1 else other)


class WeightRegisters:
    """Weight registers, one or two in every PE, whose outputs are wires to the multiplier.

    Beside them one moving register, and its tag, for each weight that enters a column in a cycle: [array, chain, group,
    col], of groups of rows that a weight reaches in the same cycle.
    """

    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        arrays, chains, cols = wires.weight.shape
        moving = arrays, chains, -(-wires.weights.shape[2] // wires.crossed), cols
        self.weights = SlidingWindow(np.zeros(moving, wires.sums.dtype), axis=2)
        self.tags = SlidingWindow(np.full(moving, -1, np.int32), axis=2)
        self.quiet = moving[2]
        """Cycles in which nothing has entered: after as many as there are groups, nothing is on its way."""

    @property
    def moving(self) -> int:
        """Weights on their way."""
        return int(np.count_nonzero(self.tags.registers >= 0))

    def sample(self) -> None:
        """Take in the weights and tags at the top of every column."""
        self.quiet = 0 if self.wires.loading else self.quiet + 1
        if self.quiet > self.weights.length:
            return
        self.weights.cells[:, :, self.weights.entry] = self.wires.weight
        self.tags.cells[:, :, self.tags.entry] = self.wires.weight_tag

    def commit(self) -> None:
        """All move down by a group, if there are any; a weight that reaches its row is kept there."""
        if self.quiet > self.weights.length:
            return
        self.weights.shift()
        self.tags.shift()
        wires = self.wires
        _keep(self.weights.cells, self.tags.cells, self.weights.head, wires.crossed, wires.weights, wires.biases)


@kernel
def _keep(moving: Floats, tags: Ints, head: int, crossed: int, weights: Floats, biases: Floats) -> None:
    """What comes as if to the row behind the last is where sums begin; with new weights of the first row they begin at
    zero again.
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
                at = head + row // crossed
                weight, tag = moving[array, chain, at], tags[array, chain, at]
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
        arrays, cols, _, elements = wires.results.shape
        self.word = np.zeros((arrays, cols, elements), wires.sums.dtype)
        self.held = np.zeros((arrays, cols), np.int64)
        # Copies of what others drive: results must not depend on the order in which units are visited.
        self.sums, self.tags, self.summing = wires.sums.copy(), wires.sums_tag.copy(), False

    def complete(self, array: int) -> int:
        """Words lane 0 has collected from an array."""
        return int(self.wires.complete[array, 0])

    def completing(self, array: int) -> int:
        """Words as `complete` counts them, and the one whose last sum is just leaving the array."""
        return self.complete(array) + bool((self.wires.sums_tag[array, :, 0] > LAST).any())

    def sample(self) -> None:
        """Look at the bottom of the array."""
        self.summing = self.wires.summing
        if self.summing:
            self.sums[:] = self.wires.sums
            self.tags[:] = self.wires.sums_tag

    def commit(self) -> None:
        """Sums join their words, plane by plane; a full word goes to the vector unit."""
        if self.summing:
            _collect(self.sums, self.tags, self.word, self.held, self.wires.results, self.wires.complete)


@kernel
def _collect(sums: Floats, tags: Tags, word: Floats, held: Counts, results: Floats, complete: Counts) -> None:
    arrays, cols, places, _ = results.shape
    for array in range(arrays):
        for col in range(cols):
            for plane in range(tags.shape[1]):
                if tags[array, plane, col]:
                    word[array, col, held[array, col]] = sums[array, plane, col]
                    held[array, col] += 1
                if tags[array, plane, col] > LAST:
                    results[array, col, complete[array, col] % places] = word[array, col]
                    complete[array, col] += 1
                    held[array, col] = 0
