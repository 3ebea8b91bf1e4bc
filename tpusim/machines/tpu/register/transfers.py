"""Transfers of one queue over all buses: when each begins, when its words may cross the port, and when its bus is free.

A memory behind the lanes is a pipe, or a DRAM that is clocked by a clock of its own while the machine's cycles pass.
"""

from __future__ import annotations

from typing import NamedTuple

from tpusim.machines.tpu.definition import DMA, NEVER
from tpusim.machines.tpu.register.banks import ARRIVES, LEAVES, Banks
from tpusim.machines.tpu.register.board import (
    BEGINS,
    BLOCKED,
    BUSY,
    END,
    ENDS,
    FETCHED,
    MOVED,
    PORT_STALL,
    BoardRegisters,
    cause_at,
    finish,
    note_event,
    waiting,
)
from tpusim.machines.tpu.register.wires import Counts, Record, Records, part, registers
from tpusim.memory.dram.clocked import NOW as CYCLE
from tpusim.memory.dram.clocked import Registers, clock_cycles
from tpusim.memory.dram.rules import ACCEPTED, DONE, TIME

UNDER_WAY = 2
"""Transfers that may have data on their way at once (docs/timing.md, section 5)."""

FILL, BANK_FILL, SPILL, PREFETCH = range(4)
HBM_BUS = 0

TRANSFER = registers(
    # Of the Program: ranges in the scoreboard's waits, in `fed`, in `accesses`.
    "step kind bus following words lanes first place wait past_wait other past_other source past_source "
    "access past_access fed bank_word moving total latency conversion delay banked bursts "
    # Registers.
    "started taken turn free_at ready_at stored row known latest all_known all_latest accepted last_accepted"
)
"""A transfer, and its registers from the cycle in which it gets the bus.

step, kind, bus, following: number in the Program, kind of transfer, its bus, and the next transfer on it, or -1
words, lanes, first: words that it moves in turn, lanes, lane 0's first word in HBM
place: of its first word among the words of all transfers
wait, other, source, access: first of the steps that it waits for, of those that bring it no data, of the transfers
    whose data it needs, and of its accesses if the vector unit works on its words; each with the one past the last
fed: first of the settings and words of parts where lanes have addresses of their own, or -1
bank_word: first of the words for banks
moving, total, latency, conversion: cycles of its bytes on the bus, of these or the conversion, whichever is longer, of
    the memory, and of the conversion
delay: cycles from the port until a word is converted, on its way to a DRAM
banked, bursts: whether a DRAM serves it, and its bursts
started, taken, turn: the cycle in which it got the bus, words that have crossed the port, accesses that are made
free_at, ready_at, stored: cycles in which its bus is free, its last word is there, and all of a spill is in the memory
row: of its first burst in the DRAM's requests, or -1 once all bursts are known
known, latest: bursts known to be done for the words so far, and the latest cycle of these; all_known, all_latest, for
    all bursts; accepted, last_accepted, for the cycles in which they are accepted
"""

TODO, FIRST, SECOND, LAST_STORING, LAST_FETCHING = range(5)
"""Registers of the queue: the next transfer; transfers with data on their way, the older first, or -1; numbers of
spills that are being stored, and of prefetches under way."""


class DramRegisters(NamedTuple):
    """The DRAM's registers, and the ratio of the machine's clock and its own; `present` tells whether there is one.

    `known` has the cycles in which each burst was accepted and done, [burst, 2], by transfers, for those whose requests
    are no longer in the DRAM's.
    """

    present: bool
    machine: int
    memory: int
    registers: Registers
    known: Counts


class Transfers(NamedTuple):
    """The queue of transfers and all buses."""

    # Registers of the queue, from TODO on.
    at: Counts
    # TRANSFERs, in order.
    each: Records
    # Transfers whose data others need.
    sources: Counts
    # Of transfers with work: word, address, register, and whether it is stored.
    accesses: Counts
    # Setting and word of the part, for words of lanes with addresses of their own.
    fed: Counts
    # Addresses of all words, for all lanes.
    addresses: Counts
    # Cycles in which words have come from a DRAM, as far as known.
    arrivals: Counts
    # The first burst of each transfer among all.
    burst: Counts
    # The next transfer of each bus, and the one that has it, or -1.
    next: Counts
    bus: Counts
    # Spills that are being stored, and prefetches under way.
    storing: Counts
    fetching: Counts
    # Cycles until the first transfer may begin, and those by which the last lane is behind.
    launch: int
    skew: int


# ---- a transfer, from the cycle in which it gets the bus


@part
def _burst(own: Transfers, dram: DramRegisters, number: int, burst: int, column: int) -> int:
    """The cycle in which a burst was accepted, or done; -1 while it is unknown."""
    row = own.each[number]["row"]
    if row >= 0:
        return int(dram.registers.requests[row + burst, column])
    return int(dram.known[own.burst[number] + burst, 0 if column == ACCEPTED else 1])


@part
def _done(own: Transfers, dram: DramRegisters, number: int, count: int) -> int:
    """The cycle in which the first `count` bursts are all done; NEVER while it is unknown. `count` never falls."""
    transfer = own.each[number]
    while transfer["known"] < count:
        cycle = _burst(own, dram, number, transfer["known"], DONE)
        if cycle < 0:
            return NEVER
        transfer["known"] += 1
        transfer["latest"] = max(transfer["latest"], cycle)
    return _to_machine(dram, transfer["latest"])


@part
def _all_done(own: Transfers, dram: DramRegisters, number: int) -> int:
    """The cycle in which all bursts are done; NEVER while it is unknown."""
    transfer = own.each[number]
    while transfer["all_known"] < transfer["bursts"]:
        cycle = _burst(own, dram, number, transfer["all_known"], DONE)
        if cycle < 0:
            return NEVER
        transfer["all_known"] += 1
        transfer["all_latest"] = max(transfer["all_latest"], cycle)
    return _to_machine(dram, transfer["all_latest"])


@part
def _to_machine(dram: DramRegisters, cycle: int) -> int:
    """The first cycle of the machine that does not begin before a cycle of the memory does."""
    return -(-cycle * dram.machine // dram.memory)


@part
def _to_memory(dram: DramRegisters, cycle: int) -> int:
    """The first cycle of the memory that does not begin before a cycle of the machine does."""
    return -(-cycle * dram.memory // dram.machine)


@part
def _ready(own: Transfers, dram: DramRegisters, number: int, now: int) -> bool:
    """Whether the next word may cross the port in cycle `now`."""
    transfer = own.each[number]
    since, total, words, taken = now - transfer["started"], transfer["total"], transfer["words"], transfer["taken"]
    if transfer["kind"] == SPILL:
        # Words of a spill are wanted evenly.
        return bool(taken < -(-min(since + 1, total) * words // total))
    if not transfer["banked"]:
        # Words come evenly, after the latency.
        return bool(taken < max(0, min(since - transfer["latency"], total)) * words // total)
    # A word has come with the last burst that holds a part of it; words are converted in turn.
    place = transfer["place"] + taken
    if own.arrivals[place] < 0:
        converted = -(-(taken + 1) * transfer["conversion"] // words)
        arrival = transfer["started"] + converted
        if transfer["bursts"]:
            come = _done(own, dram, number, -(-(taken + 1) * transfer["bursts"] // words))
            if come == NEVER:
                return False
            arrival = max(come, _to_machine(dram, _burst(own, dram, number, 0, DONE)) + converted)
        own.arrivals[place] = arrival
    return bool(now >= own.arrivals[place])


@part
def _took(own: Transfers, dram: DramRegisters, number: int, now: int) -> None:
    """Note that the next word crosses the port in cycle `now`."""
    transfer = own.each[number]
    before, transfer["taken"] = transfer["taken"], transfer["taken"] + 1
    if transfer["kind"] != SPILL:
        return
    words, taken = transfer["words"], transfer["taken"]
    if transfer["banked"]:
        # A burst is due once its last word has been taken and, after a delay, converted.
        if transfer["row"] >= 0:
            for burst in range(before * transfer["bursts"] // words, taken * transfer["bursts"] // words):
                dram.registers.requests[transfer["row"] + burst, TIME] = _to_memory(dram, now + 1 + transfer["delay"])
        if taken == words:
            transfer["ready_at"] = now + 1 + transfer["delay"]
    elif taken == words:
        # After the last word the bus is kept for one more word's time.
        transfer["free_at"] = max(transfer["started"] + transfer["total"], now + 1 - (-transfer["total"] // words))


@part
def _over(own: Transfers, dram: DramRegisters, number: int, now: int) -> bool:
    """Whether the bus is free for the next transfer.

    With a DRAM it is kept until all bursts have been accepted, and until the last word of a spill is there.
    """
    transfer = own.each[number]
    if transfer["banked"] and transfer["free_at"] == NEVER and transfer["ready_at"] != NEVER:
        while transfer["accepted"] < transfer["bursts"]:
            cycle = _burst(own, dram, number, transfer["accepted"], ACCEPTED)
            if cycle < 0:
                return False
            transfer["accepted"] += 1
            transfer["last_accepted"] = max(transfer["last_accepted"], cycle)
        accepted = _to_machine(dram, transfer["last_accepted"] + 1)
        transfer["free_at"] = max(transfer["started"] + transfer["total"], transfer["ready_at"], accepted)
    return bool(now >= transfer["free_at"])


@part
def _moves(transfer: Record, now: int) -> bool:
    """Whether the transfer keeps the bus busy; otherwise it waits for the port. A fill from a DRAM never does."""
    if transfer["banked"] and transfer["kind"] != SPILL:
        return True
    done = transfer["banked"] and transfer["taken"] == transfer["words"]
    return bool(now < transfer["started"] + transfer["total"] or done)


@part
def _stored(own: Transfers, dram: DramRegisters, number: int) -> int:
    """The cycle in which all of a spill is in the memory; NEVER while it is unknown."""
    transfer = own.each[number]
    if transfer["free_at"] == NEVER:
        return NEVER
    if transfer["banked"]:
        return int(max(_all_done(own, dram, number), transfer["free_at"]))
    return int(transfer["free_at"] + transfer["latency"])


@part
def holder(own: Transfers, dram: DramRegisters, board: BoardRegisters, now: int) -> int:
    """The cause that holds the oldest transfer to or from lanes or banks."""
    number = own.at[FIRST]
    if number < 0:
        for number in range(own.at[TODO], len(own.each)):
            transfer = own.each[number]
            if waiting(board.done, board.waits, transfer["other"], transfer["past_other"], now):
                return BLOCKED
            if transfer["kind"] != PREFETCH:
                break
        return cause_at(now, NEVER, NEVER, now)
    transfer = own.each[number]
    started = transfer["started"]
    if transfer["kind"] == SPILL:
        last, words = transfer["words"] - 1, transfer["words"]
        moved = started + last * transfer["moving"] // words + 1
        return cause_at(started, moved, started + last * transfer["total"] // words + 1, now)
    if not transfer["banked"]:
        come = started + transfer["latency"] + 1
        return cause_at(started, come + transfer["moving"], come + transfer["total"], now)
    first = come = started
    if transfer["bursts"]:
        come = _all_done(own, dram, number)
        first = come if come == NEVER else _to_machine(dram, _burst(own, dram, number, 0, DONE))
    return cause_at(started, come + 1, max(come, first + transfer["conversion"]) + 1, now)


# ---- the queue


@part
def clock_transfers(own: Transfers, dram: DramRegisters, board: BoardRegisters, now: int) -> None:
    """Free the buses, give them to the next transfers, and account for the cycle."""
    if dram.present:
        # Let the DRAM's cycles pass that begin before this one.
        clock_cycles(dram.registers, _to_memory(dram, now) - dram.registers.whole[CYCLE])
    if now < own.launch:
        return
    at = own.at
    for bus in range(len(own.bus)):
        if own.bus[bus] >= 0 and _over(own, dram, own.bus[bus], now):
            own.bus[bus] = -1
    left = 0
    for place in range(at[LAST_STORING]):
        number = own.storing[place]
        stored = _stored(own, dram, number)
        if stored == NEVER:
            own.storing[left] = number
            left += 1
        else:
            # The memory now knows when the spill is stored.
            board.at[END] = max(board.at[END], stored)
            own.each[number]["stored"] = stored + own.skew
    at[LAST_STORING] = left
    _end_fetches(own, dram, board, now)
    # Why the next transfer does not begin although its bus is free; it is booked below.
    why = -1
    while at[TODO] < len(own.each) and own.bus[own.each[at[TODO]]["bus"]] < 0:
        transfer = own.each[at[TODO]]
        if _held_back(own, board, transfer, now):
            # The queue is in order: a transfer that waits also holds up the ones behind it, on any bus.
            why = BLOCKED
            break
        if at[SECOND] >= 0 and transfer["kind"] != PREFETCH:
            why = PORT_STALL
            break
        _begin(own, board, at[TODO], now)
        at[TODO] += 1
        _end_fetches(own, dram, board, now)
    for bus in range(len(own.bus)):
        number, cause = own.bus[bus], -1
        if number >= 0:
            cause = BUSY if _moves(own.each[number], now) else PORT_STALL
        elif own.next[bus] >= 0:
            number = own.next[bus]
            cause = why if number == at[TODO] else BLOCKED
        if number >= 0:
            board.use[len(board.use) - len(own.bus) + bus, cause] += 1
            if bus == HBM_BUS:
                board.held[own.each[number]["step"]] += 1


@part
def _held_back(own: Transfers, board: BoardRegisters, transfer: Record, now: int) -> bool:
    """Whether a transfer waits for steps, or for data that is still to be stored."""
    if waiting(board.done, board.waits, transfer["wait"], transfer["past_wait"], now):
        return True
    for place in range(transfer["source"], transfer["past_source"]):
        if now < own.each[own.sources[place]]["stored"]:
            return True
    return False


@part
def _begin(own: Transfers, board: BoardRegisters, number: int, now: int) -> None:
    """Give a transfer its bus, and let a fill take its data from HBM."""
    transfer, at = own.each[number], own.at
    own.next[transfer["bus"]] = transfer["following"]
    own.bus[transfer["bus"]] = number
    transfer["started"] = now
    if not transfer["banked"] and transfer["kind"] != SPILL:
        transfer["free_at"] = now + transfer["total"]
    note_event(board, BEGINS, number)
    if transfer["kind"] == PREFETCH:
        own.fetching[at[LAST_FETCHING]] = number
        at[LAST_FETCHING] += 1
    elif at[FIRST] < 0:
        at[FIRST] = number
    else:
        at[SECOND] = number


@part
def _end_fetches(own: Transfers, dram: DramRegisters, board: BoardRegisters, now: int) -> None:
    """Note which prefetches are over; a prefetch of padding alone ends in the cycle in which it begins."""
    left = 0
    for place in range(own.at[LAST_FETCHING]):
        number = own.fetching[place]
        if _ready(own, dram, number, now):
            own.each[number]["stored"] = now
            note_event(board, FETCHED, number)
            finish(board, own.each[number]["step"], now)
        else:
            own.fetching[left] = number
            left += 1
    own.at[LAST_FETCHING] = left


@part
def buses_run(own: Transfers, dram: DramRegisters, now: int) -> bool:
    """Whether a bus is still busy in cycle `now`; `now` is at most the next cycle."""
    for bus in range(len(own.bus)):  # noqa: SIM110  compiled, and no place for a generator
        if own.bus[bus] >= 0 and not _over(own, dram, own.bus[bus], now):
            return True
    return False


@part
def transfers_active(own: Transfers) -> bool:
    """Whether a memory is at work for some transfer."""
    for number in own.bus:
        if number >= 0:
            return True
    return bool(own.at[LAST_STORING] or own.at[LAST_FETCHING])


@part
def ask_transfers(own: Transfers, dram: DramRegisters, board: BoardRegisters, order: Record, now: int) -> bool:
    """The next word of the oldest transfer, if it has one for the port. The last word completes the transfer."""
    number = own.at[FIRST]
    if number < 0 or own.each[number]["kind"] == BANK_FILL:
        return False
    transfer = own.each[number]
    if transfer["turn"] < transfer["past_access"]:
        return _ask_worked(own, dram, board, order, now)
    if board.at[MOVED] == now or not _ready(own, dram, number, now):
        return False
    word = transfer["taken"]
    order["client"], order["step"], order["lanes"] = DMA, transfer["step"], transfer["lanes"]
    order["address"], order["spill"] = own.addresses[transfer["place"] + word], transfer["kind"] == SPILL
    order["number"] = transfer["first"] + word * transfer["lanes"]
    if transfer["fed"] >= 0:
        order["generator"], order["word"] = own.fed[transfer["fed"] + word, 0], own.fed[transfer["fed"] + word, 1]
    _move_word(own, dram, board, now)
    return True


@part
def _ask_worked(own: Transfers, dram: DramRegisters, board: BoardRegisters, order: Record, now: int) -> bool:
    """The next access of a transfer with work; what is written behind a part waits for nothing else."""
    number = own.at[FIRST]
    transfer = own.each[number]
    access = own.accesses[transfer["turn"]]
    register, stores = access[2], access[3]
    if board.at[MOVED] == now or not (stores or _ready(own, dram, number, now)):
        return False
    board.at[MOVED] = now
    transfer["turn"] += 1
    order["client"], order["step"], order["lanes"], order["address"] = (
        DMA,
        transfer["step"],
        transfer["lanes"],
        access[1],
    )
    order["number"] = transfer["first"] + access[0] * transfer["lanes"]
    if register < 0:
        _took(own, dram, number, now)
        order["spill"], order["works"] = transfer["kind"] == SPILL, 1
    else:
        order["register"], order["beside"], order["stores"] = register, 1, stores
    if transfer["turn"] == transfer["past_access"]:
        _end(own, board, now)
    return True


@part
def store_in_banks(own: Transfers, dram: DramRegisters, board: BoardRegisters, banks: Banks, now: int) -> None:
    """Store the next words of the oldest transfer in banks, one word in each, through ports of their own."""
    number = own.at[FIRST]
    if number < 0 or own.each[number]["kind"] != BANK_FILL or board.at[MOVED] == now:
        return
    if not _ready(own, dram, number, now):
        return
    transfer = own.each[number]
    first = transfer["bank_word"]
    past = first
    # Words stand in the order of their turns.
    while past < transfer["past_access"] and banks.turns[past] == transfer["taken"]:
        past += 1
    banks.at[ARRIVES], banks.at[LEAVES], transfer["bank_word"] = first, past, past
    _move_word(own, dram, board, now)


@part
def _move_word(own: Transfers, dram: DramRegisters, board: BoardRegisters, now: int) -> None:
    """Move the next word of the oldest transfer."""
    number = own.at[FIRST]
    board.at[MOVED] = now
    _took(own, dram, number, now)
    if own.each[number]["taken"] == own.each[number]["words"]:
        _end(own, board, now)


@part
def _end(own: Transfers, board: BoardRegisters, now: int) -> None:
    """End the oldest transfer with its last access."""
    number, at = own.at[FIRST], own.at
    at[FIRST], at[SECOND] = at[SECOND], -1
    finish(board, own.each[number]["step"], now + 1)
    if own.each[number]["kind"] == SPILL:
        note_event(board, ENDS, number)
        own.storing[at[LAST_STORING]] = number
        at[LAST_STORING] += 1
