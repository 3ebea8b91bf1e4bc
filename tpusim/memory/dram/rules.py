"""The common part of both models: a device as numbers, transfers as tables of requests, and compiled loops.

The behaviour of a controller is not here, so that each model has its own.
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
"""Commands: open a row, close it, read a burst, write a burst, refresh. With closed pages, RD and WR also close the
row.
"""

FAR = 1 << 60
"""A cycle that never comes."""

NO_REFRESH, ALL_BANKS, PER_BANK = range(3)
_REFRESH = {"none": NO_REFRESH, "all_banks": ALL_BANKS, "per_bank": PER_BANK}


class Rules(NamedTuple):
    """A device as numbers, for compiled loops.

    Attributes:
        banks, group_banks: banks of a channel and of a group.
        waiting: number of reads, and of writes, that may wait in a channel.
        depth: commands in the queue of a bank.
        row_hits: accesses after which a row may be closed even if more wait for it.
        idle_writes: writes that may wait while the channel is idle.
        closed: whether pages are closed.
        refresh, interval: kind of refresh, and cycles between refreshes.
        window: tFAW, the least cycles between an activate and the fourth one after it.
        read_cycles, write_cycles: cycles from RD, and from WR, to the end of the data.
        per_cycle: requests accepted in a cycle.
        lookahead: number of oldest requests among which any may go first.
        outstanding: most reads under way; 0 for no limit.
        same_bank, same_group, same_channel: int64[5, 5], the least cycles from an earlier command to a later one
            in the same bank; in the same bank group, with that bank; in the same channel, with all its groups. 0
            if there is no constraint.
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
        """The rules of a device."""
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
    """Every constraint between two commands except tFAW: int64[level, earlier, later], with the levels of Rules."""
    t, burst = device.cycles, device.cycles("tBURST")
    table = np.zeros((3, 5, 5), np.int64)
    bank, group, channel = table
    # Data bus: bursts follow one another, and the bus takes time to turn between reads and writes.
    for command in (RD, WR):
        channel[command, command] = max(burst, t("tCCD_S"))
        group[command, command] = max(burst, t("tCCD_L"))
    channel[RD, WR] = max(1, t("tCL") + burst - t("tCWL") + t("tRTRS"))
    channel[WR, RD] = t("tCWL") + burst + t("tWTR_S")
    group[WR, RD] = t("tCWL") + burst + t("tWTR_L")
    # Rows: distances of activates, and from opening a row to its use and its end.
    channel[ACT, ACT], group[ACT, ACT], bank[ACT, ACT] = t("tRRD_S"), t("tRRD_L"), t("tRC")
    bank[ACT, PRE], bank[ACT, RD], bank[ACT, WR], bank[PRE, ACT] = t("tRAS"), t("tRCDRD"), t("tRCDWR"), t("tRP")
    # From an access to the end of its row: by a precharge, or automatically if pages are closed.
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

    The loop must not create arrays: references are not counted, as counting would take three times as long as the work.
    Other threads, such as the one that shows progress, run meanwhile.
    """
    return compiled(function, (_DRAM,), _DRAM, _nrt=False, nogil=True)


def inlined(function: F) -> F:
    """Copy a function that is small, or used once, into loops before these are compiled; it is never compiled alone."""
    return compiled(function, (_DRAM,), _DRAM, _nrt=False, inline="always")


def part(function: F) -> F:
    """Compile a part of a loop and copy it into the loop: a call would have to copy all the state."""
    return compiled(function, (_DRAM,), _DRAM, _nrt=False, forceinline=True)


# A request is a row of the table: its place, and its address in bursts; whether it writes, and whether it is the
# last of its channel; its earliest cycle; two fields that each model uses in its own way; the cycles in which it was
# accepted and done (-1: not yet).
CHANNEL, BANK, ROW, BURST, WRITE, FINAL, TIME, MODELS_OWN, ACCEPTED, DONE = *range(8), 9, 10
REQUEST_SIZE = 11

OF_CHANNEL, _GROUP, OF_BANK, _ROW = (FIELDS.index(each) for each in ("channel", "group", "bank", "row"))
"""Indices of the fields that `cut` finds."""

_NO_TIMES = np.zeros(0, np.int64)
_ADDRESSES = "addresses are a list of bytes from 0"
_ORDER = "times are as many as addresses, and in order from 0; write is one for all, or as many"


class ServedRequests(NamedTuple):
    """Memory cycles, int64[n], in which each request was accepted, and in which its data has arrived or is in the
    DRAM.
    """

    accepted: Numbers
    done: Numbers

    def latest(self, parts: int) -> Numbers:
        """The cycles in which each of `parts` is done, and all before it, if they take equal shares of the requests:
        int64[parts]. There is at least one request.
        """
        latest = np.empty(parts, np.int64)
        _latest(self.done, latest)
        return latest


class Counts(NamedTuple):
    """Events of each channel since the beginning, int64[channels].

    A row hit is a column command that was not the first of its row, a conflict is a row that was closed for another.
    """

    row_hits: Numbers
    activates: Numbers
    reads: Numbers
    writes: Numbers
    refreshes: Numbers
    conflicts: Numbers


class RequestedBursts(NamedTuple):
    """Bursts that transfers asked for; `busiest` is the sum of each transfer's bursts in its busiest channel."""

    reads: int = 0
    writes: int = 0
    busiest: int = 0

    def and_also(self, bursts: int, writes: int, busiest: int) -> RequestedBursts:
        """Add one more transfer of `bursts`, of which some are `writes`."""
        return RequestedBursts(self.reads + bursts - writes, self.writes + writes, self.busiest + busiest)


class Places(NamedTuple):
    """Places of requests, int64[n] each: `bank` counts through the groups of a channel, `burst` is the address in
    bursts.
    """

    channel: Numbers
    bank: Numbers
    row: Numbers
    burst: Numbers


def places(mapping: AddressMapping, addresses: Numbers) -> Places:
    """Places of bytes at `addresses`, int64[n]. Raises InputError for addresses below 0."""
    requests, *_ = transfer(mapping, addresses, False, None)
    return Places(*requests[:, [CHANNEL, BANK, ROW, BURST]].T)


def transfer(
    mapping: AddressMapping, addresses: ArrayLike, write: ArrayLike, times: ArrayLike | None
) -> tuple[Numbers, bool, int, int]:
    """The requests of a transfer of n bursts, none accepted yet.

    Takes `addresses` in bytes, int64[n]; `write`, one value or bool[n]; `times`, int64[n], the memory cycles before
    which requests are not accepted. Returns the table of requests, int64[n, REQUEST_SIZE]; whether bursts ascend, which
    means that none comes twice; the number of writes; and the number of requests in the busiest channel.

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
    requests = np.empty((given.size, REQUEST_SIZE), np.int64)
    found, by_channel = np.zeros(len(FIELDS), np.int64), np.zeros((2, mapping.channels), np.int64)
    lowest, ordered, ascending, written = _fill(requests, given, writes, earliest, mapping.cuts, found, by_channel)
    if lowest < 0:
        raise InputError(_ADDRESSES)
    if not ordered:
        raise InputError(_ORDER)
    return requests, ascending, int(written), int(by_channel[0].max())


@kernel
def _latest(done: Numbers, latest: Numbers) -> None:
    """Fill in the last cycle in which a request is done that begins before the end of each part."""
    at, reached = 0, done[0]
    for part in range(len(latest)):
        while at * len(latest) < (part + 1) * len(done):
            reached = max(reached, done[at])
            at += 1
        latest[part] = reached


@inlined
def cut(cuts: Numbers, address: int, before: int, found: Numbers) -> int:
    """The number of the burst at an address, whose fields `found` gets: int64[FIELDS], with those of burst `before`
    unless that is -1.

    Cuts the number as `AddressMapping.cuts` says; the bank counts through the groups.
    """
    burst = int((address >> cuts[0, 0]) & cuts[0, 1])
    # Bursts that differ only in low bits are in the same row, so most addresses need not be cut again.
    if before < 0 or (before ^ burst) >= cuts[0, 2]:
        found[:] = 0
        for run in range(1, len(cuts)):
            found[cuts[run, 0]] |= ((burst >> cuts[run, 1]) & cuts[run, 2]) << cuts[run, 3]
        found[OF_BANK] |= found[_GROUP] << cuts[0, 3]
        found[OF_BANK] ^= found[_ROW] & cuts[0, 4]
    return burst


@kernel
def _fill(
    requests: Numbers, addresses: Numbers, writes: Numbers, times: Numbers, cuts: Numbers,
    found: Numbers, by_channel: Numbers,
) -> tuple[int, bool, bool, int]:  # fmt: skip
    """Fill in every request. Returns the lowest address, whether times are in order, whether bursts ascend, and the
    number of writes.

    A single value of `writes` is for all requests; without `times` every time is 0. The first row of `by_channel`,
    initially zero, counts the requests of each channel; its second row, and `found`, are working space.
    """
    counts, last = by_channel[0], by_channel[1]
    lowest, ordered, ascending, before, one, earliest, written = 0, True, True, -1, len(writes) == 1, 0, 0
    for at in range(len(addresses)):
        lowest = min(lowest, addresses[at])
        burst = cut(cuts, addresses[at], before, found)
        if len(times):
            ordered = ordered and times[at] >= earliest
            earliest = times[at]
        requests[at, CHANNEL], requests[at, BANK], requests[at, ROW] = found[OF_CHANNEL], found[OF_BANK], found[_ROW]
        write = writes[0 if one else at]
        written += write
        requests[at, BURST], requests[at, WRITE], requests[at, TIME] = burst, write, earliest
        requests[at, FINAL], requests[at, MODELS_OWN], requests[at, MODELS_OWN + 1] = 0, -1, -1
        requests[at, ACCEPTED], requests[at, DONE] = -1, -1
        last[found[OF_CHANNEL]] = at
        counts[found[OF_CHANNEL]] += 1
        ascending = ascending and burst > before
        before = burst
    for c in range(len(last)):
        if counts[c]:
            requests[last[c], FINAL] = 1
    return lowest, ordered, ascending, written
