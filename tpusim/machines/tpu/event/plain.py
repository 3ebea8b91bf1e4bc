"""The loop as Python: for short Programs, and where nothing can be compiled.

Python reads a number of an array ten times as slowly as one of a list, or an attribute of an object. So tables become
lists of objects for the time of a run.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from tpusim.machines.tpu.event import columns, loop, state
from tpusim.machines.tpu.event.columns import Columns
from tpusim.machines.tpu.event.state import LoopRun, LoopState


class PlainRun(LoopRun):
    """A run of the loop as Python."""

    def __init__(self, program: Columns, tables: LoopState) -> None:
        super().__init__(program, tables)
        self.program = Columns(*(_listed(each, columns.ROWS.get(name)) for name, each in program._asdict().items()))
        self.state = LoopState(*(_listed(each, state.ROWS.get(name)) for name, each in tables._asdict().items()))

    def _once(self) -> int:
        return loop.run(self.program, self.state)

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
