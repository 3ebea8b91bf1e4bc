"""What bank conflicts cost a pass: how long the banks take for each of its words, and what the array waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.calendar import Cycles
from tpusim.machines.tpu.program.addresses import Feed
from tpusim.machines.tpu.program.banks import Groups, Marks, asked, relative
from tpusim.machines.tpu.program.passes import Stream

_TOGETHER = 1 << 22
"""Counters of words and banks that are held at a time."""


@dataclass(frozen=True, eq=False)
class Conflicts:
    """What conflicts cost a pass whose frames last `period` cycles.

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
        """The cycles, from the first slot on, in which the banks are read."""
        begin = np.append(0, self.delivered[:-1] + 1)
        first = np.cumsum(self.reading) - self.reading
        return np.repeat(begin - first, self.reading) + np.arange(self.reading.sum())


class ConflictCounter:
    """Counts once what several passes have in common; passes that lose alike have the same Conflicts."""

    def __init__(self, hardware: Hardware, period: int) -> None:
        self._banks, self._ports, self._period = hardware.banks, hardware.vector_memory.bank_ports, period
        self._of_feed: dict[int, tuple[Feed, Conflicts]] = {}
        self._of_groups: dict[tuple[Groups, int], Conflicts] = {}
        self._alike: dict[bytes, Conflicts] = {}

    def of(self, step: Stream) -> Conflicts | None:
        """Those of a pass; None where no bank is read."""
        feed = step.reads
        if not self._banks:
            return None
        if id(feed) not in self._of_feed:
            # The feed is held too, so that nothing else gets its id.
            self._of_feed[id(feed)] = feed, self._counted(relative(feed.groups), step.words)
        return self._of_feed[id(feed)][1]

    def _counted(self, groups: Groups, words: int) -> Conflicts:
        key = groups, words
        if key not in self._of_groups:
            reading = reading_cycles(groups, words, self._banks, self._ports)
            self._of_groups[key] = self._alike.setdefault(reading.tobytes(), Conflicts(reading, self._period))
        return self._of_groups[key]


def reading_cycles(groups: Groups, words: int, banks: int, ports: int) -> Cycles:
    """For each word, the cycles until the busiest bank has served all who ask it for different addresses."""
    if not groups:
        return np.ones(words, np.int64)
    (addresses, first), most = asked(groups), max(1, _TOGETHER // banks)
    busiest = [
        _busiest(addresses[at : at + most] % banks, first[at : at + most], banks) for at in range(0, words, most)
    ]
    cycles: Cycles = np.maximum(-(-np.concatenate(busiest) // ports), 1)
    return cycles


def _busiest(bank: Cycles, counts: Marks, banks: int) -> Cycles:
    """[word]: how often a bank is asked, by those that count, of the bank that is asked most."""
    word, asking = counts.nonzero()
    asked_for = np.bincount(word * banks + bank[word, asking], minlength=len(bank) * banks)
    busiest: Cycles = asked_for.reshape(len(bank), banks).max(axis=1)
    return busiest
