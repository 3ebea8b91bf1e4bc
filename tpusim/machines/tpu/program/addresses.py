"""Addresses at which lanes read and write: nested counters with bounds, tables, pointers, and banks.

Pointers stand in tables in the vector memory and name the words of a pass, in place of counters
(the indirect convolution algorithm, Dukhan 2019, arXiv 1907.02129). Banks are SRAMs that hold the ifmap
alone, and that array rows reach through a crossbar.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.description import Hardware
from tpusim.memory.hbm_layout import Addresses

_Numbers = NDArray[Any]
_Marks: TypeAlias = NDArray[np.bool_]


MOST_WORDS = 2**23
"""Most words of a lane that pointers can tell apart: the simulated memories hold whole numbers below 2^24 exactly."""


class PointerTable(NamedTuple):
    """Pointers of a pass, in words of lane 0 from `base` on.

    Each of `pixels` has `together` pointers side by side, one for each pattern that reads through them; `per_word` of
    them fill a word; the last word may be short. A pixel is `repeat` words, one after another, that share its pointers.
    """

    base: int
    pixels: int
    together: int
    per_word: int
    repeat: int

    @property
    def pointers(self) -> int:
        """Number of pointers."""
        return self.pixels * self.together

    @property
    def words(self) -> int:
        """Words of lane 0 that hold the pointers."""
        return -(-self.pointers // self.per_word)

    def a_frame(self, arrays: int) -> int:
        """The most pointer words that a frame needs beyond those of the frame before; each array takes a word in a
        frame.
        """
        return -(-(-(-arrays // self.repeat) * self.together) // self.per_word)

    @property
    def extent(self) -> range:
        """Addresses of the pointer words."""
        return range(self.base, self.base + self.words)

    def at(self, slots: SlotPlaces) -> PointerTable:
        """The table where the slots are."""
        return self._replace(base=slots(self.base))

    def reads(self, arrays: int) -> tuple[_Numbers, _Numbers]:
        """The frame of the pass that first needs each pointer word, and the words before it in that frame."""
        # Without the base, tables of many passes are equal, and the cache finds them.
        return _reads(self._replace(base=0), arrays)


@lru_cache(maxsize=4096)
def _reads(table: PointerTable, arrays: int) -> tuple[_Numbers, _Numbers]:
    """The table's `reads`, cached: many passes read alike."""
    words = np.arange(table.words)
    # The pixel of a word's first pointer, and the frame in which some array reads that pixel.
    frames = words * table.per_word // table.together * table.repeat // arrays
    return frames, words - frames.searchsorted(frames)


class Pointers(NamedTuple):
    """Words that pointers name: pointer number `which` of each pixel of `table`, relative to `base`.

    `stored` counts the pixels that are not padding.
    """

    table: PointerTable
    which: int
    base: int
    stored: int

    def at(self, slots: SlotPlaces) -> Pointers:
        """The pointers where the slots are."""
        return self._replace(table=self.table.at(slots), base=slots(self.base))

    @property
    def words(self) -> int:
        """Words walked over, with padding."""
        return self.table.pixels * self.table.repeat

    @property
    def accesses(self) -> int:
        """Words actually read."""
        return self.stored * self.table.repeat

    @property
    def extent(self) -> range:
        """Words that pointers may lead to: any, as only the values tell."""
        return range(self.base, self.base + MOST_WORDS)


class ElementTable(NamedTuple):
    """Pointers of a step that picks single elements, in words of lane 0 from `base` on, result by result.

    Each of the `words` of results begins a new pointer word. It has `operands` picked operands of `elements` each, and
    for each element `together` pointers side by side, one for each pattern; `per_word` of them fill a word.
    """

    base: int
    words: int
    operands: int
    elements: int
    together: int
    per_word: int

    def at(self, slots: SlotPlaces) -> ElementTable:
        """The table where the slots are."""
        return self._replace(base=slots(self.base))

    @property
    def pointers(self) -> int:
        """Pointers of a result word."""
        return self.operands * self.elements * self.together

    @property
    def word_words(self) -> int:
        """Pointer words of a result word."""
        return -(-self.pointers // self.per_word)

    @property
    def extent(self) -> range:
        """Addresses of the pointer words."""
        # Every result begins a new pointer word, so the last word of each may be partly empty.
        return range(self.base, self.base + self.words * self.word_words)

    def first(self, operand: int, element: int) -> int:
        """Number, within a result word's pointers, of the first one for an element."""
        return (operand * self.elements + element) * self.together


class PickedWords(NamedTuple):
    """Words put together element by element: each element is taken, at its own place, from the word that its pointer
    names.

    The pointer is number `which` of those for `operand` and element, relative to `base`. `stored` counts the elements
    that are not padding.
    """

    table: ElementTable
    operand: int
    which: int
    base: int
    stored: int

    def at(self, slots: SlotPlaces) -> PickedWords:
        """The words where the slots are."""
        return self._replace(table=self.table.at(slots), base=slots(self.base))

    @property
    def words(self) -> int:
        """Words that are put together."""
        return self.table.words

    @property
    def accesses(self) -> int:
        """Words actually read: one for each element."""
        return self.stored

    @property
    def extent(self) -> range:
        """Words that pointers may lead to: any, as only the values tell."""
        return range(self.base, self.base + MOST_WORDS)


def encoded(offsets: _Numbers, padding: _Numbers) -> _Numbers:
    """Pointers to words at `offsets`; a pointer to `padding` has its last bit set."""
    # The flag is the last bit, so a word's address is the pointer halved, and zero is a valid address.
    return np.where(padding, 1, 2 * offsets)


def pointer_bytes(hardware: Hardware) -> int:
    """Whole bytes of a pointer: it names any word of a lane, and has a flag for padding.

    Raises:
        CapacityError: when a lane has more words than pointers can tell apart.
    """
    words = hardware.capacity_words
    if words > MOST_WORDS:
        raise CapacityError(
            f"pointers tell {MOST_WORDS:,} words of a lane apart, and the vector memory has {words:,}; set "
            f"vector_memory.capacity to at most {MOST_WORDS * hardware.word_bytes} B, or take another lowering"
        )
    return -(-((words - 1).bit_length() + 1) // 8)


def pointers_a_word(hardware: Hardware) -> int:
    """Pointers that fill a word. Raises CapacityError when a word cannot hold one, or as `pointer_bytes` does."""
    size = pointer_bytes(hardware)
    if size > hardware.word_bytes:
        raise CapacityError(
            f"a pointer takes {size} B, and a word has {hardware.word_bytes} B; set vector_memory.word_elements or "
            "vector_memory.element_bytes to more, or take another lowering"
        )
    return hardware.word_bytes // size


PADDING = -1
"""The address of an element that is zero and needs no access."""

_SLOT_BITS = 52
_NEAR = 1 << _SLOT_BITS - 1
"""Words that an address relative to a slot lies from the slot's first at most, on either side."""


def in_slot(number: int) -> int:
    """The first word of a slot, for addresses that are relative to slots: far from all others, and from all memory."""
    return (number + 1) << _SLOT_BITS


@dataclass(frozen=True, slots=True)
class SlotPlaces:
    """Places of slots, the first of which begins at word `firsts[at]`: what addresses relative to them become.

    `origin`, where it is given, is the element of a tensor to which a transfer's elements are relative.
    """

    firsts: Sequence[int]
    at: int = 0
    origin: tuple[int, ...] = ()

    def __call__(self, address: int) -> int:
        """The word of an address; one that is relative to no slot stays as it is."""
        number = address + _NEAR >> _SLOT_BITS
        return address if number < 1 else self.firsts[self.at + number - 1] + address - in_slot(number - 1)


def places_of(addresses: Addresses, slots: Addresses, at: Addresses) -> Addresses:
    """Words of addresses, each relative to one of the slots from its place `at` in `slots` on, or to none."""
    numbers = addresses + _NEAR >> _SLOT_BITS
    relative = numbers > 0
    found = addresses.copy()
    numbers = numbers[relative]
    found[relative] += slots[at[relative] + numbers - 1] - (numbers << _SLOT_BITS)
    return found


class Counter(NamedTuple):
    """`length` positions from `start` on, `step` apart, of `stride` words each; positions outside [0, extent) are
    padding.

    After every `wrap` positions, counted from 0, addresses skip `jump` words.
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
        """Counts whose position is inside the extent, for a positive `step`."""
        # Rounded up: the first count whose position is not below zero.
        first = min(self.length, max(0, -(self.start // self.step)))
        last = (self.extent - 1 - self.start) // self.step
        return range(first, max(first, min(last + 1, self.length)))

    def part(self, counts: range) -> Counter:
        """The counter of `counts` alone."""
        return self._replace(length=len(counts), start=self.start + counts.start * self.step)

    def offset(self, count: int) -> int:
        """Words from position 0 to the position of `count`."""
        return self.at(self.start + count * self.step)

    def at(self, position: int) -> int:
        """Words from position 0 to `position`."""
        return position * self.stride + position // self.wrap * self.jump


class Counters(NamedTuple):
    """Addresses: `base` plus the offsets of nested counters, of which the last moves fastest.

    They walk positions [window.start, window.stop) of all positions, or all of them if `window` is None.
    """

    base: int
    counters: tuple[Counter, ...]
    window: range | None = None

    @property
    def words(self) -> int:
        """Words walked over, with padding."""
        return prod(each.length for each in self.counters) if self.window is None else len(self.window)

    @property
    def accesses(self) -> int:
        """Words actually read: those at which every counter is inside its extent."""
        return _accesses(self.counters, self.window)

    @property
    def pieces(self) -> tuple[Counters, ...]:
        """The fewest patterns without a window that walk the same words one after another."""
        return (self,) if self.window is None else _pieces(self)

    @property
    def extent(self) -> range:
        """Words from the lowest that may be read to the highest."""
        first, stop = _reach(self.counters)
        return range(self.base + first, self.base + stop)

    def at(self, slots: SlotPlaces) -> Counters:
        """The walk where the slots are."""
        return Counters(slots(self.base), self.counters, self.window)

    def moved(self, words: int) -> Counters:
        """Return this walk, `words` further on."""
        return Counters(self.base + words, self.counters, self.window)


@lru_cache(maxsize=4096)
def _accesses(counters: tuple[Counter, ...], window: range | None) -> int:
    """Words actually read, cached: many passes walk the same way from another base."""
    if window is None:
        return prod(len(each.inside) for each in counters)
    return sum(each.accesses for each in Counters(0, counters, window).pieces)


@lru_cache(maxsize=4096)
def _reach(counters: tuple[Counter, ...]) -> tuple[int, int]:
    """The lowest offset of counters without their window, and the offset after the highest; (0, 0) if all is
    padding.
    """
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
    """Boxes that make up positions `window` of nested counters, in order.

    They are the end of a row, whole rows, and the beginning of a row, with the ends cut in the same way one counter
    further in.
    """
    if not window:
        return []
    if not lengths:
        return [()]
    # A row is all positions of the inner counters.
    inner = prod(lengths[1:])
    (first, start), (last, end) = divmod(window.start, inner), divmod(window.stop, inner)
    # The window lies within one row, one counter further in.
    if first == last:
        return [(range(first, first + 1), *box) for box in boxes_of(lengths[1:], range(start, end))]
    head = [(range(first, first + 1), *box) for box in boxes_of(lengths[1:], range(start, inner))] if start else []
    whole = range(first + (start > 0), last)
    body = [(whole, *map(range, lengths[1:]))] if whole else []
    return head + body + [(range(last, last + 1), *box) for box in boxes_of(lengths[1:], range(end))]


class AddressTable(NamedTuple):
    """A table with an address for every word, or PADDING: for gathers that counters cannot walk."""

    addresses: tuple[int, ...]

    @property
    def words(self) -> int:
        """Words walked over, with padding."""
        return len(self.addresses)

    @property
    def accesses(self) -> int:
        """Words actually read."""
        return len(self.addresses) - self.addresses.count(PADDING)

    @property
    def extent(self) -> range:
        """Words from the lowest that is read to the highest."""
        # Padding has no address of its own, and must not widen the range.
        stored = [each for each in self.addresses if each != PADDING]
        return range(min(stored), max(stored) + 1) if stored else range(0)

    def at(self, slots: SlotPlaces) -> AddressTable:
        """The walk where the slots are."""
        return AddressTable(tuple(map(slots, self.addresses)))

    def moved(self, words: int) -> AddressTable:
        """Return this walk, `words` further on."""
        return AddressTable(tuple(each if each == PADDING else each + words for each in self.addresses))


AddressPattern: TypeAlias = Counters | AddressTable | Pointers | PickedWords


def first_word(pattern: AddressPattern) -> int:
    """The lowest address read; 0 if all is padding."""
    stored, addresses = walked(pattern)
    return int(addresses[stored].min()) if stored.any() else 0


def walked(pattern: AddressPattern) -> tuple[NDArray[np.bool_], Addresses]:
    """A mask of the words of a pass that are not padding, and their addresses. Refuses pointers, whose values tell."""
    if isinstance(pattern, Pointers | PickedWords):
        raise TypeError("where pointers lead stands in the vector memory")
    if isinstance(pattern, AddressTable):
        table = np.array(pattern.addresses, np.int64)
        return table != PADDING, table
    inside, offsets = _offsets(pattern.counters)
    window = slice(None) if pattern.window is None else slice(pattern.window.start, pattern.window.stop)
    return inside[window], offsets[window] + pattern.base


@lru_cache(maxsize=256)
def _offsets(counters: tuple[Counter, ...]) -> tuple[NDArray[np.bool_], Addresses]:
    """A mask of the words that are not padding, and their offsets; cached, as rows of many channels walk alike."""
    inside, offsets = np.ones(1, np.bool_), np.zeros(1, np.int64)
    for length, start, step, extent, stride, wrap, jump in counters:
        position = start + np.arange(length) * step
        # Rows of the outer product: the last counter moves fastest.
        stored, words = (position >= 0) & (position < extent), position * stride + position // wrap * jump
        inside, offsets = np.logical_and.outer(inside, stored).ravel(), np.add.outer(offsets, words).ravel()
    return inside, offsets


class LaneGroup(NamedTuple):
    """Neighbouring lanes [first_lane, first_lane + lanes) that read by one pattern, each for its own array row."""

    first_lane: int
    lanes: int
    pattern: AddressPattern


@dataclass(frozen=True)
class Feed:
    """Reads of a pass: lane groups with their patterns. Rows without a group get zeros."""

    groups: tuple[LaneGroup, ...]

    def at(self, slots: SlotPlaces) -> Self:
        """The reads where the slots are."""
        return replace(self, groups=tuple([LaneGroup(lane, n, each.at(slots)) for lane, n, each in self.groups]))

    @cached_property
    def accesses(self) -> int:
        """Words read, over all lanes."""
        return sum(group.lanes * group.pattern.accesses for group in self.groups)

    @cached_property
    def table(self) -> PointerTable | None:
        """The table of pointers that the groups read through; there is one pointer reader, so there is one table."""
        return next((group.pattern.table for group in self.groups if isinstance(group.pattern, Pointers)), None)

    @cached_property
    def picks(self) -> ElementTable | None:
        """The table of pointers by which the groups pick elements."""
        return next((group.pattern.table for group in self.groups if isinstance(group.pattern, PickedWords)), None)

    @property
    def extents(self) -> Iterator[range]:
        """Words among which each pattern reads, and words of its pointers."""
        yield from (group.pattern.extent for group in self.groups)
        yield from (table.extent for table in (self.table, self.picks) if table)

    def fills(self, rows: int) -> bool:
        """Whether the groups, in order, feed each of the first `rows` rows once."""
        ends = accumulate((group.lanes for group in self.groups), initial=0)
        return [*(group.first_lane for group in self.groups), rows] == [*ends]


Groups: TypeAlias = tuple[LaneGroup, ...]

_NOTHING = np.iinfo(np.int64).min
"""Stands for padding among addresses: lower than every address, even a relative one."""


@dataclass(frozen=True)
class BankFeed(Feed):
    """Reads of a pass from banks: lanes of a group are array rows, and all of them want the same word."""

    @cached_property
    def accesses(self) -> int:
        """Words read; a word that several rows want at once is read once."""
        return _bank_accesses(relative(self.groups))


def relative(groups: Groups) -> Groups:
    """The groups with addresses relative to the first, so that passes that differ only in their base compare equal."""
    patterns = [group.pattern for group in groups if isinstance(group.pattern, Counters)]
    if not patterns or len(patterns) < len(groups):
        return groups
    # The first base stands for all, as passes that read alike differ by one distance.
    first = patterns[0].base
    return tuple(
        LaneGroup(lane, lanes, pattern._replace(base=pattern.base - first))
        for (lane, lanes, _), pattern in zip(groups, patterns, strict=True)
    )


def asked(groups: Groups) -> tuple[Addresses, _Marks]:
    """Addresses [word, group] that are wanted at once, in ascending order, and a mask without repetitions."""
    # Sorted, equal addresses are neighbours, and a difference of zero marks a repetition.
    table = np.sort([np.where(*walked(group.pattern), _NOTHING) for group in groups], axis=0).T
    return table, np.diff(table, axis=1, prepend=_NOTHING) != 0


@lru_cache(maxsize=1024)
def _bank_accesses(groups: Groups) -> int:
    """Words that groups read; cached, as many passes read alike."""
    return int(np.count_nonzero(asked(groups)[1])) if groups else 0
