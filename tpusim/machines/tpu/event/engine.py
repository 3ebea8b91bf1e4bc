"""The loop run on a Program: it gets room for more cycles of the ports, and a DRAM with banks serves its transfers."""

from __future__ import annotations

import numpy as np

from tpusim.base.errors import DeadlockError
from tpusim.machines.tpu.definition import CLIENTS, NEVER, port_name
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event import native
from tpusim.machines.tpu.event.columns import SPILL, Columns, columns_of
from tpusim.machines.tpu.event.log import UNKNOWN, Log, OverdueRun
from tpusim.machines.tpu.event.memories import BankedHbm
from tpusim.machines.tpu.event.plain import PlainRun
from tpusim.machines.tpu.event.state import (
    FINISHED,
    OVERDUE,
    SERVE,
    STORE,
    STORED,
    STUCK,
    WANTED,
    LoopRun,
    LoopState,
    fresh,
)
from tpusim.machines.tpu.observation.timeline import who_waits
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.transfers import Spill, Transfer

_SHORT = 2000
"""Steps that Python takes in the time in which machine code is loaded."""

_steps = 0
"""Steps that this process has timed as Python, or was asked to."""


def _fast_enough(columns: Columns) -> native.Begin:
    """The loop as Python for the first Programs of a process, as long as they are short; from then on as machine code.

    A command that times little neither compiles nor loads anything.
    """
    global _steps
    if _steps < _SHORT:
        # A step takes Python as long as sixteen words of a transfer.
        accesses = columns.moves["accesses"][columns.rows["recipe"][columns.transfers]]
        _steps += len(columns.rows) + int(accesses.sum()) // 16
    return (native.loaded() if _steps >= _SHORT else None) or PlainRun


def timed(program: Program, hardware: Hardware, keep: bool = False, limit: int = NEVER) -> Log:
    """The log of a Program, step by step.

    With `keep`, it tells of every cycle of the ports, every read of weights, and each channel of the DRAM. Raises
    DeadlockError; Overdue if the Program takes `limit` cycles or more, as soon as that is known.
    """
    columns, ports, device = columns_of(program, hardware), program.ports(hardware), hardware.hbm.dram
    # Lane i runs lane 0's schedule i cycles late, so the skew is added once, at the end.
    fresh_state = fresh(columns, len(ports), limit - hardware.skew if limit < NEVER else NEVER, keep)
    hbm = BankedHbm(program, hardware, device, keep) if device else None
    if hbm and limit < NEVER:
        _bound(program, columns, fresh_state, hbm)
    run = _fast_enough(columns)(columns, fresh_state)
    while (status := run.go_on()) in (SERVE, STORE):
        assert hbm
        serve(program, run, hbm, status)
    times = run.tables
    cycles = int(times.clock["end"][0]) + hardware.skew
    if status == OVERDUE or (status == FINISHED and cycles >= limit):
        raise OverdueRun
    if status == STUCK:
        raise DeadlockError(who_waits(program, np.flatnonzero(times.done == UNKNOWN).tolist()))
    kept = zip(ports, times.cells, times.ends.tolist(), strict=True) if keep else ()
    return Log(
        cycles=cycles,
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


def _bound(program: Program, columns: Columns, state: LoopState, hbm: BankedHbm) -> None:
    """Have a DRAM with banks say what its transfers take at least, up to its last spill."""
    rows = columns.rows[columns.transfers]
    served = np.flatnonzero(columns.moves["served"][rows["recipe"]])
    spills = np.flatnonzero(rows["kind"][served] == SPILL)
    if len(spills):
        mine = served[: spills[-1] + 1]
        steps = map(program.rows.located, columns.transfers[mine].tolist())
        least = hbm.least_left(step for step in steps if isinstance(step, Transfer))
        state.move_bounds[mine] = np.maximum(state.move_bounds[mine], least)


def serve(program: Program, run: LoopRun, hbm: BankedHbm, status: int) -> None:
    """Have a DRAM with banks serve the next transfer, or store it."""
    state, dma = run.state, run.state.dma[0]
    log = state.moves[dma.transfer]
    step, start = program.rows.located(log.step), int(log.start)
    assert isinstance(step, Transfer)
    words = slice(step.words)
    if status == STORE:
        log.busy, log.stalled, log.ended, log.stored = hbm.spill(step, start, np.array(state.taken[words]))
        dma.stage = STORED
        return
    if isinstance(step, Spill):
        wanted, come = hbm.demands(step, start)
    else:
        wanted, come, log.ended = hbm.fill(step, start)
    state.wanted[words] = wanted.tolist()
    log.come, dma.stage = come + 1, WANTED
