"""The loop run on a Program, as machine code or as Python: it gets room for more cycles of the ports, and a DRAM with
banks serves its transfers.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from tpusim.base.errors import DeadlockError
from tpusim.machines.tpu.definition import CLIENTS, NEVER, port_name
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event import columns, loop, native
from tpusim.machines.tpu.event.columns import SPILL, Columns, columns_of
from tpusim.machines.tpu.event.log import UNKNOWN, Log
from tpusim.machines.tpu.event.memories import BankedHbm, Cycles
from tpusim.machines.tpu.event.state import (
    FINISHED,
    OVERDUE,
    ROWS,
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


class PlainRun(LoopRun):
    """A run of the loop as Python: of a short Program, or where nothing can be compiled.

    Python reads a number of an array ten times as slowly as one of a list, or an attribute of an object. So tables
    become lists of objects for the time of a run.
    """

    def __init__(self, program: Columns, tables: LoopState) -> None:
        super().__init__(program, tables)
        self.program = Columns(*(_listed(each, columns.ROWS.get(name)) for name, each in program._asdict().items()))
        self.state = LoopState(*(_listed(each, ROWS.get(name)) for name, each in tables._asdict().items()))

    def _once(self) -> int:
        return loop.run(self.program, self.state)

    def want(self, cycles: Cycles) -> None:
        self.state.wanted[: len(cycles)] = cycles.tolist()

    @property
    def tables(self) -> LoopState:
        """The state in arrays."""
        for table, rows in zip(self._tables, self.state, strict=True):
            if isinstance(rows, list):
                _write(table, rows)
        return super().tables


def _listed(table: Any, row: Any) -> Any:
    """A table as a list of rows, and numbers as a list; what has two axes stays an array."""
    if row is None:
        return table if table.ndim > 1 else table.tolist()
    rows = []
    for values in table.tolist():
        each: Any = row()
        each.__dict__.update(zip(table.dtype.names, values, strict=True))
        rows.append(each)
    return rows


def _write(table: Any, rows: Any) -> None:
    """Write back what `_listed` has made of a table."""
    if table.dtype.names is None:
        table[:] = rows
    elif rows:
        values = np.array([*map(attrgetter(*table.dtype.names), rows)], np.int64)
        table[:] = values.view(table.dtype).ravel()


_SHORT = 2000
"""Steps that Python takes in the time in which machine code is loaded."""

_steps = 0
"""Steps that this process has timed as Python, or was asked to."""


def _fast_enough(columns: Columns) -> native.Loop:
    """The loop as Python for the first Programs of a process, as long as they are short; from then on as machine code.

    A command that times little neither compiles nor loads anything.
    """
    global _steps
    if _steps < _SHORT:
        # A step takes Python as long as sixteen words of a transfer.
        accesses = columns.moves["accesses"][columns.rows["recipe"][columns.transfers]]
        _steps += len(columns.rows) + int(accesses.sum()) // 16
    return (native.loaded() if _steps >= _SHORT else None) or PlainRun


def timed(program: Program, hardware: Hardware, keep: bool = False, limit: int = NEVER) -> Log | None:
    """The log of a Program, step by step; None if it takes `limit` cycles or more, as soon as that is known.

    With `keep`, it tells of every cycle of the ports, every read of weights, and each channel of the DRAM. Raises
    DeadlockError.
    """
    columns, ports, device = columns_of(program, hardware), program.ports(hardware), hardware.hbm.dram
    # Lane i runs lane 0's schedule i cycles late, so the skew is added once, at the end.
    fresh_state = fresh(columns, len(ports), limit - hardware.skew if limit < NEVER else NEVER, keep)
    hbm = BankedHbm(program, hardware, device, keep) if device else None
    transfers = [_transfer(program, at) for at in columns.transfers.tolist()] if hbm else []
    if hbm and limit < NEVER:
        _bound(transfers, columns, fresh_state, hbm)
    run = _fast_enough(columns)(columns, fresh_state)
    while (status := run.go_on()) in (SERVE, STORE):
        assert hbm
        serve(transfers, run, hbm, status)
    times = run.tables
    cycles = int(times.clock["end"][0]) + hardware.skew
    if status == OVERDUE or (status == FINISHED and cycles >= limit):
        return None
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


def _transfer(program: Program, row: int) -> Transfer:
    """The transfer of a row, where its slots are."""
    step = program.rows.located(row)
    assert isinstance(step, Transfer)
    return step


def _bound(transfers: Sequence[Transfer], columns: Columns, state: LoopState, hbm: BankedHbm) -> None:
    """Have a DRAM with banks say what its transfers take at least, up to its last spill."""
    rows = columns.rows[columns.transfers]
    served = np.flatnonzero(columns.moves["served"][rows["recipe"]])
    spills = np.flatnonzero(rows["kind"][served] == SPILL)
    if len(spills):
        mine = served[: spills[-1] + 1]
        least = hbm.least_left([transfers[at] for at in mine.tolist()])
        state.move_bounds[mine] = np.maximum(state.move_bounds[mine], least)


def serve(transfers: Sequence[Transfer], run: LoopRun, hbm: BankedHbm, status: int) -> None:
    """Have a DRAM with banks serve the next of the `transfers`, or store it."""
    state, dma = run.state, run.state.dma[0]
    step, log = transfers[dma.transfer], state.moves[dma.transfer]
    start = int(log.start)
    if status == STORE:
        log.busy, log.stalled, log.ended, log.stored = hbm.spill(step, start, np.array(state.taken[: step.words]))
        dma.stage = STORED
        return
    if isinstance(step, Spill):
        wanted, come = hbm.demands(step, start)
    else:
        wanted, come, log.ended = hbm.fill(step, start)
    run.want(wanted)
    log.come, dma.stage = come + 1, WANTED
