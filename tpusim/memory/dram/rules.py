"""A device as the numbers that loops need, shared by both models; what the numbers mean, and nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tpusim.memory.dram.constraints import gaps
from tpusim.memory.dram.device import Device

Numbers = NDArray[np.int64]

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
"""The table of constraints begins here: for the levels bank, group, channel, for each command, for each later one."""


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
