"""The de-serializers: the sums that leave a column, E to a word."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.register.kernel import kernel
from tpusim.machines.tpu.register.wires import Wires

Floats = NDArray[np.float32]
Tags = NDArray[np.int8]
Ints = NDArray[np.int64]


class Deserializers:
    """A word register a column; a full word moves on to the vector unit."""

    def __init__(self, wires: Wires, array: int) -> None:
        self.bottom, self.bottom_tag = wires.sums[array], wires.sums_tag[array]
        self.results, self.completed = wires.results[array], wires.complete[array]
        cols, _, elements = self.results.shape
        self.elements = elements
        self.word = np.zeros((cols, elements), np.float32)
        self.held = np.zeros(cols, np.int64)
        self.sums, self.tags = self.bottom.copy(), self.bottom_tag.copy()

    @property
    def complete(self) -> int:
        """Words lane 0 has collected."""
        return int(self.completed[0])

    @property
    def completing(self) -> int:
        """The same, with the word whose last sum is just leaving the array."""
        return self.complete + bool(self.bottom_tag[0] and self.held[0] == self.elements - 1)

    def sample(self) -> None:
        """Look at the bottom of the array."""
        self.sums[:] = self.bottom
        self.tags[:] = self.bottom_tag

    def commit(self) -> None:
        """A sum joins its word; a full word goes to the vector unit."""
        _collect(self.sums, self.tags, self.word, self.held, self.results, self.completed)


@kernel
def _collect(sums: Floats, tags: Tags, word: Floats, held: Ints, results: Floats, complete: Ints) -> None:
    cols, places, elements = results.shape
    for col in range(cols):
        if tags[col]:
            word[col, held[col]] = sums[col]
            held[col] += 1
            if held[col] == elements:
                results[col, complete[col] % places] = word[col]
                complete[col] += 1
                held[col] = 0
