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

from tpusim.base.errors import InputError
from tpusim.memory.dram.device import Device
from tpusim.memory.dram.intake import serve, settle
from tpusim.memory.dram.mapping import Mapping
from tpusim.memory.dram.rules import INTERVAL, LOOKAHEAD, OUTSTANDING, Numbers, rules
from tpusim.memory.dram.state import (
    ACCEPTED,
    BEHIND,
    COUNTED,
    DONE,
    FINAL,
    KIND,
    KINDS_OF_BURST,
    MERGED,
    REQUEST_SIZE,
    TIME,
    WRITE,
    bank_size,
    banks_at,
    fresh,
)


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
        self._last = (0, 0)

    def serve(
        self, addresses: ArrayLike, write: ArrayLike = False, start: int = 0, times: ArrayLike | None = None
    ) -> Served:
        """Serve one transfer: requests of a burst each, at byte `addresses`, int64[n], in order, to the last.

        `write` is one for all, or bool[n]. None is accepted before cycle `start`, before its own of `times`, or before
        the last one of the transfer before. In each channel its commands begin when the transfer before has
        issued its column commands there; nothing of this transfer depends on the next.
        """
        requests = transfer(self._mapping, addresses, write, times)
        if len(requests):
            last, taken = self._last
            begin = max(last, start)
            own = self._rules, self._state, requests, banks_at(self._rules), bank_size(self._rules)
            cycle, count = serve(*own, begin, taken if begin == last else 0, *self._room)
            self._last = int(cycle), int(count)
        return Served(requests[:, ACCEPTED], requests[:, DONE])

    def counts(self, before: int = 0) -> Counts:
        """What has happened in each channel up to its last column command, and further, before a cycle.

        Looking ahead changes nothing: the next transfer may still begin earlier.
        """
        state = self._state.copy()
        settle(
            self._rules,
            state,
            np.empty((0, REQUEST_SIZE), np.int64),
            banks_at(self._rules),
            bank_size(self._rules),
            before,
        )
        return Counts(*state[:, COUNTED : COUNTED + len(Counts._fields)].T.copy())


def transfer(mapping: Mapping, addresses: ArrayLike, write: ArrayLike, times: ArrayLike | None) -> Numbers:
    """The requests of a transfer, none of them accepted yet, int64[n, what `state` says]. Raises InputError."""
    given = np.ascontiguousarray(addresses, np.int64)
    if given.ndim != 1 or (given.size and given.min() < 0):
        raise InputError("addresses are a list of bytes from 0")
    earliest = np.zeros(1, np.int64) if times is None else np.ascontiguousarray(times, np.int64)
    if times is not None and (earliest.shape != given.shape or np.any(earliest[1:] < earliest[:-1])):
        raise InputError("times are as many as addresses, and in order")
    requests = np.empty((given.size, REQUEST_SIZE), np.int64)
    places = mapping.places(given)
    for column, numbers in enumerate(places):
        requests[:, column] = numbers
    requests[:, WRITE] = np.asarray(write, np.bool_)
    requests[:, FINAL] = 0
    last = np.full(int(places.channel.max(initial=0)) + 1, -1)
    last[places.channel] = np.arange(given.size)
    requests[last[last >= 0], FINAL] = 1
    requests[:, TIME] = earliest
    requests[:, KIND] = _kinds(places.burst)
    requests[:, [BEHIND, MERGED, ACCEPTED, DONE]] = -1
    return requests


def _kinds(bursts: Numbers) -> Numbers:
    """A number below KINDS_OF_BURST for each burst, such that strides meet few others (multiplicative hashing)."""
    mixed = (bursts.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return mixed.view(np.int64) & (KINDS_OF_BURST - 1)
