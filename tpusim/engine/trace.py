"""A register-level run as text: one line a cycle, one letter a lane, for small machines and curious readers."""

from __future__ import annotations

from collections.abc import Iterator

from tpusim.engine.register import Machine
from tpusim.machine.vector_memory import DMA, FREE, IFMAP, PSUM, RESULT, WEIGHT

LETTERS = {FREE: ".", IFMAP: "R", PSUM: "P", RESULT: "W", WEIGHT: "k", DMA: "f"}
HEADER = """\
lanes: R reads ifmap, P reads a partial sum, W writes a result, k reads weights, f is filled, s is spilled
"""


def lines(machine: Machine) -> Iterator[str]:
    """Run `machine` to its end; one line a cycle: ports, PEs at work, weights on their way."""
    lanes = max(len("lanes"), machine.hardware.lanes)
    yield HEADER + f"cycle  {'lanes':{lanes}}  PEs  weights"
    while not machine.finished:
        now = machine.now
        machine.clock()
        ports = "".join("s" if order["spill"] else LETTERS[int(order["client"])] for order in machine.orders)
        yield f"{now:5}  {ports:{lanes}}  {machine.array.working or '.':>3}  {machine.weights.moving or '.':>7}"
