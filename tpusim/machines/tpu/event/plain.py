"""The loop as Python: for short Programs, and where nothing can be compiled.

Python reads a number of an array ten times as slowly as one of a list, or an attribute of an object. So tables become
lists of objects for the time of a run.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from tpusim.machines.tpu.event import columns, log, loop, state
from tpusim.machines.tpu.event.columns import Columns
from tpusim.machines.tpu.event.state import MORE_ROOM, LoopState, roomier

_READ = (
    columns.Row, columns.Wait, columns.LoadRecipe, columns.PassRecipe, columns.WorkRecipe, columns.MoveRecipe,
    columns.MovedPart, columns.ArrayPace, columns.LostFrames, columns.PointerReads, columns.MachineRow,
)  # fmt: skip
_WRITTEN = state.ArrayUnit, state.DmaClock, log.Loaded, log.Passed, log.Worked, log.Moved
_OF_RECORD = {tuple(row.__annotations__): row for row in (*_READ, *_WRITTEN)}


def run(program: Columns, times: LoopState) -> tuple[int, LoopState]:
    """Run the loop until it stops, for more room excepted; return why, and the state by then."""
    listed, read = LoopState(*map(_listed, times)), Columns(*map(_listed, program))
    while (status := loop.run(read, listed)) == MORE_ROOM:
        _write(times.clock, listed.clock)
        times = roomier(times)
        listed = listed._replace(clock=_listed(times.clock), cells=times.cells)
    for table, rows in zip(times, listed, strict=True):
        if rows is not table:
            _write(table, rows)
    return status, times


def _listed(table: Any) -> Any:
    """A table as a list of objects, and numbers as a list; what has two axes stays an array."""
    if table.ndim > 1:
        return table
    if table.dtype.names is None:
        return table.tolist()
    names = table.dtype.names
    row, rows = _OF_RECORD[names], []
    for values in table.tolist():
        each: Any = row()
        each.__dict__.update(zip(names, values, strict=True))
        rows.append(each)
    return rows


def _write(table: Any, rows: Any) -> None:
    """Write back what `_listed` has made of a table."""
    if table.dtype.names is None:
        table[:] = rows
    elif rows:
        values = np.array([*map(attrgetter(*table.dtype.names), rows)], np.int64)
        table[:] = values.view(table.dtype).ravel()
