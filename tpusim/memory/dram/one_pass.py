"""The one-pass model: a DRAM that serves transfers from event to event, never cycle by cycle.

    memory = OnePass(device)
    accepted, done = memory.serve(addresses, write=False, start=100)

All cycles are of the memory's own clock, `device.clock_hz`. `memory.counts()` says what has happened since the
beginning. `Clocked` in `clocked` takes the same transfers and gives the same answers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tpusim.memory.dram.device import Device
from tpusim.memory.dram.intake import serve, settle
from tpusim.memory.dram.requests import transfer
from tpusim.memory.dram.rules import INTERVAL, LOOKAHEAD, OUTSTANDING, Numbers, rules
from tpusim.memory.dram.state import ACCEPTED, COUNTED, DONE, REQUEST_SIZE, State, fresh


class Served(NamedTuple):
    """Memory cycles, int64[n]: in which each request was accepted, and when its data is there, or in the DRAM."""

    accepted: Numbers
    done: Numbers


class Counts(NamedTuple):
    """int64[channels] each, since the beginning; a row hit is a column command that was not the first of its
    row, a conflict a row closed for another.
    """

    row_hits: Numbers
    activates: Numbers
    reads: Numbers
    writes: Numbers
    refreshes: Numbers
    conflicts: Numbers


class Requested(NamedTuple):
    """Bursts that transfers asked for; `busiest` of them those of each transfer's busiest channel."""

    bursts: int = 0
    busiest: int = 0

    def and_also(self, bursts: int, busiest: int) -> Requested:
        """With those of one more transfer."""
        return Requested(self.bursts + bursts, self.busiest + busiest)


class OnePass:
    """A DRAM with all it remembers: open rows, what commands must wait for, the refresh clock, how far it has come.

    It is fresh at cycle 0; the first refresh is due in cycle `first_refresh`, tREFI where nothing is said.
    """

    def __init__(self, device: Device, first_refresh: int | None = None) -> None:
        self.device = device
        self._rules = rules(device)
        self._mapping = device.addresses()
        due = int(self._rules[INTERVAL]) if first_refresh is None else first_refresh
        self._state = fresh(self._rules, device.channels, due)
        sizes = (int(self._rules[LOOKAHEAD]), int(self._rules[OUTSTANDING]) + 1, (device.channels, 2))
        self._room = tuple(np.zeros(size, np.int64) for size in sizes)
        self._last, self.requested = (0, 0), Requested()

    def serve(
        self, addresses: ArrayLike, write: ArrayLike = False, start: int = 0, times: ArrayLike | None = None
    ) -> Served:
        """Serve one transfer: requests of a burst each, at byte `addresses`, int64[n], in order, to the last.

        `write` is one for all, or bool[n]. None is accepted before cycle `start`, before its own of `times`, or before
        the last one of the transfer before. In each channel its commands begin when the transfer before has
        issued its column commands there; nothing of this transfer depends on the next.
        """
        requests, distinct, busiest = transfer(self._mapping, addresses, write, times)
        self.requested = self.requested.and_also(requests.shape[1], busiest)
        if requests.size:
            last, taken = self._last
            begin = max(last, start)
            already = taken if begin == last else 0
            cycle, count = serve(self._rules, self._state, requests, distinct, begin, already, *self._room)
            self._last = int(cycle), int(count)
        return Served(requests[ACCEPTED], requests[DONE])

    def counts(self, before: int = 0) -> Counts:
        """What has happened in each channel up to its last column command, and further, before a cycle.

        Looking ahead changes nothing: the next transfer may still begin earlier.
        """
        state = State(*(each.copy() for each in self._state))
        settle(self._rules, state, np.empty((REQUEST_SIZE, 0), np.int64), before)
        return Counts(*state.channels[:, COUNTED : COUNTED + len(Counts._fields)].T)
