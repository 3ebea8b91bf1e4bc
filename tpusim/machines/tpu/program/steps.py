"""Steps of a Program: here for the array and the vector unit, in `transfers` for the DMA.

A step answers what others need to know about it; only interpreters look at its class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, NamedTuple, Self

from tpusim.machines.tpu.definition import Beat, StepLoop, beat_of, in_a_register
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import ElementTable, Feed, SlotPlaces, first_word
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity, pace_of, work_of
from tpusim.machines.tpu.sections import AluWork


class Use(NamedTuple):
    """Resources that a step takes: bytes from and to HBM, words through the ports of all lanes, words that each lane
    streams, PEs in use times words that pass them, and bytes from and to the scratch memory.
    """

    hbm_read_bytes: int = 0
    hbm_write_bytes: int = 0
    port_reads: int = 0
    port_writes: int = 0
    words_streamed: int = 0
    pe_words: int = 0
    scratch_read_bytes: int = 0
    scratch_write_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Work of one unit. A new kind of step is a class here and a handler in each interpreter."""

    cause: ClassVar[str]
    """Stall cause of the array while it waits for such a step."""
    queue: ClassVar[str]
    """Unit that takes such steps, in order."""

    after: tuple[int, ...]

    @property
    def label(self) -> str:
        """Name of the step in traces and messages."""
        return type(self).__name__.lower()

    @property
    def facts(self) -> Mapping[str, int | str]:
        """Facts that a trace shows, by name."""
        return {}

    @property
    def use(self) -> Use:
        """Resources that the step takes."""
        return Use()

    @property
    def words_read(self) -> Iterator[range]:
        """Words of lanes that the step reads; the ranges may cover more."""
        yield from ()

    @property
    def words_written(self) -> Iterator[range]:
        """Words of lanes that the step writes; the ranges may cover more."""
        yield from ()

    @property
    def adds_on(self) -> bool:
        """Whether the step works on the words that it writes, in place of writing them anew."""
        return False

    def at(self, slots: SlotPlaces) -> Self:
        """The step where its slots are."""
        return self

    def behind(self, after: tuple[int, ...], array: int = -1, preload: int = -1, delay: int = 0) -> Self:
        """The step behind others: on an array, with the weights of a preload, or late, as far as that means something
        to it.
        """
        own = {"array": array, "preload": preload, "delay": delay}.items()
        return replace(self, after=after, **{name: value for name, value in own if name in self.__dataclass_fields__})

    def of_layer(self, layer: str) -> Self:
        """The step in a Program of several layers, where tensors are named after their layers."""
        return self


@dataclass(frozen=True, slots=True)
class Preload(Step):
    """Vector memory -> weight registers: column c takes `rows` weights from lane c, in `words` words from `base` on.

    It begins `delay` cycles late, for work ahead of a block that no step stands for. Behind
    the weights it loads the `bias` of each column, if there is one, the first element of that word: the sums of its
    pass begin at the bias in place of zero. Where arrays have weights of their own, it loads one `array`, which takes
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
        more: dict[str, int | str] = {"delay": self.delay, "bias": "yes" * self.bias_words, "array": self.array}
        return {"rows": self.rows, "cols": self.cols, **{name: fact for name, fact in more.items() if fact}}

    @property
    def use(self) -> Use:
        # Each column in use reads from its own lane.
        return Use(port_reads=(self.words + self.bias_words) * self.cols)

    def at(self, slots: SlotPlaces) -> Self:
        return replace(self, base=slots(self.base), bias=None if self.bias is None else slots(self.bias))

    @property
    def bias_words(self) -> int:
        """Words of biases that each column loads: 1 or 0."""
        return 0 if self.bias is None else 1

    @property
    def words_read(self) -> Iterator[range]:
        yield range(self.base, self.base + self.words)
        yield from () if self.bias is None else (range(self.bias, self.bias + 1),)


class Finish(NamedTuple):
    """An operation of the vector unit on each result on its way to the vector memory.

    Attributes:
        operation: name in `operations`; it takes one operand, no scalars and no function.
        coefficients: coefficients of the operation.
    """

    operation: str
    coefficients: tuple[float, ...] = ()

    @property
    def operations(self) -> AluWork:
        """ALU operations on an element."""
        return OPERATIONS[self.operation].work(Arity(1, 0, len(self.coefficients)), self.coefficients)


@dataclass(frozen=True, slots=True)
class Stream(Step):
    """A pass: `words` words a lane go through the array; column c collects into lane c, from `result_base` on.

    Attributes:
        preload: the step that loads its weights.
        reads: addresses of the words that lanes stream.
        rows, cols: the PEs in use.
        accumulate: whether results are added, by the vector unit, to the words already at `result_base`.
        finish: operations on the finished sums, one after another.
        fill: elements of a word in use, where they are fewer than the layer's; 0: as many.
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
    fill: int = 0

    def at(self, slots: SlotPlaces) -> Self:
        return replace(self, reads=self.reads.at(slots), result_base=slots(self.result_base))

    @property
    def finishing(self) -> tuple[int, int]:
        """Multiplications that finish an element, and its other ALU operations."""
        each = [finish.operations for finish in self.finish]
        return sum(one.products for one in each), sum(one.others for one in each)

    @property
    def facts(self) -> Mapping[str, int | str]:
        accumulate = "yes" if self.accumulate else "no"
        finish = {"finish": ", ".join(each.operation for each in self.finish)} if self.finish else {}
        elements = {"elements": self.fill} if self.fill else {}
        return {
            "rows": self.rows,
            "cols": self.cols,
            "words": self.words,
            "accumulate": accumulate,
            **finish,
            **elements,
        }

    @property
    def use(self) -> Use:
        results, pointers = self.words * self.cols, self.reads.table.words if self.reads.table else 0
        # A pass that adds reads the sums so far, one word for each result.
        reads = self.reads.accesses + pointers + results * self.accumulate
        return Use(0, 0, reads, results, self.words, self.rows * results)

    @property
    def words_read(self) -> Iterator[range]:
        yield from self.reads.extents
        yield from self.words_written if self.accumulate else ()

    @property
    def adds_on(self) -> bool:
        return self.accumulate

    @property
    def words_written(self) -> Iterator[range]:
        yield range(self.result_base, self.result_base + self.words)


class Scalars(NamedTuple):
    """Scalars of each lane, such as its factors: `numbers` of them in `words` words from `base` on."""

    base: int = 0
    words: int = 0
    numbers: int = 0


NO_SCALARS = Scalars()


@dataclass(frozen=True, slots=True)
class Vector(Step):
    """The vector unit works by itself: every lane reads a word of each operand, and writes one, `words` times.

    It begins `delay` cycles late, for work of the vector unit that no step stands for.

    Attributes:
        operation: name of the operation in `operations`.
        operands: addresses of each operand; a lane without a group, and padding, gets zeros.
        writes: addresses of the results; a lane without a group, and padding, keeps none. Words that the step both
            reads and writes are read in the same order, so a result is written after all reads for it.
        scalars: scalars of each lane, read once, before all else.
        coefficients: factors and shifts, the same in every lane.
        widened: the share of operands that are widened for a result; the others were for a result beside it.
        packed: words that lie in a register at most; 0: as many as it has room for.
        body: cycles of the step's share in what loop bodies take beyond their slots.
        chain: operands that are joined to a word in all, of which the step may take a part; 0: its own.
    """

    cause = "vector_work"
    queue = "vector"

    operation: str
    operands: tuple[Feed, ...]
    writes: Feed
    words: int
    scalars: Scalars = NO_SCALARS
    coefficients: tuple[float, ...] = ()
    widened: Fraction = Fraction(1)
    packed: int = 0
    body: int = 0
    chain: int = 0
    delay: int = 0

    def at(self, slots: SlotPlaces) -> Self:
        operands, scalars = tuple(each.at(slots) for each in self.operands), self.scalars
        return replace(
            self, operands=operands, writes=self.writes.at(slots), scalars=scalars._replace(base=slots(scalars.base))
        )

    @property
    def counts(self) -> Arity:
        """Numbers of operands, scalars and coefficients."""
        return Arity(len(self.operands), self.scalars.numbers, len(self.coefficients))

    @property
    def lanes(self) -> int:
        """Number of lanes, from lane 0 on, that may take part."""
        groups = (group for feed in (*self.operands, self.writes) for group in feed.groups)
        return max((group.first_lane + group.lanes for group in groups), default=0)

    @property
    def adds_on(self) -> bool:
        # The result so far is an operand at the very words to which the next result goes.
        return self.writes in self.operands

    @property
    def result_base(self) -> int:
        """First word that the step writes."""
        # Lane groups may write to different words, so the lowest stands for the step.
        return min((first_word(group.pattern) for group in self.writes.groups), default=0)

    @property
    def picks(self) -> ElementTable | None:
        """Pointers by which the step picks elements: one table for all operands."""
        return next((each.picks for each in self.operands if each.picks), None)

    @property
    def reads(self) -> int:
        """Words that a lane reads for each word that it writes: pointers first, then operands."""
        pointers = self.picks.word_words if self.picks else 0
        return pointers + sum(each.picks.elements if each.picks else 1 for each in self.operands)

    def beat(self, elements: int, hardware: Hardware) -> Beat:
        """Pace of the step through its words, with `elements` in use in each."""
        # Words of sums are as wide as the ALUs, so an operation on them converts and rounds nothing.
        hardware = self._on(hardware)
        unit, size = hardware.vector_unit, hardware.word_bytes
        apart = in_a_register(0, unit, size) // in_a_register(self.packed, unit, size)
        pace = pace_of(self.operation, self.counts, self.coefficients, unit, self.widened, apart)
        picked, loop = self.picks is not None, StepLoop(self.packed, self.widened, self.chain, self.body)
        return beat_of(self.reads, pace, elements, hardware, self.words, self.lanes, picked, loop)

    def operations(self, hardware: Hardware) -> AluWork:
        """ALU operations on an element."""
        return work_of(self.operation, self.counts, self.coefficients, self._on(hardware).vector_unit)

    def _on(self, hardware: Hardware) -> Hardware:
        """The machine as it does the operation."""
        return hardware.wide if OPERATIONS[self.operation].wide else hardware

    @property
    def facts(self) -> Mapping[str, int | str]:
        return {"operation": self.operation, "operands": len(self.operands), "words": self.words}

    @property
    def use(self) -> Use:
        reads = sum(each.accesses for each in self.operands) + self.scalars.words * self.lanes
        reads += self.words * self.picks.word_words if self.picks else 0
        return Use(port_reads=reads, port_writes=self.writes.accesses)

    @property
    def words_read(self) -> Iterator[range]:
        yield range(self.scalars.base, self.scalars.base + self.scalars.words)
        for feed in self.operands:
            yield from feed.extents

    @property
    def words_written(self) -> Iterator[range]:
        return self.writes.extents
