"""What both models share: a device as numbers, transfers as tables of requests, and how their loops are compiled.

Nothing here says what a controller does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tpusim.base.errors import InputError
from tpusim.base.imports import compiled
from tpusim.memory.dram.device import FIELDS, AddressMapping, Device

Numbers = NDArray[np.int64]

F = TypeVar("F", bound=Callable[..., object])

_DRAM = Path(__file__).parent

ACT, PRE, RD, WR, REF = range(5)
"""Commands: open a row, close it, read a burst, write one, refresh. With closed pages RD and WR close the row too."""

FAR = 1 << 60
"""A cycle that never comes."""

NO_REFRESH, ALL_BANKS, PER_BANK = range(3)
_REFRESH = {"none": NO_REFRESH, "all_banks": ALL_BANKS, "per_bank": PER_BANK}


class Rules(NamedTuple):
    """A device as numbers, for loops.

    Attributes:
        banks, group_banks: banks of a channel and of a group.
        waiting: reads, and writes, that may wait in a channel.
        depth: commands in the queue of a bank.
        row_hits: accesses after which a row may be closed though more wait for it.
        idle_writes: writes that wait although nothing else is to do.
        closed: whether pages are closed.
        refresh, interval: how a channel is refreshed, and every how many cycles.
        window: tFAW, which holds between an activate and the fifth from it.
        read_cycles, write_cycles: from RD, and from WR, to the end of the data.
        per_cycle: requests accepted in a cycle.
        lookahead: how many of the oldest requests may go ahead.
        outstanding: reads under way at most, 0 being any number.
        same_bank, same_group, same_channel: int64[5, 5], the cycles in which a later command comes after an earlier one
            at least, where both are in the same bank; bank group, with that bank; channel, with all of its groups. 0
            where nothing holds a command back.
    """

    banks: int
    group_banks: int
    waiting: int
    depth: int
    row_hits: int
    idle_writes: int
    closed: bool
    refresh: int
    interval: int
    window: int
    read_cycles: int
    write_cycles: int
    per_cycle: int
    lookahead: int
    outstanding: int
    same_bank: Numbers
    same_group: Numbers
    same_channel: Numbers

    @classmethod
    def of(cls, device: Device) -> Rules:
        """The numbers of a device."""
        t, controller, requests = device.cycles, device.controller, device.requests
        refreshed = device.banks if device.refresh == "per_bank" else 1
        return cls(
            device.banks, device.organisation.banks, controller.transaction_queue, controller.command_queue,
            controller.row_hits, controller.idle_writes,
            device.page == "closed", _REFRESH[device.refresh], max(1, t("tREFI") // refreshed), t("tFAW"),
            t("tCL") + t("tBURST"), t("tCWL") + t("tBURST"),
            requests.per_cycle, requests.lookahead, requests.outstanding, *_gaps(device),
        )  # fmt: skip


def _gaps(device: Device) -> Numbers:
    """Every time between two commands but tFAW: int64[level, earlier, later], levels as Rules has them."""
    t, burst = device.cycles, device.cycles("tBURST")
    table = np.zeros((3, 5, 5), np.int64)
    bank, group, channel = table
    # The data bus: bursts one behind the other, and its turns.
    for command in (RD, WR):
        channel[command, command] = max(burst, t("tCCD_S"))
        group[command, command] = max(burst, t("tCCD_L"))
    channel[RD, WR] = max(1, t("tCL") + burst - t("tCWL") + t("tRTRS"))
    channel[WR, RD] = t("tCWL") + burst + t("tWTR_S")
    group[WR, RD] = t("tCWL") + burst + t("tWTR_L")
    # Rows.
    channel[ACT, ACT], group[ACT, ACT], bank[ACT, ACT] = t("tRRD_S"), t("tRRD_L"), t("tRC")
    bank[ACT, PRE], bank[ACT, RD], bank[ACT, WR], bank[PRE, ACT] = t("tRAS"), t("tRCDRD"), t("tRCDWR"), t("tRP")
    # From an access to the end of its row: by a precharge, or by itself where pages are closed.
    read, write = t("tRTP"), t("tCWL") + burst + t("tWR")
    if device.page == "open":
        bank[RD, PRE], bank[WR, PRE] = read, write
    else:
        bank[RD, ACT] = bank[RD, REF] = burst + read + t("tRP")
        bank[WR, ACT] = bank[WR, REF] = write + t("tRP")
    bank[ACT, REF], bank[PRE, REF] = t("tRC"), t("tRP")
    if device.refresh == "per_bank":
        bank[REF, ACT] = bank[REF, REF] = t("tRFC_bank")
        channel[ACT, REF], group[ACT, REF] = t("tRRD_S"), t("tRRD_L")
    else:
        channel[REF, ACT] = channel[REF, REF] = t("tRFC")
    return table


def kernel(function: F) -> F:
    """Compile a loop over requests or banks, where Numba is installed.

    The loop must not make arrays: nothing counts references to them, which would take three times as long as the work.
    Other threads, such as the one that shows progress, run meanwhile.
    """
    return compiled(function, (_DRAM,), _DRAM, _nrt=False, nogil=True)


def inlined(function: F) -> F:
    """Copy a function that is small, or used once, into loops before they are compiled; it is never compiled alone."""
    return compiled(function, (_DRAM,), _DRAM, _nrt=False, inline="always")


def part(function: F) -> F:
    """Compile a part of a loop and copy it into the loop: a call would copy all the state."""
    return compiled(function, (_DRAM,), _DRAM, _nrt=False, forceinline=True)


# A request, a column of the table: where it falls and its address in bursts; whether it writes, and whether it is the
# last of its channel; the cycle before which it is not accepted; two places that each model uses in its own way; when
# it was accepted and done (-1: not yet).
CHANNEL, BANK, ROW, BURST, WRITE, FINAL, TIME, MODELS_OWN, ACCEPTED, DONE = *range(8), 9, 10
REQUEST_SIZE = 11

_CHANNEL, _GROUP, _BANK, _ROW = (FIELDS.index(each) for each in ("channel", "group", "bank", "row"))
"""Where `_fill` cuts an address to."""

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

    reads: int = 0
    writes: int = 0
    busiest: int = 0

    def and_also(self, write: Numbers, busiest: int) -> Requested:
        """Add those of one more transfer, of which `write`, int64[n], says which are written."""
        writes = int(write.sum())
        return Requested(self.reads + len(write) - writes, self.writes + writes, self.busiest + busiest)


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

    Cuts the number of a burst into fields as `AddressMapping.cuts` says; the bank counts through the groups. A single
    one of `writes` is for all requests; without `times` every time is 0. The first row of `by_channel`, zeros at first,
    counts the requests of each channel; its second row, and `found`, are room to work in.
    """
    counts, last = by_channel[0], by_channel[1]
    lowest, ordered, ascending, before, one, earliest = 0, True, True, -1, len(writes) == 1, 0
    for at in range(len(addresses)):
        lowest = min(lowest, addresses[at])
        burst = int((addresses[at] >> cuts[0, 0]) & cuts[0, 1])
        # Bursts that differ in low bits only are in the same row.
        if before < 0 or (before ^ burst) >= cuts[0, 2]:
            found[:] = 0
            for run in range(1, len(cuts)):
                found[cuts[run, 0]] |= ((burst >> cuts[run, 1]) & cuts[run, 2]) << cuts[run, 3]
            found[_BANK] |= found[_GROUP] << cuts[0, 3]
            found[_BANK] ^= found[_ROW] & cuts[0, 4]
        if len(times):
            ordered = ordered and times[at] >= earliest
            earliest = times[at]
        requests[CHANNEL, at], requests[BANK, at], requests[ROW, at] = found[_CHANNEL], found[_BANK], found[_ROW]
        requests[BURST, at], requests[WRITE, at], requests[TIME, at] = burst, writes[0 if one else at], earliest
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
