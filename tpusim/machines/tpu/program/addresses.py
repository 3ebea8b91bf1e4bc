"""Where lanes read and write: nested counters with bounds, tables of addresses, pointers, and banks.

Pointers name the words of a pass from the vector memory, where they stand in tables of their own, instead of counting
them (seed: the indirect convolution algorithm, Dukhan 2019, arXiv 1907.02129). Banks are SRAMs that hold the ifmap
alone, and that array rows reach through a crossbar.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.description import Hardware
from tpusim.memory.layout import Addresses

_Numbers = NDArray[Any]
_Marks: TypeAlias = NDArray[np.bool_]


MOST_WORDS = 2**23
"""Words of a lane that pointers tell apart: the simulated memories hold numbers below 2^24 exactly."""


class PointerTable(NamedTuple):
    """The pointers of a pass, in words of lane 0 from `base` on.

    For each of `pixels` there are `together` pointers side by side, one a pattern that reads through them; `per_word`
    fill a word, the last word perhaps not. A pixel is `repeat` words, one after another, that share its pointers.
    """

    base: int
    pixels: int
    together: int
    per_word: int
    repeat: int

    @property
    def pointers(self) -> int:
        """How many there are in all."""
        return self.pixels * self.together

    @property
    def words(self) -> int:
        """Words of lane 0."""
        return -(-self.pointers // self.per_word)

    def a_frame(self, arrays: int) -> int:
        """Pointer words that a frame needs at most beyond those of the one before; each array takes a word in it."""
        return -(-(-(-arrays // self.repeat) * self.together) // self.per_word)

    @property
    def extent(self) -> range:
        """The pointer words."""
        return range(self.base, self.base + self.words)

    def reads(self, arrays: int) -> tuple[_Numbers, _Numbers]:
        """The frame of the pass that first needs each pointer word, and the words before it in that frame."""
        return _reads(self._replace(base=0), arrays)


@lru_cache(maxsize=4096)
def _reads(table: PointerTable, arrays: int) -> tuple[_Numbers, _Numbers]:
    """Many passes read alike."""
    words = np.arange(table.words)
    frames = words * table.per_word // table.together * table.repeat // arrays
    return frames, words - frames.searchsorted(frames)


class Pointers(NamedTuple):
    """The words that pointers name: those at place `which` of each pixel of `table`, from `base` on.

    `stored` pixels are not padding.
    """

    table: PointerTable
    which: int
    base: int
    stored: int

    @property
    def words(self) -> int:
        """The words walked over, padding included."""
        return self.table.pixels * self.table.repeat

    @property
    def accesses(self) -> int:
        """The words really read."""
        return self.stored * self.table.repeat

    @property
    def extent(self) -> range:
        """Where they may lead: nobody knows how far."""
        return range(self.base, self.base + MOST_WORDS)


class ElementTable(NamedTuple):
    """The pointers of a step that picks single elements, in words of lane 0 from `base` on: result by result.

    Each of these `words` begins a new pointer word. It has `operands` that are picked, of `elements` each, and for each
    of these `together` pointers side by side, one a pattern that reads through them; `per_word` fill a word.
    """

    base: int
    words: int
    operands: int
    elements: int
    together: int
    per_word: int

    @property
    def pointers(self) -> int:
        """How many a result word has."""
        return self.operands * self.elements * self.together

    @property
    def word_words(self) -> int:
        """Pointer words of a result word."""
        return -(-self.pointers // self.per_word)

    @property
    def extent(self) -> range:
        """The pointer words."""
        return range(self.base, self.base + self.words * self.word_words)

    def first(self, operand: int, element: int) -> int:
        """Which of a result word's pointers is the first of those side by side."""
        return (operand * self.elements + element) * self.together


class Picked(NamedTuple):
    """Words put together of an element each of others: of the word that the pointer at place `which` of `operand` and
    element names, from `base` on, element and place being the same.

    `stored` elements are not padding.
    """

    table: ElementTable
    operand: int
    which: int
    base: int
    stored: int

    @property
    def words(self) -> int:
        """The words that are put together."""
        return self.table.words

    @property
    def accesses(self) -> int:
        """The words really read: one an element."""
        return self.stored

    @property
    def extent(self) -> range:
        """Where they may lead: nobody knows how far."""
        return range(self.base, self.base + MOST_WORDS)


def encoded(offsets: _Numbers, padding: _Numbers) -> _Numbers:
    """The pointers to words at `offsets`; where there is `padding`, no word."""
    return np.where(padding, 1, 2 * offsets)


def pointer_bytes(hardware: Hardware) -> int:
    """Whole bytes that name every word of a lane and hold the flag.

    Raises:
        CapacityError: when a lane has more words than can be told apart.
    """
    words = hardware.capacity_words
    if words > MOST_WORDS:
        raise CapacityError(
            f"pointers tell {MOST_WORDS:,} words of a lane apart, and the vector memory has {words:,}; set "
            f"vector_memory.capacity to at most {MOST_WORDS * hardware.word_bytes} B, or take another lowering"
        )
    return -(-((words - 1).bit_length() + 1) // 8)


def pointers_a_word(hardware: Hardware) -> int:
    """Pointers that fill a word. Raises CapacityError when it holds none, or as `pointer_bytes` does."""
    size = pointer_bytes(hardware)
    if size > hardware.word_bytes:
        raise CapacityError(
            f"a pointer takes {size} B, and a word has {hardware.word_bytes} B; set vector_memory.word_elements or "
            "vector_memory.element_bytes to more, or take another lowering"
        )
    return hardware.word_bytes // size


PADDING = -1
"""The address of an element that is zero and needs no access."""


class Counter(NamedTuple):
    """`length` positions, `step` apart from `start` on, of `stride` words each; one outside [0, extent) is padding.

    After every `wrap` positions from 0 on come `jump` words more.
    """

    length: int
    start: int
    step: int
    extent: int
    stride: int
    wrap: int = 1
    jump: int = 0

    @property
    def inside(self) -> range:
        """The counts whose position is stored; `step` is above zero."""
        first = min(self.length, max(0, -(self.start // self.step)))
        last = (self.extent - 1 - self.start) // self.step
        return range(first, max(first, min(last + 1, self.length)))

    def part(self, counts: range) -> Counter:
        """The counter that goes through `counts` of its counts alone."""
        return self._replace(length=len(counts), start=self.start + counts.start * self.step)

    def offset(self, count: int) -> int:
        """The words from position 0 to that of `count`."""
        return self.at(self.start + count * self.step)

    def at(self, position: int) -> int:
        """The words from position 0 to another."""
        return position * self.stride + position // self.wrap * self.jump


class Counters(NamedTuple):
    """Word `base` plus the offsets of nested counters, the last of them moving fastest.

    They begin at position `window.start` of all they have and stop ahead of `window.stop`; None: they walk all.
    """

    base: int
    counters: tuple[Counter, ...]
    window: range | None = None

    @property
    def words(self) -> int:
        """The words walked over, padding included."""
        return prod(each.length for each in self.counters) if self.window is None else len(self.window)

    @property
    def accesses(self) -> int:
        """The words really read: those at which no counter stands outside its extent."""
        return _accesses(self.counters, self.window)

    @property
    def pieces(self) -> tuple[Counters, ...]:
        """As few patterns as walk the same words one after another and have no window."""
        return (self,) if self.window is None else _pieces(self)

    @property
    def extent(self) -> range:
        """From the lowest word that may be read to the highest."""
        first, stop = _reach(self.counters)
        return range(self.base + first, self.base + stop)

    def moved(self, words: int) -> Counters:
        """The pattern that walks alike, `words` further on."""
        return self._replace(base=self.base + words)


@lru_cache(maxsize=4096)
def _accesses(counters: tuple[Counter, ...], window: range | None) -> int:
    """Many passes walk the same way, from another base."""
    if window is None:
        return prod(len(each.inside) for each in counters)
    return sum(each.accesses for each in Counters(0, counters, window).pieces)


@lru_cache(maxsize=4096)
def _reach(counters: tuple[Counter, ...]) -> tuple[int, int]:
    """The lowest offset of counters without their window, and the one after the highest; the same where none is."""
    first, last = 0, 0
    for each in counters:
        if not each.inside:
            return 0, 0
        offsets = [each.offset(count) for count in each.inside]
        first, last = first + min(offsets), last + max(offsets)
    return first, last + 1


@lru_cache(maxsize=4096)
def _pieces(pattern: Counters) -> tuple[Counters, ...]:
    walked = boxes_of(tuple(each.length for each in pattern.counters), pattern.window or range(0))
    return tuple(
        Counters(pattern.base, tuple(each.part(counts) for each, counts in zip(pattern.counters, box, strict=True)))
        for box in walked
    )


def boxes_of(lengths: tuple[int, ...], window: range) -> list[tuple[range, ...]]:
    """The boxes that positions `window` of nested counters of these lengths make up, in order: the end of a row, whole
    rows, the beginning of one; and so on inside a row.
    """
    if not window:
        return []
    if not lengths:
        return [()]
    inner = prod(lengths[1:])
    (first, start), (last, end) = divmod(window.start, inner), divmod(window.stop, inner)
    if first == last:
        return [(range(first, first + 1), *box) for box in boxes_of(lengths[1:], range(start, end))]
    head = [(range(first, first + 1), *box) for box in boxes_of(lengths[1:], range(start, inner))] if start else []
    whole = range(first + (start > 0), last)
    body = [(whole, *map(range, lengths[1:]))] if whole else []
    return head + body + [(range(last, last + 1), *box) for box in boxes_of(lengths[1:], range(end))]


class AddressTable(NamedTuple):
    """An address for every word, or PADDING: for gathers that no counter walks."""

    addresses: tuple[int, ...]

    @property
    def words(self) -> int:
        """The words walked over, padding included."""
        return len(self.addresses)

    @property
    def accesses(self) -> int:
        """The words really read."""
        return len(self.addresses) - self.addresses.count(PADDING)

    @property
    def extent(self) -> range:
        """From the lowest word that is read to the highest."""
        stored = [each for each in self.addresses if each != PADDING]
        return range(min(stored), max(stored) + 1) if stored else range(0)

    def moved(self, words: int) -> AddressTable:
        """The pattern that walks alike, `words` further on."""
        return AddressTable(tuple(each if each == PADDING else each + words for each in self.addresses))


AddressPattern: TypeAlias = Counters | AddressTable | Pointers | Picked


def first_word(pattern: AddressPattern) -> int:
    """The lowest address that is stored; 0 where none is."""
    stored, addresses = walked(pattern)
    return int(addresses[stored].min()) if stored.any() else 0


def walked(pattern: AddressPattern) -> tuple[NDArray[np.bool_], Addresses]:
    """Whether each word of a pass is stored, and its address if it is; pointers are refused: only the vector memory
    knows where they lead.
    """
    if isinstance(pattern, Pointers | Picked):
        raise TypeError("where pointers lead stands in the vector memory")
    if isinstance(pattern, AddressTable):
        table = np.array(pattern.addresses, np.int64)
        return table != PADDING, table
    inside, offsets = _offsets(pattern.counters)
    window = slice(None) if pattern.window is None else slice(pattern.window.start, pattern.window.stop)
    return inside[window], offsets[window] + pattern.base


@lru_cache(maxsize=256)
def _offsets(counters: tuple[Counter, ...]) -> tuple[NDArray[np.bool_], Addresses]:
    """Whether each word is stored, and how far from the base; rows of many channels walk alike."""
    inside, offsets = np.ones(1, np.bool_), np.zeros(1, np.int64)
    for length, start, step, extent, stride, wrap, jump in counters:
        position = start + np.arange(length) * step
        stored, words = (position >= 0) & (position < extent), position * stride + position // wrap * jump
        inside, offsets = np.logical_and.outer(inside, stored).ravel(), np.add.outer(offsets, words).ravel()
    return inside, offsets


class LaneGroup(NamedTuple):
    """Neighbouring lanes [first_lane, first_lane + lanes) that read with one pattern, each feeding its array row."""

    first_lane: int
    lanes: int
    pattern: AddressPattern


@dataclass(frozen=True)
class Feed:
    """What a pass reads: every lane group. Rows that none of them feeds get zeros."""

    groups: tuple[LaneGroup, ...]

    @cached_property
    def accesses(self) -> int:
        """The words read over all lanes."""
        return sum(group.lanes * group.pattern.accesses for group in self.groups)

    @cached_property
    def table(self) -> PointerTable | None:
        """The pointers that the groups read through: one table, as there is one reader."""
        return next((group.pattern.table for group in self.groups if isinstance(group.pattern, Pointers)), None)

    @cached_property
    def picks(self) -> ElementTable | None:
        """The pointers by which the groups pick elements: one table."""
        return next((group.pattern.table for group in self.groups if isinstance(group.pattern, Picked)), None)

    @property
    def extents(self) -> Iterator[range]:
        """The words among which each pattern reads, and those of its pointers."""
        yield from (group.pattern.extent for group in self.groups)
        yield from (table.extent for table in (self.table, self.picks) if table)

    def fills(self, rows: int) -> bool:
        """Whether the groups, in order, feed each of the first `rows` rows once."""
        ends = accumulate((group.lanes for group in self.groups), initial=0)
        return [*(group.first_lane for group in self.groups), rows] == [*ends]


Groups: TypeAlias = tuple[LaneGroup, ...]

_NOTHING = np.iinfo(np.int64).min
"""What padding asks for: no address, not even one relative to another."""


@dataclass(frozen=True)
class BankFeed(Feed):
    """What a pass reads from the banks: the lanes of a group are array rows, all of which want the same word."""

    @cached_property
    def accesses(self) -> int:
        """The words read; one that several rows want at once is read once."""
        return _bank_accesses(relative(self.groups))


def relative(groups: Groups) -> Groups:
    """Groups that read alike from another word on, so that passes that read alike elsewhere are seen to be alike."""
    patterns = [group.pattern for group in groups if isinstance(group.pattern, Counters)]
    if not patterns or len(patterns) < len(groups):
        return groups
    first = patterns[0].base
    return tuple(
        LaneGroup(lane, lanes, pattern._replace(base=pattern.base - first))
        for (lane, lanes, _), pattern in zip(groups, patterns, strict=True)
    )


def asked(groups: Groups) -> tuple[Addresses, _Marks]:
    """The addresses [word, group] asked for at once, in ascending order, and which of them are no repetitions; of one
    group at least.
    """
    table = np.sort([np.where(*walked(group.pattern), _NOTHING) for group in groups], axis=0).T
    return table, np.diff(table, axis=1, prepend=_NOTHING) != 0


@lru_cache(maxsize=1024)
def _bank_accesses(groups: Groups) -> int:
    """The words that groups read; many passes read alike."""
    return int(np.count_nonzero(asked(groups)[1])) if groups else 0
