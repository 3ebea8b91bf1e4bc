"""What the loop keeps while it runs: units, the DMA, owners of the ports' cycles, and the tables of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition import CLIENTS, NEVER
from tpusim.machines.tpu.event.columns import (
    KEEP,
    PRELOAD,
    SPILL,
    STREAM,
    VECTOR_STEP,
    Columns,
    Numbers,
    Records,
    record_of,
)
from tpusim.machines.tpu.event.log import STARVING, UNKNOWN, MoveTimes, PassTimes, PreloadTimes, WorkTimes

FINISHED, STUCK, OVERDUE, MORE_ROOM, SERVE, STORE, GOES_ON, WAITS = range(8)
"""Why the loop stops: at the end, where nothing can go on, past the limit, for more room in `cells`, for a DRAM with
banks to serve the next transfer, or to store it. The last two are for units.
"""

TO_BEGIN, WANTED, STORED = range(3)
"""How far the next transfer is: nothing known, words wanted, or when it is stored."""


class ArrayUnit:
    """An array, or all arrays that share weights.

    Attributes:
        place: of its next step in `Columns.order`.
        pace: number of its frame.
        anew: whether it goes on by another frame, and has not streamed in it yet.
        free: cycle from which the weight path is free.
        issued, ended: cycle in which the last stream or vector step was issued, and ended.
        drained: cycle after its last result.
        worked: end of the last vector step.
        written: cycle of the last pass's first result.
        told: first cycle of the frame in which the last pass's first pointers were read.
        cause: of the last pass's wait, a number of CAUSES.
    """

    place: int
    pace: int
    anew: int
    free: int
    issued: int
    ended: int
    drained: int
    worked: int
    written: int
    told: int
    cause: int


class RunClock:
    """The run as a whole, and its Keeps.

    Attributes:
        end, limit: the latest time so far, and the cycle in which the run is overdue.
        keep, kept: number of the next Keep, and when the last one ended.
    """

    end: int
    limit: int
    keep: int
    kept: int


class DmaUnit:
    """The DMA.

    Attributes:
        transfer, stage: number of the next transfer, and how far it is.
        begun: start of the last transfer.
        last, staged: when the last transfer to or from lanes or banks is done, and the one before.
        freed: until when the last transfer waited for steps.
    """

    transfer: int
    stage: int
    begun: int
    last: int
    staged: int
    freed: int


class CellSpan:
    """The cycles of which `cells` have the owners.

    Attributes:
        first, room: the first of them, and the cycle to which they must reach at the next try.
        settled: first cycle that nobody has settled yet.
        keeps: whether all owners are kept, and all reads of weights.
    """

    first: int
    room: int
    settled: int
    keeps: int


class LoopState(NamedTuple):
    """All that the loop writes, and the bounds by which it knows that a run is overdue.

    Attributes:
        done: int64, cycle from which each step is done; UNKNOWN before its time is known.
        units: an ArrayUnit for each array.
        clock, dma, window: a RunClock, a DmaUnit and a CellSpan.
        bus_free: int64[buses], cycle from which each bus is free.
        ends: int64[ports], cycle after the last one owned.
        owned: int64, cycles owned by each client.
        loads, passes, works, moves: tables of the log.
        wanted, taken: int64, cycles in which the words of the transfer under way are wanted, and taken.
        pass_bounds: int64, least cycles from the issue of each step of `Columns.order` to the end of the last.
        move_bounds: int64, least cycles of the bus from the end of each transfer to the end of the last spill on it; -1
            behind that.
        reads: as in the log.
        cells: uint8[ports, cycles], owner of each cycle of the window.
    """

    done: Numbers
    units: Records
    clock: Records
    dma: Records
    window: Records
    bus_free: Numbers
    ends: Numbers
    owned: Numbers
    loads: Records
    passes: Records
    works: Records
    moves: Records
    wanted: Numbers
    taken: Numbers
    pass_bounds: Numbers
    move_bounds: Numbers
    reads: Numbers
    cells: NDArray[np.uint8]


ROWS: Mapping[str, Any] = {
    "units": ArrayUnit, "clock": RunClock, "dma": DmaUnit, "window": CellSpan,
    "loads": PreloadTimes, "passes": PassTimes, "works": WorkTimes, "moves": MoveTimes,
}  # fmt: skip
"""Rows of the tables; `cells` are uint8, and all others int64."""

AXES = {"reads": 2, "cells": 2}
"""Axes of what is not a single column."""

_WIDTH, _WIDEST = 1 << 16, 1 << 22
"""Cycles of a port that are held at first, and for long, unless the loop asks for more."""


def fresh(columns: Columns, ports: int, limit: int = NEVER, keeps: bool = False) -> LoopState:
    """The state before the first step; `keeps` keeps the owners of all cycles and the reads of all weights."""
    kind, machine = columns.rows["kind"], columns.machine[0]
    count, most = np.bincount(kind, minlength=KEEP + 1).tolist(), int(columns.moves["words"].max(initial=1))
    counts = {
        "units": columns.arrays, "loads": count[PRELOAD], "passes": count[STREAM], "moves": len(columns.transfers),
        "works": count[VECTOR_STEP] * columns.arrays,
    }  # fmt: skip
    tables: dict[str, Records] = {name: np.zeros(counts.get(name, 1), record_of(row)) for name, row in ROWS.items()}
    units, works = tables["units"], tables["works"]
    units["place"], units["written"], units["cause"] = columns.orders[:-1], -1, STARVING
    tables["clock"]["limit"], tables["dma"]["begun"], tables["window"]["keeps"] = limit, machine["launch"], keeps
    tables["loads"]["step"], tables["passes"]["step"] = columns.steps(PRELOAD), columns.steps(STREAM)
    tables["moves"]["step"] = columns.transfers
    works["step"] = columns.steps(VECTOR_STEP).repeat(columns.arrays)
    works["array"] = np.arange(len(works)) % columns.arrays
    bounds = bounds_of(columns) if limit < NEVER else (np.zeros(0, np.int64),) * 2
    return LoopState(
        **tables,
        done=np.full(len(kind), UNKNOWN),
        bus_free=np.full(len(columns.latency), machine["launch"]),
        ends=np.zeros(ports, np.int64),
        owned=np.zeros(len(CLIENTS), np.int64),
        wanted=np.empty(most, np.int64),
        taken=np.empty(most, np.int64),
        pass_bounds=bounds[0],
        move_bounds=bounds[1],
        reads=np.full((count[PRELOAD] * keeps, machine["preload_words"] + 1), UNKNOWN),
        cells=np.zeros((ports, _WIDTH), np.uint8),
    )


class LoopRun:
    """A run of the loop over the columns of a Program. It goes on whenever it is told to, from where its state stands.

    Attributes:
        state: tables as this form of the loop has them, whose rows have attributes.
    """

    def __init__(self, program: Columns, tables: LoopState) -> None:
        rows = {name: getattr(tables, name).view(np.recarray) for name in ("dma", "window", "moves")}
        self.program, self.state, self._tables = program, tables._replace(**rows), tables

    def go_on(self) -> int:
        """Run the loop until it stops, for more room excepted; return why."""
        while (status := self._once()) == MORE_ROOM:
            self.state = roomier(self.state)
        return status

    def _once(self) -> int:
        raise NotImplementedError

    def want(self, cycles: Numbers) -> None:
        """Say in which cycles the words of the next transfer are wanted."""
        self.state.wanted[: len(cycles)] = cycles

    @property
    def tables(self) -> LoopState:
        """The state in arrays."""
        return self._tables._replace(cells=self.state.cells)


def roomier(state: LoopState) -> LoopState:
    """A state whose cells reach as far as the loop asks; what is settled is forgotten, unless all is kept."""
    window, cells = state.window[0], state.cells
    first, width = window.first if window.keeps else window.settled, cells.shape[1]
    # A long run gets more room each time, so that it stops seldom.
    width = max(width, min(4 * width, _WIDEST))
    while 2 * (window.room - first) > width:
        width *= 2
    live, window.first = cells[:, first - window.first :], first
    fresh = np.zeros((len(cells), width), np.uint8)
    fresh[:, : live.shape[1]] = live
    return state._replace(cells=fresh)


def bounds_of(columns: Columns) -> tuple[Numbers, Numbers]:
    """The bounds of a state: of passes, and of transfers."""
    rows, order = columns.rows, columns.order
    streams = rows["kind"][order] == STREAM
    of_passes, mine = np.zeros(len(order), np.int64), rows[order[streams]]
    pace = columns.paces[mine["pace"] * columns.arrays]
    of_passes[streams] = -(-columns.passes["words"][mine["recipe"]] // pace["together"]) * pace["period"]
    for first, end in zip(columns.orders[:-1], columns.orders[1:], strict=True):
        of_passes[first:end] = of_passes[first:end][::-1].cumsum()[::-1]
    of_moves, mine = np.full(len(columns.transfers), -1), rows[columns.transfers]
    for bus in range(len(columns.latency)):
        at = np.flatnonzero(columns.moves["bus"][mine["recipe"]] == bus)
        spills = np.flatnonzero(mine["kind"][at] == SPILL)
        at = at[: spills[-1] + 1] if len(spills) else at[:0]
        least = columns.moves["least"][mine["recipe"][at]]
        of_moves[at] = least[::-1].cumsum()[::-1] - least
    return of_passes, of_moves
