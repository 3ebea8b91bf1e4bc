"""The event engine: how long a Program takes, step by step.

`loop` has the rules of docs/timing.md, over the columns of a Program (`columns`), and `engine` runs it; `processes` has
the same rules as processes of SimPy. Both leave a `Log`, from which accounts and timelines are drawn (`accounts`).
"""

from __future__ import annotations

from tpusim.base.imports import need
from tpusim.base.memory import at_rest
from tpusim.machines.tpu.definition import NEVER
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.accounts import Recording, timing_of
from tpusim.machines.tpu.event.engine import timed
from tpusim.machines.tpu.event.log import Log
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
    """Time one Program; None if it takes `limit` cycles or more, as soon as that is known. Raises DeadlockError."""
    with at_rest():
        log = timed(program, hardware, keep=bool(program.layers), limit=limit)
        return timing_of(log, program, hardware) if log else None


def by_simpy(program: Program, hardware: Hardware) -> Timing:
    """Time one Program by processes of SimPy. Raises DeadlockError; InputError where SimPy is not installed."""
    need("engine simpy", "SimPy", "simpy")
    from tpusim.machines.tpu.event import processes

    return timing_of(processes.timed(program, hardware), program, hardware)


def logged(program: Program, hardware: Hardware, keep: bool = False) -> Log:
    """The log of a Program, step by step. Raises DeadlockError."""
    log = timed(program, hardware, keep)
    assert log, "without a limit every run ends"
    return log


def record(program: Program, hardware: Hardware) -> Recording:
    """Time one Program, and keep all that a timeline needs. Raises DeadlockError."""
    return Recording(logged(program, hardware, keep=True), program, hardware)
