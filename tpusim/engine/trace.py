"""A register-level run as text: one line a cycle, one letter a lane, for small machines and curious readers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tpusim.engine.register import Machine
from tpusim.machine.vector_memory import DMA, FREE, IFMAP, PSUM, RESULT, WEIGHT
from tpusim.program import Spill

LETTERS = {FREE: ".", IFMAP: "R", PSUM: "P", RESULT: "W", WEIGHT: "k", DMA: "f"}
HEADER = """\
lanes: R reads ifmap, P reads a partial sum, W writes a result, k reads weights, f is filled, s is spilled
"""


def lines(machine: Machine) -> Iterator[str]:
    """Run `machine` to its end; one line a cycle: ports, PEs at work, weights on their way."""
    lanes = max(len("lanes"), machine.lanes)
    yield HEADER + f"cycle  {'lanes':{lanes}}  PEs  weights"
    while not machine.finished:
        now = machine.now
        machine.clock()
        ports = "".join(_letter(machine, order.client, order.step) for order in machine.orders)
        working, moving = int(machine.valid.sum()), int(np.count_nonzero(machine.moving_row >= 0))
        yield f"{now:5}  {ports:{lanes}}  {working or '.':>3}  {moving or '.':>7}"


def _letter(machine: Machine, client: int, step: int) -> str:
    if client == DMA and isinstance(machine.program.steps[step], Spill):
        return "s"
    return LETTERS[client]
