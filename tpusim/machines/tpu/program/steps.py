"""What a Program consists of. Every step says of itself what others need to know; nobody asks for its class but the
interpreters, which have a handler for each.

A *word address* counts words within one lane's vector memory; every lane of a step uses the same addresses, skewed
in time by the machine. `after` holds the indices of the steps that must be done before a step may begin; besides, each
unit takes its own steps in list order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import ClassVar, NamedTuple, Self

import numpy as np

from tpusim.machines.tpu.definition.beat import Beat, beat_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import Feed, first_word
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity, Work, work_of
from tpusim.machines.tpu.program.places import Places
from tpusim.machines.tpu.program.pointers import ElementTable
from tpusim.machines.tpu.program.tensor import BankPart, Elements, Part, Tensor
from tpusim.memory.layout import Region


class Use(NamedTuple):
    """What a step takes of the machine: bytes from and to HBM, words through the ports of all lanes, words that each
    lane streams, and PEs in use times words that pass them.
    """

    hbm_read_bytes: int = 0
    hbm_write_bytes: int = 0
    port_reads: int = 0
    port_writes: int = 0
    words_streamed: int = 0
    pe_words: int = 0


class Shift(NamedTuple):
    """What a step is in a Program of several layers: one of `layer`, so many `steps` further on."""

    layer: str
    steps: int


@dataclass(frozen=True, slots=True)
class Step:
    """Something one unit does. A new kind is a class here and a handler in each interpreter."""

    cause: ClassVar[str]
    """What the array is said to be while it waits for such a step: the name of a stall cause."""

    after: tuple[int, ...]

    @property
    def label(self) -> str:
        """What a trace or a message calls it."""
        return type(self).__name__.lower()

    @property
    def facts(self) -> Mapping[str, int | str]:
        """What a trace tells of it, by name."""
        return {}

    @property
    def use(self) -> Use:
        """What it takes of the machine."""
        return Use()

    @property
    def words_used(self) -> Iterator[range]:
        """The words of lanes that it reads or writes."""
        yield from self.words_read
        yield from self.words_written

    @property
    def words_read(self) -> Iterator[range]:
        """The words of lanes that it reads, and perhaps some among them that it does not."""
        yield from ()

    @property
    def words_written(self) -> Iterator[range]:
        """The same of those that it writes."""
        yield from ()

    @property
    def adds_on(self) -> bool:
        """Whether it works on the words that it writes, instead of writing them anew."""
        return False

    def shifted(self, by: Shift) -> Self:
        """The same step of a Program of several layers."""
        return replace(self, after=tuple(each + by.steps for each in self.after))

    def placed(self, reads: Places, writes: Places) -> Self:
        """The same where the words that it reads and writes stand elsewhere. Raises ScatteredError."""
        return self

    def renumbered(self, places: Mapping[int, int]) -> Self:
        """The same where steps have other numbers: `places` by those that they had."""
        return replace(self, after=tuple(sorted(places[each] for each in self.after)))


@dataclass(frozen=True, slots=True)
class Transfer(Step):
    """Parts of a tensor on their way between HBM and the chip, one after another; `hbm_bytes` cross the bus.

    Attributes:
        regions: what HBM hands out or takes for them, each in runs of its own, in that order; what lies outside the
            tensor is nothing. None: just the elements of the parts.
    """

    tensor: Tensor
    parts: tuple[Elements, ...]
    hbm_bytes: int
    regions: tuple[Region, ...] | None = field(default=None, kw_only=True)
    words: int = field(init=False)
    """Words that the memory with the most of them moves: one a cycle."""
    lane_words: int = field(init=False)
    """Words that all memories move together."""

    def _moves(self, words: int, lane_words: int) -> None:
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "lane_words", lane_words)

    @property
    def facts(self) -> Mapping[str, int | str]:
        return {"words": self.words, "bytes": self.hbm_bytes}

    def conversion_cycles(self, hardware: Hardware) -> int:
        """The cycles that the vector unit takes to convert its words, as many at once as there are lanes."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class LaneTransfer(Transfer):
    """Between HBM and the lanes: lane 0, or any other that takes part throughout, moves the most words."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        words = lane_words = 0
        for part in self.parts:
            words += part.words
            lane_words += part.accesses
        self._moves(words, lane_words)

    @property
    def lanes(self) -> int:
        """From lane 0 on, as many as may take part."""
        return max(max(part.first_lanes) + part.lanes for part in self.parts)

    @property
    def _extents(self) -> Iterator[range]:
        for part in self.parts:
            yield from part.extents

    def shifted(self, by: Shift) -> Self:
        return replace(Step.shifted(self, by), tensor=self.tensor.of_layer(by.layer))

    def placed(self, reads: Places, writes: Places) -> Self:
        at = reads if isinstance(self, Spill) else writes
        return replace(self, parts=tuple(part.placed(at) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Inbound(Transfer):
    """HBM -> chip."""

    cause = "starved"

    @property
    def label(self) -> str:
        return f"{self.tensor.role} fill"

    @property
    def use(self) -> Use:
        return Use(hbm_read_bytes=self.hbm_bytes, port_writes=self.lane_words)


@dataclass(frozen=True, slots=True)
class Fill(LaneTransfer, Inbound):
    """HBM -> lanes."""

    @property
    def words_written(self) -> Iterator[range]:
        return self._extents

    def conversion_cycles(self, hardware: Hardware) -> int:
        """Words are unpacked as they lie in HBM, once for all lanes and places that they go to."""
        brought = min(self.words, -(-self.hbm_bytes // (hardware.lanes * hardware.word_bytes)))
        return ceil(brought * hardware.vector_unit.unpack_cycles) if self.tensor.converted else 0


@dataclass(frozen=True, slots=True)
class BankFill(Inbound):
    """HBM -> so many `banks`, through a write port each."""

    parts: tuple[BankPart, ...]
    banks: int

    def __post_init__(self) -> None:
        filled = np.zeros(self.banks, np.int64)
        for part in self.parts:
            filled += np.bincount(part.addresses.ravel() % self.banks, minlength=self.banks)
        self._moves(int(filled.max()), int(filled.sum()))

    def conversion_cycles(self, hardware: Hardware) -> int:
        words = -(-self.lane_words // hardware.lanes)
        return ceil(words * hardware.vector_unit.unpack_cycles) if self.tensor.converted else 0


@dataclass(frozen=True, slots=True)
class Spill(LaneTransfer):
    """Lanes -> HBM."""

    cause = "blocked"

    @property
    def label(self) -> str:
        return f"{self.tensor.role} spill"

    @property
    def use(self) -> Use:
        return Use(hbm_write_bytes=self.hbm_bytes, port_reads=self.lane_words)

    @property
    def words_read(self) -> Iterator[range]:
        return self._extents

    def conversion_cycles(self, hardware: Hardware) -> int:
        return ceil(self.words * hardware.vector_unit.pack_cycles) if self.tensor.converted else 0


@dataclass(frozen=True, slots=True)
class Preload(Step):
    """Vector memory -> weight registers: column c takes `rows` weights from lane c, in `words` words from `base` on.

    It begins `delay` cycles after it could: what is done before a block, by units that nothing else tells of.
    """

    cause = "waiting_weights"

    base: int
    words: int
    rows: int
    cols: int
    delay: int = 0

    @property
    def facts(self) -> Mapping[str, int | str]:
        delay = {"delay": self.delay} if self.delay else {}
        return {"rows": self.rows, "cols": self.cols, **delay}

    @property
    def use(self) -> Use:
        return Use(port_reads=self.words * self.cols)

    @property
    def words_read(self) -> Iterator[range]:
        yield range(self.base, self.base + self.words)

    def placed(self, reads: Places, writes: Places) -> Self:
        return replace(self, base=reads.base(range(self.base, self.base + self.words)))


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

    def placed(self, reads: Places, writes: Places) -> Self:
        results = writes.base(range(self.result_base, self.result_base + self.words))
        return replace(self, reads=reads.feed(self.reads), result_base=results)


class Scalars(NamedTuple):
    """So many `numbers` of each lane, in `words` words from `base` on: the lane's own factors."""

    base: int = 0
    words: int = 0
    numbers: int = 0


NO_SCALARS = Scalars()


@dataclass(frozen=True, slots=True)
class Vector(Step):
    """The vector unit works by itself: every lane reads a word of each operand, and writes one, `words` times.

    It begins `delay` cycles after it could: what is done before, by the vector unit too.

    Attributes:
        operation: what it does, by its name in `operations`.
        operands: where the lanes find each operand; a lane that no group feeds, and padding, gets zeros.
        writes: where the results go; a lane that no group feeds, and padding, keeps none. What the step reads of the
            words that it writes, it reads in the same order: the results of a word come after all that is read for it.
        scalars: are read once, before all else.
        coefficients: of the operands, the same in every lane.
    """

    cause = "vector_work"

    operation: str
    operands: tuple[Feed, ...]
    writes: Feed
    words: int
    scalars: Scalars = NO_SCALARS
    coefficients: tuple[float, ...] = ()
    delay: int = 0

    @property
    def counts(self) -> Arity:
        """What the operation is given."""
        return Arity(len(self.operands), self.scalars.numbers, len(self.coefficients))

    @property
    def lanes(self) -> int:
        """From lane 0 on, as many as may take part."""
        groups = (group for feed in (*self.operands, self.writes) for group in feed.groups)
        return max((group.first_lane + group.lanes for group in groups), default=0)

    @property
    def adds_on(self) -> bool:
        return self.writes in self.operands

    @property
    def result_base(self) -> int:
        """The first word that it writes."""
        return min((first_word(group.pattern) for group in self.writes.groups), default=0)

    @property
    def picks(self) -> ElementTable | None:
        """The pointers by which it picks elements: one table for all operands."""
        return next((each.picks for each in self.operands if each.picks), None)

    @property
    def reads(self) -> int:
        """The words that a lane reads for each word that it writes: first pointers, then operands."""
        pointers = self.picks.word_words if self.picks else 0
        return pointers + sum(each.picks.elements if each.picks else 1 for each in self.operands)

    def beat(self, elements: int, hardware: Hardware) -> Beat:
        """How it goes through its words, of which so many `elements` are in use."""
        return beat_of(self.reads, sum(self.operations(hardware)), elements, hardware)

    def operations(self, hardware: Hardware) -> Work:
        """What the ALUs do with an element."""
        return work_of(self.operation, self.counts, self.coefficients, hardware.vector_unit)

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

    def placed(self, reads: Places, writes: Places) -> Self:
        base, words, _ = self.scalars
        scalars = self.scalars._replace(base=reads.base(range(base, base + words)))
        operands = tuple(reads.feed(each) for each in self.operands)
        return replace(self, operands=operands, writes=writes.feed(self.writes), scalars=scalars)
