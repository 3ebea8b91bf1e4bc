"""The times between commands, as data: which one, after which other, how near to it, how many cycles later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.memory.dram.device import Device

ACT, PRE, RD, WR, REF = range(5)
"""Commands: open a row, close it, read a burst, write one, refresh. With closed pages RD and WR close the row too."""

COMMANDS = ("ACT", "PRE", "RD", "WR", "REF")

BANK, GROUP, CHANNEL = range(3)
"""How near: the same bank; the same bank group, that bank included; the same channel, all of it."""


class Gap(NamedTuple):
    """`later` comes at least `cycles` after `earlier` if both are in the same `level`."""

    earlier: int
    later: int
    level: int
    cycles: int


def constraints(device: Device) -> Iterator[Gap]:
    """Every constraint of a device but tFAW, which holds between an activate and the fifth from it."""
    yield from _columns(device)
    yield from _rows(device)
    yield from _closing(device)
    yield from _refreshing(device)


def gaps(device: Device) -> NDArray[np.int64]:
    """The same as a table, int64[level, earlier, later]; 0 where nothing is said."""
    table = np.zeros((3, len(COMMANDS), len(COMMANDS)), np.int64)
    for earlier, later, level, cycles in constraints(device):
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
