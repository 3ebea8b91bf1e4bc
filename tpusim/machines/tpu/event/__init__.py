"""The event engine: how long a Program takes, step by step."""

from __future__ import annotations

from tpusim.machines.tpu.definition import NEVER
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.accounts import Recording, timing_of
from tpusim.machines.tpu.event.log import Log
from tpusim.machines.tpu.event.processes import timed
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.program import Program


def run(program: Program, hardware: Hardware) -> Timing:
    """Time one Program.

    Raises:
        DeadlockError: when steps wait for one another for ever; names who waits for whom.
    """
    timing = run_within(program, hardware, NEVER)
    assert timing
    return timing


def run_within(program: Program, hardware: Hardware, limit: int) -> Timing | None:
    """Time one Program; None as soon as it is known to take `limit` cycles or more. Raises DeadlockError."""
    log = timed(program, hardware)
    return timing_of(log, program, hardware) if log.cycles < limit else None


def by_simpy(program: Program, hardware: Hardware) -> Timing:
    """Time one Program by processes of SimPy. Raises DeadlockError."""
    from tpusim.machines.tpu.event import processes

    return timing_of(processes.timed(program, hardware), program, hardware)


def record(program: Program, hardware: Hardware) -> Recording:
    """Time one Program, and keep all that a timeline needs. Raises DeadlockError."""
    return Recording(timed(program, hardware, keep=True), program, hardware)


def logged(program: Program, hardware: Hardware, keep: bool = False) -> Log:
    return timed(program, hardware, keep)
