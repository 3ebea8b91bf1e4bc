"""The lanes: each has its words, its ports, an ifmap and a weight serializer, and partial sums for its vector unit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tpusim.machines.tpu.definition import DMA, FREE, IFMAP, POINTER, PSUM, RESULT, VECTOR, WEIGHT
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.register.banks import POINTED, Banks, Settings, address_of
from tpusim.machines.tpu.register.blocks import fetch
from tpusim.machines.tpu.register.hbm import HbmWords
from tpusim.machines.tpu.register.vector import VectorRegisters, WorkRegisters
from tpusim.machines.tpu.register.wires import (
    ENTERING,
    IDLE,
    LAST,
    LOADING,
    NOWHERE,
    ORDER,
    Counts,
    Floats,
    Ints,
    Record,
    Records,
    Tags,
    Wires,
    cells,
    copy,
    part,
    registers,
    spare_of,
)

HEAD, OBEYING, WORKING, POINTING = range(4)
"""Head of the windows of orders and pointers; cycles for which some lane still has an order, or had one in the cycle
before; cycles for which some lane still has an order by which its vector unit works; the pointers that the reader and
the vector unit have told.
"""

READ, WRITTEN = range(2)

WEIGHT_AT = registers("left row buffer place")
"""Registers of a weight serializer: weights left to issue, the row of the next, the buffer they go to, and the place of
the next in the word.
"""


class Lanes(NamedTuple):
    """Lanes with their ports. A port, and each further slot of the vector unit, obeys one order a cycle. The next group
    of lanes obeys the same order a cycle later. Registers are [port, lane]; registers of orders are [port, group].
    """

    # Registers of all lanes together, from HEAD on.
    at: Counts
    # The group of each lane: the number of cycles that it is behind lane 0.
    group: Counts
    # [port, group], seen through a window, and so are the pointers that go with them, [group, pointer].
    orders: Records
    pointers: Counts
    # The pointer reader's words, in lane 0: for two frames, and one that reaches into both from the frame before.
    reader: Floats
    # Ports in this cycle: the address touched, or NOWHERE, and the word.
    addresses: Counts
    words: Floats
    # Lanes that have an order in this cycle, and behind them their number; those that read their memory, or HBM.
    busy: Counts
    reads: Counts
    moves: Counts
    # [lane, READ or WRITTEN], so far.
    accesses: Counts
    # [word, lane, W]: in turn, lanes mostly access a word of the same address.
    memory: Floats
    # Ifmap serializers: the word, whose last elements are in use, those left to issue, and the weight buffer they are
    # meant for.
    serial: Floats
    left: Counts
    buffer: Counts
    # Weight serializers: the word, and WEIGHT_AT.
    weight_serial: Floats
    weight_at: Records
    # Partial sums that wait for the words to which they are added.
    psums: Floats
    # What the address generators walk (`Settings`).
    patterns: Counts
    bases: Counts
    counters: Counts
    tables: Counts
    # Words of transfers by their place in HBM, and whether a lane takes part.
    hbm: Floats
    used: Records
    # The vector unit's registers of operands, results and pointers, and those beside transfers.
    vector: Floats
    results: Floats
    picked: Floats
    beside: Floats

    @classmethod
    def of(
        cls, program: Program, pointer_slots: int, slots: int, settings: Settings, wires: Wires, hbm: HbmWords,
        vector: VectorRegisters, beside: WorkRegisters,
    ) -> Lanes:  # fmt: skip
        """The lanes before the first cycle."""
        (arrays, _, rows), number = wires.activation.shape, wires.sums.dtype
        _, cols, _, elements = wires.results.shape
        lanes, word_elements = settings.patterns.shape[1], hbm.values.shape[1]
        group = np.arange(lanes) // wires.crossed
        groups = int(group[-1]) + 1
        together = max((table.together for table in program.tables), default=1)
        per_word = max((table.per_word for table in program.tables), default=1)
        memory = cells((program.words, lanes, word_elements), number)
        memory[...] = np.nan
        # One serializer of weights for all arrays that share weights, or one for each array.
        queues, (left, buffer) = vector.queues, np.zeros((2, arrays, rows), np.int64)
        return cls(
            np.array([spare_of(), 0, 0, 0]), group,
            np.tile(IDLE, (slots, spare_of() + groups)).astype(ORDER),
            np.zeros((spare_of() + groups, max(together, vector.together)), np.int64),
            np.zeros((2 * pointer_slots + 1, per_word), number),
            np.full((slots, lanes), NOWHERE, np.int64), cells((slots, lanes, word_elements), number),
            np.zeros((slots, lanes + 1), np.int64), np.zeros(lanes, np.int64), np.zeros(lanes, np.int64),
            np.zeros((lanes, 2), np.int64), memory,
            cells((arrays, rows, elements), number), left, buffer,
            cells((queues, cols, vector.word_elements), number), np.zeros((queues, cols), WEIGHT_AT),
            cells(wires.results.shape, number), settings.own, settings.bases, settings.counters, settings.tables,
            hbm.values, hbm.used, vector.words, vector.results, vector.pointers, beside.words,
        )  # fmt: skip

    @property
    def places(self) -> Counts:
        """The place among `orders` of each lane's order in this cycle."""
        found: Counts = self.at[HEAD] + self.group
        return found

    @property
    def obeyed(self) -> Records:
        """The order [port, lane] that every lane has in this cycle."""
        found: Records = self.orders[:, self.places]
        return found


@part
def give_orders(own: Lanes, banks: Banks, told: Records) -> None:
    """Give lane 0 the orders that it is `told`, one a port, and every other lane its neighbour's: this is the skew."""
    at, groups = own.at, own.group[-1] + 1
    for slot in range(len(told)):
        if told[slot]["client"] != FREE:
            at[OBEYING] = groups + 1
    if not at[OBEYING] and not banks.banked:
        return
    at[HEAD] -= 1
    head = at[HEAD]
    for slot in range(len(told)):
        order = told[slot]
        own.orders[slot, head] = order
        # Pointers travel down the lanes with the order that needs them: an ifmap read, or a picked element.
        for number in range(order["together"]):
            read = own.picked if order["client"] == VECTOR else own.reader
            words, per_word = read.shape
            place = (order["pointer"] + number) % (words * per_word)
            own.pointers[head, number] = int(read[place // per_word, place % per_word])
        if order["works"] and order["client"] == VECTOR:
            at[WORKING] = groups
    if head == 0:
        # The window has reached the first cell: its contents are copied once, to the far end.
        at[HEAD] = own.orders.shape[1] - groups
        for group in range(groups - 1, -1, -1):
            for slot in range(len(told)):
                own.orders[slot, at[HEAD] + group] = own.orders[slot, group]
            copy(own.pointers[at[HEAD] + group], own.pointers[group])


@part
def sample_lanes(own: Lanes, banks: Banks, wires: Wires) -> int:
    """Make the accesses of every lane, and fill the port registers.

    While no lane has an order, nothing is read or written; banks bring ifmap words by themselves. Return the number
    (port by port) of a register that cannot do what it should, or -1.
    """
    if not own.at[OBEYING] and not banks.banked:
        return -1
    for port in range(len(own.orders)):
        orders = own.orders[port, own.at[HEAD] :]
        failed = _sample_port(own, banks, wires, orders, own.addresses[port], own.words[port], own.busy[port])
        if failed >= 0:
            return int(port * len(own.group) + failed)
    return -1


@part
def _sample_port(
    own: Lanes, banks: Banks, wires: Wires, orders: Records, addresses: Counts, words: Floats, busy: Counts
) -> int:
    """Make the accesses of every lane by one port; return the number of a lane whose access cannot be, or -1."""
    depth, lanes, _ = own.memory.shape
    count = reads = moves = past = 0
    for group in range(own.group[-1] + 1):
        order = orders[group]
        client, (first, past) = order["client"], (past, min(past + wires.crossed, lanes))
        for lane in range(first, past):
            addresses[lane] = address = NOWHERE
            if client == FREE:
                continue
            busy[count], count = lane, count + 1
            if lane < order["lanes"]:
                addresses[lane] = address = _address(own, order, group, lane)
            if address == NOWHERE:
                words[lane] = 0
                if client == IFMAP and banks.banked and lane < min(order["lanes"], len(banks.behind)):
                    _take(banks, lane, words[lane])
            elif not 0 <= address < depth:
                return int(lane)
            elif client == VECTOR and order["stores"]:
                own.accesses[lane, WRITTEN] += 1
                copy(words[lane], own.results[lane, order["number"]])
            elif client == DMA and order["beside"] and order["stores"]:
                own.accesses[lane, WRITTEN] += 1
                copy(words[lane], own.beside[lane, order["register"]])
            elif client == DMA and not (order["beside"] or order["spill"]):
                own.accesses[lane, WRITTEN] += 1
                own.moves[moves], moves = lane, moves + 1
            elif client != RESULT:
                own.accesses[lane, READ] += 1
                own.reads[reads], reads = lane, reads + 1
            elif not _write_back(own, wires, order, lane, words[lane]):
                return int(lane)
    busy[lanes] = count
    # Words come all at once: each may have to wait for the computer's own memory.
    for number in range(reads):
        lane = own.reads[number]
        copy(words[lane], own.memory[addresses[lane], lane])
        # The next lane mostly reads the same address in the next cycle.
        fetch(own.memory[addresses[lane], min(lane + wires.crossed, lanes - 1)], 0)
    for number in range(moves):
        lane = own.moves[number]
        place = orders[own.group[lane]]["number"] + lane
        copy(words[lane], own.hbm[place])
        fetch(own.hbm[min(place + wires.crossed, len(own.hbm) - 1)], 0)
    return -1


@part
def _write_back(own: Lanes, wires: Wires, order: Record, lane: int, word: Floats) -> bool:
    """Put into a port register a result, added to its partial sum if it has one; return whether it is there.

    A result may be written from the cycle in which it is complete until it is overwritten, as many words later as
    there are places.
    """
    array, places = order["array"], wires.results.shape[2]
    if not 0 < wires.complete[array, lane] - order["number"] <= places:
        return False
    own.accesses[lane, WRITTEN] += 1
    place = order["number"] % places
    copy(word[: wires.results.shape[3]], wires.results[array, lane, place])
    if order["accumulate"]:
        psums = own.psums[array, lane, place]
        for element in range(len(psums)):
            word[element] += psums[element]
    return True


@part
def _address(own: Lanes, order: Record, group: int, lane: int) -> int:
    """The address that a lane's port touches, or NOWHERE."""
    client, address = order["client"], order["address"]
    if address == NOWHERE and client in (IFMAP, VECTOR, DMA):
        pattern = own.patterns[order["generator"], lane]
        if pattern < 0:
            return NOWHERE
        if pattern != order["pattern"]:
            order["pattern"], order["found"] = pattern, _generated(own, order, group, pattern)
        return int(order["found"])
    if client == DMA and not own.used[order["number"] + lane]:
        return NOWHERE
    return int(address)


@part
def _generated(own: Lanes, order: Record, group: int, pattern: int) -> int:
    """The address that a generator finds by a pattern, or NOWHERE."""
    if own.counters[pattern, 0, 0] != POINTED:
        return address_of(pattern, own.bases, own.counters, own.tables, order["word"])
    # The last bit of a pointer marks padding.
    pointer = own.pointers[own.at[HEAD] + group, own.counters[pattern, 0, 1]]
    if pointer & 1:
        return NOWHERE
    return int(own.bases[pattern, 0] + (pointer >> 1) + order["word"] % own.counters[pattern, 0, 2])


@part
def _take(banks: Banks, row: int, word: Floats) -> None:
    """Put into a port register what comes out of the skew for a row that is told to take it."""
    for element in range(len(word)):
        word[element] = banks.skew[banks.at[0] + banks.behind[row], row, element]


@part
def commit_lanes(own: Lanes, banks: Banks, wires: Wires) -> int:
    """Serializers move on, and what was read or is to be written goes where it belongs.

    Return the number of a lane whose serializer gets a word before the last one has left it, or -1.
    """
    at, failed = own.at, -1
    if at[OBEYING] or banks.banked:
        failed = _move(own)
        at[OBEYING] = max(0, at[OBEYING] - 1)
    elif not (wires.any[ENTERING] or wires.any[LOADING]):
        return -1
    _issue_activations(own, wires)
    _issue_weights(own, wires)
    return failed


@part
def _move(own: Lanes) -> int:
    """Move every word from its port to its place: a serializer, the vector unit, the memory or HBM.

    Return the number of a lane whose serializer is not empty, or -1.
    """
    for port in range(len(own.orders)):
        orders = own.orders[port, own.at[HEAD] :]
        failed = _move_port(own, orders, own.addresses[port], own.words[port], own.busy[port])
        if failed >= 0:
            return int(failed)
    return -1


@part
def _move_port(own: Lanes, orders: Records, addresses: Counts, words: Floats, busy: Counts) -> int:
    """Move the words of one port; return the number of a lane whose serializer is not empty, or -1."""
    (_, rows, elements), (_, cols, word_elements) = own.serial.shape, own.weight_serial.shape
    for number in range(busy[len(own.group)]):
        lane = busy[number]
        order = orders[own.group[lane]]
        client = order["client"]
        address, array = addresses[lane], order["array"]
        if client == IFMAP:
            if lane < rows:
                if own.left[array, lane]:
                    return int(lane)
                used = order["elements"]
                copy(own.serial[array, lane, elements - used :], words[lane])
                own.left[array, lane], own.buffer[array, lane] = used, order["buffer"]
        elif client == WEIGHT:
            if lane < cols:
                serializer = own.weight_at[array, lane]
                if serializer["left"]:
                    return int(lane)
                copy(own.weight_serial[array, lane], words[lane])
                serializer["left"] = min(word_elements, rows - order["first"])
                serializer["place"] = order["first"] % word_elements
                if order["first"] == rows:
                    own.weight_serial[array, lane, serializer["place"]] = words[lane, 0]
                    serializer["left"] = 1
                serializer["row"], serializer["buffer"] = order["first"], order["buffer"]
        elif client == POINTER:
            if address >= 0:
                copy(own.reader[order["number"] % len(own.reader)], words[lane])
        elif client == PSUM:
            if lane < cols:
                copy(own.psums[array, lane, order["number"] % own.psums.shape[2]], words[lane])
        elif client == VECTOR and order["points"]:
            if lane == 0:
                copy(own.picked[order["register"]], words[lane])
        elif client == VECTOR and order["element"] >= 0:
            own.vector[lane, order["register"], order["element"]] = words[lane, order["element"]]
        elif client == VECTOR and not order["stores"]:
            copy(own.vector[lane, order["register"]], words[lane])
        elif address >= 0 and client == RESULT:
            copy(own.memory[address, lane, :elements], words[lane])
        elif client == DMA and order["beside"] and not order["stores"]:
            if address >= 0:
                copy(own.beside[lane, order["register"]], words[lane])
        elif address >= 0 and order["spill"]:
            copy(own.hbm[order["number"] + lane], words[lane])
        elif address >= 0:
            copy(own.memory[address, lane], words[lane])
    return -1


@part
def _issue_activations(own: Lanes, wires: Wires) -> None:
    """Let every ifmap serializer drive its wires, and note whether any activation is on them."""
    arrays, planes, _ = wires.activation.shape
    wires.any[ENTERING] = 0
    for array in range(arrays):
        for plane in range(planes):
            wires.any[ENTERING] |= _shift_out(
                own.serial[array], own.left[array], own.buffer[array], wires.activation[array, plane],
                wires.activation_tag[array, plane],
            )  # fmt: skip


@part
def _shift_out(serial: Floats, left: Counts, buffer: Counts, activation: Floats, tag: Tags) -> int:
    """Let the serializers of all rows drive the wires of a plane; return whether any has something left."""
    (rows, elements), entering = serial.shape, 0
    for row in range(rows):
        rest = left[row]
        if rest:
            activation[row], tag[row] = serial[row, elements - rest], 1 + buffer[row] + LAST * (rest == 1)
            left[row], entering = rest - 1, 1
        else:
            activation[row], tag[row] = 0, 0
    return entering


@part
def _issue_weights(own: Lanes, wires: Wires) -> None:
    """Let every weight serializer drive its wires; weights that arrays share move on to the next array a cycle later.

    Note whether any weight is on the wires.
    """
    (arrays, chains, cols), queues = wires.weight.shape, len(own.weight_serial)
    wires.any[LOADING] = 0
    for array in range(arrays - 1, -1, -1):
        for chain in range(chains):
            weight, tag = wires.weight[array, chain], wires.weight_tag[array, chain]
            if array < queues:
                wires.any[LOADING] |= _shift_weights(own.weight_serial[array], own.weight_at[array], weight, tag)
                continue
            copy(weight, wires.weight[array - 1, chain])
            for col in range(cols):
                tag[col] = wires.weight_tag[array - 1, chain, col]
                wires.any[LOADING] |= tag[col] >= 0


@part
def _shift_weights(serial: Floats, serializers: Records, weight: Floats, tag: Ints) -> int:
    """Let the weight serializers of all columns drive the wires of a chain; return whether any has something left."""
    (cols, elements), loading = serial.shape, 0
    for col in range(cols):
        at = serializers[col]
        if at["left"]:
            place, row = at["place"], at["row"]
            weight[col], tag[col], loading = serial[col, place], row * 2 + at["buffer"], 1
            at["place"] = place + 1 if place + 1 < elements else 0
            at["row"] = row + 1
            at["left"] -= 1
        else:
            tag[col] = -1
    return loading
