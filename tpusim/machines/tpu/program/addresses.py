"""Where the lanes read in a pass: nested counters with bounds, or a table of addresses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple, TypeAlias

PADDING = -1
"""The address of an element that is zero and needs no access."""


class Counter(NamedTuple):
    """`length` positions, `step` apart from `start` on, of `stride` words each; one outside [0, extent) is padding."""

    length: int
    start: int
    step: int
    extent: int
    stride: int

    @property
    def inside(self) -> range:
        """The counts whose position is stored; `step` is above zero."""
        first = min(self.length, max(0, -(self.start // self.step)))
        last = (self.extent - 1 - self.start) // self.step
        return range(first, max(first, min(last + 1, self.length)))

    def offset(self, count: int) -> int:
        """The words from position 0 to that of `count`."""
        return (self.start + count * self.step) * self.stride


class Counters(NamedTuple):
    """Word `base` plus the offsets of nested counters, the last of them moving fastest."""

    base: int
    counters: tuple[Counter, ...]

    @property
    def words(self) -> int:
        """The words walked over, padding included."""
        return prod(each.length for each in self.counters)

    @property
    def accesses(self) -> int:
        """The words really read: those at which no counter stands outside its extent."""
        return _accesses(self.counters)


@lru_cache(maxsize=4096)
def _accesses(counters: tuple[Counter, ...]) -> int:
    """Many passes walk the same way, from another base."""
    return prod(len(each.inside) for each in counters)


class Table(NamedTuple):
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


AddressPattern: TypeAlias = Counters | Table


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

    def fills(self, rows: int) -> bool:
        """Whether the groups, in order, feed each of the first `rows` rows once."""
        at = 0
        for group in self.groups:
            if group.first_lane != at:
                return False
            at += group.lanes
        return at == rows
