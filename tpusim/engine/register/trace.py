"""A register-level run, cycle by cycle, for those who want to look."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tpusim.engine.register.machine import Machine
from tpusim.engine.trace import PORT_LETTERS, UNUSED, Cycle

_LETTERS = np.array([*PORT_LETTERS])


def trace(machine: Machine) -> Iterator[Cycle]:
    """Run `machine` to its end and show every cycle."""
    while not machine.finished:
        number = machine.now
        machine.clock()
        working = sum(each.working for each in machine.arrays)
        yield Cycle(number, _ports(machine), working, sum(each.moving for each in machine.weights))


def _ports(machine: Machine) -> str:
    orders, addresses = machine.orders, machine.lanes.registers["address"]
    letters = _LETTERS[orders["client"] + orders["spill"]]
    return "".join(np.where((orders["client"] > 0) & (addresses < 0), UNUSED, letters))
