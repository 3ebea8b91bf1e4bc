"""The single port of a lane's vector memory: its frame of slots, and its calendar.

All times are those of lane 0; lane `i` runs the same schedule `i` cycles later (skewed addresses).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FREE, IFMAP, PSUM, RESULT, WEIGHT, DMA = range(6)
"""Who owns a cycle of the port."""

CLIENTS = ("idle", "ifmap", "psum", "result", "weight", "dma")

PORTS = {"shared": ((IFMAP, PSUM, RESULT, WEIGHT, DMA),), "separate": ((IFMAP,), (PSUM,), (RESULT,), (WEIGHT,), (DMA,))}
"""The ports of a lane's vector memory, each with the clients that share it; of the last two the first goes first."""

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
        adds = add_cycles if accumulates else 0
        return cls(max(elements, cls.owned(accumulates, arrays), adds), elements, adds, accumulates, arrays)

    @staticmethod
    def owned(accumulates: bool, arrays: int) -> int:
        """Slots of the busiest port that a frame's clients own: here all of them, as they share it."""
        return (3 if accumulates else 2) * arrays

    @property
    def slots(self) -> int:
        """Port slots a frame's clients own."""
        return self.owned(self.accumulates, self.arrays)

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

    def psums_at(self, now: int) -> range:
        """The arrays whose partial sums may be read in cycle `now`."""
        return self._turn(now, self.psum_slot)

    def results_at(self, now: int) -> range:
        """The arrays whose results may be written in cycle `now`."""
        return self._turn(now, self.result_slot)

    def _turn(self, now: int, slot: int) -> range:
        array = now % self.period - slot
        return range(array, array + 1) if 0 <= array < self.arrays else range(0)

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


class SeparateFrame(Frame):
    """The frame where each client has a port of its own: nothing is late for want of a slot."""

    @staticmethod
    def owned(accumulates: bool, arrays: int) -> int:
        """A slot an array."""
        return arrays

    def _turn(self, now: int, slot: int) -> range:
        """Every array's, in every cycle: nobody else wants the port."""
        return range(self.arrays)

    def psum_delay(self, latency: int) -> int:
        """As soon as the sums are there."""
        return latency - 1

    def result_delay(self, latency: int) -> int:
        """As soon as the sums are there, or added."""
        return self.psum_delay(latency) + self.add_cycles if self.accumulates else latency


FRAMES = {"shared": Frame, "separate": SeparateFrame}
"""The frame of each kind of ports."""


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
        # A copy: an array over the cells themselves would keep them from growing for as long as anybody holds it.
        cells = np.frombuffer(self._cells[first - self.settled : stop - self.settled], np.uint8)
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
        self._reach(end)
        period = bytes(self._cells[start - self.settled : end - self.settled])
        for client in range(IFMAP, DMA):
            self.owned[CLIENTS[client]] += times * period.count(client)
        self._cells[end - self.settled : end - self.settled] = times * period

    def take(self, client: int, cycles: Cycles) -> None:
        """Own exactly these cycles of the past; all up to the last of them is settled."""
        self.owned[CLIENTS[client]] += len(cycles)
        self.settle(int(cycles[-1]) + 1)

    def settle(self, until: int) -> None:
        """Forget the cycles before `until`."""
        del self._cells[: until - self.settled]
        self.settled = until

    def _paint(self, client: int, cycles: range) -> None:
        self.owned[CLIENTS[client]] += len(cycles)
        self._reach(cycles.stop)
        at = slice(cycles.start - self.settled, cycles.stop - self.settled, cycles.step)
        self._cells[at] = bytes([client]) * len(cycles)

    def _mark(self, client: int, cycle: int) -> None:
        self.owned[CLIENTS[client]] += 1
        self._reach(cycle + 1)
        self._cells[cycle - self.settled] = client

    def _reach(self, end: int) -> None:
        missing = end - self.settled - len(self._cells)
        if missing > 0:
            self._cells += bytes(missing)

    def _next_free(self, start: int) -> int:
        at = self._cells.find(FREE, start - self.settled)
        return self.settled + (at if at >= 0 else max(start - self.settled, len(self._cells)))


class SeparatePorts:
    """The ports of a lane in which each client has its own: a calendar for each, so that nobody is in another's way."""

    def __init__(self) -> None:
        self._ports = {client: Port() for client in range(IFMAP, DMA + 1)}

    @property
    def owned(self) -> Counter[str]:
        """Cycles owned, by client."""
        return sum((port.owned for port in self._ports.values()), Counter())

    @property
    def settled(self) -> int:
        """As of Port."""
        return self._ports[DMA].settled

    @property
    def changed_from(self) -> int:
        """As of Port; only the DMA itself could change its calendar."""
        return self._ports[DMA].changed_from

    def reserve(self, client: int, start: int, words: int, period: int) -> None:
        """As of Port."""
        self._ports[client].reserve(client, start, words, period)

    def claim(self, client: int, start: int, words: int, spacing: int) -> int:
        """As of Port."""
        return self._ports[client].claim(client, start, words, spacing)

    def slots_for(self, wanted: Cycles, start: int) -> Cycles:
        """As of Port, for the DMA."""
        return self._ports[DMA].slots_for(wanted, start)

    def ahead(self, start: int) -> bytes:
        """As of Port, one calendar after the other."""
        calendars = [port.ahead(start).rstrip(bytes([FREE])) for port in self._ports.values()]
        return b"".join(len(calendar).to_bytes(8) + calendar for calendar in calendars)

    def repeat(self, start: int, end: int, times: int) -> None:
        """As of Port."""
        for port in self._ports.values():
            port.repeat(start, end, times)

    def take(self, client: int, cycles: Cycles) -> None:
        """As of Port."""
        self._ports[client].take(client, cycles)
        for port in self._ports.values():
            port.settle(self.settled)


Ports: TypeAlias = Port | SeparatePorts
"""What a lane has: one port that all clients share, or one for each."""


def _next_slot(earliest: int, slot: int, period: int) -> int:
    """The first cycle at or after `earliest` that is `slot` modulo `period`."""
    return earliest + (slot - earliest) % period
