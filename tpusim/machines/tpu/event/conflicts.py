"""Conflicts of banks: what they cost a pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import Feed, Groups, asked, relative
from tpusim.machines.tpu.program.steps import Stream

Cycles = NDArray[np.int64]

_TOGETHER = 1 << 22
"""Entries of the tables of words and banks that are held in memory at a time."""


@dataclass(frozen=True, eq=False)
class Conflicts:
    """Cost of conflicts to a pass whose frames last `period` cycles.

    Attributes:
        reading: cycles that the banks take for each word, at least 1.
    """

    reading: Cycles
    period: int

    @cached_property
    def lost(self) -> Cycles:
        """Frames lost until each word is delivered.

        Its reading begins in the cycle after the word before it was delivered, the first word's with its frame.
        """
        late = -(-self.reading // self.period) - 1
        # The first word is read in its own frame; every later word may begin as soon as the one before is delivered.
        late[0] = -(-(self.reading[0] - 1) // self.period)
        return np.cumsum(late)

    @property
    def frames(self) -> int:
        """Frames lost."""
        return int(self.lost[-1])

    @cached_property
    def delivered(self) -> Cycles:
        """When each word goes to the serializers, from the first slot on."""
        return (np.arange(len(self.lost)) + self.lost) * self.period

    @cached_property
    def reads(self) -> Cycles:
        """Cycles, from the first slot on, in which the banks are read."""
        # A word takes consecutive cycles, from the one in which its reading begins.
        begin = np.append(0, self.delivered[:-1] + 1)
        first = np.cumsum(self.reading) - self.reading
        return np.repeat(begin - first, self.reading) + np.arange(self.reading.sum())


class ConflictCounter:
    """Counts conflicts once for passes with the same feed or relative addresses; equal losses share one Conflicts."""

    def __init__(self, hardware: Hardware, period: int) -> None:
        self._banks, self._ports, self._period = hardware.banks, hardware.vector_memory.bank_ports, period
        self._of_feed: dict[int, tuple[Feed, Conflicts]] = {}
        self._of_groups: dict[tuple[Groups, int], Conflicts] = {}
        self._alike: dict[bytes, Conflicts] = {}

    def of(self, step: Stream) -> Conflicts | None:
        """The conflicts of a pass; None where no bank is read."""
        feed = step.reads
        if not self._banks:
            return None
        if id(feed) not in self._of_feed:
            key = relative(feed.groups), step.words
            if key not in self._of_groups:
                reading = reading_cycles(*key, self._banks, self._ports)
                self._of_groups[key] = self._alike.setdefault(reading.tobytes(), Conflicts(reading, self._period))
            # The cache holds the feed itself, so that no other object gets its id.
            self._of_feed[id(feed)] = feed, self._of_groups[key]
        return self._of_feed[id(feed)][1]


def reading_cycles(groups: Groups, words: int, banks: int, ports: int) -> Cycles:
    """For each word, the cycles until the busiest bank has served every row that asks it for a different address."""
    if not groups:
        return np.ones(words, np.int64)
    (addresses, first), most = asked(groups), max(1, _TOGETHER // banks)
    busiest = []
    for at in range(0, words, most):
        # Requests of each bank for each word; rows that ask for one address count once.
        bank = addresses[at : at + most] % banks
        word, asking = first[at : at + most].nonzero()
        asked_for = np.bincount(word * banks + bank[word, asking], minlength=len(bank) * banks)
        busiest.append(asked_for.reshape(len(bank), banks).max(axis=1))
    cycles: Cycles = np.maximum(-(-np.concatenate(busiest) // ports), 1)
    return cycles
