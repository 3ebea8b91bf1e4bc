"""Streams and vector steps, issued in turn: pointers, ifmap words array by array, results; and the vector unit's
accesses to the port.
"""

from __future__ import annotations

from typing import NamedTuple

from tpusim.machines.tpu.definition import IFMAP, NEVER, POINTER, PSUM, RESULT, VECTOR
from tpusim.machines.tpu.register.banks import ASKING, HANDED_ON, Banks, ask_banks
from tpusim.machines.tpu.register.board import (
    BANK_CONFLICT,
    BLOCKED,
    BUSY,
    FAILED,
    PORT_STALL,
    VECTOR_FROM,
    VECTOR_STEP,
    WAITING_WEIGHTS,
    BoardRegisters,
    book_work,
    finish,
    waiting,
)
from tpusim.machines.tpu.register.wires import LAST, NOWHERE, Counts, Record, Records, Wires, part, registers

TURNS = 4
"""Turns of a step whose results a lane has registers for: words wait for their slots while the next are read and worked
out.
"""

ALONE = -1
"""Slot of a client that has the port to itself."""

FRAME = registers(
    "period issue_cycles port_stall add_cycles finish_cycles accumulates psum_slot result_slot psum_delay result_delay "
    "together pointer past_pointer"
)
"""The port's period of a layer (`definition.Frame`), with ALONE for no slot, and the first and past the last pointer
slot.
"""

ISSUE = registers(
    # Of every step: waits for data, for weights, for others lie one behind the other.
    "step vector words lanes data weights others past_others cause "
    # Of a pass.
    "frame elements generator buffer base accumulate finishes table table_base per_word repeat together "
    # Of a vector step.
    "delay scalars scalar_base period loads stores operands side_by_side result_delay work writes word_words sources "
    "read"
)
"""A step to be issued; `table` tells whether a pass has pointers, `read` is the first of a vector step's reads for a
word, `past_others` is past the last of the steps that it waits for, and `lanes` are the columns of a pass.
"""

STREAM = registers(
    "next past issued issued_at over_at sums_ready word lost booked held current frame cause first arrays "
    "pointer_step told_at pointers_at pointer_word pointer_number pointer_first pointed"
)
"""Registers of the arrays that share weights, `arrays` from `first` on. `held` are words that have been read and whose
results are not written yet. Of pointers: the pass that they are read for, or -1, since when, the cycle in which it was
issued, or -1, its next word, words ever read, those before the pass, and the running pass's first pointer among all.
"""

WORD = registers("issue word summed")
"""A word of a stream on its way through an array."""

QUEUE = registers("read summed written")
"""Words of an array since the layer began: those read, those whose sums have been taken up, and those written."""


class Streams(NamedTuple):
    """Streams of all queues, and vector steps.

    Attributes:
        frames: FRAMEs.
        issues: ISSUEs, queue by queue.
        reads: orders of vector steps for a word, in order: pointers, which only lane 0 reads, then operands, picked
            ones element by element.
        units: registers of each queue.
        readings: ifmap reads of this cycle, one for each queue.
        words: [array, word], and `queues`, of each array.
        turns: the order in which queues are visited.
        through: steps that each queue has issued when a layer is over, [layer, queue], for all layers but the last.
        registers: registers of a lane for results of a turn.
        slots: vector accesses of a cycle beyond the first, at most.
    """

    frames: Records
    issues: Records
    reads: Records
    units: Records
    readings: Records
    words: Records
    queues: Records
    turns: Counts
    through: Counts
    registers: int
    slots: int
    lanes: int


@part
def running(own: Streams, board: BoardRegisters, queue: int, now: int) -> bool:
    """Whether a stream occupies the array's rows, or the vector unit works by itself."""
    return bool(board.at[VECTOR_STEP] >= 0 or now < own.units[queue]["over_at"])


@part
def any_running(own: Streams, board: BoardRegisters, now: int) -> bool:
    """Whether a stream occupies the rows of any array, or the vector unit works by itself."""
    for queue in range(len(own.units)):  # noqa: SIM110  compiled, and no place for a generator
        if running(own, board, queue, now):
            return True
    return False


@part
def clock_streams(
    own: Streams, board: BoardRegisters, banks: Banks, wires: Wires, queue: int, now: int, held: int
) -> None:
    """Read a word of the running stream, issue the next one if possible, and book the cycle.

    A vector step is issued to all queues together. `held` holds the transfers in this cycle.
    """
    unit = own.units[queue]
    frame = own.frames[unit["frame"]]
    if frame["finish_cycles"] and not frame["accumulates"]:
        for array in range(unit["first"], unit["first"] + unit["arrays"]):
            _note_sums(own, board, wires, queue, array, now)
    _take_frame(own, board, queue, now)
    frame = own.frames[unit["frame"]]
    # Read before issuing: in a frame of one cycle, the last word is read in the very cycle in which the next stream
    # is issued.
    own.readings[queue]["client"] = 0
    _read(own, board, banks, queue, now)
    if frame["past_pointer"] > frame["pointer"]:
        _tell(own, board, queue, now)
    if not running(own, board, queue, now) and unit["next"] < unit["past"]:
        cause = _waits_for(own, board, queue, now, held)
        if cause >= 0:
            board.use[queue, cause] += 1
            return
        at = own.issues[unit["next"]]
        if at["vector"]:
            board.at[VECTOR_STEP], board.at[VECTOR_FROM] = unit["next"], now + 1 + at["delay"]
            for other in range(len(own.units)):
                # The others stand by while the vector step that was next is carried out.
                beside = own.units[other]
                beside["cause"] = own.issues[beside["next"]]["cause"]
                beside["next"] += 1
                beside["issued"] += 1
        else:
            # The first word is read in the cycle after this one.
            unit["current"] = unit["next"]
            unit["next"] += 1
            if at["table"]:
                unit["pointers_at"], unit["pointed"] = now, unit["pointer_first"] * at["per_word"]
            unit["issued"] += 1
            frames = -(-at["words"] // frame["together"])
            unit["issued_at"], unit["over_at"] = now, now + frames * frame["period"]
            unit["word"] = unit["booked"] = 0
    if running(own, board, queue, now):
        _book(own, board, queue)


@part
def _take_frame(own: Streams, board: BoardRegisters, queue: int, now: int) -> None:
    """Go on by the frame of the next pass once it has weights: by then no word of another frame is on its way."""
    unit = own.units[queue]
    if unit["next"] == unit["past"]:
        return
    at = own.issues[unit["next"]]
    if at["vector"] or at["frame"] == unit["frame"] or running(own, board, queue, now):
        return
    if not waiting(board.done, board.waits, at["weights"], at["others"], now):
        unit["frame"] = at["frame"]


@part
def _read(own: Streams, board: BoardRegisters, banks: Banks, queue: int, now: int) -> None:
    """Note the next ifmap word, if one is due in this cycle; the generators move on."""
    unit = own.units[queue]
    if not unit["issued_at"] < now <= unit["over_at"]:
        return
    at, frame, word = own.issues[unit["current"]], own.frames[unit["frame"]], unit["word"]
    if word == at["words"]:
        return
    array, ready = now % frame["period"], 1
    if banks.banked:
        ready = ask_banks(banks, at["generator"], word)
        if ready < 0:
            board.at[FAILED] = -ready
            return
    if not unit["first"] <= array < unit["first"] + unit["arrays"]:
        return
    if not ready:
        # The whole stream moves back by a frame, so that all slots stay where they are in the frame.
        unit["over_at"] += frame["period"]
        unit["lost"] += frame["period"]
        return
    if banks.banked:
        # Every row's word leaves its capture register.
        banks.at[ASKING], banks.at[HANDED_ON] = 0, 1
    if word == 0:
        unit["sums_ready"] = now + frame["result_delay"] - frame["psum_delay"]
    order = own.readings[queue]
    order["client"], order["step"], order["lanes"], order["address"] = IFMAP, at["step"], own.lanes, NOWHERE
    order["generator"], order["word"], order["array"] = at["generator"], word, array
    order["buffer"], order["elements"], order["element"] = at["buffer"], at["elements"], -1
    order["pointer"] = order["together"] = 0
    if at["table"]:
        order["pointer"] = unit["pointed"] + word // at["repeat"] * at["together"]
        order["together"] = at["together"]
    number = own.queues[array]["read"]
    entry = own.words[array, number]
    entry["issue"], entry["word"], entry["summed"] = unit["current"], word, NEVER
    own.queues[array]["read"] = number + 1
    unit["held"] += 1
    unit["word"] = word + 1


@part
def _waits_for(own: Streams, board: BoardRegisters, queue: int, now: int, held: int) -> int:
    """Why the next stream or vector step cannot be issued in this cycle; -1 when it can."""
    unit = own.units[queue]
    at, frame = own.issues[unit["next"]], own.frames[unit["frame"]]
    if waiting(board.done, board.waits, at["data"], at["weights"], now):
        unit["cause"] = held
    elif waiting(board.done, board.waits, at["weights"], at["others"], now):
        unit["cause"] = WAITING_WEIGHTS
    elif waiting(board.done, board.waits, at["others"], at["past_others"], now):
        unit["cause"] = BLOCKED
    elif at["vector"]:
        if not any_running(own, board, now):
            return -1
        unit["cause"] = BLOCKED
    elif at["accumulate"] and now < unit["sums_ready"]:
        unit["cause"] = BLOCKED
    elif at["table"] and (unit["pointer_step"] != unit["next"] or now < unit["told_at"] + frame["period"] - 1):
        # Its first pointers are not there.
        unit["cause"] = PORT_STALL
    elif (now + 1 - unit["first"]) % frame["period"] == 0:
        return -1
    return int(unit["cause"])


@part
def _book(own: Streams, board: BoardRegisters, queue: int) -> None:
    """Book a cycle in which the vector unit works or a stream runs: a lost cycle, or one of a word's frame."""
    unit = own.units[queue]
    frame, cause = own.frames[unit["frame"]], BLOCKED
    if board.at[VECTOR_STEP] >= 0:
        cause = unit["cause"]
    elif unit["lost"]:
        unit["lost"] -= 1
        cause = BANK_CONFLICT
    else:
        offset = unit["booked"] % frame["period"]
        unit["booked"] += 1
        if offset < frame["issue_cycles"]:
            cause = BUSY
        elif offset < frame["issue_cycles"] + frame["port_stall"]:
            cause = PORT_STALL
    board.use[queue, cause] += 1


# ---- pointers: first in the frame ahead of a stream's first ifmap word, then always a frame ahead


@part
def _tell(own: Streams, board: BoardRegisters, queue: int, now: int) -> None:
    """Tell the pointer reader of the next pass, once the pass ahead is in its last frame or over, all data is in
    memory, and frames are those of the pass.
    """
    unit = own.units[queue]
    period = own.frames[unit["frame"]]["period"]
    if now % period or now <= unit["over_at"] - period or unit["next"] == unit["past"]:
        return
    at = own.issues[unit["next"]]
    if at["vector"] or not at["table"] or unit["pointer_step"] == unit["next"] or at["frame"] != unit["frame"]:
        return
    if waiting(board.done, board.waits, at["data"], at["weights"], now):
        return
    if waiting(board.done, board.waits, at["others"], at["past_others"], now):
        return
    # All pointers of the stream before have been read.
    unit["pointer_step"], unit["told_at"], unit["pointers_at"] = unit["next"], now, -1
    unit["pointer_word"], unit["pointer_first"] = 0, unit["pointer_number"]


@part
def ask_pointers(own: Streams, order: Record, now: int) -> bool:
    """The next pointer word, in a slot for pointers, if the next frame needs it."""
    unit = own.units[0]
    frame = own.frames[unit["frame"]]
    period, since = frame["period"], 0
    if unit["pointer_step"] < 0 or not frame["pointer"] <= now % period < frame["past_pointer"]:
        return False
    at = own.issues[unit["pointer_step"]]
    if unit["pointers_at"] >= 0:
        since = (now - unit["pointers_at"] - 1) // period + 1
    last = min((since + 1) * frame["together"], at["words"]) - 1
    if unit["pointer_word"] * at["per_word"] >= (last // at["repeat"] + 1) * at["together"]:
        return False
    order["client"], order["step"], order["lanes"] = POINTER, at["step"], 1
    order["address"], order["number"] = at["table_base"] + unit["pointer_word"], unit["pointer_number"]
    unit["pointer_word"] += 1
    unit["pointer_number"] += 1
    return True


# ---- results


@part
def _note_sums(own: Streams, board: BoardRegisters, wires: Wires, queue: int, array: int, now: int) -> None:
    """Note since when a word without a partial sum could be finished; finishing begins at once."""
    words, unit = own.queues[array], own.units[queue]
    for number in range(words["summed"], min(words["read"], wires.complete[array, 0])):
        word = own.words[array, number]
        if word["summed"] > now:
            word["summed"] = now
            at, frame = own.issues[word["issue"]], own.frames[unit["frame"]]
            if at["finishes"] and array == unit["first"]:
                book_work(board, queue, frame["finish_cycles"], now + frame["finish_cycles"])


@part
def _turn(slot: int, array: int, period: int, now: int) -> bool:
    """Whether the words of an array may use the port in cycle `now`; `slot` is the slot of the first array.

    Without a slot, nobody else wants the port, and every array may use it in every cycle.
    """
    return slot == ALONE or now % period - slot == array


@part
def ask_psums(own: Streams, board: BoardRegisters, wires: Wires, queue: int, order: Record, now: int) -> bool:
    """Read the partial sum of a word whose last sum arrives in this cycle, or has arrived."""
    unit = own.units[queue]
    frame = own.frames[unit["frame"]]
    if not unit["held"] or not frame["accumulates"]:
        return False
    for array in range(unit["first"], unit["first"] + unit["arrays"]):
        words = own.queues[array]
        number = words["summed"]
        if number == words["read"] or not _turn(frame["psum_slot"], array, frame["period"], now):
            continue
        if number >= _completing(wires, array):
            continue
        words["summed"] = number + 1
        word = own.words[array, number]
        word["summed"] = now
        at = own.issues[word["issue"]]
        # The words of a frame are added to and finished side by side, so that is booked once, with the first array's.
        if array == unit["first"]:
            adds = frame["add_cycles"] if at["accumulate"] else 0
            finishing = frame["finish_cycles"] if at["finishes"] else 0
            book_work(board, queue, adds + finishing, now + frame["add_cycles"] + finishing)
        if at["accumulate"]:
            order["client"], order["step"], order["lanes"] = PSUM, at["step"], at["lanes"]
            order["address"], order["array"], order["number"] = at["base"] + word["word"], array, number
            return True
    return False


@part
def _completing(wires: Wires, array: int) -> int:
    """Words that lane 0 has collected from an array, and the one whose last sum is just leaving it."""
    last = 0
    for plane in range(wires.sums_tag.shape[1]):
        last |= wires.sums_tag[array, plane, 0] > LAST
    return int(wires.complete[array, 0] + last)


@part
def ask_results(own: Streams, board: BoardRegisters, wires: Wires, queue: int, order: Record, now: int) -> bool:
    """Write a word that is complete, or whose adds are done."""
    unit = own.units[queue]
    frame = own.frames[unit["frame"]]
    if not unit["held"]:
        return False
    for array in range(unit["first"], unit["first"] + unit["arrays"]):
        words = own.queues[array]
        number = words["written"]
        if number == (words["summed"] if frame["accumulates"] else words["read"]):
            continue
        word = own.words[array, number]
        if not _turn(frame["result_slot"], array, frame["period"], now):
            continue
        if frame["accumulates"] or frame["finish_cycles"]:
            ready = now >= word["summed"] + frame["add_cycles"] * frame["accumulates"] + frame["finish_cycles"]
        else:
            ready = number < wires.complete[array, 0]
        if not ready:
            continue
        words["written"] = number + 1
        if not frame["accumulates"]:
            words["summed"] = number + 1
        at = own.issues[word["issue"]]
        if word["word"] == at["words"] - 1:
            finish(board, at["step"], now + 1)
        order["client"], order["step"], order["lanes"] = RESULT, at["step"], at["lanes"]
        order["address"], order["array"], order["number"] = at["base"] + word["word"], array, number
        order["accumulate"], order["finishes"] = at["accumulate"], at["finishes"]
        unit["held"] -= 1
        return True
    return False


@part
def words_wait(own: Streams, queue: int) -> bool:
    """Whether words are on their way through an array."""
    unit = own.units[queue]
    if not unit["held"]:
        return False
    for array in range(unit["first"], unit["first"] + unit["arrays"]):
        if own.queues[array]["summed"] < own.queues[array]["read"]:
            return True
    return False


# ---- vector steps, one at a time


@part
def ask_vector(own: Streams, board: BoardRegisters, told: Records, port: int, now: int) -> bool:
    """The accesses of the vector step that are due in this cycle; the last access of all completes the step.

    The first goes to `port`, the others to the slots behind the ports.
    """
    number = board.at[VECTOR_STEP]
    since = now - board.at[VECTOR_FROM]
    if number < 0 or since < 0:
        return False
    at, count, slot = own.issues[number], 0, port
    if since < at["scalars"]:
        order = told[port]
        order["client"], order["step"], order["lanes"] = VECTOR, at["step"], at["lanes"]
        order["address"], order["register"] = at["scalar_base"] + since, since
        return True
    period, together = at["period"], at["side_by_side"]
    turn, place = (since - at["scalars"]) // period, (since - at["scalars"]) % period
    for access in range(place * at["loads"], (place + 1) * at["loads"]):
        side, operand = access // at["operands"], access % at["operands"]
        if side < together and turn * together + side < at["words"]:
            _read_operand(own, at, told[slot], operand, turn, side)
            count, slot = count + 1, len(told) - own.slots + count
    turn = (since - at["scalars"] - at["result_delay"]) // period
    place, begun = (since - at["scalars"] - at["result_delay"]) % period, turn * together
    if turn < 0 or begun >= at["words"]:
        return count > 0
    if place == 0:
        for queue in range(len(own.units)):
            book_work(board, queue, at["work"], now)
    for side in range(place * at["stores"], min((place + 1) * at["stores"], together, at["words"] - begun)):
        if begun + side == at["words"] - 1:
            finish(board, at["step"], now + 1)
            board.at[VECTOR_STEP] = -1
        order = told[slot]
        order["client"], order["step"], order["lanes"], order["address"] = VECTOR, at["step"], at["lanes"], NOWHERE
        order["generator"], order["word"], order["stores"] = at["writes"], begun + side, 1
        order["number"] = turn % TURNS * own.registers + side
        count, slot = count + 1, len(told) - own.slots + count
    return count > 0


@part
def _read_operand(own: Streams, at: Record, order: Record, operand: int, turn: int, side: int) -> None:
    """The read of an operand, or of pointers, for a word that is made beside others."""
    word, read = turn * at["side_by_side"] + side, own.reads[at["read"] + operand]
    order["client"], order["step"], order["lanes"] = VECTOR, read["step"], read["lanes"]
    order["address"], order["generator"], order["register"] = read["address"], read["generator"], read["register"]
    order["element"], order["pointer"], order["together"] = read["element"], read["pointer"], read["together"]
    order["points"], order["works"] = read["points"], read["works"]
    if read["points"]:
        order["address"] = read["address"] + word * at["word_words"]
    else:
        order["register"] = read["register"] + side * at["sources"]
        order["word"], order["number"] = word, turn % TURNS * own.registers + side
