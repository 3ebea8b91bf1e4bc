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


class Constraint(NamedTuple):
    """`later` comes at least `cycles` after `earlier` if both are in the same `level`."""

    earlier: int
    later: int
    level: int
    cycles: int


def constraints(device: Device) -> Iterator[Constraint]:
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


def _columns(device: Device) -> Iterator[Constraint]:
    """The data bus: bursts one behind the other, and its turns."""
    t = device.cycles
    burst, turn = t("tBURST"), t("tCL") + t("tBURST") - t("tCWL") + t("tRTRS")
    for command in (RD, WR):
        yield Constraint(command, command, CHANNEL, max(burst, t("tCCD_S")))
        yield Constraint(command, command, GROUP, max(burst, t("tCCD_L")))
    yield Constraint(RD, WR, CHANNEL, max(1, turn))
    yield Constraint(WR, RD, CHANNEL, t("tCWL") + burst + t("tWTR_S"))
    yield Constraint(WR, RD, GROUP, t("tCWL") + burst + t("tWTR_L"))


def _rows(device: Device) -> Iterator[Constraint]:
    t = device.cycles
    yield Constraint(ACT, ACT, CHANNEL, t("tRRD_S"))
    yield Constraint(ACT, ACT, GROUP, t("tRRD_L"))
    yield Constraint(ACT, ACT, BANK, t("tRC"))
    yield Constraint(ACT, PRE, BANK, t("tRAS"))
    yield Constraint(ACT, RD, BANK, t("tRCDRD"))
    yield Constraint(ACT, WR, BANK, t("tRCDWR"))
    yield Constraint(PRE, ACT, BANK, t("tRP"))


def _closing(device: Device) -> Iterator[Constraint]:
    """From an access to the end of its row: by a precharge, or by itself where pages are closed."""
    t = device.cycles
    read, write = t("tRTP"), t("tCWL") + t("tBURST") + t("tWR")
    if device.page == "open":
        yield Constraint(RD, PRE, BANK, read)
        yield Constraint(WR, PRE, BANK, write)
        return
    for later in (ACT, REF):
        yield Constraint(RD, later, BANK, t("tBURST") + read + t("tRP"))
        yield Constraint(WR, later, BANK, write + t("tRP"))


def _refreshing(device: Device) -> Iterator[Constraint]:
    t = device.cycles
    yield Constraint(ACT, REF, BANK, t("tRC"))
    yield Constraint(PRE, REF, BANK, t("tRP"))
    if device.refresh == "per_bank":
        yield Constraint(REF, ACT, BANK, t("tRFC_bank"))
        yield Constraint(REF, REF, BANK, t("tRFC_bank"))
        yield Constraint(ACT, REF, CHANNEL, t("tRRD_S"))
        yield Constraint(ACT, REF, GROUP, t("tRRD_L"))
    else:
        yield Constraint(REF, ACT, CHANNEL, t("tRFC"))
        yield Constraint(REF, REF, CHANNEL, t("tRFC"))
