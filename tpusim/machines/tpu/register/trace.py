"""A register-level run, cycle by cycle, for those who want to look."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tpusim.base.errors import InputError, Problem
from tpusim.machines.tpu.observation.lane_trace import ACCESSES, LOOK_EVERY, UNUSED, Cycle, Watch, unwatched
from tpusim.machines.tpu.register.machine import Machine

_LETTERS = np.array([*ACCESSES])


def trace(machine: Machine, first: int = 0, watch: Watch = unwatched) -> Iterator[Cycle]:
    """Run `machine` to its end and show every cycle from `first` on; `watch` is told how many have passed.

    Raises:
        InputError: when each client has a port of its own: a lane has one letter.
        CheckFailed, DeadlockError, PortConflict: see Machine.clock.
    """
    if len(machine.control.ports) > 1:
        raise InputError(
            [Problem("a trace of lanes shows one port a lane; a .perfetto-trace shows them all", "vector_memory.ports")]
        )
    while not machine.finished:
        number = machine.now
        machine.clock()
        if machine.now % LOOK_EVERY == 0:
            watch(machine.now)
        if number >= first:
            yield Cycle(number, _ports(machine), machine.array.working, machine.weights.moving)


def _ports(machine: Machine) -> str:
    (orders,), (addresses,) = machine.orders, machine.lanes.addresses
    letters = _LETTERS[orders["client"] + orders["spill"]]
    return "".join(np.where((orders["client"] > 0) & (addresses < 0), UNUSED, letters))
