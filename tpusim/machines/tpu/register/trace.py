"""A register-level run, cycle by cycle, for those who want to look."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tpusim.machines.tpu.observation.lane_trace import LOOK_EVERY, PORT_LETTERS, UNUSED, Cycle, Watch, unwatched
from tpusim.machines.tpu.register.machine import Machine

_LETTERS = np.array([*PORT_LETTERS])


def trace(machine: Machine, first: int = 0, watch: Watch = unwatched) -> Iterator[Cycle]:
    """Run `machine` to its end and show every cycle from `first` on; `watch` is told how many have passed.

    Raises:
        CheckFailed, DeadlockError, PortConflict: see Machine.clock.
    """
    while not machine.finished:
        number = machine.now
        machine.clock()
        if machine.now % LOOK_EVERY == 0:
            watch(machine.now)
        if number >= first:
            yield Cycle(number, _ports(machine), machine.working, machine.moving)


def _ports(machine: Machine) -> str:
    orders, addresses = machine.orders, machine.lanes.registers["address"]
    letters = _LETTERS[orders["client"] + orders["spill"]]
    return "".join(np.where((orders["client"] > 0) & (addresses < 0), UNUSED, letters))
