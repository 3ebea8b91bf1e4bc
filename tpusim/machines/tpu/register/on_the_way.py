"""What the vector unit does with words of transfers on their way: registers of every lane beside the words that are
moved, and the work itself.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from tpusim.machines.tpu.program.operations import OPERATIONS
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Fill, LaneTransfer
from tpusim.machines.tpu.register.hbm import HbmWords
from tpusim.machines.tpu.register.wires import Counts, Floats


class WorkRegisters:
    """Registers [lane, register, W] of the transfer that a lane moves: numbers, then tallies, then maps."""

    def __init__(self, program: Program, hbm: HbmWords, lanes: int) -> None:
        self.program, self.hbm = program, hbm
        self.steps = {at: step for at, step in enumerate(program.rows) if isinstance(step, LaneTransfer) and step.work}
        count = max((1 + each.register for step in self.steps.values() for each in step.accesses), default=1)
        self.words = np.zeros((lanes, count, hbm.values.shape[1]), program.number)
        # First words of parts whose tallies begin at zero, by step.
        self._begin = {
            at: {
                first
                for first, begins in zip(
                    accumulate((part.words for part in step.parts), initial=0), step.work.begins, strict=False
                )
                if begins
            }
            for at, step in self.steps.items()
            if step.work
        }

    def worked(self, lanes: Counts, words: Floats, steps: Counts, places: Counts) -> Floats:
        """Work on moved words [lane, W], which lie at `places` in HBM's words; tallies go to their registers."""
        for index in np.unique(steps).tolist():
            mine = steps == index
            words[mine] = self._work(index, lanes[mine], words[mine], places[mine])
        return words

    def _work(self, index: int, lanes: Counts, words: Floats, places: Counts) -> Floats:
        step = self.steps[index]
        work = step.work
        assert work
        registers, numbers, tallies = self.words[lanes], 0, len(work.tallies)
        maps = [registers[:, work.numbers + tallies + at, None] for at in range(work.maps)]
        values, beside = words[:, None], iter(maps)
        for operation, count, others, coefficients, turns in work.chain:
            # Numbers are the first elements of their words.
            scalars = registers[:, numbers : numbers + count, 0].T
            operands = [values, *(next(beside) for _ in range(others))]
            # A fill combines what is in place with what comes.
            operands = operands[::-1] if isinstance(step, Fill) and not turns else operands
            values, numbers = OPERATIONS[operation].values(operands, scalars, coefficients), numbers + count
        values = np.where(self.hbm.inside[places][:, None], values, values.dtype.type(0))
        word = (places - self.hbm.first[index]) // step.lanes
        begins = np.isin(word, [*self._begin[index]])
        for at, (operation, factor) in enumerate(zip(work.tallies, work.factors, strict=True), numbers):
            tally = np.where(begins[:, None], 0, registers[:, at]).astype(values.dtype)[:, None]
            operands = [tally, values, *([maps[factor]] if factor >= 0 else ())]
            self.words[lanes, at] = OPERATIONS[operation].values(operands, np.empty((0, len(lanes))), ())[:, 0]
        done: Floats = values[:, 0]
        return done
