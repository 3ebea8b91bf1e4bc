"""What one unit drives and another reads: the only way in which the array's units know of one another."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpusim.machines.tpu.description import Hardware

IN_FLIGHT = 4
"""Result words that a lane holds between its de-serializer and its memory.

A word meets its partial sum within one frame of its last sum (the next slot 1), its adds and what finishes it take at
most one frame, and the result slot comes within one more: fewer than three frames, in which at most three more words
can be complete. Where each client has a port of its own, nothing waits for a slot.
"""


class Wires:
    """Every wire is driven by one unit, when it commits, and read by others, when they sample; [array, ...] each."""

    def __init__(self, hardware: Hardware, elements: int, number: type[Any]) -> None:
        array = hardware.array
        count, rows, cols = array.count, array.rows, array.cols
        chains = min(array.weights_per_cycle, hardware.vector_memory.word_elements)
        # Ifmap serializers to row r: an element, and the weight buffer it is meant for, plus 1; 0 for none.
        self.activation = np.zeros((count, rows), number)
        self.activation_tag = np.zeros((count, rows), np.int8)
        # Whether any of them is an element; of the weights below, whether any belongs somewhere.
        self.entering = self.loading = False
        # Serializers of weights: one for all arrays that share them, or one for each.
        self.weight_serializers = array.queues
        # Weights to the chains of column c, where arrays share them each a cycle after the one before: a weight and
        # where it belongs, row * buffers + buffer, a bias as if to the row behind the last; -1 for nowhere.
        self.weight = np.zeros((count, chains, cols), number)
        self.weight_tag = np.full((count, chains, cols), -1, np.int32)
        # The weight registers to their multipliers.
        self.weights = np.zeros((count, array.weight_buffers, rows, cols), number)
        # The registers above the first row of PEs, one for each weight buffer, to its adders: where sums begin.
        self.biases = np.zeros((count, array.weight_buffers, cols), number)
        # The bottom of column c: a sum, and whether it is one (its tag is not 0).
        self.sums = np.zeros((count, cols), number)
        self.sums_tag = np.zeros((count, cols), np.int8)
        # Whether any activation is on its way through an array, and so sums may leave it.
        self.summing = False
        # De-serializers to the lanes: the words that are complete, and how many there have been.
        self.results = np.zeros((count, cols, IN_FLIGHT, elements), number)
        self.complete = np.zeros((count, cols), np.int64)
