"""The requests of a transfer, as numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tpusim.base.errors import InputError
from tpusim.memory.dram.kernel import inlined, kernel
from tpusim.memory.dram.mapping import FIELDS, Mapping
from tpusim.memory.dram.places import BANK, CHANNEL, ROW, burst_of, elsewhere, place
from tpusim.memory.dram.rules import Numbers
from tpusim.memory.dram.state import (
    ACCEPTED,
    BANK_,
    BEHIND,
    BURST,
    CHANNEL_,
    DONE,
    FINAL,
    KIND,
    KINDS_OF_BURST,
    MERGED,
    REQUEST_SIZE,
    ROW_,
    TIME,
    WRITE,
)


def transfer(
    mapping: Mapping, addresses: ArrayLike, write: ArrayLike, times: ArrayLike | None
) -> tuple[Numbers, bool, int]:
    """The requests of a transfer, none of them accepted yet, int64[what `state` says, n]; whether they ascend, so that
    no burst comes twice; and how many its busiest channel has. Raises InputError.
    """
    given = np.ascontiguousarray(addresses, np.int64)
    writes = np.ascontiguousarray(write, np.int64).ravel()
    earliest = _NONE if times is None else np.ascontiguousarray(times, np.int64)
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


_NONE = np.zeros(0, np.int64)
_ADDRESSES = "addresses are a list of bytes from 0"
_ORDER = "times are as many as addresses, and in order from 0; write is one for all, or as many"


@kernel
def _fill(
    requests: Numbers, addresses: Numbers, writes: Numbers, times: Numbers, cuts: Numbers,
    found: Numbers, by_channel: Numbers,
) -> tuple[int, bool, bool]:  # fmt: skip
    """Fill in every request; the lowest address, whether times are in order, whether bursts ascend.

    One of `writes` is for all, none of `times` is 0. The first row of `by_channel`, which is 0, is how many each has;
    the other one, and `found`, are room to work in.
    """
    counts, last = by_channel[0], by_channel[1]
    lowest, ordered, ascending, before, one, earliest = 0, True, True, -1, len(writes) == 1, 0
    for at in range(len(addresses)):
        lowest = min(lowest, addresses[at])
        burst = burst_of(addresses[at], cuts)
        if before < 0 or elsewhere(before, burst, cuts):
            place(burst, cuts, found)
        if len(times):
            ordered = ordered and times[at] >= earliest
            earliest = times[at]
        requests[CHANNEL_, at], requests[BANK_, at], requests[ROW_, at] = found[CHANNEL], found[BANK], found[ROW]
        requests[BURST, at], requests[KIND, at] = burst, _kind(burst)
        requests[WRITE, at], requests[TIME, at] = writes[0 if one else at], earliest
        requests[FINAL, at], requests[BEHIND, at], requests[MERGED, at] = 0, -1, -1
        requests[ACCEPTED, at], requests[DONE, at] = -1, -1
        last[found[CHANNEL]] = at
        counts[found[CHANNEL]] += 1
        ascending = ascending and burst > before
        before = burst
    for c in range(len(last)):
        if counts[c]:
            requests[FINAL, last[c]] = 1
    return lowest, ordered, ascending


@inlined
def _kind(burst: int) -> int:
    """A number below KINDS_OF_BURST, such that strides meet few others (multiplicative hashing)."""
    return (((burst & 0x7FFFFFFF) * 0x9E3779B1) & 0xFFFFFFFF) // (2**32 // KINDS_OF_BURST)
