"""The loop run on a Program: it gets room for more cycles of the ports, and a DRAM with banks serves its transfers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tpusim.base.errors import DeadlockError
from tpusim.machines.tpu.definition import CLIENTS, NEVER, port_name
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event import native, plain
from tpusim.machines.tpu.event.columns import SPILL, Columns, columns_of
from tpusim.machines.tpu.event.log import UNKNOWN, Log, Overdue
from tpusim.machines.tpu.event.memories import BankedHbm
from tpusim.machines.tpu.event.state import (
    OVERDUE,
    SERVE,
    STORE,
    STORED,
    STUCK,
    WANTED,
    LoopState,
    fresh,
)
from tpusim.machines.tpu.observation.timeline import who_waits
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Transfer

_SHORT = 2000
"""Steps that Python takes in the time in which machine code is loaded."""

_steps = 0
"""Steps that this process has timed as Python, or was asked to."""


def _fast_enough(columns: Columns) -> Callable[[Columns, LoopState], tuple[int, LoopState]]:
    """The loop as Python for the first Programs of a process, as long as they are short; from then on as machine code.

    A command that times little neither compiles nor loads anything.
    """
    global _steps
    if _steps < _SHORT:
        # A step takes Python as long as sixteen words of a transfer; where a DRAM serves one, all tables become arrays
        # and lists again.
        moves = columns.moves[columns.rows["recipe"][columns.transfers]]
        _steps += len(columns.rows) * (1 + int(moves["served"].sum()) // 4) + int(moves["accesses"].sum()) // 16
    compiled = native.loaded() if _steps >= _SHORT else None
    return compiled.run if compiled else plain.run


def timed(program: Program, hardware: Hardware, keep: bool = False, limit: int = NEVER) -> Log:
    """The log of a Program, step by step.

    With `keep`, it tells of every cycle of the ports, every read of weights, and each channel of the DRAM. Raises
    DeadlockError; Overdue as soon as the Program is known to take `limit` cycles or more.
    """
    columns, ports, device = columns_of(program, hardware), program.ports(hardware), hardware.hbm.dram
    # Lane i runs lane 0's schedule i cycles late, so the skew is added once, at the end.
    times = fresh(columns, len(ports), limit - hardware.skew if limit < NEVER else NEVER, keep)
    run = _fast_enough(columns)
    hbm = BankedHbm(program, hardware, device, keep) if device else None
    status, times = run(columns, times)
    while status in (SERVE, STORE):
        assert hbm
        serve(program, columns, times, hbm, status)
        status, times = run(columns, times)
    if status == OVERDUE:
        raise Overdue
    if status == STUCK:
        raise DeadlockError(who_waits(program, np.flatnonzero(times.done == UNKNOWN).tolist()))
    kept = zip(ports, times.cells, times.ends.tolist(), strict=True) if keep else ()
    return Log(
        cycles=int(times.clock["end"][0]) + hardware.skew,
        columns=columns,
        frames=program.frames(hardware),
        buses=tuple(hardware.pipes),
        loads=times.loads,
        passes=times.passes,
        works=times.works,
        moves=times.moves,
        owned={name: count for name, count in zip(CLIENTS, times.owned.tolist(), strict=True) if count},
        owners={port_name(clients): cells[:end] for clients, cells, end in kept},
        reads=times.reads,
        hbm=hbm.use if hbm else None,
        spans=tuple(hbm.spans) if hbm else (),
    )


def serve(program: Program, columns: Columns, times: LoopState, hbm: BankedHbm, status: int) -> None:
    """Have a DRAM with banks serve the next transfer, or store it."""
    at = times.clock["transfer"][0]
    number, log = int(columns.transfers[at]), times.moves[at : at + 1]
    step, start, spills = program.steps[number], int(log["start"][0]), columns.rows["kind"][number] == SPILL
    assert isinstance(step, Transfer)
    words = slice(step.words)
    if status == STORE:
        log["busy"], log["stalled"], log["ended"], log["stored"] = hbm.spill(step, start, times.taken[words])
    elif spills:
        times.wanted[words], come = hbm.demands(step, start)
        log["come"] = come + 1
    else:
        times.wanted[words], come, log["ended"] = hbm.fill(step, start)
        log["come"] = come + 1
    times.clock["stage"] = STORED if status == STORE else WANTED
