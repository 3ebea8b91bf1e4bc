"""A tensor's place on chip, and how steps reach in one go for words that stand there.

Words are in the order in which they would lie in HBM: channels that share a word of all lanes outermost, then rows,
columns and images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.addresses import (
    PADDING,
    AddressPattern,
    Counter,
    Counters,
    Picked,
    Pointers,
    Table,
    walked,
)
from tpusim.machines.tpu.program.moves import ends_of
from tpusim.machines.tpu.program.tensor import Part
from tpusim.machines.tpu.schedule.units import Units
from tpusim.network.ops.op import OFMAP

Words = NDArray[np.int64]


class WordForm(NamedTuple):
    """What all words of a tensor have in common: which elements a word holds, seen from its first."""

    per_word: int
    inner: tuple[tuple[int, tuple[int, ...]], ...]


class Content(NamedTuple):
    """Words of a part in its order: the flat index of the first element of each, in lane `first`, the first of `lanes`
    that hold as many channels in a row.
    """

    form: WordForm
    elements: Words
    first: int
    lanes: int


def held_by(part: Part, shape: Sequence[int]) -> Content | None:
    """What the words of a part hold; None where they are cut otherwise, reach beyond the tensor or have copies."""
    cut = _cut(part)
    if cut is None or len(part.first_lanes) != 1 or len(part.lane) != 1:
        return None
    (axis, channels), outer, inner = part.lane[0], part.items[:cut], part.items[cut:]
    if axis != 0 or not isinstance(channels, range) or channels.step != 1 or not _inside(part, shape):
        return None
    strides = [prod(shape[at + 1 :]) for at in range(len(shape))]
    elements = np.full(1, channels[0] * strides[0] + sum(each.coordinates[0] * strides[each.axis] for each in inner))
    for each in outer:
        elements = np.add.outer(elements, np.array(each.coordinates) * strides[each.axis]).ravel()
    steps = ((axis, coordinates) for axis, coordinates in inner if len(coordinates) > 1)
    form = WordForm(part.per_word, tuple((axis, tuple(each - at[0] for each in at)) for axis, at in steps))
    return Content(form, elements, part.first_lanes[0], part.lanes)


def _cut(part: Part) -> int | None:
    """The first of the counters that make up a word."""
    counts = [len(each.coordinates) for each in part.items]
    return next((at for at in range(len(counts) + 1) if prod(counts[at:]) == part.per_word), None)


def _inside(part: Part, shape: Sequence[int]) -> bool:
    """Whether the tensor has all elements of a part."""
    ends = ends_of(part.lane, part.items, len(shape))
    return all(first >= 0 and last < size for (first, last), size in zip(ends, shape, strict=True))


def words_of(part: Part) -> Words | None:
    """Where a part's words stand, in its order; None where lanes differ in that."""
    if part.feed is None:
        return np.arange(part.base, part.base + part.words)
    if len(part.feed.groups) != 1 or part.feed.table or part.feed.picks:
        return None
    stored, addresses = walked(part.feed.groups[0].pattern)
    return addresses if stored.all() else None


@dataclass(frozen=True, eq=False)
class Home:
    """Words `elements` of a tensor in ascending order, each known by the flat index of its first element.

    `lanes` tells, by the first channel of a fold, which lanes hold it: the first and how many.
    """

    shape: tuple[int, ...]
    form: WordForm
    elements: Words
    lanes: Mapping[int, tuple[int, int]]

    def __eq__(self, other: object) -> bool:
        """Whether both have the same elements in the same words."""
        return isinstance(other, Home) and (
            (self.shape, self.form, self.lanes) == (other.shape, other.form, other.lanes)
            and np.array_equal(self.elements, other.elements)
        )

    __hash__ = object.__hash__

    @property
    def words(self) -> int:
        """Words of a lane."""
        return len(self.elements)

    @cached_property
    def widest(self) -> int:
        """From lane 0 on, the lanes that hold some of it."""
        return max(first + lanes for first, lanes in self.lanes.values())

    def find(self, part: Part) -> Words | None:
        """The words that hold what a part holds, in its order; None where not all do."""
        held = held_by(part, self.shape)
        if held is None or held.form != self.form or not self._in_lanes(held):
            return None
        at = np.searchsorted(self.elements, held.elements)
        found = at < len(self.elements)
        return at if found.all() and np.array_equal(self.elements[at], held.elements) else None

    def _in_lanes(self, held: Content) -> bool:
        """Whether the lanes are the same."""
        of_channel = prod(self.shape[1:])
        folds = np.unique(held.elements // of_channel)
        return all(self.lanes.get(int(fold)) == (held.first, held.lanes) for fold in folds)


def home_of(units: Units) -> Home | None:
    """Where the outcome of units could stay that leave it once and whole; None where its words are cut otherwise."""
    tensor = next(each for each in units.tensors if each.name == OFMAP)
    if tensor.scale != 1 or tensor.lost or tensor.number_bytes or tensor.on_the_way:
        return None
    left = (units.spill(each, 0) for each in units.units() if each.leaves >= 0)
    held = [held_by(part, tensor.shape) for moves in left if moves.tensor.name == OFMAP for part in moves.parts]
    found = [each for each in held if each is not None]
    if not found or len(found) < len(held) or len({each.form for each in found}) != 1:
        return None
    elements = np.concatenate([each.elements for each in found])
    of_channel, ordered = prod(tensor.shape[1:]), np.unique(elements)
    lanes = _lanes_of(found, of_channel)
    if lanes is None or sum(count for _, count in lanes.values()) != tensor.shape[0]:
        return None
    # Each word once, and in them all that the first lane of each fold holds.
    if len(ordered) != len(elements) or len(ordered) * found[0].form.per_word != len(lanes) * of_channel:
        return None
    return Home(tensor.shape, found[0].form, ordered, lanes)


def _lanes_of(held: Iterable[Content], of_channel: int) -> dict[int, tuple[int, int]] | None:
    """By the first channel of each fold its lanes; None where they are not always the same."""
    found: dict[int, tuple[int, int]] = {}
    for each in held:
        for fold in np.unique(each.elements // of_channel).tolist():
            if found.setdefault(fold, (each.first, each.lanes)) != (each.first, each.lanes):
                return None
    return found


class ScatteredError(Exception):
    """What a step reaches in one go would no longer stand as it reaches for it."""


def reached(pattern: AddressPattern, at: Callable[[Words], Words]) -> AddressPattern:
    """The pattern that walks the same words where `at` says that they stand. Raises ScatteredError if none does."""
    if isinstance(pattern, Pointers | Picked):
        raise ScatteredError
    stored, addresses = walked(pattern)
    if not stored.any():
        return pattern
    here = addresses[stored]
    there = at(here)
    if (there - here == there[0] - here[0]).all():
        return pattern.moved(int(there[0] - here[0]))
    if isinstance(pattern, Table):
        addresses = np.full(len(addresses), PADDING)
        addresses[stored] = there
        return Table(tuple(addresses.tolist()))
    moved = _nested(there) if stored.all() else _with_strides(pattern, stored, there)
    inside, addresses = walked(moved)
    if len(addresses) != len(stored) or not np.array_equal(addresses[inside], there):
        raise ScatteredError
    return moved


def _nested(there: Words) -> Counters:
    """Counters that walk `there`, if any do."""
    counters: list[Counter] = []
    left = there
    while len(left) > 1:
        apart = np.diff(left)
        length = int(np.append(np.flatnonzero(apart != apart[0]), len(apart))[0]) + 1
        if len(left) % length:
            raise ScatteredError
        counters.append(Counter(length, 0, 1, length, int(apart[0])))
        left = left[::length]
    return Counters(int(there[0]), tuple(reversed(counters)))


def _with_strides(pattern: AddressPattern, stored: NDArray[np.bool_], there: Words) -> Counters:
    """The counters of a pattern with the strides that walk `there`, if any do."""
    if not isinstance(pattern, Counters) or pattern.window is not None:
        raise ScatteredError
    at = np.full(len(stored), PADDING)
    at[stored] = there
    walk = at.reshape([each.length for each in pattern.counters])
    first = tuple(each.inside.start for each in pattern.counters)
    found = [
        _strided(each, np.moveaxis(walk, axis, -1)[(*first[:axis], *first[axis + 1 :])])
        for axis, each in enumerate(pattern.counters)
    ]
    base = int(walk[first]) - sum(each.offset(count) for each, count in zip(found, first, strict=True))
    return Counters(base, tuple(found))


def _strided(counter: Counter, at: Words) -> Counter:
    """The counter, whose counts stand `at`, with the stride between the first two."""
    counts = counter.inside
    if len(counts) < 2:
        return counter._replace(stride=0, wrap=1, jump=0)
    apart = int(at[counts[1]] - at[counts[0]])
    if apart % counter.step:
        raise ScatteredError
    return counter._replace(stride=apart // counter.step, wrap=1, jump=0)
