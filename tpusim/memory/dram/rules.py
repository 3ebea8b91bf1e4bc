"""What both models share: the times between commands, a device as numbers, and how their loops are compiled.

Nothing here says what a controller does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.base.imports import compiled
from tpusim.memory.dram.device import Device

Numbers = NDArray[np.int64]

F = TypeVar("F", bound=Callable[..., object])

_DRAM = Path(__file__).parent

ACT, PRE, RD, WR, REF = range(5)
"""Commands: open a row, close it, read a burst, write one, refresh. With closed pages RD and WR close the row too."""

BANK, GROUP, CHANNEL = range(3)
"""Levels: the same bank; the same bank group, with that bank; the same channel, with all of its groups."""


class Gap(NamedTuple):
    """`later` comes at least `cycles` after `earlier` if both are in the same `level`."""

    earlier: int
    later: int
    level: int
    cycles: int


def gaps(device: Device) -> Numbers:
    """Every constraint of a device but tFAW, which holds between an activate and the fifth from it.

    Returns cycles, int64[level, earlier, later]; 0 where nothing holds a command back.
    """
    table = np.zeros((3, 5, 5), np.int64)
    parts = _columns(device), _rows(device), _closing(device), _refreshing(device)
    for earlier, later, level, cycles in chain.from_iterable(parts):
        table[level, earlier, later] = max(table[level, earlier, later], cycles)
    return table


def _columns(device: Device) -> Iterator[Gap]:
    """The data bus: bursts one behind the other, and its turns."""
    t = device.cycles
    burst, turn = t("tBURST"), t("tCL") + t("tBURST") - t("tCWL") + t("tRTRS")
    for command in (RD, WR):
        yield Gap(command, command, CHANNEL, max(burst, t("tCCD_S")))
        yield Gap(command, command, GROUP, max(burst, t("tCCD_L")))
    yield Gap(RD, WR, CHANNEL, max(1, turn))
    yield Gap(WR, RD, CHANNEL, t("tCWL") + burst + t("tWTR_S"))
    yield Gap(WR, RD, GROUP, t("tCWL") + burst + t("tWTR_L"))


def _rows(device: Device) -> Iterator[Gap]:
    t = device.cycles
    yield Gap(ACT, ACT, CHANNEL, t("tRRD_S"))
    yield Gap(ACT, ACT, GROUP, t("tRRD_L"))
    yield Gap(ACT, ACT, BANK, t("tRC"))
    yield Gap(ACT, PRE, BANK, t("tRAS"))
    yield Gap(ACT, RD, BANK, t("tRCDRD"))
    yield Gap(ACT, WR, BANK, t("tRCDWR"))
    yield Gap(PRE, ACT, BANK, t("tRP"))


def _closing(device: Device) -> Iterator[Gap]:
    """From an access to the end of its row: by a precharge, or by itself where pages are closed."""
    t = device.cycles
    read, write = t("tRTP"), t("tCWL") + t("tBURST") + t("tWR")
    if device.page == "open":
        yield Gap(RD, PRE, BANK, read)
        yield Gap(WR, PRE, BANK, write)
        return
    for later in (ACT, REF):
        yield Gap(RD, later, BANK, t("tBURST") + read + t("tRP"))
        yield Gap(WR, later, BANK, write + t("tRP"))


def _refreshing(device: Device) -> Iterator[Gap]:
    t = device.cycles
    yield Gap(ACT, REF, BANK, t("tRC"))
    yield Gap(PRE, REF, BANK, t("tRP"))
    if device.refresh == "per_bank":
        yield Gap(REF, ACT, BANK, t("tRFC_bank"))
        yield Gap(REF, REF, BANK, t("tRFC_bank"))
        yield Gap(ACT, REF, CHANNEL, t("tRRD_S"))
        yield Gap(ACT, REF, GROUP, t("tRRD_L"))
    else:
        yield Gap(REF, ACT, CHANNEL, t("tRFC"))
        yield Gap(REF, REF, CHANNEL, t("tRFC"))


FAR = 1 << 60
"""A cycle that never comes."""

NO_REFRESH, ALL_BANKS, PER_BANK = range(3)
_REFRESH = {"none": NO_REFRESH, "all_banks": ALL_BANKS, "per_bank": PER_BANK}

# Banks of a channel and of a group; reads, and writes, that may wait in a channel; commands in the queue of a bank;
# accesses after which a row may be closed though more wait for it; writes that wait although nothing else is to do.
BANKS, GROUP_BANKS, WAITING, DEPTH, ROW_HITS, IDLE_WRITES = range(6)
# Whether pages are closed; how a channel is refreshed, and every how many cycles; tFAW; cycles from RD, and from WR, to
# the end of the data.
CLOSED, REFRESH, INTERVAL, WINDOW, READ_CYCLES, WRITE_CYCLES = range(6, 12)
# Requests accepted in a cycle; how many of the oldest may go ahead; reads under way at most, 0 being any number.
PER_CYCLE, LOOKAHEAD, OUTSTANDING = range(12, 15)
GAPS = 15
"""Where the table of `gaps` begins."""


def rules(device: Device) -> Numbers:
    """The numbers of a device, int64."""
    t, controller, requests = device.cycles, device.controller, device.requests
    refreshed = device.banks if device.refresh == "per_bank" else 1
    plain = (
        device.banks, device.organisation.banks, controller.transaction_queue, controller.command_queue,
        controller.row_hits, controller.idle_writes,
        int(device.page == "closed"), _REFRESH[device.refresh], max(1, t("tREFI") // refreshed), t("tFAW"),
        t("tCL") + t("tBURST"), t("tCWL") + t("tBURST"),
        requests.per_cycle, requests.lookahead, requests.outstanding,
    )  # fmt: skip
    return np.concatenate([np.array(plain, np.int64), gaps(device).ravel()])


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
