"""The single port of a lane's vector memory: its frame of slots, and its calendar.

All times are those of lane 0; lane `i` runs the same schedule `i` cycles later (skewed addresses).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FREE, IFMAP, PSUM, RESULT, WEIGHT, DMA = range(6)
"""Who owns a cycle of the port."""

CLIENTS = ("idle", "ifmap", "psum", "result", "weight", "dma")

Cycles = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Frame:
    """The port's period while a layer runs: one word each of ifmap read, partial-sum read, result write.

    Slots are fixed by kind of activity, never by data, so what is left over for preload and DMA is periodic.
    A frame lasts as long as the W' elements of a word need in the array, the slots need on the port, or the
    adds need in the vector unit, whichever is longest; the excess stalls the array.
    """

    period: int
    elements: int
    add_cycles: int
    accumulates: bool

    IFMAP_SLOT = 0
    PSUM_SLOT = 1

    @classmethod
    def of(cls, elements: int, add_cycles: int, accumulates: bool) -> Frame:
        """The shortest frame for words of `elements` elements."""
        slots = 3 if accumulates else 2
        adds = add_cycles if accumulates else 0
        return cls(max(elements, slots, adds), elements, adds, accumulates)

    @property
    def slots(self) -> int:
        """Port slots a frame's clients own."""
        return 3 if self.accumulates else 2

    @property
    def result_slot(self) -> int:
        """First slot after the adds are done that no other client owns."""
        if not self.accumulates:
            return 1
        slot = (self.PSUM_SLOT + self.add_cycles) % self.period
        return slot if slot > self.PSUM_SLOT else 2

    @property
    def port_stall(self) -> int:
        """Cycles a frame the array stands still because the port is full."""
        return max(0, self.slots - self.elements)

    @property
    def blocked(self) -> int:
        """Cycles a frame the array stands still because the vector unit is still adding."""
        return self.period - self.elements - self.port_stall

    def psum_delay(self, latency: int) -> int:
        """Cycles from a word's ifmap read to its partial-sum read; `latency` until its last element is out."""
        return _next_slot(latency - 1, self.PSUM_SLOT, self.period)

    def result_delay(self, latency: int) -> int:
        """Cycles from a word's ifmap read to its result write."""
        if not self.accumulates:
            return _next_slot(latency, self.result_slot, self.period)
        return _next_slot(self.psum_delay(latency) + self.add_cycles, self.result_slot, self.period)


class Port:
    """The calendar of lane 0's port: who owns each cycle from 0 on.

    Streams and preloads reserve ahead of time; the DMA takes, in order, what is left in the past.
    """

    def __init__(self) -> None:
        self._cells = bytearray(1 << 14)
        self._end = 0
        self.changed_from = 0

    def reserve(self, client: int, start: int, words: int, period: int) -> None:
        """Own every `period`-th cycle from `start` on, `words` times."""
        stop = start + (words - 1) * period + 1
        self._grow(stop)
        self._end = max(self._end, stop)
        np.frombuffer(self._cells, np.uint8)[start:stop:period] = client
        self.changed_from = min(self.changed_from, start)

    def claim(self, client: int, start: int, words: int, spacing: int) -> int:
        """Own the first free cycle from `start` on, `words` times at least `spacing` apart; return the last."""
        at = start - spacing
        for _ in range(words):
            at = self._next_free(at + spacing)
            self._cells[at] = client
        self._end = max(self._end, at + 1)
        self.changed_from = min(self.changed_from, start)
        return at

    def _next_free(self, start: int) -> int:
        at = self._cells.find(FREE, start)
        while at < 0:
            self._grow(len(self._cells) + 1)
            at = self._cells.find(FREE, start)
        return at

    def slots_for(self, wanted: Cycles, start: int) -> Cycles:
        """The free cycles that words wanted at the non-decreasing cycles `wanted` would get, in order.

        Each word takes the first free cycle at or after it is wanted, after its predecessor, and not before
        `start`. Assumes that no further reservations are made; resets `changed_from`.
        """
        count = len(wanted)
        first = max(start, int(wanted[0]))
        span = max(0, int(wanted[-1]) - first) + 4 * count + 64
        self.changed_from = 1 << 62
        while True:
            free = self._free(first, first + span)
            order = np.arange(count)
            rank = np.maximum.accumulate(np.searchsorted(free, wanted) - order) + order
            if rank[-1] < len(free):
                return free[rank]
            span *= 2

    def _free(self, start: int, stop: int) -> Cycles:
        self._grow(stop)
        return np.flatnonzero(np.frombuffer(self._cells, np.uint8)[start:stop] == FREE) + start

    def take(self, client: int, cycles: Cycles) -> None:
        """Own exactly these cycles (of the past)."""
        np.frombuffer(self._cells, np.uint8)[cycles] = client
        self._end = max(self._end, int(cycles[-1]) + 1)

    def shares(self) -> dict[str, int]:
        """Cycles owned by each client, up to the last one owned by anybody."""
        counts = np.bincount(np.frombuffer(self._cells, np.uint8)[: self._end], minlength=len(CLIENTS))
        return {client: int(count) for client, count in zip(CLIENTS, counts, strict=True)}

    def _grow(self, stop: int) -> None:
        if stop > len(self._cells):
            self._cells = self._cells + bytes(max(stop - len(self._cells), len(self._cells)))


def _next_slot(earliest: int, slot: int, period: int) -> int:
    """The first cycle at or after `earliest` that is `slot` modulo `period`."""
    return earliest + (slot - earliest) % period
