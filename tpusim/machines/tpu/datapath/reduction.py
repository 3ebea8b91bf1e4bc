"""Passes that add to the same words, multiplied together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.passes import Stream

Values = NDArray[np.floating[Any]]

OPERAND_ELEMENTS = 1 << 20
"""Streamed operands gathered before they are multiplied: enough for BLAS, little enough for the cache."""


class Reduction:
    """Passes that add up in the same words: gathered one by one, multiplied and added together."""

    def __init__(self, elements: int, number: type[Any]) -> None:
        self.elements, self.number = elements, number
        self.base = self.end = 0
        self.results: Values = np.empty((0, 0, 0), number)
        self.accumulate = False
        self.operands: Values = np.empty((0, 0), number)
        self.weights: list[Values] = []
        self.biases: list[Values | None] = []
        self.filled = 0

    def settle(self, base: int, words: int) -> None:
        """Do the pending sums before words [base, base + words) are touched."""
        if base < self.end and self.base < base + words:
            self.multiply()

    def continues(self, step: Stream) -> bool:
        """Whether `step` adds to the very words of the pending passes."""
        same = self.base == step.result_base and self.results.shape[:2] == (step.cols, step.words)
        return bool(self.weights) and same and step.accumulate

    def open(self, step: Stream, results: Values) -> None:
        """Start a reduction into `results` [cols, words, E]."""
        self.base, self.end = step.result_base, step.result_base + step.words
        self.results, self.accumulate = results, step.accumulate

    def rows(self, rows: int) -> Values:
        """Room for the operands [rows, elements] of the next pass."""
        columns = self.results.shape[1] * self.elements
        if self.filled + rows > len(self.operands) or self.operands.shape[1] != columns:
            self.multiply()
            height = max(rows, OPERAND_ELEMENTS // columns)
            if height > len(self.operands) or self.operands.shape[1] != columns:
                self.operands = np.empty((height, columns), self.number)
        return self.operands[self.filled : self.filled + rows]

    def add(self, weights: Values, biases: Values | None = None) -> None:
        """The operands just gathered meet `weights` [cols, rows]; their sums begin at `biases` [cols], or at zero."""
        self.weights.append(weights)
        self.biases.append(biases)
        self.filled += weights.shape[1]

    def multiply(self) -> None:
        """Add the pending products into the result words; the reduction may go on after that."""
        if not self.weights:
            return
        weights, operands = np.concatenate(self.weights, axis=1), self.operands[: self.filled]
        if self.accumulate or not self.results[0].flags.c_contiguous:
            sums = (weights @ operands).reshape(self.results.shape)
            if self.accumulate:
                self.results += sums
            else:
                self.results[...] = sums
        else:
            np.matmul(weights, operands, out=self.results.reshape(len(weights), -1))
        for biases in self.biases:
            if biases is not None:
                self.results += biases[:, None, None]
        self._done()

    def _done(self) -> None:
        """Nothing is pending; what comes next is added."""
        self.weights, self.biases, self.filled, self.accumulate = [], [], 0, True


class InArrayOrder(Reduction):
    """The same, added in the order of the array: down the rows of a pass from its biases or zero, then to the words."""

    def multiply(self) -> None:
        """Pass by pass; every product and every sum is rounded by itself."""
        if not self.weights:
            return
        first = 0
        for weights, biases in zip(self.weights, self.biases, strict=True):
            rows = self.operands[first : first + weights.shape[1]]
            sums = np.zeros((len(weights), rows.shape[1]), self.number)
            if biases is not None:
                sums += biases[:, None]
            for row, operands in enumerate(rows):
                sums += weights[:, row, None] * operands
            place = sums.reshape(self.results.shape)
            self.results[...] = self.results + place if self.accumulate else place
            self.accumulate, first = True, first + len(rows)
        self._done()
