"""Where bytes fall: their channel, bank and row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tpusim.memory.dram.kernel import inlined, kernel
from tpusim.memory.dram.mapping import FIELDS, Mapping
from tpusim.memory.dram.rules import Numbers

CHANNEL, GROUP, BANK, ROW = (FIELDS.index(each) for each in ("channel", "group", "bank", "row"))
"""Where `place` leaves them."""


class Places(NamedTuple):
    """Where requests fall, int64[n] each: `bank` counts through the groups of a channel, `burst` is the address."""

    channel: Numbers
    bank: Numbers
    row: Numbers
    burst: Numbers


def places(mapping: Mapping, addresses: Numbers) -> Places:
    """Where bytes at these addresses, int64[n], fall."""
    table = np.empty((4, len(addresses)), np.int64)
    _fill(addresses, mapping.cuts, np.zeros(len(FIELDS), np.int64), table)
    return Places(*table)


@kernel
def _fill(addresses: Numbers, cuts: Numbers, found: Numbers, table: Numbers) -> None:
    for at, address in enumerate(addresses):
        burst = burst_of(address, cuts)
        place(burst, cuts, found)
        table[0, at], table[1, at], table[2, at], table[3, at] = found[CHANNEL], found[BANK], found[ROW], burst


@inlined
def burst_of(address: int, cuts: Numbers) -> int:
    """The number of the burst that a byte is in."""
    return int((address >> cuts[0, 0]) & cuts[0, 1])


@inlined
def elsewhere(one: int, other: int, cuts: Numbers) -> bool:
    """Whether two bursts may fall into different rows."""
    return bool((one ^ other) >= cuts[0, 2])


@inlined
def place(burst: int, cuts: Numbers, found: Numbers) -> None:
    """Cut the number of a burst into fields, as `Mapping.cuts` says; the bank counts through the groups."""
    found[:] = 0
    for run in range(1, len(cuts)):
        found[cuts[run, 0]] |= ((burst >> cuts[run, 1]) & cuts[run, 2]) << cuts[run, 3]
    found[BANK] |= found[GROUP] << cuts[0, 3]
    found[BANK] ^= found[ROW] & cuts[0, 4]
