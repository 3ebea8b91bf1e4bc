"""The clocked model: a DRAM whose controllers do in every cycle what they do in that cycle.

    memory = Clocked(device)
    transfer = memory.offer(addresses, write=False)
    while not transfer.finished:
        memory.clock()          # one cycle of the memory's own clock
    transfer.accepted, transfer.done

Transfers are taken in the order in which they are offered, none before the one before has been accepted to the last;
the same transfers with the same starts give `OnePass` the same cycles.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tpusim.base.errors import InputError
from tpusim.memory.dram.cells import (
    ALSO,
    AT,
    CELLS,
    CHANNEL,
    COMPLETE,
    COUNTS,
    HELD,
    LAST,
    OFFERED,
    OPEN,
    TRANSFER,
)
from tpusim.memory.dram.controller import clock_cycles
from tpusim.memory.dram.device import Device
from tpusim.memory.dram.one_pass import Counts, Requested, Served
from tpusim.memory.dram.requests import transfer
from tpusim.memory.dram.rules import BANKS, DEPTH, INTERVAL, LOOKAHEAD, WAITING, Numbers, rules
from tpusim.memory.dram.state import ACCEPTED, DONE, REQUEST_SIZE, TIME


class Offered:
    """A transfer on its way: `accepted` and `done` are memory cycles, int64[n], -1 where they are not known yet.

    When data is done is known when its column command is issued, so before it is there.
    """

    def __init__(self, rows: Numbers, begin: int, start: int) -> None:
        self.begin, self.past, self.start = begin, begin + len(rows), start
        self._rows, self._finished = rows, False

    def stand_in(self, table: Numbers) -> None:
        """Read the answers from these requests of all transfers."""
        self._rows = table[self.begin : self.past]

    def leave(self) -> None:
        """Keep the answers; the requests of others take the place of these."""
        self._rows = self._rows.copy()

    @property
    def accepted(self) -> Numbers:
        """When each request was accepted."""
        return self._rows[:, ACCEPTED]

    @property
    def done(self) -> Numbers:
        """When the data of each request is there, or in the DRAM."""
        return self._rows[:, DONE]

    @property
    def times(self) -> Numbers:
        """Before which cycle each is not accepted; may be set, in order, as long as that cycle has not come."""
        return self._rows[:, TIME]

    @property
    def finished(self) -> bool:
        """Whether everything about it is known."""
        if not self._finished:
            done = self.done
            # The last is seldom known before others.
            self._finished = not len(done) or bool(done[-1] >= 0 and (done >= 0).all())
        return self._finished


class Clocked:
    """A DRAM, fresh at cycle 0 and clocked from there; `now` is the cycle that comes next.

    The first refresh is due in cycle `first_refresh`, tREFI where nothing is said.
    """

    def __init__(self, device: Device, first_refresh: int | None = None) -> None:
        self.device, self.now, self.requested = device, 0, Requested()
        self._rules = r = rules(device)
        self._mapping = device.addresses()
        due = int(r[INTERVAL]) if first_refresh is None else first_refresh
        self._whole = np.array([0, due, 0, -1, 0])
        channels, banks = device.channels, int(r[BANKS])
        self._cells = np.zeros((channels, CELLS), np.int64)
        self._cells[:, [LAST, COMPLETE]] = -1
        self._banks = np.zeros((channels, banks, 3), np.int64)
        self._banks[:, :, OPEN] = -1
        self._earliest = np.zeros((channels, banks, 5), np.int64)
        self._queues = np.zeros((channels, banks, int(r[DEPTH])), np.int64)
        self._waiting = np.zeros((channels, 2, 0), np.int64)
        self._requests = np.zeros((0, REQUEST_SIZE), np.int64)
        self._window = np.zeros(int(r[LOOKAHEAD]), np.int64)
        # The transfers on their way.
        self._live: list[Offered] = []
        self._transfers = np.zeros((0, HELD + 1), np.int64)

    def offer(
        self, addresses: ArrayLike, write: ArrayLike = False, start: int = 0, times: ArrayLike | None = None
    ) -> Offered:
        """Hand over one transfer, as `OnePass.serve` takes it; its requests are accepted from the next cycle on."""
        rows = np.ascontiguousarray(transfer(self._mapping, addresses, write, times)[0].T)
        busiest = np.bincount(rows[:, CHANNEL]).max(initial=0)
        self.requested = self.requested.and_also(len(rows), int(busiest))
        if all(each.finished for each in self._live):
            for each in self._live:
                each.leave()
            self._live, self._requests, self._transfers = [], self._requests[:0], self._transfers[:0]
            self._whole[AT] = 0
        rows[:, TRANSFER], rows[:, ALSO] = self._whole[OFFERED], -1
        offered = Offered(rows, len(self._requests), start)
        self._live.append(offered)
        self._whole[OFFERED] += 1
        self._requests = np.concatenate([self._requests, rows])
        begins = (start, offered.begin, offered.past, offered.begin, 0)
        self._transfers = np.concatenate([self._transfers, [begins]])
        for each in self._live:
            each.stand_in(self._requests)
        room = len(self._live) * int(self._rules[WAITING]) - self._waiting.shape[2]
        self._waiting = np.pad(self._waiting, [(0, 0), (0, 0), (0, max(0, room))])
        return offered

    def clock(self, cycles: int = 1) -> None:
        """Some cycles: in each, requests are accepted, then every channel issues its commands."""
        clock_cycles(
            self._rules, self._whole, self._transfers, self._window, self._cells, self._banks, self._earliest,
            self._queues, self._waiting, self._requests, cycles,
        )  # fmt: skip
        self.now += cycles

    def serve(
        self, addresses: ArrayLike, write: ArrayLike = False, start: int = 0, times: ArrayLike | None = None
    ) -> Served:
        """Serve one transfer, cycle by cycle, to its last column command. Raises InputError for a past start."""
        if start < self.now and self.now:
            raise InputError(f"cycle {start} is over, the next one is {self.now}; offer transfers before they overlap")
        offered = self.offer(addresses, write, start, times)
        while not offered.finished:
            self.clock()
        return Served(offered.accepted.copy(), offered.done.copy())

    def counts(self) -> Counts:
        """What has happened in each channel."""
        return Counts(*self._cells[:, COUNTS : COUNTS + len(Counts._fields)].T.copy())
