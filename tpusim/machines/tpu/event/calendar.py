"""Owners of the cycles of lane 0's ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition import CLIENTS, DMA, FREE, IFMAP, NEVER, Clients, port_name

Cycles = NDArray[np.int64]
Owners = NDArray[np.uint8]
"""Owner of each cycle of a port; cycles after the last owned one may be left out."""


class Calendar:
    """A port of lane 0: the owners of its cycles from `settled` on.

    Streams and preloads reserve ahead of time; the DMA takes, in order, the cycles left over in the past. Cycles
    before the last word that it took concern nobody any more and are forgotten.
    """

    def __init__(self) -> None:
        self.settled = 0
        self.changed_from = 0
        self.owned: Counter[str] = Counter()
        self._cells = bytearray()

    def reserve(self, client: int, start: int, words: int, period: int) -> None:
        """Own every `period`-th cycle from `start` on, `words` times."""
        stop = start + words * period
        self.owned[CLIENTS[client]] += words
        self._reach(stop)
        self._cells[start - self.settled : stop - self.settled : period] = bytes([client]) * words
        self.changed_from = min(self.changed_from, start)

    def reserve_at(self, client: int, cycles: Cycles) -> None:
        """Own these cycles, which ascend."""
        self.owned[CLIENTS[client]] += len(cycles)
        self._reach(int(cycles[-1]) + 1)
        np.frombuffer(self._cells, np.uint8)[cycles - self.settled] = client
        self.changed_from = min(self.changed_from, int(cycles[0]))

    def claim(self, client: int, start: int, words: int, spacing: int, left: Sequence[int] | None = None) -> int:
        """Own the first free cycle from `start` on, `words` times at least `spacing` apart; return the last.

        `left` tells, for each cycle of a frame, how many cycles from there on must be left to others.
        """
        self.owned[CLIENTS[client]] += words
        self.changed_from = min(self.changed_from, start)
        cells, found = self._cells, start - self.settled - spacing
        # Words that may follow one another are most of a long preload, and are found at once.
        if spacing == 1 and not left:
            slots = self._next_free(start - self.settled, words)
            found = int(slots[-1])
            self._reach(self.settled + found + 1)
            np.frombuffer(cells, np.uint8)[slots] = client
            return self.settled + found
        for _ in range(words):
            found = self._free(found + spacing)
            while left and (more := left[(self.settled + found) % len(left)]):
                found = self._free(found + more)
            cells[found] = client
        return self.settled + found

    def _next_free(self, first: int, words: int) -> Cycles:
        """The first `words` free cells from cell `first` on; beyond the last one every cell is free."""
        size = 4 * words
        while True:
            free: Cycles = (np.frombuffer(self._cells[first : first + size], np.uint8) == FREE).nonzero()[0] + first
            if len(free) >= words:
                return free[:words]
            if first + size >= len(self._cells):
                end = max(first, len(self._cells))
                return np.append(free, np.arange(end, end + words - len(free)))
            size *= 4

    def _free(self, at: int) -> int:
        """The first free cell from `at` on."""
        found = self._cells.find(FREE, at)
        if found < 0:
            found = max(at, len(self._cells))
            self._reach(self.settled + found + 1)
        return found

    def slots_for(self, wanted: Cycles, start: int) -> Cycles:
        """The free cycles that words wanted at the non-decreasing cycles `wanted` would get, in order.

        Each word takes the first free cycle at or after it is wanted, after its predecessor, and not before
        `start`. Assumes that no further reservations are made; resets `changed_from`.
        """
        self.changed_from = NEVER
        first, end = max(start, int(wanted[0])), self.settled + len(self._cells)
        # A window four cycles a word wide nearly always holds the answer; looking at the whole future each time is
        # quadratic.
        stop = max(first, min(end, int(wanted[-1]) + 4 * len(wanted)))
        slots = self._slots(wanted, first, stop)
        return slots if stop >= end or slots[-1] < stop else self._slots(wanted, first, end)

    def _slots(self, wanted: Cycles, first: int, stop: int) -> Cycles:
        """With F(t) free cycles before t, word k gets free cycle number max over j <= k of F(wanted_j) + k - j.

        From `stop` on every cycle counts as free.
        """
        # A copy: an array over the cells themselves would keep them from growing for as long as anybody holds it.
        cells = self._cells[first - self.settled : stop - self.settled]
        if not cells.strip(bytes([FREE])):
            cells, stop = cells[:0], first
        free, wanted = (np.frombuffer(cells, np.uint8) == FREE).nonzero()[0], wanted - first
        order, cycles = np.arange(len(wanted)), stop - first
        rank = free.searchsorted(wanted)
        if wanted[-1] > cycles:
            # Beyond the calendar every cycle is free, so F grows by one a cycle.
            rank += np.maximum(wanted - cycles, 0)
        rank -= order
        np.maximum.accumulate(rank, out=rank)
        rank += order
        if rank[-1] < len(free):
            early: Cycles = free[rank]
            early += first
            return early
        slots: Cycles = stop + rank - len(free)
        inside = rank < len(free)
        slots[inside] = free[rank[inside]] + first
        return slots

    def ahead(self, start: int) -> bytes:
        """Return the owner of each cycle from `start` on, one byte a cycle."""
        return bytes(self._cells[max(start - self.settled, 0) :].rstrip(bytes([FREE])))

    def repeat(self, start: int, end: int, times: int) -> None:
        """Repeat the owners of [start, end) `times` times; owners from `end` on move back by as much."""
        self._reach(end)
        period = bytes(self._cells[start - self.settled : end - self.settled])
        # The DMA is left out: its cycles are counted as it takes them.
        for client in range(IFMAP, DMA):
            self.owned[CLIENTS[client]] += times * period.count(client)
        self._cells[end - self.settled : end - self.settled] = times * period

    def take(self, client: int, cycles: Cycles) -> None:
        """Own exactly these cycles of the past."""
        self.owned[CLIENTS[client]] += len(cycles)

    def settle(self, until: int) -> None:
        """Forget the cycles before `until`."""
        del self._cells[: until - self.settled]
        self.settled = until

    def _reach(self, end: int) -> None:
        missing = end - self.settled - len(self._cells)
        if missing > 0:
            self._cells += bytes(missing)


class KeptCalendar(Calendar):
    """A port's calendar, kept from its first cycle to its last."""

    def __init__(self) -> None:
        super().__init__()
        self._past = bytearray()

    def take(self, client: int, cycles: Cycles) -> None:
        """Own these cycles, and write it down."""
        self._reach(int(cycles[-1]) + 1)
        np.frombuffer(self._cells, np.uint8)[cycles - self.settled] = client
        super().take(client, cycles)

    def settle(self, until: int) -> None:
        """Keep the cycles before `until`."""
        self._reach(until)
        self._past += self._cells[: until - self.settled]
        super().settle(until)

    def owners(self) -> Owners:
        """Return the owner of each cycle, from the first on."""
        return np.append(np.frombuffer(self._past, np.uint8), np.frombuffer(self._cells, np.uint8))


class Ports:
    """The ports of lane 0, each with the clients that share it, as `PORTS` tells."""

    def __init__(self, shared: Sequence[Clients], calendar: type[Calendar]) -> None:
        self.calendars = [calendar() for _ in shared]
        self._names = [port_name(clients) for clients in shared]
        pairs = zip(shared, self.calendars, strict=True)
        self._of = {client: calendar for clients, calendar in pairs for client in clients}

    @property
    def owned(self) -> Counter[str]:
        """Cycles owned, by client."""
        return sum((calendar.owned for calendar in self.calendars), Counter())

    def owners(self) -> dict[str, Owners]:
        """Return the owner of each cycle, by the name of each port's account."""
        kept = (calendar for calendar in self.calendars if isinstance(calendar, KeptCalendar))
        return {name: calendar.owners() for name, calendar in zip(self._names, kept, strict=True)}

    def __getitem__(self, client: int) -> Calendar:
        """The port of a client."""
        return self._of[client]

    def ahead(self, start: int) -> tuple[bytes, ...]:
        """Return the owner of each cycle from `start` on, one byte a cycle, port by port."""
        return tuple(calendar.ahead(start) for calendar in self.calendars)

    def repeat(self, start: int, end: int, times: int) -> None:
        """Repeat the owners of [start, end) on every port, `times` times."""
        for calendar in self.calendars:
            calendar.repeat(start, end, times)

    def take(self, client: int, cycles: Cycles) -> None:
        """Own exactly these cycles of the past; all up to the last of them is settled on every port."""
        self._of[client].take(client, cycles)
        for calendar in self.calendars:
            calendar.settle(int(cycles[-1]) + 1)
