"""The requests of a transfer, as numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tpusim.base.errors import InputError
from tpusim.memory.dram.kernel import kernel, part
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


def transfer(mapping: Mapping, addresses: ArrayLike, write: ArrayLike, times: ArrayLike | None) -> tuple[Numbers, bool]:
    """The requests of a transfer, none of them accepted yet, int64[what `state` says, n]; and whether they ascend, so
    that no burst comes twice. Raises InputError.
    """
    given = np.ascontiguousarray(addresses, np.int64)
    if given.ndim != 1 or (given.size and given.min() < 0):
        raise InputError("addresses are a list of bytes from 0")
    earliest = np.zeros(given.shape, np.int64) if times is None else np.ascontiguousarray(times, np.int64)
    if times is not None and (earliest.shape != given.shape or np.any(earliest[1:] < earliest[:-1])):
        raise InputError("times are as many as addresses, and in order")
    writes = np.empty(given.shape, np.bool_)
    writes[:] = write
    requests = np.empty((REQUEST_SIZE, given.size), np.int64)
    last, found = np.full(mapping.channels, -1), np.zeros(len(FIELDS), np.int64)
    ascending = _fill(requests, given, writes, earliest, mapping.cuts, found, last)
    return requests, bool(ascending)


@kernel
def _fill(
    requests: Numbers, addresses: Numbers, writes: NDArray[np.bool_], times: Numbers, cuts: Numbers,
    found: Numbers, last: Numbers,
) -> bool:  # fmt: skip
    """Fill in every request; whether bursts ascend. `found` and `last` are room to work in."""
    requests[FINAL] = 0
    for unknown in (BEHIND, MERGED, ACCEPTED, DONE):
        requests[unknown] = -1
    ascending, before = True, -1
    for at in range(len(addresses)):
        burst = burst_of(addresses[at], cuts)
        if before < 0 or elsewhere(before, burst, cuts):
            place(burst, cuts, found)
        requests[CHANNEL_, at], requests[BANK_, at], requests[ROW_, at] = found[CHANNEL], found[BANK], found[ROW]
        requests[BURST, at], requests[KIND, at] = burst, _kind(burst)
        requests[WRITE, at], requests[TIME, at] = writes[at], times[at]
        last[found[CHANNEL]] = at
        ascending = ascending and burst > before
        before = burst
    for at in last:
        if at >= 0:
            requests[FINAL, at] = 1
    return ascending


@part
def _kind(burst: int) -> int:
    """A number below KINDS_OF_BURST, such that strides meet few others (multiplicative hashing)."""
    return (((burst & 0x7FFFFFFF) * 0x9E3779B1) & 0xFFFFFFFF) // (2**32 // KINDS_OF_BURST)
