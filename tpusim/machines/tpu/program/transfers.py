"""Words and lanes that hold elements of tensors, and transfers between lanes, HBM and the scratch memory; and tensors
that stay on chip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from math import ceil, prod
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import Feed, SlotPlaces
from tpusim.machines.tpu.program.operations import Arity, work_of
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Use, Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.memory.hbm_layout import Box, Region, shifted

Coordinates: TypeAlias = range | tuple[int, ...]


class Along(NamedTuple):
    """A counter that moves along one axis of a tensor, through evenly spaced coordinates or those of a table."""

    axis: int
    coordinates: Coordinates

    def of(self, count: int) -> Along:
        """The counter of one of its counts alone."""
        return self._replace(coordinates=self.coordinates[count : count + 1])

    def moved(self, by: int) -> Along:
        """The counter with each coordinate moved up."""
        return Along(self.axis, _moved(self.coordinates, by))


def _moved(coordinates: Coordinates, by: int) -> Coordinates:
    return shifted(coordinates, by) if isinstance(coordinates, range) else tuple([each + by for each in coordinates])


class Part(NamedTuple):
    """Elements of a tensor, and where they stand in the vector memories.

    Each lane holds one count of `lane`, all counts of `items`, the last of them moving fastest. An element's coordinate
    along an axis is the sum over the counters of that axis; where it lies outside the tensor, the element is zero and
    is never stored.

    Attributes:
        base: first word; items follow in order, `per_word` to a word; the last word may be short.
        first_lanes: first lane of each copy; in each copy, count i of `lane` belongs to lane `first_lane + i`.
        lane: coordinates that differ from lane to lane, along one axis or several at once; the i-th of each axis
            for lane i.
        items: counters of the elements that one lane holds.
        per_word: elements of a word in use.
        feed: addresses of the items of each lane of a spill, which then need not follow one another from
            `base` on; padding is zero and makes no access.
    """

    base: int
    first_lanes: tuple[int, ...]
    lane: tuple[Along, ...]
    items: tuple[Along, ...]
    per_word: int
    feed: Feed | None = None

    def at(self, slots: SlotPlaces) -> Part:
        """The part where the slots are."""
        return self._replace(base=slots(self.base), feed=self.feed.at(slots) if self.feed else None)

    @property
    def words(self) -> int:
        """Words of each lane."""
        return -(-prod(len(each.coordinates) for each in self.items) // self.per_word)

    @property
    def lanes(self) -> int:
        """Lanes of one copy."""
        return len(self.lane[0].coordinates)

    @property
    def accesses(self) -> int:
        """Words that all lanes move through their ports."""
        return self.words * self.lanes * len(self.first_lanes) if self.feed is None else self.feed.accesses

    @property
    def extents(self) -> Iterator[range]:
        """Words among which the part stands."""
        return iter([range(self.base, self.base + self.words)]) if self.feed is None else self.feed.extents


class BankPart(NamedTuple):
    """Elements of a tensor, and their words in banks; elements are counted as those of a Part.

    Attributes:
        base: address to which each counter of words adds one of its `offsets`: first `lane`, then the first of
            `items`. The remaining counters make up a word.
        per_word: elements of a word in use.
    """

    base: int
    offsets: tuple[Coordinates, ...]
    lane: tuple[Along, ...]
    items: tuple[Along, ...]
    per_word: int

    def at(self, slots: SlotPlaces) -> BankPart:
        """The part where the slots are."""
        return self._replace(base=slots(self.base))

    @property
    def words(self) -> int:
        """Words of one count of `lane`."""
        return prod(map(len, self.offsets[1:]))

    @property
    def lanes(self) -> int:
        """Counts of `lane`."""
        return len(self.lane[0].coordinates)

    @property
    def addresses(self) -> NDArray[np.int64]:
        """Address of each word, [count of lane, word]."""
        addresses = np.full(1, self.base)
        for each in self.offsets:
            addresses = np.add.outer(addresses, np.array(each, np.int64)).ravel()
        return addresses.reshape(len(self.offsets[0]), self.words)


Elements: TypeAlias = Part | BankPart
"""Elements of a tensor that are moved, given by `lane` and `items`."""


def _from(part: Elements, origin: Sequence[int]) -> Elements:
    """A part whose elements were relative to an origin: one counter of each axis begins there, of the items if they
    have one.
    """
    left, counters = dict(enumerate(origin)), list[Along]()
    for each in (*part.items, *part.lane):
        by = left.pop(each.axis, 0)
        counters.append(each.moved(by) if by else each)
    assert not any(left.values()), "the part has no counter along an axis of its origin"
    items = len(part.items)
    return part._replace(lane=tuple(counters[items:]), items=tuple(counters[:items]))


def _region_from(region: Region, origin: Sequence[int]) -> Region:
    """A rectangle whose elements were relative to an origin."""
    moved = map(shifted, region, origin)
    return Box(*moved) if isinstance(region, Box) else tuple(moved)


# ---- work on the way


class TransferOp(NamedTuple):
    """An operation of the vector unit on words that a transfer moves, each with all that it is combined with.

    Attributes:
        operation: name in `operations`. Its first operand is the moved word; if a fill combines that with what stands
            in its place, the word there is first.
        numbers: count of scalars of the lane.
        maps: count of further operands, words of the lane: 0 or 1.
        coefficients: coefficients of the operation.
        turns: whether that operand is one of a few words, with a number for each element, which moved words meet in
            turn. The moved word is then first.
    """

    operation: str
    numbers: int = 0
    maps: int = 0
    coefficients: tuple[float, ...] = ()
    turns: bool = False

    @property
    def counts(self) -> Arity:
        """Numbers of operands, scalars and coefficients."""
        return Arity(1 + self.maps, self.numbers, len(self.coefficients))


class Work(NamedTuple):
    """Work of the vector unit on words on their way; elements outside their tensor stay zero, and count nothing.

    Attributes:
        chain: operations, one after another, each on what the one before has made.
        tallies: operations by which every moved word, as it is in the end, is added to a word of its lane.
        words: for each part of the transfer, words of lanes: the first of each map of the chain, then one for each
            number of the chain, then one for each tally. A number is the first element of its word.
        begins: for each part, whether its tallies begin at zero, in place of what stands there.
        around: for each part, the number of words that moved words meet in turn.
    """

    chain: tuple[TransferOp, ...]
    tallies: tuple[str, ...] = ()
    words: tuple[tuple[int, ...], ...] = ()
    begins: tuple[bool, ...] = ()
    around: tuple[int, ...] = ()

    def at(self, slots: SlotPlaces) -> Work:
        """The work where the slots are."""
        return self._replace(words=tuple(tuple(map(slots, each)) for each in self.words))

    @property
    def maps(self) -> int:
        """Words that are read beside each moved word."""
        return sum(each.maps for each in self.chain)

    @property
    def turns(self) -> list[bool]:
        """For each map, whether its words are met in turn."""
        return [each.turns for each in self.chain for _ in range(each.maps)]

    @property
    def numbers(self) -> int:
        """Words of numbers, read once for each part."""
        return sum(each.numbers for each in self.chain)

    @property
    def factors(self) -> list[int]:
        """For each tally the map whose words it multiplies by; -1 for none. Several take the last maps in turn."""
        left, found = self.tallies.count(PRODUCTS), list[int]()
        for each in self.tallies:
            found.append(self.maps - left if each == PRODUCTS else -1)
            left -= each == PRODUCTS
        return found

    def tally_arity(self, operation: str) -> Arity:
        """Numbers of operands, scalars and coefficients of a tally: itself, the moved word, and a map's word if it
        takes products.
        """
        return Arity(3 if operation == PRODUCTS else 2, 0, 0)

    def operations(self, hardware: Hardware) -> tuple[int, int]:
        """ALU operations on an element: multiplications, and others."""
        unit = hardware.vector_unit
        each = [work_of(one.operation, one.counts, one.coefficients, unit) for one in self.chain]
        each += [work_of(one, self.tally_arity(one), (), unit) for one in self.tallies]
        return sum(one.products for one in each), sum(one.others for one in each)

    def cycles(self, hardware: Hardware) -> Fraction:
        """Cycles of the vector unit for a word of every lane."""
        elements = hardware.vector_memory.word_elements * hardware.lanes
        return Fraction(sum(self.operations(hardware)) * elements, hardware.vector_unit.alus)


PRODUCTS = "products_more"
"""The tally that adds the product of a moved word and of a map's word beside it."""


class Access(NamedTuple):
    """An access of every lane to its port for a transfer with work, for, or after, the moved word with number `word`.

    `register` is where the word goes that is read beside it, or comes from if it `stores`; -1 for the moved word.
    """

    word: int
    address: int
    register: int = -1
    stores: bool = False


# ---- transfers


@dataclass(frozen=True, slots=True)
class TensorStep(Step):
    """A step that does something, its `verb`, with parts of a tensor."""

    verb: ClassVar[str]

    tensor: Tensor
    parts: tuple[Elements, ...]

    @property
    def label(self) -> str:
        return f"{self.tensor.role} {self.verb}"

    def at(self, slots: SlotPlaces) -> Self:
        # No figure of a step depends on where its slots are; a slot of banks only turns them. `replace` would count all
        # words again, and take three times as long.
        placed: Self = object.__new__(type(self))
        for each in fields(self):
            object.__setattr__(placed, each.name, getattr(self, each.name))
        for name, value in self._where(slots).items():
            object.__setattr__(placed, name, value)
        return placed

    def _where(self, slots: SlotPlaces) -> dict[str, Any]:
        """Fields that say where the parts are, where the slots are."""
        return {"parts": tuple([each.at(slots) for each in self.parts])}

    def of_layer(self, layer: str) -> Self:
        return replace(self, tensor=self.tensor.of_layer(layer))


@dataclass(frozen=True, slots=True)
class LaneStep(TensorStep):
    """A step on words of lanes. Lane 0 has as many words as any lane."""

    parts: tuple[Part, ...]

    @property
    def lanes(self) -> int:
        """Number of lanes, from lane 0 on, that may take part."""
        return max(max(part.first_lanes) + part.lanes for part in self.parts)

    @property
    def _extents(self) -> Iterator[range]:
        for part in self.parts:
            yield from part.extents


@dataclass(frozen=True, slots=True)
class Transfer(TensorStep):
    """A transfer of parts of a tensor from or to its place, one part after another.

    `hbm_bytes` cross the bus to that place, wherever it is: a tensor has the same layout everywhere.

    Attributes:
        regions: rectangles that HBM delivers or takes, each in runs of its own, in this order; parts outside the tensor
            are left out. None: just the elements of the parts.
    """

    queue = "dma"

    hbm_bytes: int
    regions: tuple[Region, ...] | None = field(default=None, kw_only=True)
    words: int = field(init=False)
    """Words of the memory that moves the most; it moves one word a cycle."""
    lane_words: int = field(init=False)
    """Words that all memories move together."""

    def _moves(self, words: int, lane_words: int) -> None:
        # Figures that follow from the fields are set once, as the step is built.
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "lane_words", lane_words)

    @property
    def facts(self) -> Mapping[str, int | str]:
        return {"words": self.words, "bytes": self.hbm_bytes}

    def _where(self, slots: SlotPlaces) -> dict[str, Any]:
        return self._from([each.at(slots) for each in self.parts], slots.origin)

    def elements_from(self, origin: Sequence[int]) -> Self:
        """The transfer of elements that were relative to an element of the tensor, its origin."""
        return replace(self, **self._from(self.parts, origin))

    def _from(self, parts: Sequence[Elements], origin: Sequence[int]) -> dict[str, Any]:
        """Parts and regions as fields, once their elements are no longer relative to an origin."""
        if not origin:
            return {"parts": tuple(parts)}
        regions = self.regions and tuple([_region_from(each, origin) for each in self.regions])
        return {"parts": tuple([_from(each, origin) for each in parts]), "regions": regions}

    @property
    def bus(self) -> str:
        """The bus that the transfer takes."""
        return self.tensor.place.bus

    @property
    def written(self) -> Tensor | None:
        """The tensor behind the lanes that the transfer writes, if any."""
        return None

    def conversion_cycles(self, hardware: Hardware) -> int:
        """Cycles of the vector unit to convert the words, as many at once as there are lanes; 0 unless a kind of
        transfer says otherwise.
        """
        return 0


@dataclass(frozen=True, slots=True)
class LaneTransfer(LaneStep, Transfer):
    """A transfer from or to the lanes, whose words the vector unit may work on."""

    work: Work | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._moves(sum(part.words for part in self.parts), sum(part.accesses for part in self.parts))

    def _where(self, slots: SlotPlaces) -> dict[str, Any]:
        return {**Transfer._where(self, slots), "work": self.work and self.work.at(slots)}

    @property
    def accesses(self) -> list[Access]:
        """Accesses of a transfer with work, in order: before a part the reads of its numbers and tallies, before a word
        the reads of second maps, after a part the writes of its tallies.
        """
        work, found, first = self.work, list[Access](), 0
        if work is None:
            return found
        for number, part in enumerate(self.parts):
            maps, numbers, tallies = self.beside(number)
            # Tallies that begin at zero are not read.
            kept = (*numbers, *(() if work.begins[number] else tallies))
            found += [Access(first, address, register) for register, address in enumerate(kept)]
            kept_words = len(numbers) + len(tallies)
            for word in range(part.words):
                for at, (base, turns) in enumerate(zip(maps, work.turns, strict=True), kept_words):
                    place = word % work.around[number] if turns else word
                    found.append(Access(first + word, base + place, at))
                found.append(Access(first + word, part.base + word))
            last = first + part.words - 1
            # A tally stays in its register through the part, and goes back once.
            found += [Access(last, address, len(numbers) + at, True) for at, address in enumerate(tallies)]
            first += part.words
        return found

    def worked(self, hardware: Hardware) -> tuple[int, int]:
        """ALU operations on words on their way, each as many as for an element: multiplications, and others. What goes
        to several places is worked on once.
        """
        words = sum(part.words * part.lanes for part in self.parts)
        products, others = self.work.operations(hardware) if self.work else (0, 0)
        return words * products, words * others

    def beside(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Words beside a part: the first of each map, the numbers, the tallies."""
        if self.work is None:
            return (), (), ()
        words, maps, kept = self.work.words[number], self.work.maps, self.work.maps + self.work.numbers
        return words[:maps], words[maps:kept], words[kept:]

    @property
    def _accesses_beside(self) -> tuple[int, int]:
        """Words that the work reads and writes in all lanes, beside those that are moved."""
        reads = writes = 0
        for number, part in enumerate(self.parts if self.work else ()):
            assert self.work
            maps, numbers, tallies = map(len, self.beside(number))
            lanes = part.lanes * len(part.first_lanes)
            begun = 0 if self.work.begins[number] else tallies
            reads, writes = reads + lanes * (part.words * maps + numbers + begun), writes + lanes * tallies
        return reads, writes

    @property
    def _read_beside(self) -> Iterator[range]:
        for number, part in enumerate(self.parts):
            maps, numbers, tallies = self.beside(number)
            for base, turns in zip(maps, self.work.turns if self.work else (), strict=True):
                yield range(base, base + (self.work.around[number] if self.work and turns else part.words))
            yield from (range(word, word + 1) for word in (*numbers, *tallies))

    @property
    def _tallied(self) -> Iterator[range]:
        for number in range(len(self.parts)):
            yield from (range(word, word + 1) for word in self.beside(number)[2])

    def _worked_on(self, words: int, rate: Fraction, hardware: Hardware) -> int:
        """Cycles of the vector unit for words that take `rate` cycles each to convert, and for the work on them."""
        each = rate + self.work.cycles(hardware) if self.work else rate
        # In whole numbers: a product of fractions takes as long as much of the rest of a transfer.
        return -(-words * each.numerator // each.denominator)


@dataclass(frozen=True, slots=True)
class InboundTransfer(Transfer):
    """A transfer from a memory behind the lanes to lanes or banks."""

    cause = "starved"
    verb = "fill"

    @property
    def use(self) -> Use:
        return Use(**{self.tensor.place.reads: self.hbm_bytes}, port_writes=self.lane_words)


@dataclass(frozen=True, slots=True)
class Fill(LaneTransfer, InboundTransfer):
    """An inbound transfer to the lanes."""

    @property
    def use(self) -> Use:
        moved = {self.tensor.place.reads: self.hbm_bytes}
        return Use(**moved, port_reads=self._accesses_beside[0], port_writes=self.lane_words)

    @property
    def words_read(self) -> Iterator[range]:
        return self._read_beside

    @property
    def words_written(self) -> Iterator[range]:
        return self._extents

    def conversion_cycles(self, hardware: Hardware) -> int:
        """Cycles to unpack the words as they lie in HBM, once for all lanes and places that they go to, and to work on
        them.
        """
        packed, word = self.tensor.packed, hardware.vector_memory.word_elements
        a_word = packed.bytes * word if packed else hardware.word_bytes
        # Words that go to several lanes are unpacked once, so bytes of HBM count here, not words written.
        brought = min(self.words, -(-self.hbm_bytes // (hardware.lanes * a_word)))
        rate = hardware.vector_unit.unpack_cycles if self.tensor.converted else Fraction(0)
        return self._worked_on(brought, packed.cycles(hardware) if packed else rate, hardware)


@dataclass(frozen=True, slots=True)
class BankFill(InboundTransfer):
    """An inbound transfer to `banks`, through a write port each."""

    parts: tuple[BankPart, ...]
    banks: int

    def __post_init__(self) -> None:
        # Every bank takes a word a cycle, so the fullest one decides how long the fill lasts.
        filled = np.zeros(self.banks, np.int64)
        for part in self.parts:
            filled += np.bincount(part.addresses.ravel() % self.banks, minlength=self.banks)
        self._moves(int(filled.max()), int(filled.sum()))

    def conversion_cycles(self, hardware: Hardware) -> int:
        words = -(-self.lane_words // hardware.lanes)
        return ceil(words * hardware.vector_unit.unpack_cycles) if self.tensor.converted else 0


@dataclass(frozen=True, slots=True)
class Spill(LaneTransfer):
    """A transfer from the lanes to a memory behind them."""

    cause = "blocked"
    verb = "spill"

    @property
    def use(self) -> Use:
        reads, writes = self._accesses_beside
        moved = {self.tensor.place.writes: self.hbm_bytes}
        return Use(**moved, port_reads=self.lane_words + reads, port_writes=writes)

    @property
    def written(self) -> Tensor:
        return self.tensor

    @property
    def words_read(self) -> Iterator[range]:
        yield from self._extents
        yield from self._read_beside

    @property
    def words_written(self) -> Iterator[range]:
        return self._tallied

    def conversion_cycles(self, hardware: Hardware) -> int:
        """Cycles to pack the words, and to work on them."""
        rate = hardware.vector_unit.pack_cycles if self.tensor.converted else Fraction(0)
        return self._worked_on(self.words, rate, hardware)


@dataclass(frozen=True, slots=True)
class Prefetch(Transfer):
    """A transfer from HBM to the scratch memory: elements of `tensor`, whose `parts` name no lanes, go to tensor
    `to`.
    """

    cause = "starved"
    verb = "prefetch"

    to: Tensor

    def __post_init__(self) -> None:
        # No lane takes part: the transfer lasts as long as its bytes take on the buses.
        self._moves(1, 0)

    @property
    def facts(self) -> Mapping[str, int | str]:
        return {"bytes": self.hbm_bytes}

    @property
    def use(self) -> Use:
        return Use(**{self.tensor.place.reads: self.hbm_bytes, self.to.place.writes: self.hbm_bytes})

    @property
    def written(self) -> Tensor:
        return self.to

    def of_layer(self, layer: str) -> Self:
        return replace(self, tensor=self.tensor.of_layer(layer), to=self.to.of_layer(layer))


@dataclass(frozen=True, slots=True)
class Keep(LaneStep):
    """A note that words stay where they are: from now on they are parts of a tensor, each in one copy and without a
    feed.

    It takes no unit and no time. Later layers read the words there, and wait for this step as a fill waits for spills.
    Keeps end in order.
    """

    cause = "blocked"
    queue = "keep"
    verb = "keep"

    @property
    def facts(self) -> Mapping[str, int | str]:
        return {"words": sum(part.words for part in self.parts)}

    @property
    def words_read(self) -> Iterator[range]:
        return self._extents


KINDS: tuple[type[Step], ...] = Preload, Stream, Vector, Fill, Spill, Prefetch, BankFill, Keep
"""Kinds of steps, each of which ends in order on its unit."""
