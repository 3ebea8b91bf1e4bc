"""The register engine: every register of every PE, serializer and port, one clock at a time."""

from __future__ import annotations

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.lane_trace import LOOK_EVERY, Watch, unwatched
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.machines.tpu.program.steps import Program
from tpusim.machines.tpu.register.machine import Machine, Tensor
from tpusim.machines.tpu.register.trace import trace

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
