"""What the units of the control share: when steps are done, how cycles are booked, and what Python is to do."""

from __future__ import annotations

from typing import NamedTuple

from tpusim.machines.tpu.register.wires import Counts, Records, part

BUSY, STARVED, BLOCKED, WAITING_WEIGHTS, PORT_STALL, BANK_CONFLICT, VECTOR_WORK, CONVERSION = range(8)
BOOKED = (
    "busy", "starved", "blocked", "waiting_weights", "port_stall", "bank_conflict", "vector_work", "conversion",
)  # fmt: skip
"""Ways in which a unit spends its cycles; the rest is idle."""

OPEN, IDLING, MOVED, END, EVENTS, VECTOR_STEP, VECTOR_FROM, LAYER, FAILED, KEEPS, KEPT = range(11)
"""Registers of the control: steps that are not done; cycles in which nothing has moved; the last cycle in which a
transfer has moved a word; the cycle in which all spills so far are stored; events; the vector step that is carried out,
or -1, and the cycle from which it asks for the port; layers that are over; the row of the array that has failed; Keeps
that are done, and those that Python has heard of.
"""

BEGINS, ENDS, FETCHED = range(3)
"""Events of transfers: one begins, a spill has its last word, a prefetch is over."""


WORK, LATEST, LATEST_OVER = range(3)
"""Registers of the vector unit's work for a queue: its cycles so far, those of the latest among them, and the cycle in
which that is over, which may lie ahead.
"""


class BoardRegisters(NamedTuple):
    """What all units of the control see."""

    # Registers, from OPEN on.
    at: Counts
    # Completion cycle of each step; NEVER while it is unknown.
    done: Counts
    # Steps for which others wait: each of these has its share.
    waits: Counts
    # Cycles of each unit by BOOKED: arrays, then preloads, queue by queue, then buses.
    use: Counts
    # Work of the vector unit, [queue, from WORK on].
    work: Counts
    # Cycles of HBM's bus by step.
    held: Counts
    # Cycles of ports by client.
    granted: Counts
    # What has happened in this cycle, [event, (kind, transfer)].
    events: Counts
    # The orders of lane 0 in this cycle.
    told: Records


@part
def finish(board: BoardRegisters, step: int, cycle: int) -> None:
    """`step` is done from `cycle` on."""
    board.done[step] = cycle
    board.at[OPEN] -= 1


@part
def waiting(done: Counts, waits: Counts, first: int, past: int, now: int) -> bool:
    """Whether any of the steps that stand in `waits` from `first` to before `past` is not done in cycle `now`."""
    for place in range(first, past):  # noqa: SIM110  compiled, and no place for a generator
        if done[waits[place]] > now:
            return True
    return False


@part
def book_work(board: BoardRegisters, queue: int, cycles: int, over: int) -> None:
    """Book work of the vector unit that ends with the cycle before `over`; work of a queue is done in turn."""
    board.work[queue, WORK] += cycles
    board.work[queue, LATEST], board.work[queue, LATEST_OVER] = cycles, over


@part
def note_event(board: BoardRegisters, kind: int, transfer: int) -> None:
    """Note what has happened to a transfer: contents of memories behind the lanes follow from it."""
    count = board.at[EVENTS]
    board.events[count, 0], board.events[count, 1] = kind, transfer
    board.at[EVENTS] = count + 1


@part
def cause_at(freed: int, come: int, converted: int, now: int) -> int:
    """What holds a transfer in cycle `now`: the first that still applies of steps that it waits for, the memory, the
    vector unit, and the port.
    """
    if now < freed:
        return BLOCKED
    if now < come:
        return STARVED
    return CONVERSION if now < converted else PORT_STALL
