"""The single port of a lane's vector memory: its frame of slots, and its calendar.

All times are those of lane 0; lane `i` runs the same schedule `i` cycles later (skewed addresses).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FREE, IFMAP, PSUM, RESULT, WEIGHT, DMA = range(6)
"""Who owns a cycle of the port."""

CLIENTS = ("idle", "ifmap", "psum", "result", "weight", "dma")

Cycles = NDArray[np.int64]

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Frame:
    """The port's period while a layer runs: for each array a word of ifmap read, partial-sum read, result write.

    Slots of a kind lie side by side, one an array: `IFMAP_SLOT`, `psum_slot` and `result_slot` are the first array's.
    Slots are fixed by kind of activity, never by data, so what is left over for preload and DMA is periodic.
    A frame lasts as long as the W' elements of a word need in the array, the slots need on the port, or the
    adds need in the vector unit, whichever is longest; the excess stalls the array.
    """

    period: int
    elements: int
    add_cycles: int
    accumulates: bool
    arrays: int = 1

    IFMAP_SLOT = 0

    @classmethod
    def of(cls, elements: int, add_cycles: int, accumulates: bool, arrays: int = 1) -> Frame:
        """The shortest frame for words of `elements` elements; `add_cycles` for the words of all arrays."""
        slots = (3 if accumulates else 2) * arrays
        adds = add_cycles if accumulates else 0
        return cls(max(elements, slots, adds), elements, adds, accumulates, arrays)

    @property
    def slots(self) -> int:
        """Port slots a frame's clients own."""
        return (3 if self.accumulates else 2) * self.arrays

    @property
    def psum_slot(self) -> int:
        """The slot after the ifmap reads."""
        return self.arrays

    @property
    def result_slot(self) -> int:
        """First slots after the adds are done that no other client owns."""
        if not self.accumulates:
            return self.arrays
        slot, first = (self.psum_slot + self.add_cycles) % self.period, 2 * self.arrays
        return slot if first <= slot <= self.period - self.arrays else first

    def frames(self, words: int) -> int:
        """Frames that a stream of `words` takes."""
        return -(-words // self.arrays)

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
        return _next_slot(latency - 1, self.psum_slot, self.period)

    def result_delay(self, latency: int) -> int:
        """Cycles from a word's ifmap read to its result write."""
        if not self.accumulates:
            return _next_slot(latency, self.result_slot, self.period)
        return _next_slot(self.psum_delay(latency) + self.add_cycles, self.result_slot, self.period)


class Port:
    """The calendar of lane 0's port: which cycles from `settled` on are owned.

    Streams and preloads reserve ahead of time; the DMA takes, in order, what is left in the past. What lies
    before the last word it took concerns nobody any more and is forgotten.
    """

    def __init__(self) -> None:
        self.settled = 0
        self.changed_from = 0
        self.owned: Counter[str] = Counter()
        self._cells = bytearray()

    def reserve(self, client: int, start: int, words: int, period: int) -> None:
        """Own every `period`-th cycle from `start` on, `words` times."""
        self._paint(client, range(start, start + words * period, period))
        self.changed_from = min(self.changed_from, start)

    def claim(self, client: int, start: int, words: int, spacing: int) -> int:
        """Own the first free cycle from `start` on, `words` times at least `spacing` apart; return the last."""
        at = start - spacing
        for _ in range(words):
            at = self._next_free(at + spacing)
            self._mark(client, at)
        self.changed_from = min(self.changed_from, start)
        return at

    def slots_for(self, wanted: Cycles, start: int) -> Cycles:
        """The free cycles that words wanted at the non-decreasing cycles `wanted` would get, in order.

        Each word takes the first free cycle at or after it is wanted, after its predecessor, and not before
        `start`. Assumes that no further reservations are made; resets `changed_from`.
        """
        self.changed_from = NEVER
        first, end = max(start, int(wanted[0])), self.settled + len(self._cells)
        stop = max(first, min(end, int(wanted[-1]) + 4 * len(wanted)))
        slots = self._slots(wanted, first, stop)
        return slots if stop >= end or slots[-1] < stop else self._slots(wanted, first, end)

    def _slots(self, wanted: Cycles, first: int, stop: int) -> Cycles:
        """With F(t) free cycles before t, word k gets free cycle number max over j <= k of F(wanted_j) + k - j.

        From `stop` on every cycle counts as free.
        """
        cells = np.frombuffer(self._cells, np.uint8)[first - self.settled : stop - self.settled]
        free = np.flatnonzero(cells == FREE) + first
        order = np.arange(len(wanted))
        before = np.where(wanted < stop, np.searchsorted(free, wanted), len(free) + np.maximum(wanted - stop, 0))
        rank = np.maximum.accumulate(before - order) + order
        slots = stop + rank - len(free)
        inside = rank < len(free)
        slots[inside] = free[rank[inside]]
        return slots

    def ahead(self, start: int) -> bytes:
        """Who owns each cycle from `start` on, one byte a cycle."""
        return bytes(self._cells[max(start - self.settled, 0) :])

    def repeat(self, start: int, end: int, times: int) -> None:
        """What is owned in [start, end) once more, `times` times; what is owned from `end` on moves back as far."""
        period = bytes(self._cells[start - self.settled : end - self.settled])
        for client in range(IFMAP, DMA):
            self.owned[CLIENTS[client]] += times * period.count(client)
        self._cells[end - self.settled : end - self.settled] = times * period

    def take(self, client: int, cycles: Cycles) -> None:
        """Own exactly these cycles of the past; all up to the last of them is settled."""
        self.owned[CLIENTS[client]] += len(cycles)
        past = int(cycles[-1]) + 1 - self.settled
        del self._cells[:past]
        self.settled += past

    def _paint(self, client: int, cycles: range) -> None:
        self.owned[CLIENTS[client]] += len(cycles)
        missing = cycles.stop - self.settled - len(self._cells)
        if missing > 0:
            self._cells += bytes(missing)
        at = slice(cycles.start - self.settled, cycles.stop - self.settled, cycles.step)
        np.frombuffer(self._cells, np.uint8)[at] = client

    def _mark(self, client: int, cycle: int) -> None:
        self.owned[CLIENTS[client]] += 1
        missing = cycle + 1 - self.settled - len(self._cells)
        if missing > 0:
            self._cells += bytes(missing)
        self._cells[cycle - self.settled] = client

    def _next_free(self, start: int) -> int:
        at = self._cells.find(FREE, start - self.settled)
        return self.settled + (at if at >= 0 else max(start - self.settled, len(self._cells)))


def _next_slot(earliest: int, slot: int, period: int) -> int:
    """The first cycle at or after `earliest` that is `slot` modulo `period`."""
    return earliest + (slot - earliest) % period
