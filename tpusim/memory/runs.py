"""Runs of addresses: what one part of a tensor takes of HBM, compact, and burst by burst."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.memory.layout import whole_bursts

Addresses: TypeAlias = NDArray[np.int64]


class Runs(NamedTuple):
    """Runs of `size` neighbouring bytes, the first of them at address `base`.

    Nested `levels` of (count, bytes apart) say where the others begin, the last level moving fastest; this is the order
    in which they are asked for.
    """

    base: int
    levels: tuple[tuple[int, int], ...]
    size: int

    @property
    def number(self) -> int:
        """How many runs."""
        return prod([count for count, _ in self.levels])

    def moved(self, burst: int) -> int:
        """Bytes that cross a bus which knows nothing of addresses: each run in whole bursts."""
        return self.number * whole_bursts(self.size, burst)

    @property
    def starts(self) -> Addresses:
        """The address of each run."""
        starts = np.full(1, self.base, np.int64)
        for count, apart in self.levels:
            starts = np.add.outer(starts, np.arange(count, dtype=np.int64) * apart).ravel()
        return starts


class Bursts:
    """Expands runs to the addresses of bursts of so many bytes.

    What differs only by where it begins, by whole bursts, is expanded once.
    """

    def __init__(self, burst: int) -> None:
        self.burst = burst
        self._known: dict[Runs, Addresses] = {}

    def of(self, runs: Iterable[Runs]) -> Addresses:
        """The address of every burst in the order in which runs ask for it, int64.

        One that a run ends in and the next begins in is asked for once.
        """
        parts = [self._at(each) for each in runs]
        if not parts:
            return np.zeros(0, np.int64)
        return parts[0] if len(parts) == 1 else _once(np.concatenate(parts))

    def _at(self, runs: Runs) -> Addresses:
        """The bursts of one compact set."""
        whole, rest = divmod(runs.base, self.burst)
        kind = runs._replace(base=rest)
        if kind not in self._known:
            self._known[kind] = _once(_touched(kind.starts, kind.size, self.burst)) * self.burst
        return self._known[kind] + whole * self.burst


def _touched(starts: Addresses, size: int, burst: int) -> Addresses:
    """The numbers of the bursts that runs of `size` bytes touch, run after run."""
    first, last = starts // burst, (starts + size - 1) // burst
    counts = last - first + 1
    if (counts == counts[0]).all():
        return np.asarray(np.add.outer(first, np.arange(counts[0])).ravel())
    ends = np.cumsum(counts)
    return np.repeat(first - ends + counts, counts) + np.arange(ends[-1])


def _once(numbers: Addresses) -> Addresses:
    """Without those that are the same as the one before."""
    again = numbers[1:] == numbers[:-1]
    return numbers[np.concatenate(([True], ~again))] if again.any() else numbers
