"""The register engine: every register of every PE, serializer and port, one clock at a time."""

from __future__ import annotations

from tpusim.engine.register.machine import Machine, Tensor
from tpusim.engine.register.trace import trace
from tpusim.engine.timing import Timing
from tpusim.engine.trace import LOOK_EVERY, Watch, unwatched
from tpusim.hardware import Hardware
from tpusim.program import Program

__all__ = ["Machine", "run", "trace"]


def run(
    program: Program, hardware: Hardware, ifmap: Tensor, filter_: Tensor, watch: Watch = unwatched
) -> tuple[Timing, Tensor]:
    """Time and ofmap [out_channel, row, col, image] of one Program.

    Args:
        ifmap: [channel, row, col, image].
        filter_: [out_channel, tap_row, tap_col, channel of the group].
        watch: told every LOOK_EVERY cycles how many have passed.

    Raises:
        CheckFailed: when the Program names lanes, rows, columns or words that do not exist.
        DeadlockError: when its steps wait for one another for ever; names who waits for whom.
        PortConflict: when a port, a serializer or a result register is asked too early, twice or too late.
        MemoryError: when its words do not fit the memory of this computer.
    """
    machine = Machine(program, hardware, ifmap, filter_)
    while not machine.finished:
        machine.clock()
        if machine.now % LOOK_EVERY == 0:
            watch(machine.now)
    return machine.timing(), machine.ofmap
