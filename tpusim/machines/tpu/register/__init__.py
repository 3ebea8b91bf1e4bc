"""The register engine: every register of every PE, serializer and port, one clock at a time."""

from __future__ import annotations

from collections.abc import Mapping

from tpusim.base.memory import at_rest
from tpusim.machines.lowered import Told
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timeline import Timing, unwatched
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.register.machine import RegisterMachine, trace
from tpusim.machines.tpu.register.wires import Floats

__all__ = ["RegisterMachine", "run", "trace"]


def run(
    program: Program, hardware: Hardware, operands: Mapping[str, Floats], watch: Told = unwatched
) -> tuple[Timing, dict[str, Floats]]:
    """Run one Program; return its time and every tensor that it writes.

    Args:
        operands: tensors that HBM holds at the start, in the Program's shape or one that reshapes to it.
        watch: called every LOOK_EVERY cycles with the number of cycles that have passed.

    Raises:
        CheckFailed: when the Program names lanes, rows, columns or words that do not exist.
        DeadlockError: when its steps wait for one another for ever; names who waits for whom.
        PortConflict: when a port, a serializer or a result register is asked too early, twice or too late.
        MemoryError: when its words do not fit the memory of this computer.
    """
    with at_rest():
        machine = RegisterMachine(program, hardware, operands)
        machine.run(watch)
    given = {*program.given(operands), *(each.tensor for each in program.handed), *program.prefetched}
    written = [each.name for each in program.tensors if each.name not in given]
    return machine.timing(), {name: machine.hbm.tensor(name) for name in written}
