"""What the vector unit keeps in every lane: scalars, the operands of a word, and results until they are written; and
in lane 0 the pointers by which elements of operands are picked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.operations import OPERATIONS, finished
from tpusim.machines.tpu.program.passes import Stream
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.vector import Vector

Floats = NDArray[np.floating[Any]]
Lanes = NDArray[np.int64]

RESULTS = 2
"""Result registers of a lane: a word waits for its slot while the next is worked out, never longer."""


class VectorRegisters:
    """`words` [lane, register, W]: those of scalars first, then one an operand; `results` [lane, RESULTS, W]."""

    def __init__(self, program: Program, lanes: int, word_elements: int, width: int) -> None:
        """Words hold up to `width` numbers, of which a word of scalars has `word_elements`."""
        self.program, self.word_elements = program, word_elements
        self.finishes = any(each.finish for each in program.streams)
        registers = max((each.scalars.words + len(each.operands) for each in program.vectors), default=0)
        self.words = np.zeros((lanes, registers, width), program.number)
        self.results = np.zeros((lanes, RESULTS if registers else 0, width), program.number)
        tables = {each.picks for each in program.vectors if each.picks}
        # Lane 0's: the pointers of a result word, word by word.
        sizes = [(each.word_words, each.per_word, each.together) for each in tables]
        pointer_words, per_word, self.together = (max(every) for every in zip((0, 0, 0), *sizes, strict=True))
        self.pointers = np.zeros((pointer_words, per_word), program.number)

    def work(self, lanes: Lanes, steps: Lanes, numbers: Lanes) -> None:
        """These lanes have all operands of a word: the results of their steps go into the registers of these numbers.

        Skewed as they are, lanes may be in different steps.
        """
        for index in np.unique(steps).tolist():
            step, mine = self.program.steps[index], steps == index
            assert isinstance(step, Vector)
            self.results[lanes[mine], numbers[mine]] = self._result(step, self.words[lanes[mine]])

    def finished(self, words: Floats, steps: Lanes) -> Floats:
        """Results [lane, W] of streams, finished; elements beyond those of a result are never stored."""
        for index in np.unique(steps).tolist():
            step, mine = self.program.steps[index], steps == index
            assert isinstance(step, Stream)
            words[mine] = finished(words[mine][:, None], step.finish)[:, 0]
        return words

    def _result(self, step: Vector, words: Floats) -> Floats:
        """From the registers [lane, register, W] of some lanes."""
        _, held, count = step.scalars
        scalars = words[:, :held, : self.word_elements].reshape(len(words), -1)[:, :count].T
        operands = (words[:, None, held + number] for number in range(len(step.operands)))
        return OPERATIONS[step.operation].values(operands, scalars, step.coefficients)[:, 0]
