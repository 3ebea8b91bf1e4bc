"""How a step reaches in one go for words that stand elsewhere than where it was made to find them."""

from __future__ import annotations

from collections.abc import Callable

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

Words = NDArray[np.int64]


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
