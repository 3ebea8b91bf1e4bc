"""The de-serializers: the sums that leave a column, E to a word."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.register.kernel import kernel
from tpusim.machines.tpu.register.wires import Wires

Floats = NDArray[np.floating[Any]]
Tags = NDArray[np.int8]
Ints = NDArray[np.int64]


class Deserializers:
    """A word register a column; a full word moves on to the vector unit."""

    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        arrays, cols, _, self.elements = wires.results.shape
        self.word = np.zeros((arrays, cols, self.elements), wires.sums.dtype)
        self.held = np.zeros((arrays, cols), np.int64)
        self.sums, self.tags, self.summing = wires.sums.copy(), wires.sums_tag.copy(), False

    def complete(self, array: int) -> int:
        """Words lane 0 has collected from an array."""
        return int(self.wires.complete[array, 0])

    def completing(self, array: int) -> int:
        """The same, with the word whose last sum is just leaving the array."""
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
def _collect(sums: Floats, tags: Tags, word: Floats, held: Ints, results: Floats, complete: Ints) -> None:
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
