"""A register-level run, cycle by cycle, for those who want to look."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tpusim.base.errors import InputError, Problem
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import ACCESSES, LOOK_EVERY, UNUSED, Cycle, Watch, unwatched
from tpusim.machines.tpu.register.machine import Machine

_LETTERS = np.array([*ACCESSES])


def trace(machine: Machine, first: int = 0, watch: Watch = unwatched) -> Iterator[Cycle]:
    """Run `machine` to its end and show every cycle from `first` on; `watch` is told how many have passed.

    Raises:
        InputError: when clients have ports of their own, or the ifmap is read from banks: a lane has one letter.
        CheckFailed, DeadlockError, PortConflict: see Machine.clock.
    """
    if len(machine.control.ports) > 1:
        raise InputError([_refusal(machine.hardware)])
    while not machine.finished:
        number = machine.now
        machine.clock()
        if machine.now % LOOK_EVERY == 0:
            watch(machine.now)
        if number >= first:
            yield Cycle(number, _ports(machine), machine.array.working, machine.weights.moving)


def _refusal(hardware: Hardware) -> Problem:
    """Why there is no single letter for a lane."""
    if hardware.banked:
        what, field = "one port a lane, and here the ifmap is read through ports of banks", "organization"
    else:
        what, field = "one port a lane, and here each client has its own", "ports"
    return Problem(f"a trace of lanes shows {what}; a .perfetto-trace shows them all", f"vector_memory.{field}")


def _ports(machine: Machine) -> str:
    (orders,), (addresses,) = machine.orders, machine.lanes.addresses
    letters = _LETTERS[orders["client"] + orders["spill"]]
    return "".join(np.where((orders["client"] > 0) & (addresses < 0), UNUSED, letters))
