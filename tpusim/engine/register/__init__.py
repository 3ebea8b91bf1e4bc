"""The register engine: every register of every PE, serializer and port, one clock at a time."""

from __future__ import annotations

from tpusim.engine.register.machine import Machine, Tensor
from tpusim.engine.register.trace import trace
from tpusim.engine.timing import Timing
from tpusim.hardware import Hardware
from tpusim.program import Program

__all__ = ["Machine", "run", "trace"]


def run(program: Program, hardware: Hardware, ifmap: Tensor, filter_: Tensor) -> tuple[Timing, Tensor]:
    """Time and ofmap [out_channel, row, col, image] of one Program.

    Raises:
        CheckFailed: when the Program sends a lane to a word that does not exist.
        DeadlockError: when its steps wait for one another for ever.
    """
    machine = Machine(program, hardware, ifmap, filter_)
    while not machine.finished:
        machine.clock()
    return machine.timing(), machine.ofmap
