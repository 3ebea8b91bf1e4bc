"""The loop as Python: for short Programs, and where nothing can be compiled.

Python reads a number of an array ten times as slowly as one of a list, or an attribute of an object. So tables become
lists of objects for the time of a run.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tpusim.machines.tpu.event import columns as read
from tpusim.machines.tpu.event import log, loop, state
from tpusim.machines.tpu.event.columns import Columns
from tpusim.machines.tpu.event.state import LoopState

Tables = TypeVar("Tables", bound=NamedTuple)

_ROWS = (
    read.Row, read.Wait, read.LoadRecipe, read.PassRecipe, read.WorkRecipe, read.MoveRecipe, read.MovedPart,
    read.ArrayPace, read.LostFrames, read.PointerReads, read.MachineRow, state.ArrayUnit, state.DmaClock, log.Loaded,
    log.Passed, log.Worked, log.Moved,
)  # fmt: skip
_OF_RECORD = {tuple(each.name for each in fields(row)): row for row in _ROWS}


def run(program: Columns, times: LoopState) -> int:
    """Run the loop; see `loop.run`."""
    listed = LoopState(*map(_listed, times))
    status = loop.run(Columns(*map(_listed, program)), listed)
    for table, rows in zip(times, listed, strict=True):
        if rows is not table and len(table):
            _write(table, rows)
    return status


def _listed(table: Any) -> Any:
    """A table as a list of objects, and numbers as a list; what has two axes stays an array."""
    if table.ndim > 1:
        return table
    if table.dtype.names is None:
        return table.tolist()
    row = _OF_RECORD[table.dtype.names]
    return [row(*values) for values in table.tolist()]


def _write(table: Any, rows: Any) -> None:
    names = table.dtype.names
    # One field would make a number of what is a tuple of several.
    table[:] = (
        np.array(rows if names is None else [*map(attrgetter(*names), rows)], np.int64)
        .reshape(len(rows), -1)
        .view(table.dtype)
        .ravel()
    )
