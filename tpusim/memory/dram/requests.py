"""What is asked of a DRAM and what it answers, for both models: transfers as tables of requests; where bytes fall."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tpusim.base.errors import InputError
from tpusim.memory.dram.device import FIELDS, AddressMapping
from tpusim.memory.dram.rules import Numbers, inlined, kernel

# A request, a column of the table: where it falls and its address in bursts; whether it writes, and whether it is the
# last of its channel; the cycle before which it is not accepted; two places that each model uses in its own way; when
# it was accepted and done (-1: not yet); the kind of its burst.
CHANNEL, BANK, ROW, BURST, WRITE, FINAL, TIME, MODELS_OWN, ACCEPTED, DONE, KIND = *range(8), 9, 10, 11
REQUEST_SIZE = 12

KINDS_OF_BURST = 1024
"""How many values KIND has."""

_CHANNEL, _GROUP, _BANK, _ROW = (FIELDS.index(each) for each in ("channel", "group", "bank", "row"))
"""Where `_place` leaves the fields of an address."""

_NO_TIMES = np.zeros(0, np.int64)
_ADDRESSES = "addresses are a list of bytes from 0"
_ORDER = "times are as many as addresses, and in order from 0; write is one for all, or as many"


class Served(NamedTuple):
    """Memory cycles, int64[n]: in which each request was accepted, and when its data is there, or in the DRAM."""

    accepted: Numbers
    done: Numbers


class Counts(NamedTuple):
    """Events of each channel since the beginning, int64[channels].

    A row hit is a column command that was not the first of its row, a conflict a row that was closed for another.
    """

    row_hits: Numbers
    activates: Numbers
    reads: Numbers
    writes: Numbers
    refreshes: Numbers
    conflicts: Numbers


class Requested(NamedTuple):
    """Bursts that transfers asked for; `busiest` is the sum of each transfer's bursts in its busiest channel."""

    bursts: int = 0
    busiest: int = 0

    def and_also(self, bursts: int, busiest: int) -> Requested:
        """Add those of one more transfer."""
        return Requested(self.bursts + bursts, self.busiest + busiest)


class Places(NamedTuple):
    """Where requests fall, int64[n] each: `bank` counts through the groups of a channel, `burst` is the address."""

    channel: Numbers
    bank: Numbers
    row: Numbers
    burst: Numbers


def places(mapping: AddressMapping, addresses: Numbers) -> Places:
    """Say where bytes at `addresses`, int64[n], fall. Raises InputError for addresses below 0."""
    requests, _, _ = transfer(mapping, addresses, False, None)
    return Places(*requests[[CHANNEL, BANK, ROW, BURST]])


def transfer(
    mapping: AddressMapping, addresses: ArrayLike, write: ArrayLike, times: ArrayLike | None
) -> tuple[Numbers, bool, int]:
    """Make the requests of a transfer of n bursts, none of them accepted yet.

    Takes `addresses` in bytes, int64[n]; `write`, one for all or bool[n]; `times`, int64[n], the memory cycles before
    which requests are not accepted. Returns the table of requests, int64[REQUEST_SIZE, n]; whether bursts ascend, so
    that none comes twice; and the number of requests in the busiest channel.

    Raises:
        InputError: for addresses below 0, times out of order, and lists of another length.
    """
    given = np.ascontiguousarray(addresses, np.int64)
    writes = np.ascontiguousarray(write, np.int64).ravel()
    earliest = _NO_TIMES if times is None else np.ascontiguousarray(times, np.int64)
    if given.ndim != 1:
        raise InputError(_ADDRESSES)
    if (times is not None and earliest.shape != given.shape) or writes.size not in (1, given.size):
        raise InputError(_ORDER)
    requests = np.empty((REQUEST_SIZE, given.size), np.int64)
    found, by_channel = np.zeros(len(FIELDS), np.int64), np.zeros((2, mapping.channels), np.int64)
    lowest, ordered, ascending = _fill(requests, given, writes, earliest, mapping.cuts, found, by_channel)
    if lowest < 0:
        raise InputError(_ADDRESSES)
    if not ordered:
        raise InputError(_ORDER)
    return requests, ascending, int(by_channel[0].max())


@kernel
def _fill(
    requests: Numbers, addresses: Numbers, writes: Numbers, times: Numbers, cuts: Numbers,
    found: Numbers, by_channel: Numbers,
) -> tuple[int, bool, bool]:  # fmt: skip
    """Fill in every request. Returns the lowest address, whether times are in order, and whether bursts ascend.

    A single one of `writes` is for all requests; without `times` every time is 0. The first row of `by_channel`, zeros
    at first, counts the requests of each channel; its second row, and `found`, are room to work in.
    """
    counts, last = by_channel[0], by_channel[1]
    lowest, ordered, ascending, before, one, earliest = 0, True, True, -1, len(writes) == 1, 0
    for at in range(len(addresses)):
        lowest = min(lowest, addresses[at])
        burst = int((addresses[at] >> cuts[0, 0]) & cuts[0, 1])
        # Bursts that differ in low bits only are in the same row.
        if before < 0 or (before ^ burst) >= cuts[0, 2]:
            _place(burst, cuts, found)
        if len(times):
            ordered = ordered and times[at] >= earliest
            earliest = times[at]
        requests[CHANNEL, at], requests[BANK, at], requests[ROW, at] = found[_CHANNEL], found[_BANK], found[_ROW]
        requests[BURST, at], requests[KIND, at] = burst, _kind(burst)
        requests[WRITE, at], requests[TIME, at] = writes[0 if one else at], earliest
        requests[FINAL, at], requests[MODELS_OWN, at], requests[MODELS_OWN + 1, at] = 0, -1, -1
        requests[ACCEPTED, at], requests[DONE, at] = -1, -1
        last[found[_CHANNEL]] = at
        counts[found[_CHANNEL]] += 1
        ascending = ascending and burst > before
        before = burst
    for c in range(len(last)):
        if counts[c]:
            requests[FINAL, last[c]] = 1
    return lowest, ordered, ascending


@inlined
def _place(burst: int, cuts: Numbers, found: Numbers) -> None:
    """Cut the number of a burst into fields, as `AddressMapping.cuts` says; the bank counts through the groups."""
    found[:] = 0
    for run in range(1, len(cuts)):
        found[cuts[run, 0]] |= ((burst >> cuts[run, 1]) & cuts[run, 2]) << cuts[run, 3]
    found[_BANK] |= found[_GROUP] << cuts[0, 3]
    found[_BANK] ^= found[_ROW] & cuts[0, 4]


@inlined
def _kind(burst: int) -> int:
    """Return a number below KINDS_OF_BURST by multiplicative hashing, so that bursts at a stride seldom share it."""
    return (((burst & 0x7FFFFFFF) * 0x9E3779B1) & 0xFFFFFFFF) // (2**32 // KINDS_OF_BURST)
