"""The time of a Program, by one loop over its columns: the rules of docs/timing.md, and nothing for speed.

Units issue their steps in order, each step as soon as the times of all that it waits for are known. So every array
goes on until it must wait for a transfer, or for another array. Only then is the next transfer settled: nobody can own
a cycle before its end any more. All times are lane 0's; whoever calls adds the lanes' skew.

These functions become machine code (`native`), and the same functions run as Python (`plain`). So they make no arrays
and raise nothing: `run` says why it stops, and goes on from there when it is called again.
"""

from __future__ import annotations

from typing import Any

from tpusim.machines.tpu.definition import BIAS_CYCLES, DMA, IFMAP, POINTER, PSUM, RESULT, VECTOR, WEIGHT
from tpusim.machines.tpu.event.columns import (
    BANK_FILL,
    PREFETCH,
    PRELOAD,
    SPILL,
    STREAM,
    VECTOR_STEP,
    ArrayPace,
    Columns,
    MoveRecipe,
    PassRecipe,
    PointerReads,
    Row,
)
from tpusim.machines.tpu.event.log import (
    BLOCKED,
    CONVERSION,
    PORT_STALL,
    STARVING,
    UNKNOWN,
    VECTOR_WORK,
    WAITING_WEIGHTS,
    MoveTimes,
)
from tpusim.machines.tpu.event.state import (
    FINISHED,
    GOES_ON,
    MORE_ROOM,
    OVERDUE,
    SERVE,
    STORE,
    STUCK,
    TO_BEGIN,
    WAITS,
    WANTED,
    ArrayUnit,
    LoopState,
)

# ---- what a step waits for


def known(program: Columns, state: LoopState, row: Row) -> tuple[bool, int, int, int, int]:
    """Whether the times of all that a step waits for are known; when the last that brings data is done, and which that
    is; when the last of the others is done; and when all that it reads behind the lanes is stored there."""
    data = others = stored = 0
    by = -1
    for at in range(row.waits, row.waits_end):
        wait = program.waits[at]
        done = state.done[wait.step]
        if done == UNKNOWN:
            return False, 0, -1, 0, 0
        if not wait.data:
            others = max(others, done)
        elif done > data:
            data, by = done, wait.step
        if wait.stored:
            stored = max(stored, state.moves[program.rows[wait.step].number].stored)
    return True, data, by, others, stored


def finish(state: LoopState, step: int, done: int) -> int:
    """A step is done from cycle `done` on, which may lie ahead."""
    state.done[step] = done
    state.clock[0].end = max(state.clock[0].end, done)
    return GOES_ON


# ---- the port (docs/timing.md, section 2)


def next_free(cells: Any, end: int, base: int, at: int) -> int:
    """The first cycle from `at` on that nobody owns; from `end` on, nobody owns any."""
    while at < end and cells[at - base]:
        at += 1
    return at


def room(state: LoopState, until: int) -> bool:
    """Whether the cells reach to cycle `until`; if not, the state says how far they must."""
    if until - state.window[0].first <= state.cells.shape[1]:
        return True
    state.window[0].room = until
    return False


def reserve(program: Columns, state: LoopState, client: int, start: int, words: int, period: int) -> None:
    """Own every `period`-th cycle from `start` on, `words` times."""
    if words <= 0:
        return
    port, first = program.port_of[client], start - state.window[0].first
    last = first + (words - 1) * period
    state.cells[port, first : last + 1 : period] = client
    state.owned[client] += words
    state.ends[port] = max(state.ends[port], last + 1 + state.window[0].first)


def claim(
    program: Columns, state: LoopState, load: int, word: int, start: int, words: int, spacing: int, pace: ArrayPace
) -> int:
    """Own the first free cycles from `start` on for weights, `words` times at least `spacing` apart; return the last.

    Where arrays have turns, cycles that belong to others are left to them, whether they use them or not. The words are
    those of preload number `load` from `word` on.
    """
    port = program.port_of[WEIGHT]
    cells, base, end = state.cells[port], state.window[0].first, state.ends[port]
    found = start - spacing
    for each in range(words):
        found = next_free(cells, end, base, found + spacing)
        while pace.turns >= 0 and program.turns[pace.turns + found % pace.period]:
            found = next_free(cells, end, base, found + program.turns[pace.turns + found % pace.period])
        cells[found - base] = WEIGHT
        if state.window[0].keeps:
            state.reads[load, word + each] = found
    state.owned[WEIGHT] += words
    state.ends[port] = max(end, found + 1)
    return found


# ---- preloads (section 3)


def preload(
    program: Columns, state: LoopState, step: int, row: Row, unit: ArrayUnit, pace: ArrayPace, data: int, by: int,
    others: int,
) -> int:  # fmt: skip
    """Weight words are read once the delay is over, in the first free cycles, one every W; then the biases' word."""
    load, machine = program.loads[row.recipe], program.machine[0]
    ready = max(unit.issued if machine.weight_buffers > 1 else unit.ended, unit.free)
    start = max(ready, data, others) + load.delay
    longest = machine.weight_word_cycles + (pace.period if pace.turns >= 0 else 0)
    latest = max(start, state.ends[program.port_of[WEIGHT]]) + (machine.preload_words + 2) * longest + 8
    if not room(state, latest):
        return MORE_ROOM
    words = machine.preload_words
    read = claim(program, state, row.number, 0, start, words, machine.weight_word_cycles, pace)
    last = read + machine.last_weight
    if load.bias:
        last = claim(program, state, row.number, words, last, 1, 1, pace) + BIAS_CYCLES
    log = state.loads[row.number]
    log.free, log.ready, log.filled, log.by, log.start, log.last = unit.free, ready, data, by, start, last
    unit.free = last
    return finish(state, step, last)


# ---- streams (section 4)


def stream(
    program: Columns, state: LoopState, step: int, row: Row, unit: ArrayUnit, pace: ArrayPace, array: int, anew: bool,
    data: int, by: int, others: int,
) -> int:  # fmt: skip
    """A pass: when it starts, on the frame's grid, and all its slots of the port."""
    its, load = program.passes[row.recipe], state.loads[program.rows[row.preload].number]
    if load.filled > data:
        data, by = load.filled, load.by
    spilled = max(others, unit.worked)
    summed = unit.written - pace.psum_delay if its.accumulate else 0
    filled = max(unit.ended, data)
    loaded = max(filled, state.done[row.preload])
    cleared = max(loaded, spilled, summed)
    told, pointed = unit.told, 0
    if its.table >= 0:
        # Pointers are read only when everything else that the pass waits for is in memory; where another frame begins,
        # when its first weights are there.
        there = max(data, spilled, unit.ended + 1 - pace.period)
        told = next_frame(max(there, loaded) if anew else there, array, pace)
        pointed = told + pace.period - 1
    cause = unit.cause
    if filled > unit.ended:
        cause = state.moves[program.rows[by].number].held
    if loaded > filled:
        cause = WAITING_WEIGHTS
    if cleared > loaded:
        cause = BLOCKED
    if pointed > cleared:
        cause = PORT_STALL
    start = next_frame(max(cleared, pointed) + 1, array, pace)
    lost = first = 0
    if its.conflicts >= 0:
        lost = program.conflicts[its.conflicts].frames
        first = program.delivered[program.conflicts[its.conflicts].words]
    frames = -(-its.words // pace.together) + lost
    if not room(state, start + (frames + 1) * pace.period + pace.together + pace.result_delay + 8):
        return MORE_ROOM
    if its.conflicts >= 0:
        own_slots_behind_banks(program, state, start, its, pace)
    else:
        if its.table >= 0:
            own_pointers(program, state, start, told, program.tables[its.table], pace)
        own_slots(program, state, start, its, pace)
    log = state.passes[row.number]
    log.ended, log.filled, log.loaded, log.cleared, log.start, log.cause = (
        unit.ended, filled, loaded, cleared, start, cause,
    )  # fmt: skip
    unit.issued, unit.ended = start - 1, start - 1 + frames * pace.period
    unit.written = start + first + pace.result_delay
    unit.drained = start + pace.result_delay + (frames - 1) * pace.period + (its.words - 1) % pace.together + 1
    unit.told, unit.cause = told, cause
    return finish(state, step, unit.drained)


def next_frame(cycle: int, array: int, pace: ArrayPace) -> int:
    """The first slot, in `cycle` or later, for an ifmap word of the array."""
    return cycle + (array - cycle) % pace.period


def own_slots(program: Columns, state: LoopState, start: int, its: PassRecipe, pace: ArrayPace) -> None:
    """Partial sums and results follow ifmap reads after a fixed delay; arrays take words in turn."""
    for array in range(min(pace.together, its.words)):
        read, words = start + array, -(-(its.words - array) // pace.together)
        reserve(program, state, IFMAP, read, words, pace.period)
        if its.accumulate:
            reserve(program, state, PSUM, read + pace.psum_delay, words, pace.period)
        reserve(program, state, RESULT, read + pace.result_delay, words, pace.period)


def own_slots_behind_banks(program: Columns, state: LoopState, start: int, its: PassRecipe, pace: ArrayPace) -> None:
    """Banks are owned while they are read; partial sums and results follow delivered words after a fixed delay."""
    lost = program.conflicts[its.conflicts]
    for at in range(lost.reads, lost.reads_end):
        reserve(program, state, IFMAP, start + program.bank_reads[at], 1, 1)
    for word in range(lost.words, lost.words_end):
        delivered = start + program.delivered[word]
        if its.accumulate:
            reserve(program, state, PSUM, delivered + pace.psum_delay, 1, 1)
        reserve(program, state, RESULT, delivered + pace.result_delay, 1, 1)


def own_pointers(
    program: Columns, state: LoopState, start: int, told: int, table: PointerReads, pace: ArrayPace
) -> None:
    """Pointers are read a frame ahead, the first as soon as the pass is known, in the frame that begins at `told`."""
    for word in range(table.words, table.words_end):
        frame = program.pointer_frames[word]
        before = told if frame == 0 else start + (frame - 1) * pace.period
        reserve(program, state, POINTER, before + pace.pointer_slot + program.pointer_places[word], 1, 1)


# ---- vector steps (section 4)


def vector_step(program: Columns, state: LoopState, step: int, row: Row, data: int, others: int) -> int:
    """The vector unit by itself: every array has reached the step, and stands by until it is done."""
    work, loaded, ended = program.works[row.recipe], 0, 0
    for array in range(len(state.units)):
        unit = state.units[array]
        loaded, ended = max(loaded, unit.free), max(ended, unit.ended, unit.drained)
    issued = max(data, loaded, others, ended)
    before = issued + 1 + work.delay
    start = before + work.scalars
    done = start + work.last + 1
    if not room(state, done + work.period + work.result_delay + 8):
        return MORE_ROOM
    reserve(program, state, VECTOR, before, work.scalars, 1)
    full = work.words // work.together
    for place in range(work.reads):
        # The last turn may have fewer words than the others.
        reserve(program, state, VECTOR, start + place, full + (1 if place < work.reads_rest else 0), work.period)
    for place in range(work.writes):
        later, beside = (work.result_delay + place) // work.period, (work.result_delay + place) % work.period
        # What a later turn reads in the same cycle has reserved it.
        reading = full + (1 if beside < work.reads_rest else 0) if beside < work.reads else 0
        shared = max(0, reading - later)
        turns = full + (1 if place < work.writes_rest else 0) - shared
        first = start + work.result_delay + place + shared * work.period
        reserve(program, state, VECTOR, first, turns, work.period)
    for array in range(len(state.units)):
        unit, log = state.units[array], state.works[row.number * len(state.units) + array]
        filled = max(unit.ended, data)
        log.ended, log.filled, log.loaded, log.issued = unit.ended, filled, max(filled, loaded), issued
        log.start, log.done = start, done
        unit.issued, unit.cause = issued, VECTOR_WORK
        unit.ended = unit.drained = unit.worked = done
        unit.place += 1
    return finish(state, step, done)


# ---- steps in order


def issue(program: Columns, state: LoopState, array: int) -> int:
    """Issue the next step of an array, if all that it waits for is known."""
    unit = state.units[array]
    if unit.place == program.orders[array + 1]:
        return WAITS
    step = program.order[unit.place]
    row = program.rows[step]
    ready, data, by, others, _ = known(program, state, row)
    if not ready:
        return WAITS
    if row.kind == VECTOR_STEP:
        for other in range(len(state.units)):
            place = state.units[other].place
            if place == program.orders[other + 1] or program.order[place] != step:
                return WAITS
        return vector_step(program, state, step, row, data, others)
    pace = program.paces[row.pace * len(state.units) + array]
    # Another frame begins when all passes of the one before are done.
    anew = unit.anew or row.pace != unit.pace
    if row.kind == PRELOAD:
        status = preload(program, state, step, row, unit, pace, data, by, others)
    else:
        status = stream(program, state, step, row, unit, pace, array, anew, data, by, others)
    if status == GOES_ON:
        unit.pace, unit.anew = row.pace, anew and row.kind == PRELOAD
        if row.kind == STREAM and len(state.pass_bounds):
            status = OVERDUE if unit.issued + state.pass_bounds[unit.place] >= state.clock[0].limit else GOES_ON
        unit.place += 1
    return status


def keep(program: Columns, state: LoopState) -> int:
    """Keeps end in their order: each with the last step that it waits for."""
    clock = state.clock[0]
    if clock.keep == len(program.keeps):
        return WAITS
    step = program.keeps[clock.keep]
    ready, data, _, others, _ = known(program, state, program.rows[step])
    if not ready:
        return WAITS
    clock.keep += 1
    clock.kept = max(clock.kept, data, others)
    return finish(state, step, clock.kept)


# ---- transfers (section 5)


def begin(program: Columns, state: LoopState, row: Row, move: MoveRecipe, log: MoveTimes) -> int:
    """Give the next transfer the bus, if all that it waits for is known."""
    dma = state.dma[0]
    ready, data, _, others, stored = known(program, state, row)
    if not ready:
        return WAITS
    log.bus, log.free = move.bus, state.bus_free[move.bus]
    # A fill must not read what a spill has not yet stored.
    log.ready, log.freed = max(log.free, dma.begun, data, others, stored), max(dma.freed, others)
    # At most two transfers have data on their way from or to the lanes.
    log.start = log.ready if row.kind == PREFETCH else max(log.ready, dma.staged)
    return GOES_ON


def bring(program: Columns, state: LoopState, move: MoveRecipe, log: MoveTimes) -> None:
    """Words of a fill come evenly from the pipe, the first after the latency."""
    first, wanted = log.start + program.latency[move.bus], state.wanted
    # Word number n, counted from 1, has come n * busy / words cycles after the latency, rounded up.
    each, more, words = move.busy // move.words, move.busy % move.words, move.words
    at, rest = first, words - 1
    for word in range(words):
        at, rest = at + each, rest + more
        if rest >= words:
            at, rest = at + 1, rest - words
        wanted[word] = at
    log.come, log.ended = first + move.moving + 1, log.start + move.busy


def demand(state: LoopState, move: MoveRecipe, log: MoveTimes) -> None:
    """The pipe can take the words of a spill evenly, the first at once."""
    each, more, words, wanted = move.busy // move.words, move.busy % move.words, move.words, state.wanted
    at, rest = log.start, 0
    for word in range(words):
        wanted[word] = at
        at, rest = at + each, rest + more
        if rest >= words:
            at, rest = at + 1, rest - words
    log.come = log.start + (move.words - 1) * move.moving // move.words + 1


def store(program: Columns, move: MoveRecipe, log: MoveTimes) -> None:
    """The last word of a spill, taken from the port, must still cross the bus and be stored."""
    log.busy, log.stalled = move.busy, log.start + move.busy
    log.ended = max(log.stalled, log.taken + 1 - (-move.busy // move.words))
    log.stored = log.ended + program.latency[move.bus]


def access(cells: Any, end: int, base: int, at: int, keeps: int) -> int:
    """The first free cycle from `at` on, which a transfer owns from now on."""
    slot = next_free(cells, end, base, at)
    # Nobody asks for cycles before the next transfer's, so owning them shows only where they are kept.
    if keeps:
        cells[slot - base] = DMA
    return slot


def take(program: Columns, state: LoopState, kind: int, move: MoveRecipe, log: MoveTimes) -> int:
    """Take the first free cycle of the port for every word that is wanted, and for every access beside it, in order."""
    dma, window, port = state.dma[0], state.window[0], program.port_of[DMA]
    cells, base, end, wanted = state.cells[port], window.first, state.ends[port], state.wanted
    last_wanted, word, slot = wanted[move.words - 1], 0, dma.last - 1
    if kind == PREFETCH:
        slot = last_wanted - 1
    elif kind == BANK_FILL:
        # Banks take words through ports of their own, a word a cycle.
        for word in range(move.words):
            slot = max(slot + 1, wanted[word])
    else:
        keeps, taken = window.keeps, state.taken
        if keeps and not room(state, max(last_wanted, end, slot) + move.accesses + 8):
            return MORE_ROOM
        for number in range(move.parts, move.parts_end):
            its = program.parts[number]
            words, beside, ahead, behind = its.words, its.beside, its.ahead, its.behind
            for at in range(words):
                # Of the accesses for a word, that of the word itself comes behind these.
                before = beside + (ahead if at == 0 else 0)
                for _ in range(before):
                    slot = access(cells, end, base, max(slot + 1, wanted[word]), keeps)
                slot = taken[word] = access(cells, end, base, max(slot + 1, wanted[word]), keeps)
                for _ in range(behind if at == words - 1 else 0):
                    slot = access(cells, end, base, slot + 1, keeps)
                word += 1
        state.owned[DMA] += move.accesses
        window.settled, log.taken = slot + 1, state.taken[move.words - 1]
        if window.keeps:
            state.ends[port] = max(end, slot + 1)
    log.converted, log.done = last_wanted + 1, slot + 1
    return GOES_ON


def settle(program: Columns, state: LoopState, step: int, row: Row, log: MoveTimes) -> int:
    """A transfer is over: the bus is free again, and the transfer after the next may begin."""
    clock, dma = state.clock[0], state.dma[0]
    dma.begun, dma.freed = log.start, log.freed
    state.bus_free[log.bus] = log.ended
    if row.kind == SPILL:
        clock.end = max(clock.end, log.stored)
        # The last lane stores its words later, by the skew.
        log.stored += program.machine[0].skew
    else:
        log.busy, log.stalled = log.ended - log.start, log.ended
    if row.kind != PREFETCH:
        dma.staged, dma.last = dma.last, log.done
        log.held = held_in(log.done - 1, log)
    finish(state, step, log.done)
    to_come = state.move_bounds[dma.transfer] if len(state.move_bounds) else -1
    dma.transfer += 1
    return OVERDUE if to_come >= 0 and log.ended + to_come >= clock.limit else GOES_ON


def held_in(cycle: int, log: MoveTimes) -> int:
    """What holds a transfer in a cycle: the first that still applies."""
    if cycle < log.freed:
        return BLOCKED
    if cycle < log.come:
        return STARVING
    return CONVERSION if cycle < log.converted else PORT_STALL


def transfer(program: Columns, state: LoopState) -> int:
    """The next transfer from its begin to its end; a DRAM with banks serves it between calls of `run`."""
    dma = state.dma[0]
    if dma.transfer == len(program.transfers):
        return WAITS
    step = program.transfers[dma.transfer]
    row = program.rows[step]
    move, log, spills = program.moves[row.recipe], state.moves[row.number], row.kind == SPILL
    if dma.stage == TO_BEGIN:
        if begin(program, state, row, move, log) == WAITS:
            return WAITS
        if move.served:
            return SERVE
        if spills:
            demand(state, move, log)
        else:
            bring(program, state, move, log)
    if dma.stage <= WANTED:
        if take(program, state, row.kind, move, log) == MORE_ROOM:
            return MORE_ROOM
        if spills and move.served:
            return STORE
        if spills:
            store(program, move, log)
    dma.stage = TO_BEGIN
    return settle(program, state, step, row, log)


def run(program: Columns, state: LoopState) -> int:
    """Go on from where the state stands, until all steps are done, or the loop must stop."""
    while True:
        going = True
        while going:
            going = False
            for array in range(len(state.units)):
                status = issue(program, state, array)
                while status == GOES_ON:
                    going = True
                    status = issue(program, state, array)
                if status != WAITS:
                    return status
            while keep(program, state) == GOES_ON:
                going = True
        status = transfer(program, state)
        if status == WAITS:
            break
        if status != GOES_ON:
            return status
    for array in range(len(state.units)):
        # With many arrays, a frame in progress may outlast the few words in it.
        state.clock[0].end = max(state.clock[0].end, state.units[array].ended)
    for step in range(len(state.done)):
        if state.done[step] == UNKNOWN:
            return STUCK
    return FINISHED
