"""The lanes: each has its words, its ports, an ifmap and a weight serializer, and partial sums for its vector unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpusim.base.errors import CheckFailed, PortConflict
from tpusim.machines.tpu.definition import DMA, FREE, IFMAP, POINTER, PSUM, RESULT, VECTOR, WEIGHT, Frame
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.register.banks import POINTED, Banks, Settings, address_of
from tpusim.machines.tpu.register.hbm import HbmWords
from tpusim.machines.tpu.register.issue import VectorRegisters
from tpusim.machines.tpu.register.on_the_way import WorkRegisters
from tpusim.machines.tpu.register.wires import (
    IDLE,
    LAST,
    NOTHING,
    NOWHERE,
    ORDER,
    Counts,
    Floats,
    Ints,
    Order,
    Records,
    SlidingWindow,
    Tags,
    Wires,
    kernel,
)

LANE = np.dtype([("read", np.int64), ("written", np.int64)])
"""Registers of one lane: accesses so far."""

WEIGHT_AT = np.dtype([("left", np.int64), ("row", np.int64), ("buffer", np.int64)])
"""Registers of a weight serializer."""


class Lanes:
    """Lanes with their ports. A port, and each further slot of the vector unit, obeys one order a cycle. The next group
    of lanes obeys the same order a cycle later. Registers are [port, lane]; registers of orders are [port, group].
    """

    def __init__(
        self, program: Program, frame: Frame, ports: int, settings: Settings, wires: Wires, hbm: HbmWords,
        banks: Banks | None, vector: VectorRegisters,
    ) -> None:  # fmt: skip
        (arrays, _, rows), number = wires.activation.shape, wires.sums.dtype
        _, cols, _, elements = wires.results.shape
        lanes, word_elements = settings.patterns.shape[1], hbm.values.shape[1]
        self.wires, self.settings, self.hbm, self.banks, self.vector = wires, settings, hbm, banks, vector
        # The group of each lane: the number of cycles that it is behind lane 0.
        self.group = np.arange(lanes) // wires.crossed
        groups = int(self.group[-1]) + 1
        self.orders = SlidingWindow(np.zeros((ports, groups), ORDER), axis=1)
        # Cycles for which some lane still has an order, or had one in the cycle before.
        self.obeying = 0
        # Cycles for which some lane still has an order by which its vector unit works.
        self.working = 0
        # The pointers that go with the order: [group, pointer].
        together = max((table.together for table in program.tables), default=1)
        self.pointers = SlidingWindow(np.zeros((groups, max(together, vector.together)), np.int64), axis=0)
        # The pointer reader's words, in lane 0: for two frames, and one that reaches into both from the frame before.
        words = 2 * len(frame.pointer_slots) + 1
        self.reader = np.zeros((words, max((table.per_word for table in program.tables), default=1)), number)
        # Ports in this cycle: the address touched, or NOWHERE, and the word.
        self.addresses = np.full((ports, lanes), NOWHERE, np.int64)
        self.words = np.zeros((ports, lanes, word_elements), number)
        self.registers = np.zeros(lanes, LANE)
        self.memory = np.zeros((lanes, program.words, word_elements), number)
        # Ifmap serializers: the word, whose last elements are in use, those left to issue, and the weight buffer they
        # are meant for.
        self.serial = np.zeros((arrays, rows, elements), number)
        self.left, self.buffer = np.zeros((2, arrays, rows), np.int64)
        # Weight serializers: the word, weights left to issue, the row of the next, and the buffer they go to.
        self.weight_serial = np.zeros((wires.weight_serializers, cols, vector.word_elements), number)
        self.weight_at = np.zeros((wires.weight_serializers, cols), WEIGHT_AT)
        self.psums = np.zeros_like(wires.results)
        self.beside = WorkRegisters(program, hbm, lanes)

    def order(self, orders: Sequence[Order]) -> None:
        """Give lane 0 `orders`, one a port, and every other lane its neighbour's orders: this is the skew."""
        if any(order is not IDLE for order in orders):
            self.obeying = self.orders.length + 1
        if self.still:
            return
        for port, order in enumerate(orders):
            self.orders.cells[port, self.orders.entry] = NOTHING if order is IDLE else order
            if order.together:
                # Pointers travel down the lanes with the order that needs them: an ifmap read, or a picked element.
                read = (self.vector.pointers if order.client == VECTOR else self.reader).reshape(-1)
                at = np.arange(order.pointer, order.pointer + order.together) % len(read)
                self.pointers.cells[self.pointers.entry, : order.together] = read[at]
            if order.works and order.client == VECTOR:
                self.working = self.orders.length
        self.orders.shift()
        self.pointers.shift()
        if self.banks:
            self.banks.shift()

    @property
    def obeyed(self) -> Records:
        """The order [port, lane] that every lane has in this cycle."""
        return self.orders.registers[:, self.group]

    @property
    def still(self) -> bool:
        """Whether no lane has an order, and so nothing is read or written; banks bring ifmap words by themselves."""
        return not self.obeying and self.banks is None

    def sample(self) -> None:
        """Make the accesses of every lane.

        Raises:
            CheckFailed: if an order names a word that the vector memory does not have.
            PortConflict: when a result is written that is not there yet, or no longer.
        """
        if self.still:
            return
        failed = _access(
            self.orders.cells, self.orders.head, self.group, self.pointers.cells, self.pointers.head, self.addresses,
            self.words,
            self.registers, self.settings.own, self.settings.bases, self.settings.counters, self.settings.tables,
            self.memory, self.wires.results, self.psums, self.wires.complete, self.hbm.values, self.hbm.used,
            self.vector.results, self.beside.words,
        )  # fmt: skip
        if failed >= 0:
            port, lane = divmod(failed, len(self.registers))
            address, depth = self.addresses[port, lane], self.memory.shape[1]
            if address != NOWHERE and not 0 <= address < depth:
                raise CheckFailed(f"lane {lane}: word {address} is outside the vector memory's words 0..{depth - 1}")
            order = self.obeyed[port, lane]
            number, complete = order["number"], self.wires.complete[order["array"], lane]
            raise PortConflict(f"lane {lane}: result word {number} is written when {complete} are complete")
        if self.vector.finishes:
            # What the vector unit does with results that are being written.
            orders = self.obeyed
            at = ((orders["finishes"] > 0) & (self.addresses != NOWHERE)).nonzero()
            if len(at[0]):
                self.words[at] = self.vector.finished(self.words[at], orders["step"][at])
        if self.beside.steps:
            orders = self.obeyed
            at = ((orders["client"] == DMA) & (orders["works"] > 0) & (self.addresses != NOWHERE)).nonzero()
            if len(at[0]):
                mine, lanes = orders[at], at[1]
                places = mine["number"] + lanes * mine["stride"]
                self.words[at] = self.beside.worked(lanes, self.words[at], mine["step"], places)
        if self.banks:
            self.banks.take(self.obeyed, self.words)

    def commit(self) -> None:
        """Serializers move on, and what was read or is to be written goes where it belongs.

        Raises:
            PortConflict: when a serializer gets a word before the last one has left it.
        """
        if not self.still:
            failed = _commit(
                self.orders.cells, self.orders.head, self.group, self.addresses, self.words, self.memory, self.serial,
                self.left, self.buffer, self.weight_serial, self.weight_at, self.psums, self.hbm.values, self.reader,
                self.vector.words, self.vector.pointers, self.beside.words,
            )  # fmt: skip
            if self.working:
                self.working -= 1
                obeyed = self.obeyed
                ports, lanes = ((obeyed["works"] > 0) & (obeyed["client"] == VECTOR)).nonzero()
                if len(lanes):
                    # These have the last operand of a word.
                    orders = obeyed[ports, lanes]
                    self.vector.work(lanes, orders["step"], orders["number"])
            if self.banks:
                self.banks.commit()
            if failed >= 0:
                raise PortConflict(f"lane {failed}: a serializer gets a word before the last one has left it")
            self.obeying = max(0, self.obeying - 1)
        elif not (self.wires.entering or self.wires.loading):
            return
        self.wires.entering, self.wires.loading = _issue(
            self.serial, self.left, self.buffer, self.weight_serial, self.weight_at, self.wires.activation,
            self.wires.activation_tag, self.wires.weight, self.wires.weight_tag, self.wires.weights.shape[1],
        )  # fmt: skip


@kernel
def _access(
    orders: Records, head: int, group: Counts, pointers: Counts, first: int, addresses: Counts, words: Floats,
    lanes: Records, patterns: Counts, bases: Counts, counters: Counts, tables: Counts, memory: Floats, results: Floats,
    psums: Floats, complete: Counts, hbm: Floats, hbm_used: Records, worked: Floats, beside: Floats,
) -> int:  # fmt: skip
    """Fill the port registers. Return the number (port by port) of a register that cannot do what it should, or -1."""
    places, elements = results.shape[2:]
    for port in range(len(orders)):
        told, touched, word = orders[port], addresses[port], words[port]
        for number in range(len(lanes)):
            order, lane = told[head + group[number]], lanes[number]
            client, address = order["client"], NOWHERE
            if client != FREE and number < order["lanes"]:
                address = order["address"]
                if address == NOWHERE and client in (IFMAP, VECTOR, DMA):
                    pattern = patterns[order["generator"], number]
                    if pattern >= 0 and counters[pattern, 0, 0] == POINTED:
                        setting = counters[pattern, 0]
                        address = _follow(bases[pattern, 0], setting, pointers[first + group[number]], order["word"])
                    elif pattern >= 0:
                        address = address_of(pattern, bases, counters, tables, order["word"])
                elif client == DMA and not hbm_used[_place(order, number)]:
                    address = NOWHERE
            touched[number] = address
            if address == NOWHERE:
                word[number] = 0
            elif not 0 <= address < memory.shape[1]:
                return port * len(lanes) + number
            elif client == VECTOR and order["stores"]:
                lane["written"] += 1
                word[number] = worked[number, order["number"]]
            elif client == DMA and order["beside"] and order["stores"]:
                lane["written"] += 1
                word[number] = beside[number, order["register"]]
            elif (client == DMA and order["beside"]) or (client != RESULT and (client != DMA or order["spill"])):
                lane["read"] += 1
                word[number] = memory[number, address]
            elif client == DMA:
                lane["written"] += 1
                # A result may be written from the cycle in which it is complete until it is overwritten, `places` words
                # later.
                word[number] = hbm[_place(order, number)]
            elif not 0 < complete[order["array"], number] - order["number"] <= places:
                return port * len(lanes) + number
            else:
                lane["written"] += 1
                array, place = order["array"], order["number"] % places
                word[number, :elements] = results[array, number, place]
                if order["accumulate"]:
                    word[number, :elements] += psums[array, number, place]
    return -1


@kernel
def _place(order: Any, number: int) -> int:
    """Place of lane `number`'s word of a transfer in HBM."""
    return int(order["number"] + number * order["stride"])


@kernel
def _follow(base: int, setting: Counts, pointers: Counts, word: int) -> int:
    """Address that a pointer names for word number `word` of a pass; NOWHERE for padding, which the last bit marks."""
    pointer = pointers[setting[1]]
    return NOWHERE if pointer & 1 else int(base + (pointer >> 1) + word % setting[2])


@kernel
def _commit(
    orders: Records, head: int, group: Counts, addresses: Counts, words: Floats, memory: Floats, serial: Floats,
    left: Counts, buffer: Counts, weight_serial: Floats, weights_at: Records, psums: Floats, hbm: Floats,
    reader: Floats, vector: Floats, picked: Floats, beside: Floats,
) -> int:  # fmt: skip
    """Move every word from its port to its place: a serializer, the vector unit, the memory or HBM.

    Return the number of a lane whose serializer is not empty, or -1.
    """
    _, rows, elements = serial.shape
    (_, cols, word_elements), (registers, numbers) = weight_serial.shape, reader.shape
    for port in range(len(orders)):
        told, touched, word = orders[port], addresses[port], words[port]
        for number in range(len(touched)):
            order, address = told[head + group[number]], touched[number]
            array, client = order["array"], order["client"]
            if client == IFMAP and number < rows:
                if left[array, number]:
                    return number
                used = order["elements"]
                serial[array, number, elements - used :] = word[number, :used]
                left[array, number], buffer[array, number] = used, order["buffer"]
            elif client == WEIGHT and number < cols:
                at = weights_at[array, number]
                if at["left"]:
                    return number
                weight_serial[array, number] = word[number, :word_elements]
                at["left"] = min(word_elements, rows - order["first"])
                if order["first"] == rows:
                    weight_serial[array, number, rows % word_elements] = word[number, 0]
                    at["left"] = 1
                at["row"], at["buffer"] = order["first"], order["buffer"]
            elif client == POINTER:
                if address >= 0:
                    reader[order["number"] % registers] = word[number, :numbers]
            elif client == PSUM and number < cols:
                psums[array, number, order["number"] % psums.shape[2]] = word[number, :elements]
            elif client == VECTOR and order["points"]:
                if number == 0:
                    picked[order["register"]] = word[number, : picked.shape[1]]
            elif client == VECTOR and order["element"] >= 0:
                vector[number, order["register"], order["element"]] = word[number, order["element"]]
            elif client == VECTOR and not order["stores"]:
                vector[number, order["register"]] = word[number]
            elif address >= 0 and client == RESULT:
                memory[number, address, :elements] = word[number, :elements]
            elif client == DMA and order["beside"] and not order["stores"]:
                if address >= 0:
                    beside[number, order["register"]] = word[number]
            elif address >= 0 and order["spill"]:
                hbm[_place(order, number)] = word[number]
            elif address >= 0:
                memory[number, address] = word[number]
    return -1


@kernel
def _issue(
    serial: Floats, left: Counts, buffer: Counts, weight_serial: Floats, weights_at: Records, activation: Floats,
    activation_tag: Tags, weight: Floats, weight_tag: Ints, buffers: int,
) -> tuple[bool, bool]:  # fmt: skip
    """Let every serializer drive its wires; weights that arrays share move on to the next array a cycle later.

    Return whether any activation, and whether any weight, is on the wires.
    """
    (arrays, rows, elements), (serializers, _, word_elements) = serial.shape, weight_serial.shape
    entering = loading = False
    for array in range(arrays):
        for plane in range(activation.shape[1]):
            for row in range(rows):
                activation[array, plane, row], activation_tag[array, plane, row] = 0, 0
                if left[array, row]:
                    activation[array, plane, row] = serial[array, row, elements - left[array, row]]
                    activation_tag[array, plane, row] = 1 + buffer[array, row] + LAST * (left[array, row] == 1)
                    left[array, row] -= 1
                    entering = True
    for array in range(arrays - 1, serializers - 1, -1):
        weight[array], weight_tag[array] = weight[array - 1], weight_tag[array - 1]
    _, chains, cols = weight.shape
    for array in range(serializers):
        weight_tag[array] = -1
        for col in range(cols):
            at = weights_at[array, col]
            for chain in range(min(chains, at["left"])):
                weight[array, chain, col] = weight_serial[array, col, at["row"] % word_elements]
                weight_tag[array, chain, col] = at["row"] * buffers + at["buffer"]
                at["row"] += 1
                at["left"] -= 1
    for array in range(arrays):
        for chain in range(chains):
            for col in range(cols):
                loading |= weight_tag[array, chain, col] >= 0
    return entering, loading
