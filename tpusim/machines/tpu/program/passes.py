"""The steps of the array: weights are preloaded, words stream past them, results are finished on their way out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from tpusim.machines.tpu.program.addresses import Feed
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity
from tpusim.machines.tpu.program.step import Shift, Step, Use


@dataclass(frozen=True, slots=True)
class Preload(Step):
    """Vector memory -> weight registers: column c takes `rows` weights from lane c, in `words` words from `base` on.

    It begins `delay` cycles after it could: what is done before a block, by units that nothing else tells of. Behind
    the weights it loads the `bias` of each column, the first element of that word, where there is one: the sums of its
    pass begin there, not at zero. Where arrays have weights of their own, it loads those of one `array`, which takes
    its preloads and its streams in list order.
    """

    cause = "waiting_weights"
    queue = "weights"

    base: int
    words: int
    rows: int
    cols: int
    delay: int = 0
    bias: int | None = None
    array: int = 0

    @property
    def facts(self) -> Mapping[str, int | str]:
        delay = {"delay": self.delay} if self.delay else {}
        bias = {} if self.bias is None else {"bias": "yes"}
        array = {"array": self.array} if self.array else {}
        return {"rows": self.rows, "cols": self.cols, **delay, **bias, **array}

    @property
    def use(self) -> Use:
        return Use(port_reads=(self.words + self.bias_words) * self.cols)

    @property
    def bias_words(self) -> int:
        """Words of biases that each column loads: one or none."""
        return 0 if self.bias is None else 1

    @property
    def words_read(self) -> Iterator[range]:
        yield range(self.base, self.base + self.words)
        yield from () if self.bias is None else (range(self.bias, self.bias + 1),)


def bias_words_of(step: Step) -> int:
    """Those that a step loads, which only preloads do."""
    return step.bias_words if isinstance(step, Preload) else 0


class Finish(NamedTuple):
    """What the vector unit does with each result on its way to the vector memory.

    Attributes:
        operation: its name in `operations`, one that takes one operand, no scalars and no function.
        coefficients: of the operation.
    """

    operation: str
    coefficients: tuple[float, ...] = ()

    @property
    def operations(self) -> tuple[int, int]:
        """Multiplications of an element, and all else that the ALUs do with it."""
        operation, counts = OPERATIONS[self.operation], Arity(1, 0, len(self.coefficients))
        products = operation.products(counts, self.coefficients)
        return products, operation.alu(counts, self.coefficients) - products


@dataclass(frozen=True, slots=True)
class Stream(Step):
    """One pass: `words` words a lane go through the array; column c collects into lane c, from `result_base` on.

    Attributes:
        preload: the step that loads its weights.
        reads: where the lanes find what they stream.
        rows, cols: the PEs in use.
        accumulate: whether results are added, by the vector unit, to the words already at `result_base`.
        finish: what is done with the sums after that, one after another.
    """

    cause = "blocked"
    queue = "array"

    preload: int
    reads: Feed
    result_base: int
    words: int
    rows: int
    cols: int
    accumulate: bool
    finish: tuple[Finish, ...] = ()

    @property
    def finishing(self) -> tuple[int, int]:
        """Multiplications that finish an element, and all else that the ALUs do for it."""
        products, others = (sum(each) for each in zip((0, 0), *(each.operations for each in self.finish), strict=True))
        return products, others

    @property
    def facts(self) -> Mapping[str, int | str]:
        accumulate = "yes" if self.accumulate else "no"
        finish = {"finish": ", ".join(each.operation for each in self.finish)} if self.finish else {}
        return {"rows": self.rows, "cols": self.cols, "words": self.words, "accumulate": accumulate, **finish}

    @property
    def use(self) -> Use:
        results, pointers = self.words * self.cols, self.reads.table.words if self.reads.table else 0
        reads = self.reads.accesses + pointers + results * self.accumulate
        return Use(0, 0, reads, results, self.words, self.rows * results)

    @property
    def words_read(self) -> Iterator[range]:
        yield from self.reads.extents
        yield from self.words_written if self.accumulate else ()

    @property
    def adds_on(self) -> bool:
        return self.accumulate

    def renumbered(self, places: Mapping[int, int]) -> Self:
        return replace(Step.renumbered(self, places), preload=places[self.preload])

    @property
    def words_written(self) -> Iterator[range]:
        yield range(self.result_base, self.result_base + self.words)

    def shifted(self, by: Shift) -> Self:
        return replace(Step.shifted(self, by), preload=self.preload + by.steps)
