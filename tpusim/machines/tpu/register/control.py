"""Lane 0's control, the clock of all units, and what ends a run of compiled cycles.

In every cycle the units sample what they see of one another, then all commit: no result depends on the order in which
they are visited. The control decides for lane 0; what leaves the bottom of the array is what is written back. The frame
is the machine's definition (docs/timing.md).
"""

from __future__ import annotations

from typing import NamedTuple

from tpusim.machines.tpu.definition import FREE, IFMAP, POINTER, PSUM, RESULT, VECTOR, WEIGHT
from tpusim.machines.tpu.register.array import (
    Deserializers,
    PeArray,
    WeightRegisters,
    commit_array,
    commit_sums,
    commit_weights,
    sample_array,
    sample_sums,
    sample_weights,
)
from tpusim.machines.tpu.register.banks import Banks, commit_banks, shift_banks
from tpusim.machines.tpu.register.board import (
    END,
    EVENTS,
    FAILED,
    IDLING,
    KEEPS,
    KEPT,
    LAYER,
    OPEN,
    BoardRegisters,
    finish,
    waiting,
)
from tpusim.machines.tpu.register.lanes import OBEYING, WORKING, Lanes, commit_lanes, give_orders, sample_lanes
from tpusim.machines.tpu.register.preloads import Preloads, ask_preloads, book_preloads, clock_preloads, tick
from tpusim.machines.tpu.register.streams import (
    Streams,
    any_running,
    ask_pointers,
    ask_psums,
    ask_results,
    ask_vector,
    clock_streams,
    running,
    words_wait,
)
from tpusim.machines.tpu.register.transfers import (
    LAST_STORING,
    DramRegisters,
    Transfers,
    ask_transfers,
    buses_run,
    clock_transfers,
    holder,
    store_in_banks,
    transfers_active,
)
from tpusim.machines.tpu.register.wires import IDLE, Counts, Records, Wires, kernel, part

NOW, STAGE, VALUE = range(3)
"""Registers of the clock: the cycle, what comes next in it, and a number that goes with the reason of a stop."""

CONTROL, SAMPLE, COMMIT = range(3)
"""Stages of a cycle: lane 0's orders; what units see; what they drive."""

(
    RESTED, OVER, LAYER_OVER, HAPPENED, SAMPLED, COMMITTED, TWO_CLIENTS, STUCK, NO_BANK_WORD, NO_ACCESS, NOT_EMPTY,
) = range(11)  # fmt: skip
"""Reasons of a stop: all cycles asked for are over; all is done; a layer is over; something has happened to transfers
or Keeps; units have sampled, or committed, and the vector unit is to work out values; two clients want one port;
nothing moves; a row wants a word that the banks do not have; an access that cannot be; a serializer that is not empty.
"""


class Clock(NamedTuple):
    """The clock, and who has lane 0's ports.

    Attributes:
        at: registers, from NOW on.
        units: the order in which lanes, array, weights and de-serializers are visited.
        ports: who is asked for each port, in order: [place, (port, client, queue, whether it owns cycles)].
        keeps: Keeps in order, [Keep, (step, first, past the last of the steps that it waits for)].
        patience: longer than anything can take: a machine that stands still for as long is deadlocked.
        hooks: whether results are finished, or words of transfers are worked on.
    """

    at: Counts
    units: Counts
    ports: Counts
    keeps: Counts
    patience: int
    hooks: bool


class MachineRegisters(NamedTuple):
    """All registers of a machine but the DRAM's."""

    clock: Clock
    board: BoardRegisters
    streams: Streams
    preloads: Preloads
    transfers: Transfers
    lanes: Lanes
    array: PeArray
    weights: WeightRegisters
    sums: Deserializers
    wires: Wires
    banks: Banks


LANES, ARRAY, WEIGHTS, SUMS = range(4)
"""The units that are visited."""


@kernel
def advance(
    clock: Clock, board: BoardRegisters, streams: Streams, preloads: Preloads, transfers: Transfers, lanes: Lanes,
    array: PeArray, weights: WeightRegisters, sums: Deserializers, wires: Wires, banks: Banks,
    dram: DramRegisters, until: int,
) -> int:  # fmt: skip
    """Let cycles pass until cycle `until` begins, or Python has something to do; return the reason of the stop."""
    at = clock.at
    while True:
        if at[STAGE] == CONTROL:
            now = at[NOW]
            if _layer_over(streams, board, now):
                return LAYER_OVER
            rests = _at_rest(board, streams, transfers, dram, now)
            if rests and now >= _end(board, streams) + transfers.skew:
                return OVER
            if now >= until:
                return RESTED
            if rests:
                # Lane 0 has no more orders while the other lanes, which are skewed, catch up.
                _no_orders(board.told)
            else:
                stop = _decide(clock, board, streams, preloads, transfers, dram, banks, wires, now)
                if stop != RESTED:
                    return stop
            at[STAGE] = SAMPLE
            if board.at[EVENTS] or board.at[KEPT] < board.at[KEEPS]:
                return HAPPENED
        if at[STAGE] == SAMPLE:
            give_orders(lanes, banks, board.told)
            if banks.banked:
                shift_banks(banks)
            # All units sample before any commits, so the order in which they are visited cannot matter.
            for place in range(4):
                unit = clock.units[place]
                if unit == LANES:
                    at[VALUE] = sample_lanes(lanes, banks, wires)
                    if at[VALUE] >= 0:
                        return NO_ACCESS
                elif unit == ARRAY:
                    sample_array(array, wires)
                elif unit == WEIGHTS:
                    sample_weights(weights, wires)
                else:
                    sample_sums(sums, wires)
            at[STAGE] = COMMIT
            if clock.hooks and lanes.at[OBEYING]:
                return SAMPLED
        for place in range(4):
            unit = clock.units[place]
            if unit == LANES:
                at[VALUE] = commit_lanes(lanes, banks, wires)
                if at[VALUE] >= 0:
                    return NOT_EMPTY
                if banks.banked:
                    commit_banks(banks)
            elif unit == ARRAY:
                commit_array(array, wires)
            elif unit == WEIGHTS:
                commit_weights(weights, wires)
            else:
                commit_sums(sums, wires)
        at[NOW] += 1
        at[STAGE] = CONTROL
        if lanes.at[WORKING]:
            lanes.at[WORKING] -= 1
            return COMMITTED


@part
def _at_rest(board: BoardRegisters, streams: Streams, transfers: Transfers, dram: DramRegisters, now: int) -> bool:
    """Whether every step is done, the last frame over, the bus free, and the time of the last word in HBM known."""
    if board.at[OPEN] or transfers.at[LAST_STORING]:
        return False
    return not (buses_run(transfers, dram, now) or any_running(streams, board, now))


@part
def _end(board: BoardRegisters, streams: Streams) -> int:
    """The cycle in which the last step is done and its last word is in HBM."""
    end = board.at[END]
    for queue in range(len(streams.units)):
        end = max(end, streams.units[queue]["over_at"])
    for step in range(len(board.done)):
        end = max(end, board.done[step])
    return int(end)


@part
def _no_orders(told: Records) -> None:
    for slot in range(len(told)):
        told[slot] = IDLE[0]


@part
def _decide(
    clock: Clock, board: BoardRegisters, streams: Streams, preloads: Preloads, transfers: Transfers,
    dram: DramRegisters, banks: Banks, wires: Wires, now: int,
) -> int:  # fmt: skip
    """Let every unit of the control have its cycle, and find lane 0's orders: one a port, then those of the vector
    unit's other slots.
    """
    at, queues = board.at, len(streams.units)
    # The order matters: what a unit finishes in this cycle, the units after it may use in this cycle.
    while at[KEEPS] < len(clock.keeps):
        keep = clock.keeps[at[KEEPS]]
        if waiting(board.done, board.waits, keep[1], keep[2], now):
            break
        finish(board, keep[0], now)
        at[KEEPS] += 1
    for place in range(queues):
        tick(preloads, board, streams.turns[place], now)
    clock_transfers(transfers, dram, board, now)
    held = holder(transfers, dram, board, now)
    for place in range(queues):
        clock_streams(streams, board, banks, wires, streams.turns[place], now, held)
    if at[FAILED]:
        return NO_BANK_WORD
    for place in range(queues):
        queue = streams.turns[place]
        issued, busy = streams.units[queue]["issued"], running(streams, board, queue, now)
        clock_preloads(preloads, board, queue, now, issued, busy, held)
    if not _grant(clock, board, streams, preloads, transfers, dram, wires, now):
        return TWO_CLIENTS
    store_in_banks(transfers, dram, board, banks, now)
    for place in range(queues):
        book_preloads(preloads, board, streams.turns[place])
    # A cycle in which some unit is at work is no sign of a deadlock.
    at[IDLING] += 1
    for port in range(len(board.told) - streams.slots):
        client = board.told[port]["client"]
        if client != FREE:
            board.granted[client] += 1
            at[IDLING] = 0
    if at[IDLING] and (transfers_active(transfers) or any_running(streams, board, now)):
        at[IDLING] = 0
    for queue in range(queues):
        if preloads.units[queue]["injecting"] or words_wait(streams, queue):
            at[IDLING] = 0
    return STUCK if at[IDLING] > clock.patience else RESTED


@part
def _layer_over(streams: Streams, board: BoardRegisters, now: int) -> bool:
    """Whether one more layer but the last is over in this cycle: its last pass or vector step is, in every array."""
    layer = board.at[LAYER]
    if layer >= len(streams.through):
        return False
    for queue in range(len(streams.units)):
        # An array may stream for the next layer while another's last frame goes on.
        left = streams.through[layer, queue] - streams.units[queue]["issued"]
        if left > 0 or (left == 0 and running(streams, board, queue, now)):
            return False
    board.at[LAYER] = layer + 1
    return True


@part
def _grant(
    clock: Clock, board: BoardRegisters, streams: Streams, preloads: Preloads, transfers: Transfers,
    dram: DramRegisters, wires: Wires, now: int,
) -> bool:  # fmt: skip
    """Give every port to the client whose turn it is; return whether no two owners asked at once.

    The stream's owners have cycles of their own; the others share the rest, in order. A client that is asked takes what
    it names.
    """
    told, granted, port = board.told, False, -1
    _no_orders(told)
    for place in range(len(clock.ports)):
        client, queue = clock.ports[place, 1], clock.ports[place, 2]
        granted = granted and clock.ports[place, 0] == port
        port = clock.ports[place, 0]
        if granted and not clock.ports[place, 3]:
            continue
        order, asks = told[port], False
        if client == IFMAP:
            asks = streams.readings[queue]["client"] != FREE
            if asks:
                told[port] = streams.readings[queue]
        elif client == POINTER:
            asks = ask_pointers(streams, order, now)
        elif client == PSUM:
            asks = ask_psums(streams, board, wires, queue, order, now)
        elif client == RESULT:
            asks = ask_results(streams, board, wires, queue, order, now)
        elif client == VECTOR:
            asks = ask_vector(streams, board, told, port, now)
        elif client == WEIGHT:
            asks = ask_preloads(preloads, queue, order, now)
        else:
            asks = ask_transfers(transfers, dram, board, order, now)
        if asks and granted:
            return False
        granted = granted or asks
    return True
