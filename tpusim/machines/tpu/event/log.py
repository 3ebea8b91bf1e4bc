"""The log of a run: for each step the cycles in which it changed its state, in tables.

All cycles are lane 0's. Rows stand in the order of the Program. What a step is stands in the row of the same number in
`Columns.rows`: log.columns.rows[log.passes["step"]].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition import Frame
from tpusim.machines.tpu.event.columns import PREFETCH, Columns, Numbers, Records
from tpusim.machines.tpu.event.memories import ChannelSpan
from tpusim.machines.tpu.observation.timeline import HOLDERS, HbmUse
from tpusim.machines.tpu.program.steps import Preload, Vector

Owners: TypeAlias = NDArray[np.uint8]
"""Owner of each cycle of a port; cycles after the last owned one may be left out."""

CAUSES = (*HOLDERS, Preload.cause, Vector.cause)
"""Causes for which a pass waits for its frame, by the number in the log. The first ones may hold a transfer."""
BLOCKED, STARVING, CONVERSION, PORT_STALL, WAITING_WEIGHTS, VECTOR_WORK = range(len(CAUSES))

UNKNOWN = -1
"""Time of a step that is not done yet, and of a word that is never read."""


class PreloadTimes:
    """A preload.

    The weight path is `free` since the preload before. It may take on this one when `ready`; the weights are in the
    vector memory when `filled`; the port is asked from `start` on; the last weight, or the bias, is in the array at
    `last`. `by` is the step whose data came last, -1 for none.
    """

    step: int
    free: int
    ready: int
    filled: int
    start: int
    last: int
    by: int


class PassTimes:
    """A stream.

    The array `ended` its step before, is starved until `filled`, waits for weights until `loaded`, and is blocked until
    `cleared`. Until the cycle before `start`, the first ifmap slot, it waits for the frame, which is booked to the last
    of these causes, `cause`, a number of CAUSES.
    """

    step: int
    ended: int
    filled: int
    loaded: int
    cleared: int
    start: int
    cause: int


class WorkTimes:
    """A step of the vector unit, as an `array` sees it.

    The array `ended` its step before, is starved until `filled`, waits for weights until `loaded`, is blocked until
    `issued`, and stands by until `done`. Words of operands are read from cycle `start` on.
    """

    step: int
    array: int
    ended: int
    filled: int
    loaded: int
    issued: int
    start: int
    done: int


class MoveTimes:
    """A transfer.

    The bus is `free` since the transfer before, blocked until `ready`, and held up by the port until `start`. It moves
    data for `busy` cycles; the port holds it up for the rest, from `stalled` on; it is free again at `ended`. The last
    word is in place at `done`. Before that, the steps it waits for are done at `freed`, its last word has `come` (a
    fill) or is wanted (a spill), and is `converted`.

    `bus` is the number of its bus among `Log.buses`. A spill is in the memory at `stored`, in time of the last lane.
    The last word from or to lanes crosses the port when `taken`. `held` is the number in CAUSES of what held the
    transfer just before it was done. Where one of these means nothing, it is 0.
    """

    step: int
    free: int
    ready: int
    start: int
    busy: int
    stalled: int
    ended: int
    freed: int
    come: int
    converted: int
    done: int
    bus: int
    stored: int
    taken: int
    held: int


@dataclass(frozen=True, eq=False)
class Log:
    """The log of a run.

    Attributes:
        cycles: cycles of the layer, the skew of the lanes included.
        columns: the Program.
        frames: the port's frame at each pace.
        buses: names of the buses, by their number.
        loads, passes, moves: PreloadTimes, PassTimes and MoveTimes, a row for each preload, stream and transfer.
        works: WorkTimes, a row for each vector step and array; those of a step lie side by side.
        owned: cycles that each client owns, by the names of CLIENTS, over all ports.
        owners: owner of each cycle, by the name of each port's account; empty unless they were kept.
        reads: int64[preloads, preload_words + 1], the cycle in which each word of weights is read, and then the word of
            biases, UNKNOWN where there is none; without rows unless they were kept.
        hbm: what the DRAM did; None where HBM is a pipe.
        spans: channels of the DRAM that each transfer of HBM used; empty unless they were kept.
    """

    cycles: int
    columns: Columns
    frames: tuple[Frame, ...]
    buses: tuple[str, ...]
    loads: Records
    passes: Records
    works: Records
    moves: Records
    owned: Mapping[str, int]
    owners: Mapping[str, Owners]
    reads: Numbers
    hbm: HbmUse | None = None
    spans: tuple[ChannelSpan, ...] = ()

    @property
    def queue(self) -> Records:
        """Transfers to and from lanes or banks, on any bus: all but prefetches."""
        return _those(self.moves, self.columns.rows["kind"][self.moves["step"]] != PREFETCH)

    def on_bus(self, name: str) -> Records:
        """Transfers on a bus, by the name of its account."""
        return _those(self.moves, self.moves["bus"] == self.buses.index(name))


def _those(table: Records, which: NDArray[np.bool_]) -> Records:
    """Some records of a table, and the table itself where it is all of them: there may be millions."""
    those: Records = table if which.all() else table[which]
    return those
