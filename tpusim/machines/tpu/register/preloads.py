"""Preloads of weights, one at a time into each array, or into all arrays that share weights."""

from __future__ import annotations

from typing import NamedTuple

from tpusim.machines.tpu.definition import BIAS_CYCLES, WEIGHT
from tpusim.machines.tpu.register.board import BLOCKED, BUSY, PORT_STALL, BoardRegisters, finish, waiting
from tpusim.machines.tpu.register.wires import NOWHERE, Counts, Record, Records, part, registers

PRELOAD = registers("step base rows cols delay bias wait past_wait fill past_fill ahead left period")
"""A preload: its number in the Program and its fields, the address of a bias or NOWHERE; the first of the steps that it
waits for, and of the fills among them, with those past the last; the streams and vector steps of its array ahead of it;
and where the cycles stand that it leaves to others, in each of the `period` cycles of a frame.
"""

PRELOADING = registers("next past started delayed current row biases injecting buffer")
"""Registers of an array's preloads: the next one, and past the last; preloads begun; cycles of delay that are over; the
preload under way, the row of its next weight, bias words to read, cycles in which weights enter, and the weight buffer.
"""


class Preloads(NamedTuple):
    """Preloads of all queues: the PRELOADs, registers of each queue, and cycles left to others. All R rows are shifted
    in, `rate` a cycle.
    """

    each: Records
    units: Records
    left: Counts
    rows: int
    buffers: int
    rate: int
    word_elements: int


@part
def under_way(own: Preloads, queue: int) -> bool:
    """Whether weights or biases are still to be read or to enter the array."""
    unit = own.units[queue]
    return bool(unit["row"] < own.rows or unit["biases"] > 0 or unit["injecting"] > 0)


@part
def tick(own: Preloads, board: BoardRegisters, queue: int, now: int) -> None:
    """Let weights of the register enter the array; with the last of them, the preload is done."""
    unit = own.units[queue]
    if unit["injecting"]:
        unit["injecting"] -= 1
        if not under_way(own, queue):
            finish(board, own.each[unit["current"]]["step"], now)


@part
def clock_preloads(
    own: Preloads, board: BoardRegisters, queue: int, now: int, issued: int, running: bool, held: int
) -> None:
    """Start the next preload, once all steps ahead of it are issued and then its delay is over.

    By then a weight buffer is free, or will be when the stream is over. `held` holds the transfers in this cycle.
    """
    unit, row = own.units[queue], len(own.units) + queue
    # With one buffer the running stream still needs its weights; with two, the other buffer is free.
    if under_way(own, queue) or unit["next"] == unit["past"]:
        return
    at = own.each[unit["next"]]
    if issued < at["ahead"] or (running and own.buffers == 1):
        board.use[row, BLOCKED] += 1
    elif waiting(board.done, board.waits, at["fill"], at["past_fill"], now):
        board.use[row, held] += 1
    elif waiting(board.done, board.waits, at["wait"], at["past_wait"], now):
        board.use[row, BLOCKED] += 1
    elif unit["delayed"] < at["delay"]:
        unit["delayed"] += 1
        board.use[row, BLOCKED] += 1
    else:
        unit["delayed"] = 0
        unit["current"] = unit["next"]
        unit["next"] += 1
        unit["buffer"] = unit["started"] % own.buffers
        unit["started"] += 1
        unit["row"], unit["biases"] = 0, int(at["bias"] != NOWHERE)


@part
def ask_preloads(own: Preloads, queue: int, order: Record, now: int) -> bool:
    """The next word of weights, or the bias word, if the word register can take it at the end of this cycle."""
    unit = own.units[queue]
    row, rows = unit["row"], own.rows
    if unit["injecting"] or (row >= rows and not unit["biases"]):
        return False
    at = own.each[unit["current"]]
    if own.left[at["left"] + now % at["period"]]:
        return False
    order["client"], order["step"], order["lanes"] = WEIGHT, at["step"], at["cols"]
    order["array"], order["buffer"], order["first"] = queue, unit["buffer"], min(row, rows)
    if row < rows:
        order["address"] = at["base"] + row // own.word_elements if row < at["rows"] else NOWHERE
        unit["row"] = row + own.word_elements
        unit["injecting"] = -(-min(own.word_elements, rows - row) // own.rate)
    else:
        # The first element of the bias word goes to the register above the first row.
        order["address"], unit["biases"], unit["injecting"] = at["bias"], 0, BIAS_CYCLES
    return True


@part
def book_preloads(own: Preloads, board: BoardRegisters, queue: int) -> None:
    """Book a cycle of a preload under way, once it is known whether the port was free."""
    if under_way(own, queue):
        cause = BUSY if own.units[queue]["injecting"] else PORT_STALL
        board.use[len(own.units) + queue, cause] += 1
