"""Steps of the vector unit: the registers of its lanes, and the words that it asks its port for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition import VECTOR, Beat
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import STARVED
from tpusim.machines.tpu.program.addresses import Picked
from tpusim.machines.tpu.program.operations import OPERATIONS, finished
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream, Vector
from tpusim.machines.tpu.register.banks import Settings
from tpusim.machines.tpu.register.wires import NOWHERE, Order, Scoreboard

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


def _reads(index: int, step: Vector, settings: Settings) -> list[Order]:
    """The reads for a result word in their order: pointers, which stand in lane 0 alone, then operand by operand,
    element by element where these are picked.
    """
    lanes, orders = step.lanes, list[Order]()
    if table := step.picks:
        points = Order(VECTOR, index, 1, points=True)
        orders += [points._replace(address=table.base + at, register=at) for at in range(table.word_words)]
    for number, feed in enumerate(step.operands):
        read = Order(VECTOR, index, lanes, generator=settings.number[feed], register=step.scalars.words + number)
        if feed.picks is None:
            orders.append(read)
            continue
        operand = next(group.pattern.operand for group in feed.groups if isinstance(group.pattern, Picked))
        for element in range(feed.picks.elements):
            first, together = feed.picks.first(operand, element), feed.picks.together
            orders.append(read._replace(element=element, pointer=first, together=together))
    return [*orders[:-1], orders[-1]._replace(works=True)]


@dataclass(frozen=True, slots=True)
class VectorIssue:
    """A vector step, with what it waits for told apart, its pace and the settings of its lanes."""

    index: int
    step: Vector
    data: tuple[int, ...]
    weights: tuple[int, ...]
    others: tuple[int, ...]
    beat: Beat
    reads: list[Order]
    writes: int

    @classmethod
    def all_of(cls, program: Program, settings: Settings, hardware: Hardware) -> list[VectorIssue]:
        """The vector steps of a Program in order; each waits for the last preload and stream of each array ahead of it,
        and for the last vector step, too.
        """
        works: list[VectorIssue] = []
        weights: dict[int, int] = {}
        ahead: dict[int, int] = {}
        number = settings.number
        for index, step in enumerate(program.steps):
            if isinstance(step, Preload):
                weights[step.array] = index
            elif isinstance(step, Stream):
                ahead[program.array_of(step)] = index
            elif isinstance(step, Vector):
                data = tuple(other for other in step.after if program.steps[other].cause == STARVED)
                others = tuple(other for other in step.after if program.steps[other].cause != STARVED)
                reads = _reads(index, step, settings)
                beat = step.beat(program.word_fill, hardware)
                before, loaded = (*others, *ahead.values()), (*weights.values(),)
                works.append(cls(index, step, data, loaded, before, beat, reads, number[step.writes]))
                ahead = {0: index}
        return works


class VectorStepUnit:
    """Steps of the vector unit, one at a time."""

    def __init__(self, scoreboard: Scoreboard) -> None:
        self.scoreboard = scoreboard
        self.at: VectorIssue | None = None
        self.first = 0
        self.worked: Counter[int] = Counter()

    @property
    def running(self) -> bool:
        """Whether a step is under way."""
        return self.at is not None

    def begin(self, at: VectorIssue, now: int) -> None:
        """A step is issued; the port is asked from the cycle on in which its delay is over."""
        self.at, self.first = at, now + 1 + at.step.delay

    def ask(self, now: int) -> Order | None:
        """The word that is due in this cycle; with the last, the step is done."""
        if self.at is None or now < self.first:
            return None
        at, step, since = self.at, self.at.step, now - self.first
        if since < step.scalars.words:
            return Order(VECTOR, at.index, step.lanes, step.scalars.base + since, register=since)
        return self._operand(at, since - step.scalars.words) or self._result(at, since - step.scalars.words, now)

    def _operand(self, at: VectorIssue, since: int) -> Order | None:
        word, place = divmod(since, at.beat.period)
        if place >= at.beat.reads or word >= at.step.words:
            return None
        order, table = at.reads[place], at.step.picks
        if table and order.points:
            return order._replace(address=order.address + word * table.word_words)
        return order._replace(word=word, number=word % RESULTS)

    def _result(self, at: VectorIssue, since: int, now: int) -> Order | None:
        word, behind = divmod(since - at.beat.result_delay, at.beat.period)
        if behind or not 0 <= word < at.step.words:
            return None
        self.worked[at.index] += at.beat.work
        if word == at.step.words - 1:
            self.scoreboard.finish(at.index, now + 1)
            self.at = None
        return Order(
            VECTOR, at.index, at.step.lanes, NOWHERE, at.writes, word, number=word % RESULTS, stores=True
        )  # fmt: skip
