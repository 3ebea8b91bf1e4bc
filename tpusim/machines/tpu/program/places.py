"""Where words of a lane stand in a Program of several layers: moved together, or each tensor to a place of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.addresses import (
    PADDING,
    AddressPattern,
    Counter,
    Counters,
    Feed,
    LaneGroup,
    Table,
    walked,
)

Words = NDArray[np.int64]


class ScatteredError(Exception):
    """What a step reaches in one go would no longer stand as it reaches for it."""


class Places(Protocol):
    """Tells where words stand. Both raise ScatteredError where a step could not reach them there."""

    def base(self, words: range) -> int:
        """The first of words that follow one another."""

    def feed(self, feed: Feed) -> Feed:
        """How the same is read, or written, there."""


class Moved(NamedTuple):
    """All stand so many words further on."""

    words: int

    def base(self, words: range) -> int:
        """See Places."""
        return words.start + self.words

    def feed(self, feed: Feed) -> Feed:
        """See Places."""
        return feed.moved(self.words)


@dataclass(frozen=True)
class Placed:
    """Each stands where `to` [word] says."""

    to: Words

    def base(self, words: range) -> int:
        """See Places."""
        there = self.to[words.start : words.stop]
        if not len(there):
            return 0
        if not np.array_equal(there, np.arange(there[0], there[0] + len(there))):
            raise ScatteredError
        return int(there[0])

    def feed(self, feed: Feed) -> Feed:
        """See Places."""
        if feed.table or feed.picks:
            raise ScatteredError
        return Feed(tuple(group._replace(pattern=self._pattern(group)) for group in feed.groups))

    def _pattern(self, group: LaneGroup) -> AddressPattern:
        stored, addresses = walked(group.pattern)
        if not stored.any():
            return group.pattern
        here = addresses[stored]
        there = self.to[here]
        if (there - here == there[0] - here[0]).all():
            return group.pattern.moved(int(there[0] - here[0]))
        if isinstance(group.pattern, Table):
            addresses = np.full(len(addresses), PADDING)
            addresses[stored] = there
            return Table(tuple(addresses.tolist()))
        moved = _nested(there) if stored.all() else _with_strides(group.pattern, stored, there)
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


class Rooms(NamedTuple):
    """Stretches of addresses, each of which goes where its first word goes: `starts` ascend, one begins at 0."""

    starts: tuple[int, ...]
    to: tuple[int, ...]

    def base(self, words: range) -> int:
        """See Places."""
        return words.start + self._by(words)

    def feed(self, feed: Feed) -> Feed:
        """See Places."""
        groups = (group.moved(self._by(group.pattern.extent)) for group in feed.groups)
        return Feed(tuple(groups))

    def room(self, words: range) -> int:
        """The number of the stretch that they are of. Raises ScatteredError where they are of several."""
        room = bisect_right(self.starts, words.start) - 1
        if room + 1 < len(self.starts) and words.stop > self.starts[room + 1]:
            raise ScatteredError
        return room

    def _by(self, words: range) -> int:
        room = self.room(words)
        return self.to[room] - self.starts[room]


def rooms_of(to: Mapping[int, int]) -> Rooms:
    """By where each stretch begins, where it goes."""
    starts = sorted(to)
    return Rooms(tuple(starts), tuple(to[each] for each in starts))
