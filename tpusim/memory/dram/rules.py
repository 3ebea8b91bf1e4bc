"""A device as the numbers that loops need, shared by both models; what the numbers mean, and nothing else."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.memory.dram.constraints import gaps
from tpusim.memory.dram.device import Device

Numbers = NDArray[np.int64]

FAR = 1 << 60
"""A cycle that never comes."""

NO_REFRESH, ALL_BANKS, PER_BANK = range(3)
_REFRESH = {"none": NO_REFRESH, "all_banks": ALL_BANKS, "per_bank": PER_BANK}


class Rules(NamedTuple):
    """Sizes, times in cycles, and `gaps`, int64[level, earlier, later] (see `constraints`).

    `reads`: cycles from the command RD to the end of its data, `writes` from WR; `interval`: cycles between refreshes of
    a channel, whatever each of them refreshes; `activates`: tFAW.
    """

    channels: int
    banks: int
    group: int
    waiting: int
    depth: int
    row_hits: int
    idle_writes: int
    closed: bool
    refresh: int
    interval: int
    activates: int
    reads: int
    writes: int
    per_cycle: int
    lookahead: int
    outstanding: int
    gaps: Numbers


def rules(device: Device) -> Rules:
    """The numbers of a device."""
    t, controller, requests = device.cycles, device.controller, device.requests
    refreshed = device.banks if device.refresh == "per_bank" else 1
    return Rules(
        device.channels, device.banks, device.organisation.banks,
        controller.transaction_queue, controller.command_queue, controller.row_hits, controller.idle_writes,
        device.page == "closed", _REFRESH[device.refresh], max(1, t("tREFI") // refreshed), t("tFAW"),
        t("tCL") + t("tBURST"), t("tCWL") + t("tBURST"),
        requests.per_cycle, requests.lookahead, requests.outstanding, gaps(device),
    )  # fmt: skip
