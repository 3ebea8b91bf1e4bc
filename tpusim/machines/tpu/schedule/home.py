"""A tensor's place on chip, and how steps reach in one go for words that stand there.

Words are in the order in which they would lie in HBM: channels that share a word of all lanes outermost, then rows,
columns and images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.addresses import (
    PADDING,
    AddressPattern,
    AddressTable,
    Counter,
    Counters,
    Picked,
    Pointers,
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


def held_by(part: Part, shape: Sequence[int]) -> tuple[WordForm, Words] | None:
    """What the words of a part hold, in its order: of each the flat index of its first element, the lane that has it,
    and how many lanes from there on hold a channel each. None where words are cut otherwise, reach beyond the tensor or
    have copies.
    """
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
    return form, np.stack(
        [elements, np.full_like(elements, part.first_lanes[0]), np.full_like(elements, part.lanes)], 1
    )


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
    """Words of a tensor, as `held_by` tells of them, in the order of their elements."""

    shape: tuple[int, ...]
    form: WordForm
    held: Words

    def __eq__(self, other: object) -> bool:
        """Whether both have the same elements in the same words."""
        return isinstance(other, Home) and (
            (self.shape, self.form) == (other.shape, other.form) and np.array_equal(self.held, other.held)
        )

    __hash__ = object.__hash__

    @property
    def words(self) -> int:
        """Words of a lane."""
        return len(self.held)

    @cached_property
    def widest(self) -> int:
        """From lane 0 on, the lanes that hold some of it."""
        _, first, lanes = self.held.T
        return int((first + lanes).max())

    def find(self, part: Part) -> Words | None:
        """The words that hold what a part holds, in its order; None where not all do."""
        found = held_by(part, self.shape)
        if found is None or found[0] != self.form:
            return None
        _, held = found
        at = np.searchsorted(self.held[:, 0], held[:, 0])
        return at if (at < self.words).all() and np.array_equal(self.held[at], held) else None


def home_of(units: Units) -> Home | None:
    """Where the outcome of units could stay that leave it once and whole; None where its words are cut otherwise."""
    tensor = next(each for each in units.tensors if each.name == OFMAP)
    if tensor.scale != 1 or tensor.lost or tensor.number_bytes or tensor.on_the_way:
        return None
    left = (units.spill(each, 0) for each in units.units() if each.leaves >= 0)
    found = [held_by(part, tensor.shape) for moves in left if moves.tensor.name == OFMAP for part in moves.parts]
    whole = [each for each in found if each is not None]
    if not whole or len(whole) < len(found) or len({form for form, _ in whole}) != 1:
        return None
    form, held = whole[0][0], np.concatenate([words for _, words in whole])
    held = held[np.argsort(held[:, 0])]
    # Channels that share a word of all lanes are always in the same.
    of_channel = prod(tensor.shape[1:])
    folds = np.unique(np.stack([held[:, 0] // of_channel, *held.T[1:]], 1), axis=0)
    if (np.diff(folds[:, 0]) == 0).any() or folds[:, 2].sum() != tensor.shape[0]:
        return None
    # Each word once, and in them all that the first lane of each fold holds.
    if (np.diff(held[:, 0]) == 0).any() or len(held) * form.per_word != len(folds) * of_channel:
        return None
    return Home(tensor.shape, form, held)


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
    if isinstance(pattern, AddressTable):
        addresses = np.full(len(addresses), PADDING)
        addresses[stored] = there
        return AddressTable(tuple(addresses.tolist()))
    moved = _nested(there) if stored.all() else _with_strides(pattern, stored, there)
    inside, addresses = walked(moved)
    if len(addresses) != len(stored) or not np.array_equal(addresses[inside], there):
        raise ScatteredError
    return moved


def _nested(there: Words) -> Counters:
    """Counters that walk `there`, if any do; else others."""
    counters: list[Counter] = []
    left = there
    while len(left) > 1:
        apart = np.diff(left)
        length = int(np.append(np.flatnonzero(apart != apart[0]), len(apart))[0]) + 1
        counters.append(Counter(length, 0, 1, length, int(apart[0])))
        left = left[::length]
    return Counters(int(there[0]), tuple(reversed(counters)))


def _with_strides(pattern: AddressPattern, stored: NDArray[np.bool_], there: Words) -> Counters:
    """The counters of a pattern with the strides that walk `there`, if any do; else with others."""
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
    return counter._replace(stride=apart // counter.step, wrap=1, jump=0)
