"""What machines are by definition: latencies of words, the frame of a lane's ports, the vector unit's beat.

All times are those of lane 0; lane `i` runs the same schedule `i // h` cycles later (skewed addresses), where a
wavefront crosses h PEs a cycle. Element m of a stream that enters k at a time is in row r of the R x C array at cycle
`s + m // k + r // h` and meets PE(r, c) at `s + m // k + r // h + c // h`. The sum of column c is in the register below
row R-1 at `s + m // k + ceil(R / h) + c // h`: for lane c, which runs c // h cycles late, ceil(R / h) cycles after the
element entered (paper Fig. 9, 10, where h = k = 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Literal, NamedTuple, TypeAlias

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.sections import VectorUnit

BIAS_CYCLES = 1
"""Cycles from the read of a column's bias word until the bias stands in the register above the column's first PE."""


def issue_cycles(elements: int, hardware: Hardware) -> int:
    """The cycles in which `elements` of a word enter a row of the array."""
    return -(-elements // hardware.array.elements_per_cycle)


def word_latency(elements: int, hardware: Hardware) -> int:
    """Cycles from the ifmap read of a word until its last result stands in the de-serializer.

    One to load the serializer, those to issue `elements`, and those to flow through the array.
    """
    return 1 + issue_cycles(elements, hardware) + hardware.array.flow_cycles


def finish_cycles(elements: int, operations: int, hardware: Hardware) -> int:
    """Cycles of the vector unit for `operations` ALU operations on every element of one word of every array, in every
    lane.

    One operation adds the word to partial sums (Table II: 256 ALUs, 2 a lane).
    """
    return -(-operations * elements * hardware.array.count * hardware.lanes // hardware.vector_unit.alus)


def last_weight(last_read: int, hardware: Hardware) -> int:
    """The cycle in which the last weight enters the array, its word having been read in `last_read`."""
    return last_read + hardware.preload_cycles - (hardware.preload_words - 1) * hardware.weight_word_cycles


def word_cycles(words: int, transposed: bool, hardware: Hardware, taps: Fraction = Fraction(0)) -> int:
    """Least cycles of a streamed word: to be transposed, and to be streamed whole where `array.streamed` is `all`.

    The `words` of a pixel are transposed together, up to `transpose_words` at a time. Ahead of that the channels of
    `taps` are put side by side.
    """
    unit, word = hardware.vector_unit, hardware.vector_memory.word_elements
    streams = issue_cycles(word, hardware) if hardware.array.streamed == "all" else 0
    cycles = unit.transpose_cycles + taps * unit.gather_cycles
    return max(streams, ceil(cycles / min(unit.transpose_words, words)) if transposed else 0)


FREE, IFMAP, POINTER, PSUM, RESULT, VECTOR, WEIGHT, DMA = range(8)
"""Owners of a cycle of the port."""

CLIENTS = ("idle", "ifmap", "pointer", "psum", "result", "vector", "weight", "dma")

Clients: TypeAlias = tuple[int, ...]
Ports: TypeAlias = tuple[Clients, ...]


def stream_clients(adds: bool) -> Clients:
    """Clients that stream through the port while passes run; partial sums are among them if any pass `adds` to sums."""
    return (IFMAP, PSUM, RESULT) if adds else (IFMAP, RESULT)


PORTS: dict[str, Ports] = {
    "shared": ((IFMAP, POINTER, PSUM, RESULT, VECTOR, WEIGHT, DMA),),
    "separate": ((IFMAP,), (POINTER,), (PSUM,), (RESULT,), (VECTOR,), (WEIGHT,), (DMA,)),
}
"""Ports of a lane's vector memory, each with the clients that share it. Of WEIGHT and DMA, WEIGHT goes first."""

BANKED: dict[str, Ports] = {**PORTS, "shared": ((IFMAP,), (PSUM, RESULT, VECTOR, WEIGHT, DMA))}
"""Return these ports for a machine whose ifmap lies in banks: the ifmap has ports that no other client uses."""

NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Frame:
    """The port's period while a layer runs: for each array a word of ifmap read, partial-sum read, result write.

    Slots of a kind lie side by side, one an array: `IFMAP_SLOT`, `psum_slot` and `result_slot` are the first array's.
    Slots are fixed by kind of activity, never by data, so what is left over for preload and DMA is periodic.
    A frame lasts as long as the elements of a word take to enter the array, the slots need on the busiest port, or the
    adds, or what makes words ready, need in the vector unit, whichever is longest; the excess stalls the array.

    Attributes:
        issue_cycles: those in which the elements of a word enter the array.
        slots: that the stream's clients own on the busiest port.
        psum_slot, result_slot: None where the client has the port to itself, and uses it as soon as it can.
        accumulates: whether partial sums are read and added.
        pointer_slots: slots in which pointer words are read, for the ifmap words of the next frame.
        shared: whether other clients may want the cycles of `pointer_slots`.
        finish_cycles: cycles of a word in the vector unit between the adds and the write; all words of a layer
            wait as long, also partial sums, which are not finished yet.
        together: arrays that take the words of one stream in turn: all arrays that share weights, or one.
        latency: cycles from a word's ifmap read until its last element is out.
    """

    period: int
    issue_cycles: int
    add_cycles: int
    arrays: int
    slots: int
    psum_slot: int | None
    result_slot: int | None
    accumulates: bool
    pointer_slots: range = range(0)
    shared: bool = True
    finish_cycles: int = 0
    together: int = 1
    latency: int = 0

    IFMAP_SLOT = 0

    @classmethod
    def of(
        cls, issue_cycles: int, add_cycles: int, clients: Clients, ports: Ports = PORTS["shared"], arrays: int = 1,
        pointer_words: int = 1, word_cycles: int = 0, finish_cycles: int = 0, together: int | None = None,
        latency: int = 0,
    ) -> Frame:  # fmt: skip
        """The shortest frame for words that enter in `issue_cycles`; each of the stream's `clients` owns a slot an
        array, pointers as many as there are `pointer_words` in a frame at most.

        Each of the stream's `clients` owns a slot for each array, pointers as many slots as a frame reads
        `pointer_words` at most. `add_cycles` and `finish_cycles` are the sums over the words of all arrays;
        `word_cycles` is the time to make one word of one array ready.
        """
        owners = [[each for each in port if each in clients] for port in ports]
        wanted = {each: pointer_words if each == POINTER else arrays for each in clients}
        slots, accumulates = max(sum(wanted[each] for each in port) for port in owners), PSUM in clients
        adds = add_cycles if accumulates else 0
        # The vector unit adds and finishes a word before the next one comes, so both count against the period.
        work = adds + finish_cycles
        period = max(issue_cycles, slots, work, word_cycles * arrays)
        first = {each: sum(wanted[one] for one in port[:at]) for port in owners for at, each in enumerate(port)}
        pointer = first.get(POINTER, 0)
        pointers = range(pointer, pointer + wanted.get(POINTER, 0))
        # A client with a port to itself needs no slot: it never meets another one.
        alone = {client for port in ports for client in port if len(port) == 1}
        psum = None if PSUM in alone else first.get(PSUM)
        # A result goes into the first slots after its adds that no other client owns: an earlier slot would make it
        # wait almost a whole frame.
        done = first[RESULT] if psum is None else (psum + work) % period
        slot = done if first[RESULT] <= done <= period - arrays else first[RESULT]
        result = None if RESULT in alone else slot
        shared = POINTER not in alone
        return cls(
            period, issue_cycles, adds, arrays, slots, psum, result, accumulates, pointers, shared, finish_cycles,
            together or arrays, latency,
        )  # fmt: skip

    def weight_waits(self, queue: int) -> tuple[int, ...]:
        """For each cycle of the frame, the cycles that a preload of `queue` must leave to others, whether they use them
        or not.

        Others own the slots of pointers and of the streams of other queues. The cycles that no stream owns are dealt
        out to the queues in turn. A queue without passes has no turn.
        """
        if queue >= self.arrays // self.together:
            return (1,) * self.period
        slots = () if self.result_slot is None else (self.IFMAP_SLOT, self.psum_slot, self.result_slot)
        owners = {slot + at: at // self.together for slot in slots if slot is not None for at in range(self.arrays)}
        left = self.pointer_slots if self.shared else range(0)
        free = (at for at in range(self.period) if at not in owners and at not in left)
        owners |= {at: number % (self.arrays // self.together) for number, at in enumerate(free)}
        mine = [at for at, owner in owners.items() if owner == queue]
        # Backwards, so that each cycle knows the next one that is this queue's; the frame after this one begins the
        # count.
        waits, following = [0] * self.period, min(mine) + self.period
        for at in reversed(range(self.period)):
            following = at if owners.get(at) == queue else following
            waits[at] = following - at
        return tuple(waits)

    def frames(self, words: int) -> int:
        """Frames that a stream of `words` takes."""
        return -(-words // self.together)

    @property
    def port_stall(self) -> int:
        """Cycles a frame the array stands still because the port is full."""
        return max(0, self.slots - self.issue_cycles)

    @property
    def blocked(self) -> int:
        """Cycles a frame the array stands still because the vector unit is not done yet."""
        return self.period - self.issue_cycles - self.port_stall

    @property
    def psum_delay(self) -> int:
        """Cycles from a word's ifmap read to its partial-sum read."""
        # The partial sum is wanted in the cycle in which the last sum of the word arrives, not the one after.
        return _next_slot(self.latency - 1, self.psum_slot, self.period)

    @property
    def finish_delay(self) -> int:
        """Cycles from a word's ifmap read until it can be finished: its partial sum, if there may be one, is added."""
        return self.psum_delay + self.add_cycles if self.accumulates else self.latency

    @property
    def result_delay(self) -> int:
        """Cycles from a word's ifmap read to its result write."""
        return _next_slot(self.finish_delay + self.finish_cycles, self.result_slot, self.period)


def frame_of(
    hardware: Hardware,
    elements: int,
    clients: Clients,
    pointer_words: int = 1,
    word_cycles: int = 0,
    finishing: int = 0,
) -> Frame:
    """The frame of a layer whose words have `elements` in use and whose streams have these `clients`.

    Pointers read at most `pointer_words` words a frame. A word is made ready in `word_cycles`. Results that are
    finished take `finishing` ALU operations an element.
    """
    adds, finish = finish_cycles(elements, 1, hardware), finish_cycles(elements, finishing, hardware)
    array, issue = hardware.array, issue_cycles(elements, hardware)
    return Frame.of(
        issue, adds, clients, ports_of(hardware), array.count, pointer_words, word_cycles, finish, array.together,
        word_latency(elements, hardware),
    )  # fmt: skip


def ports_of(hardware: Hardware) -> Ports:
    """Ports of a lane, each with the clients that share it. To the ifmap, the ports of all banks count as one."""
    return (BANKED if hardware.banked else PORTS)[hardware.vector_memory.ports]


def port_name(clients: Clients) -> str:
    """Name of a port's account."""
    return "port" if len(clients) > 1 else f"port_{CLIENTS[clients[0]]}"


def _next_slot(earliest: int, slot: int | None, period: int) -> int:
    """The first cycle at or after `earliest` that is `slot` modulo `period`; `earliest` itself without a slot."""
    return earliest if slot is None else earliest + (slot - earliest) % period


@dataclass(frozen=True, slots=True)
class Beat:
    """Time of result words that each lane makes side by side: reads, then the vector unit's work, then writes.

    All of it repeats every `period` cycles. The reads come first.

    Attributes:
        operands: words read for a result word.
        work: cycles of the vector unit.
        together: result words side by side.
        loads, stores: words read in a cycle, and written.
        beside: whether words are written while others are read (`vector_unit.slots`); else the lane's port reads or
            writes.
        waits: cycles of a turn in which operations that need one another's results follow, or in which slots load and
            store its words.
        body: cycles of what loop bodies take beyond their slots, once in a step, ahead of its scalars and reads.
    """

    operands: int
    work: int
    together: int = 1
    loads: int = 1
    stores: int = 1
    beside: bool = False
    waits: int = 0
    body: int = 0

    def reads(self, words: int) -> int:
        """Cycles in which the operands of `words` are read."""
        return -(-words * self.operands // self.loads)

    def writes(self, words: int) -> int:
        """Cycles in which `words` are written."""
        return -(-words // self.stores)

    @property
    def period(self) -> int:
        """Cycles from a turn to the next: for reads and writes, or for the work, whichever takes longer."""
        reads, writes = self.reads(self.together), self.writes(self.together)
        return max(max(reads, writes) if self.beside else reads + writes, self.work, self.waits)

    @property
    def result_delay(self) -> int:
        """Cycles from the first read of a turn to its first write; a port that both share gives it the first slot that
        is not a read's.
        """
        reads = self.reads(self.together)
        if self.beside:
            return max(reads, self.work, self.waits)
        done = reads + self.work
        # A write that would fall on a read of a later word waits until the reads of that word are over.
        return done if done % self.period >= reads else done + reads - done % self.period

    @property
    def work_delay(self) -> int:
        """Cycles from the first read of a turn to the work: beside other reads, operands are worked on as they come."""
        return 0 if self.beside else self.reads(self.together)

    def turns(self, words: int) -> int:
        """Turns that make `words`."""
        return -(-words // self.together)

    def last(self, words: int) -> int:
        """Cycles from the first read for `words` to the last write."""
        full, rest = divmod(words - 1, self.together)
        return full * self.period + self.result_delay + self.writes(rest + 1) - 1

    @property
    def a_word(self) -> float:
        """Cycles from a result word to the next, on the mean."""
        return self.period / self.together

    @property
    def least_a_word(self) -> float:
        """Least cycles of a result word: a turn of fewer words may lose less in whole cycles."""
        return (self.period - self.beside) / self.together


class StepLoop(NamedTuple):
    """The loop of a step, on a machine with slots.

    Attributes:
        packed: words that share a register at most; 0: as many as it has room for.
        shared: the share of operands that is loaded; the others are in registers, for a word beside.
        chain: operands that are joined to a word in all, of which the step may take a part; 0: its own.
        body: cycles of the step's share in what loop bodies take beyond their slots.
    """

    packed: int = 0
    shared: Fraction = Fraction(1)
    chain: int = 0
    body: int = 0


def ready_delay(words: int, hardware: Hardware) -> int:
    """Cycles in which the vector unit makes `words` of a block ready, padding too.

    Unpacking is a part of it, so words that are unpacked on their way from HBM take less by `unpack_cycles`.
    """
    unit = hardware.vector_unit
    return ceil(words * max(unit.ready_cycles - unit.unpack_cycles, Fraction(0)))


def beat_of(
    operands: int,
    operations: Fraction | int,
    elements: int,
    hardware: Hardware,
    words: int | None = None,
    lanes: int | None = None,
    picked: bool = False,
    loop: StepLoop | None = None,
) -> Beat:
    """The beat of a step's result words with `elements` in use, each of which takes `operations` of an ALU.

    All lanes work alike, each with its share of the ALUs. Fetching operands into place and finishing the word
    (`vector_unit.operand_cycles`, `result_cycles`) set the pace where they take longer. With slots, as many words are
    made side by side as a turn of the `loop` has registers for, or as the step makes (`words`); only registers of
    `lanes` that take part count. Operands that are `picked` element by element come through the port, one a cycle.
    """
    if hardware.vector_unit.slots is None:
        words, lanes, loop = None, None, None
    port = hardware.lanes, hardware.word_bytes
    unit = hardware.vector_unit
    return _beat(operands, operations, elements, unit, port, words, lanes, picked, loop or StepLoop())


@lru_cache(maxsize=1 << 12)
def _beat(
    operands: int,
    operations: Fraction | int,
    elements: int,
    unit: VectorUnit,
    port: tuple[int, int],
    words: int | None,
    lanes: int | None,
    picked: bool,
    loop: StepLoop,
) -> Beat:
    """The beat of `beat_of`, on a port of some lanes and bytes a word. Most steps of a layer have the same."""
    slots, (every, word_bytes) = unit.slots, port

    def work(together: int, lanes: int) -> int:
        adding = ceil(Fraction(together * operations * elements * lanes, unit.alus))
        # With slots, operations on taps have these cycles among theirs.
        return adding if slots else max(adding, ceil(together * (operands * unit.operand_cycles + unit.result_cycles)))

    if slots is None or picked:
        return Beat(operands, work(1, every))
    register_lanes = min(slots.lanes, every)
    across = -(-(lanes or every) // register_lanes)
    a_word = across * -(-word_bytes // slots.register_bytes)
    words_a_register = Fraction(in_a_register(loop.packed, unit, word_bytes), a_word)
    loads, stores = slots.loads * words_a_register / loop.shared, slots.stores * words_a_register
    most = max(1, int(slots.registers * words_a_register))
    together = most if words is None else min(most, words)
    # Sums wait for one another but for those that a body makes beside them, of this step or of others.
    beside = max(1, slots.window // (loop.chain or operands))
    joined = Fraction(slots.latency * (operands - 1) * together * a_word, beside)
    # A cycle reads whole words; slots for fewer, on the mean, take longer.
    waits = ceil(max(joined, together * operands / loads, together / stores))
    busy = work(together, across * register_lanes)
    return Beat(operands, busy, together, ceil(loads), ceil(stores), True, waits, loop.body)


def in_a_register(packed: int, unit: VectorUnit, word_bytes: int) -> int:
    """Words that lie side by side in a register: at most `packed`, if that is given, as words of different pixels are
    brought apart.
    """
    if unit.slots is None or not unit.slots.packed:
        return 1
    room = max(1, unit.slots.register_bytes // word_bytes)
    return min(room, packed or room)


Body: TypeAlias = Literal["fused", "bare", "summed", "bare_summed", "turned"]
"""Loop bodies: of several instructions, or of one; those that make sums; and those that turn words."""


def body_share(words: int, lanes: int, hardware: Hardware, body: Body, maps: int = 1) -> Fraction:
    """Cycles of each of `words` words of a layer with some maps, in some lanes, for what loop bodies take beyond their
    slots: bodies are as many as windows of registers hold the words.
    """
    slots, memory = hardware.vector_unit.slots, hardware.vector_memory
    if slots is None or not slots.body_cycles:
        return Fraction(0)
    across = -(-min(lanes, hardware.lanes) // slots.lanes)
    registers = words * across * -(-memory.word_elements // slots.rows)
    windows = {"bare": slots.bare_window, "bare_summed": slots.bare_window, "turned": slots.turn_window}
    bodies, cycles = -(-registers // windows.get(body, slots.window)), slots.body_cycles
    if body == "turned":
        cycles = slots.turn_body_cycles
    elif body != "fused":
        cycles = slots.bare_cycles + (maps - 1) * slots.map_cycles if body.startswith("bare") else cycles
        cycles += slots.sum_cycles if body.endswith("summed") else 0
    return Fraction(bodies * cycles, words)
