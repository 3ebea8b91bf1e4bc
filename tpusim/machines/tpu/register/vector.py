"""The vector unit: registers of every lane and what it makes of them, in steps of its own and of words on their way."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.operations import OPERATIONS, finished
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Stream, Vector
from tpusim.machines.tpu.program.transfers import Fill, LaneTransfer
from tpusim.machines.tpu.register.hbm import HbmWords
from tpusim.machines.tpu.register.streams import TURNS
from tpusim.machines.tpu.register.wires import Counts, Floats


class VectorRegisters:
    """Registers of the vector unit: `words` [lane, register, W], scalars first, then one an operand of each word that
    is made side by side with others; `results` [lane, register, W], of TURNS turns.
    """

    def __init__(self, program: Program, hardware: Hardware, width: int) -> None:
        """Words hold up to `width` numbers; words of scalars hold only the machine's `word_elements`."""
        self.program, self.word_elements, lanes = program, hardware.vector_memory.word_elements, hardware.lanes
        self.queues, self.finishes = hardware.array.queues, any(each.finish for each in program.streams)
        beats = [each.beat(program.fill_of(at), hardware) for at, each in program.rows.steps(Vector)]
        self.most_together = max((each.together for each in beats), default=0)
        # Accesses of a cycle beyond the first, at most: a turn may have fewer than there are slots.
        accesses = (
            min(each.loads, each.together * each.operands) + min(each.stores, each.together)
            for each in beats
            if each.beside
        )
        self.most_beside = max(accesses, default=1) - 1
        used = zip(program.vectors, beats, strict=True)
        registers = max((each.scalars.words + beat.together * len(each.operands) for each, beat in used), default=0)
        self.words = np.zeros((lanes, registers, width), program.number)
        self.results = np.zeros((lanes, TURNS * self.most_together, width), program.number)
        tables = {each.picks for each in program.vectors if each.picks}
        # Lane 0 alone has pointers: those of a result word, word by word.
        sizes = [(each.word_words, each.per_word, each.together) for each in tables]
        pointer_words, per_word, self.together = (max(every) for every in zip((0, 0, 0), *sizes, strict=True))
        self.pointers = np.zeros((pointer_words, per_word), program.number)

    def work(self, lanes: Counts, steps: Counts, numbers: Counts) -> None:
        """Compute results of lanes that have all operands of a word, into the result registers given by `numbers`.

        Lanes are skewed, so they may be in different steps.
        """
        # One call a step, for all lanes that are in it: the operation is vectorized over them.
        for index in dict.fromkeys(steps.tolist()):
            step, mine = self.program.rows[index], steps == index
            assert isinstance(step, Vector)
            # The registers [lane, register, W] of these lanes.
            words, (_, held, count) = self.words[lanes[mine]], step.scalars
            scalars = words[:, :held, : self.word_elements].reshape(len(words), -1)[:, :count].T
            first = held + numbers[mine] % self.most_together * len(step.operands)
            every = np.arange(len(words))
            operands = (words[every, first + number][:, None] for number in range(len(step.operands)))
            values = OPERATIONS[step.operation].values(operands, scalars, step.coefficients)
            self.results[lanes[mine], numbers[mine]] = values[:, 0]

    def finished(self, words: Floats, steps: Counts) -> Floats:
        """Finish results [lane, W] of streams. Elements beyond a result's own are changed, too, but never stored."""
        for index in dict.fromkeys(steps.tolist()):
            step, mine = self.program.rows[index], steps == index
            assert isinstance(step, Stream)
            words[mine] = finished(words[mine][:, None], step.finish)[:, 0]
        return words


class WorkRegisters:
    """Registers [lane, register, W] of the transfer that a lane moves: numbers, then tallies, then maps."""

    def __init__(self, program: Program, hbm: HbmWords, lanes: int) -> None:
        self.program, self.hbm = program, hbm
        self.steps = {at: step for at, step in program.rows.steps(LaneTransfer) if step.work}
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
