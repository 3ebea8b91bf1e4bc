"""What the loop keeps while it runs: units, the DMA's clock, owners of the ports' cycles, and the tables of the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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
from tpusim.machines.tpu.event.log import LOADED, MOVED, PASSED, STARVING, UNKNOWN, WORKED

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


class DmaClock:
    """The run as a whole, and the DMA.

    Attributes:
        end, limit: the latest time so far, and the cycle in which the run is overdue.
        transfer, stage: number of the next transfer, and how far it is.
        begun: start of the last transfer.
        last, staged: when the last transfer to or from lanes or banks is done, and the one before.
        freed: until when the last transfer waited for steps.
        keep, kept: number of the next Keep, and when the last one ended.
        base, room: the first cycle of `cells`, and the cycle to which they must reach at the next try.
        settled: first cycle that nobody has settled yet.
        keeps: whether all owners are kept, and all reads of weights.
    """

    end: int
    limit: int
    transfer: int
    stage: int
    begun: int
    last: int
    staged: int
    freed: int
    keep: int
    kept: int
    base: int
    room: int
    settled: int
    keeps: int


UNIT, CLOCK = record_of(ArrayUnit), record_of(DmaClock)


class LoopState(NamedTuple):
    """All that the loop writes, and the bounds by which it knows that a run is overdue.

    Attributes:
        done: int64, cycle from which each step is done; UNKNOWN before its time is known.
        units: of UNIT, a row for each array.
        clock: of CLOCK, one row.
        bus_free: int64[buses], cycle from which each bus is free.
        ends: int64[ports], cycle after the last one owned.
        owned: int64, cycles owned by each client.
        loads, passes, works, moves: tables of the log.
        wanted, taken: int64, cycles in which the words of the transfer under way are wanted, and taken.
        pass_bounds: int64, least cycles from the issue of each step of `Columns.order` to the end of the last.
        move_bounds: int64, least cycles of the bus from the end of each transfer to the end of the last spill on it; -1
            behind that.
        reads: as in the log.
        cells: uint8[ports, cycles], owner of each cycle from `base` on.
    """

    done: Numbers
    units: Records
    clock: Records
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


RECORDS = {"units": UNIT, "clock": CLOCK, "loads": LOADED, "passes": PASSED, "works": WORKED, "moves": MOVED}
"""Records of the tables; `cells` are uint8, and all others int64."""

AXES = {"reads": 2, "cells": 2}
"""Axes of what is not a single column."""

_WIDTH = 1 << 16
"""Cycles of a port that are held at first."""


def fresh(columns: Columns, ports: int, limit: int = NEVER, keeps: bool = False) -> LoopState:
    """The state before the first step; `keeps` keeps the owners of all cycles and the reads of all weights."""
    kind, machine = columns.rows["kind"], columns.machine[0]
    count, most = np.bincount(kind, minlength=KEEP + 1).tolist(), int(columns.moves["words"].max(initial=1))
    units, clock = np.zeros(columns.arrays, UNIT), np.zeros(1, CLOCK)
    units["place"], units["written"], units["cause"] = columns.orders[:-1], -1, STARVING
    clock["limit"], clock["begun"], clock["keeps"] = limit, machine["launch"], keeps
    loads, passes = np.zeros(count[PRELOAD], LOADED), np.zeros(count[STREAM], PASSED)
    works, moves = np.zeros(count[VECTOR_STEP] * columns.arrays, WORKED), np.zeros(len(columns.transfers), MOVED)
    loads["step"], passes["step"], moves["step"] = columns.steps(PRELOAD), columns.steps(STREAM), columns.transfers
    works["step"] = columns.steps(VECTOR_STEP).repeat(columns.arrays)
    works["array"] = np.arange(len(works)) % columns.arrays
    bounds = bounds_of(columns) if limit < NEVER else (np.zeros(0, np.int64),) * 2
    return LoopState(
        done=np.full(len(kind), UNKNOWN),
        units=units,
        clock=clock,
        bus_free=np.full(len(columns.latency), machine["launch"]),
        ends=np.zeros(ports, np.int64),
        owned=np.zeros(len(CLIENTS), np.int64),
        loads=loads,
        passes=passes,
        works=works,
        moves=moves,
        wanted=np.empty(most, np.int64),
        taken=np.empty(most, np.int64),
        pass_bounds=bounds[0],
        move_bounds=bounds[1],
        reads=np.full((len(loads) * keeps, machine["preload_words"] + 1), UNKNOWN),
        cells=np.zeros((ports, _WIDTH), np.uint8),
    )


def roomier(state: LoopState) -> LoopState:
    """A state whose cells reach as far as the loop asks; what is settled is forgotten, unless all is kept."""
    clock, cells = state.clock, state.cells
    base, until = int(clock["base"][0]), int(clock["room"][0])
    first, width = base if clock["keeps"][0] else int(clock["settled"][0]), cells.shape[1]
    while 2 * (until - first) > width:
        width *= 2
    live, clock["base"] = cells[:, first - base :], first
    fresh = np.zeros((len(cells), width), np.uint8)
    fresh[:, : live.shape[1]] = live
    return state._replace(cells=fresh)


def with_room(run: Callable[[Columns, LoopState], int], program: Columns, state: LoopState) -> tuple[int, LoopState]:
    """Run the loop until it stops, for more room excepted; return why, and the state by then."""
    while (status := run(program, state)) == MORE_ROOM:
        state = roomier(state)
    return status, state


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
