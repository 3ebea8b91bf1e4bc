"""The matrix unit in Amaranth HDL, written from docs/timing.md alone: a witness for the engines.

Everything here is hardware: registers, adders and wires at the level that a synthesiser takes. It shares no
code with `tpusim`. HBM is outside: whoever simulates the machine gives, for every word that the DMA moves,
its address and contents.

`Sequencer` is lane 0's control, one class for each unit: `Streams`, `Preloads`, `Dma`. What it orders goes
from lane to lane, one a cycle. `Lane` is a memory with its port, serializers, address generator,
de-serializer and adder. `Element` is one processing element of the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from amaranth.hdl import Array, Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import data, memory

VALUE_BITS = 24
OPERAND_BITS = 8
TIME_BITS = 24
COUNT_BITS = 12


@dataclass(frozen=True)
class Weights:
    """A preload: `rows` x `cols` weights from word `base` on, when the steps `after` are done."""

    step: int
    after: tuple[int, ...]
    base: int
    rows: int
    cols: int


@dataclass(frozen=True)
class Pass:
    """A stream: nested counters (row, col, group), and per lane where they begin (None: the lane is not fed)."""

    step: int
    fills: tuple[int, ...]
    spills: tuple[int, ...]
    weights: int
    starts: tuple[tuple[int, int, int] | None, ...]
    counts: tuple[int, int, int]
    stride: tuple[int, int]
    extent: tuple[int, int]
    result_base: int
    cols: int
    accumulate: bool

    @property
    def words(self) -> int:
        """Words a lane streams, padding included."""
        return prod(self.counts)


@dataclass(frozen=True)
class Transfer:
    """A fill or a spill of `words` words at lane 0's port, which keeps the bus for `bus_cycles`."""

    step: int
    after: tuple[int, ...]
    spill: bool
    words: int
    bus_cycles: int


@dataclass(frozen=True)
class Plan:
    """One machine and one layer's steps: all that is fixed before the first cycle."""

    rows: int
    cols: int
    word: int
    elements: int
    alus: int
    buffers: int
    depth: int
    latency: int
    weights: tuple[Weights, ...]
    passes: tuple[Pass, ...]
    transfers: tuple[Transfer, ...]

    @property
    def lanes(self) -> int:
        """One for every row and every column."""
        return max(self.rows, self.cols)

    @property
    def steps(self) -> int:
        """Steps of all kinds."""
        return len(self.weights) + len(self.passes) + len(self.transfers)

    @property
    def accumulates(self) -> bool:
        """Whether a partial-sum slot is owned."""
        return any(each.accumulate for each in self.passes)

    @property
    def adds(self) -> int:
        """Cycles that the vector unit takes for a word in every lane."""
        return -(-self.elements * self.lanes // self.alus) if self.accumulates else 0

    @property
    def slots(self) -> int:
        """Slots of a frame that are owned."""
        return 2 + self.accumulates

    @property
    def frame(self) -> int:
        """F."""
        return max(self.elements, self.slots, self.adds)

    @property
    def psum_delay(self) -> int:
        """D_p: the first slot 1 at or after L - 1."""
        return self._at_slot(1, self.elements + self.rows)

    @property
    def result_delay(self) -> int:
        """D_w, with and without accumulation."""
        if not self.accumulates:
            return self._at_slot(1, 1 + self.elements + self.rows)
        slot = (1 + self.adds) % self.frame
        while slot in (0, 1):
            slot += 1
        return self._at_slot(slot, self.psum_delay + self.adds)

    def _at_slot(self, slot: int, earliest: int) -> int:
        return next(at for at in range(earliest, earliest + self.frame) if at % self.frame == slot)


ORDER = data.StructLayout(
    {
        "ifmap": 1,
        "first": 1,
        "ifmap_pass": COUNT_BITS,
        "take": 1,
        "psum": 1,
        "take_pass": COUNT_BITS,
        "take_word": COUNT_BITS,
        "result": 1,
        "result_pass": COUNT_BITS,
        "result_word": COUNT_BITS,
        "weight": 1,
        "weight_preload": COUNT_BITS,
        "weight_word": COUNT_BITS,
        "dma": 1,
        "dma_transfer": COUNT_BITS,
        "dma_word": COUNT_BITS,
    }
)
"""What a lane does in one cycle. `take` moves a collected word to the adder, with or without a `psum` read."""


def rom(values: Sequence[int], index: Value) -> Value:
    """One of some constants."""
    if len(values) < 2:
        return Const(values[0] if values else 0, signed(TIME_BITS))
    return Array([Const(value, signed(TIME_BITS)) for value in values])[index]


def mask(steps: Sequence[int]) -> int:
    """A bit for each step."""
    return sum(1 << step for step in set(steps))


class Element(Elaboratable):
    """One PE: activations pass to the right, sums and weights downwards; the activation's tag picks the buffer."""

    def __init__(self, row: int, rows: int, buffers: int) -> None:
        self.row, self.buffers = row, buffers
        self.activation_in, self.activation = Signal(signed(OPERAND_BITS)), Signal(signed(OPERAND_BITS))
        self.valid_in, self.valid = Signal(), Signal()
        self.buffer_in, self.buffer = Signal(), Signal()
        self.sum_in, self.sum = Signal(signed(VALUE_BITS)), Signal(signed(VALUE_BITS))
        self.weight_in, self.weight = Signal(signed(OPERAND_BITS)), Signal(signed(OPERAND_BITS))
        self.moves_in, self.moves = Signal(), Signal()
        self.row_in, self.row_tag = Signal(range(rows + 1)), Signal(range(rows + 1))
        self.weight_buffer_in, self.weight_buffer = Signal(), Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        held = Array(Signal(signed(OPERAND_BITS), name=f"held_{n}") for n in range(self.buffers))
        m.d.sync += [
            self.activation.eq(self.activation_in),
            self.valid.eq(self.valid_in),
            self.buffer.eq(self.buffer_in),
            self.sum.eq(self.sum_in + self.activation_in * held[self.buffer_in]),
            self.weight.eq(self.weight_in),
            self.moves.eq(self.moves_in),
            self.row_tag.eq(self.row_in),
            self.weight_buffer.eq(self.weight_buffer_in),
        ]
        with m.If(self.moves_in & (self.row_in == self.row)):
            m.d.sync += held[self.weight_buffer_in].eq(self.weight_in)
        return m


class Lane(Elaboratable):
    """A vector memory with one port, and all that hangs on it. It feeds row `number`, collects column `number`."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.plan, self.number = plan, number
        self.feeds, self.collects = number < plan.rows, number < plan.cols
        self.word = data.ArrayLayout(signed(VALUE_BITS), plan.word)
        self.order = Signal(ORDER)
        # To and from HBM.
        self.dma, self.dma_read, self.dma_write = self.order.dma, Signal(), Signal()
        self.dma_address, self.dma_word = Signal(range(plan.depth)), Signal(self.word)
        # The row of the array.
        self.activation, self.valid, self.buffer = Signal(signed(OPERAND_BITS)), Signal(), Signal()
        # The column of the array, at its top and at its bottom.
        self.weight, self.moves = Signal(signed(OPERAND_BITS)), Signal()
        self.row_tag, self.weight_buffer = Signal(range(plan.rows + 1)), Signal()
        self.sum, self.sum_valid = Signal(signed(VALUE_BITS)), Signal()
        # What the port does; and what must never be.
        self.asks, self.writes = Signal(5), Signal()
        self.address, self.contents = Signal(range(plan.depth)), Signal(self.word)
        self.asked_twice, self.slot_twice, self.lost = Signal(), Signal(), Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = store = memory.Memory(shape=self.word, depth=self.plan.depth, init=[])
        self.read_port = store.read_port(domain="comb")
        self.write_port = store.write_port(granularity=1)
        self.asks_ifmap, self.ifmap_address = Signal(), Signal(range(self.plan.depth))
        self.asks_weight, self.asks_psum, self.asks_result = Signal(), Signal(), Signal()
        self.total = [Signal(signed(VALUE_BITS), name=f"total_{n}") for n in range(self.plan.elements)]
        self.errors: list[Value] = []
        if self.feeds:
            self._ifmap(m)
        if self.collects:
            self._weights(m)
            self._results(m)
        self._port(m)
        with m.If(Cat(*self.errors).any()):
            m.d.sync += self.lost.eq(1)
        return m

    def _port(self, m: Module) -> None:
        """One address, one word, read or written."""
        plan, order, asks = self.plan, self.order, self.asks
        m.d.comb += [
            asks.eq(
                Cat(
                    self.asks_ifmap,
                    self.asks_psum,
                    self.asks_result,
                    self.asks_weight,
                    self.dma_read | self.dma_write,
                )
            ),
            self.writes.eq(self.asks_result | self.dma_write),
            self.read_port.addr.eq(self.address),
            self.write_port.addr.eq(self.address),
            self.contents.eq(self.read_port.data),
        ]
        preload, word = order.weight_preload, order.weight_word
        with m.If(self.asks_ifmap):
            m.d.comb += self.address.eq(self.ifmap_address)
        with m.Elif(self.asks_psum):
            m.d.comb += self.address.eq(self._result_address(order.take_pass, order.take_word))
        with m.Elif(self.asks_result):
            m.d.comb += self.address.eq(self._result_address(order.result_pass, order.result_word))
            m.d.comb += self.write_port.en.eq((1 << plan.elements) - 1)
            for n, value in enumerate(self.total):
                m.d.comb += [self.contents[n].eq(value), self.write_port.data[n].eq(value)]
        with m.Elif(self.asks_weight):
            m.d.comb += self.address.eq(rom([each.base for each in plan.weights], preload) + word)
        with m.Elif(self.dma_read | self.dma_write):
            m.d.comb += [self.address.eq(self.dma_address), self.write_port.data.eq(self.dma_word)]
            with m.If(self.dma_write):
                m.d.comb += [self.write_port.en.eq((1 << plan.word) - 1), self.contents.eq(self.dma_word)]
        slots = Cat(order.ifmap, order.psum, order.result, order.weight, order.dma)
        with m.If((asks & (asks - 1)[:5]).any()):
            m.d.sync += self.asked_twice.eq(1)
        with m.If((slots & (slots - 1)[:5]).any()):
            m.d.sync += self.slot_twice.eq(1)

    def _result_address(self, number: Value, word: Value) -> Value:
        return rom([each.result_base for each in self.plan.passes], number) + word

    def _ifmap(self, m: Module) -> None:
        """The address generator, and the serializer that issues a word in the E cycles after its read."""
        order, passes = self.order, self.plan.passes
        starts = [each.starts[self.number] for each in passes]
        counters = [Signal(COUNT_BITS, name=f"count_{n}") for n in range(3)]
        current = [Mux(order.first, 0, counter) for counter in counters]
        row, col = Signal(signed(TIME_BITS)), Signal(signed(TIME_BITS))
        for axis, (place, count) in enumerate(zip((row, col), current, strict=False)):
            start = rom([each[1 + axis] if each else 0 for each in starts], order.ifmap_pass)
            m.d.comb += place.eq(start + count * rom([each.stride[axis] for each in passes], order.ifmap_pass))
        rows, cols = (rom([each.extent[axis] for each in passes], order.ifmap_pass) for axis in (0, 1))
        groups = rom([each.counts[2] for each in passes], order.ifmap_pass)
        base = rom([each[0] if each else 0 for each in starts], order.ifmap_pass)
        inside = (row >= 0) & (row < rows) & (col >= 0) & (col < cols)
        fed = rom([each is not None for each in starts], order.ifmap_pass)[0]
        m.d.comb += [
            self.asks_ifmap.eq(order.ifmap & fed & inside),
            self.ifmap_address.eq(base + (row * cols + col) * groups + current[2]),
        ]
        with m.If(order.ifmap):
            self._count_on(m, counters, current, order.ifmap_pass)
        self._serialize(m)

    def _count_on(self, m: Module, counters: list[Signal], current: list[Value], number: Value) -> None:
        """The group runs fastest, then the col, then the row."""
        limits = [rom([each.counts[n] for each in self.plan.passes], number) for n in range(3)]
        m.d.sync += [counter.eq(value) for counter, value in zip(counters, current, strict=True)]
        with m.If(current[2] + 1 < limits[2]):
            m.d.sync += counters[2].eq(current[2] + 1)
        with m.Else():
            m.d.sync += counters[2].eq(0)
            with m.If(current[1] + 1 < limits[1]):
                m.d.sync += counters[1].eq(current[1] + 1)
            with m.Else():
                m.d.sync += [counters[1].eq(0), counters[0].eq(current[0] + 1)]

    def _serialize(self, m: Module) -> None:
        plan, order = self.plan, self.order
        register = [Signal(signed(OPERAND_BITS), name=f"serial_{n}") for n in range(plan.elements)]
        left = Signal(range(plan.elements + 1))
        tag = Signal()
        m.d.comb += [
            self.valid.eq(left != 0),
            self.activation.eq(Mux(self.valid, register[0], 0)),
            self.buffer.eq(tag),
        ]
        m.d.sync += [here.eq(behind) for here, behind in pairwise(register)]
        with m.If(left != 0):
            m.d.sync += left.eq(left - 1)
        with m.If(order.ifmap):
            buffers = [each.weights % plan.buffers for each in plan.passes]
            m.d.sync += [left.eq(plan.elements), tag.eq(rom(buffers, order.ifmap_pass)[0])]
            for n, element in enumerate(register):
                m.d.sync += element.eq(Mux(self.asks_ifmap, self.read_port.data[n], 0))
        self.errors.append(order.ifmap & (left > 1))

    def _weights(self, m: Module) -> None:
        """The weight serializer: W weights enter the column in the W cycles after their read."""
        plan, order = self.plan, self.order
        preload, word = order.weight_preload, order.weight_word
        register = [Signal(signed(OPERAND_BITS), name=f"weight_{n}") for n in range(plan.word)]
        left = Signal(range(plan.word + 1))
        rows = rom([each.rows for each in plan.weights], preload)
        cols = rom([each.cols for each in plan.weights], preload)
        first = Signal(COUNT_BITS)
        m.d.comb += [
            first.eq(word * plan.word),
            self.asks_weight.eq(order.weight & (self.number < cols) & (first < rows)),
            self.moves.eq(left != 0),
            self.weight.eq(register[0]),
        ]
        m.d.sync += [here.eq(behind) for here, behind in pairwise(register)]
        with m.If(left != 0):
            m.d.sync += [left.eq(left - 1), self.row_tag.eq(self.row_tag + 1)]
        with m.If(order.weight):
            full = first + plan.word <= plan.rows
            m.d.sync += [
                left.eq(Mux(full, plan.word, plan.rows - first)),
                self.row_tag.eq(first),
                self.weight_buffer.eq(preload[0] if plan.buffers > 1 else 0),
            ]
            for n, element in enumerate(register):
                used = self.asks_weight & (first + n < rows)
                m.d.sync += element.eq(Mux(used, self.read_port.data[n], 0))
        self.errors.append(order.weight & (left > 1))

    def _results(self, m: Module) -> None:
        """The de-serializer: E sums make a word, which one register holds until the lane wants it."""
        plan, order, elements = self.plan, self.order, self.plan.elements
        collected = Array(Signal(signed(VALUE_BITS), name=f"collected_{n}") for n in range(elements))
        held = [Signal(signed(VALUE_BITS), name=f"held_{n}") for n in range(elements)]
        at, holds, full = Signal(range(elements + 1)), Signal(), Signal()
        word = [*(collected[n] for n in range(elements - 1)), self.sum]
        m.d.comb += full.eq(self.sum_valid & (at == elements - 1))
        with m.If(self.sum_valid):
            m.d.sync += [collected[at].eq(self.sum), at.eq(Mux(full, 0, at + 1))]
        wanted = order.take if plan.accumulates else order.result
        passes_by = wanted & ~holds if plan.accumulates else Const(0)
        with m.If(full & ~passes_by):
            m.d.sync += [holds.eq(1), *(here.eq(new) for here, new in zip(held, word, strict=True))]
        with m.Elif(wanted):
            m.d.sync += holds.eq(0)
        self.errors += [full & holds & ~wanted, wanted & ~holds & ~(full if plan.accumulates else Const(0))]
        for_psum = rom([each.cols for each in plan.passes], order.take_pass)
        for_result = rom([each.cols for each in plan.passes], order.result_pass)
        m.d.comb += [
            self.asks_psum.eq(order.psum & (self.number < for_psum)),
            self.asks_result.eq(order.result & (self.number < for_result)),
        ]
        if plan.accumulates:
            self._add(m, [Mux(holds, old, new) for old, new in zip(held, word, strict=True)])
        else:
            m.d.comb += [total.eq(old) for total, old in zip(self.total, held, strict=True)]

    def _add(self, m: Module, word: list[Value]) -> None:
        """The lane's share of the vector unit: the elements of a word are added in `adds` cycles, in order."""
        plan, order, elements = self.plan, self.order, self.plan.elements
        operand, psum, sums = (
            [Signal(signed(VALUE_BITS), name=f"{name}_{n}") for n in range(elements)]
            for name in ("operand", "psum", "sum")
        )
        left, ready, last = Signal(range(plan.adds + 1)), Signal(), Signal()
        m.d.comb += last.eq(left == 1)
        with m.If(left != 0):
            m.d.sync += left.eq(left - 1)
        for n in range(elements):
            # The element's turn is the last cycle in which it can be added without delaying the word.
            turn = -(-(n + 1) * plan.adds // elements) - 1
            with m.If(left == plan.adds - turn):
                m.d.sync += sums[n].eq(operand[n] + psum[n])
            now = operand[n] + psum[n] if turn == plan.adds - 1 else sums[n]
            m.d.comb += self.total[n].eq(Mux(ready, sums[n], now))
        with m.If(order.take):
            m.d.sync += left.eq(plan.adds)
            for n in range(elements):
                m.d.sync += operand[n].eq(word[n])
                m.d.sync += psum[n].eq(Mux(self.asks_psum, self.read_port.data[n], 0))
        with m.If(last):
            m.d.sync += ready.eq(ready | ~order.result)
        with m.Elif(order.result):
            m.d.sync += ready.eq(0)
        self.errors += [
            order.take & (left > 1),
            order.result & ~ready & ~last,
            (left != 0) & ready & ~order.result,
        ]


class Streams(Elaboratable):
    """Issues passes on the frame grid. Partial sums and results follow each read at a fixed distance."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now, self.slot, self.done = Signal(TIME_BITS), Signal(range(plan.frame)), Signal(plan.steps)
        self.issue, self.issued, self.over = Signal(), Signal(COUNT_BITS), Signal()
        self.order, self.finished = Signal(ORDER), Signal(plan.steps)
        self.state = Signal(3)

    BUSY, STARVED, WAITING_WEIGHTS, BLOCKED, PORT_STALL, IDLE = range(6)
    NAMES = ("busy", "starved", "waiting_weights", "blocked", "port_stall", "idle")

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._issue(m)
        self._read(m)
        return m

    def _issue(self, m: Module) -> None:
        """Section 4, causes in their order."""
        plan, passes, number = self.plan, self.plan.passes, self.issued
        over_at, sums_from = Signal(TIME_BITS), Signal(TIME_BITS)
        cause, latest = Signal(3), Signal(3, init=self.STARVED)
        waits = [
            (Array([Const(mask(getattr(each, kind)), plan.steps) for each in passes])[number] & ~self.done).any()
            for kind in ("fills", "spills")
        ]
        weights = Array([Const(mask([plan.weights[each.weights].step]), plan.steps) for each in passes])[number]
        accumulate = rom([each.accumulate for each in passes], number)[0]
        ready = Signal()
        with m.If(waits[0]):
            m.d.comb += cause.eq(self.STARVED)
        with m.Elif((weights & ~self.done).any()):
            m.d.comb += cause.eq(self.WAITING_WEIGHTS)
        with m.Elif(waits[1] | (accumulate & (self.now < sums_from))):
            m.d.comb += cause.eq(self.BLOCKED)
        with m.Else():
            m.d.comb += [cause.eq(latest), ready.eq(1)]
        free = self.now >= over_at
        pending = number < len(passes)
        m.d.comb += [
            self.issue.eq(free & pending & ready & (self.slot == plan.frame - 1)),
            self.over.eq(free & ~self.issue),
        ]
        with m.If(free & pending & ~self.issue):
            m.d.sync += latest.eq(cause)
        with m.If(self.issue):
            m.d.sync += [
                number.eq(number + 1),
                over_at.eq(self.now + rom([each.words * plan.frame for each in passes], number)),
                sums_from.eq(self.now + 1 + plan.result_delay - plan.psum_delay),
            ]
        with m.If(~self.over):
            self._book(m)
        with m.Elif(pending):
            m.d.comb += self.state.eq(cause)
        with m.Else():
            m.d.comb += self.state.eq(self.IDLE)

    def _book(self, m: Module) -> None:
        """A frame of the array begins in the cycle before slot 0."""
        offset = Mux(self.slot == self.plan.frame - 1, 0, self.slot + 1)
        with m.If(offset < self.plan.elements):
            m.d.comb += self.state.eq(self.BUSY)
        with m.Elif(offset < max(self.plan.elements, self.plan.slots)):
            m.d.comb += self.state.eq(self.PORT_STALL)
        with m.Else():
            m.d.comb += self.state.eq(self.BLOCKED)

    def _read(self, m: Module) -> None:
        """Ifmap reads, and two delay lines."""
        plan, passes, order = self.plan, self.plan.passes, self.order
        number, word, left = Signal(COUNT_BITS), Signal(COUNT_BITS), Signal(COUNT_BITS)
        reads = Signal()
        m.d.comb += [
            reads.eq((left != 0) & (self.slot == 0)),
            order.ifmap.eq(reads),
            order.first.eq(word == 0),
            order.ifmap_pass.eq(number),
        ]
        with m.If(reads):
            m.d.sync += [left.eq(left - 1), word.eq(word + 1)]
        with m.If(self.issue):
            m.d.sync += [
                number.eq(self.issued),
                word.eq(0),
                left.eq(rom([each.words for each in passes], self.issued)),
            ]
        line = [Cat(reads, number, word)]
        for n in range(max(plan.psum_delay, plan.result_delay)):
            line.append(Signal(1 + 2 * COUNT_BITS, name=f"line_{n}"))
            m.d.sync += line[-1].eq(line[-2])
        for kind, delay in (("take", plan.psum_delay), ("result", plan.result_delay)):
            valid, of, at = (line[delay][0], line[delay][1 : 1 + COUNT_BITS], line[delay][1 + COUNT_BITS :])
            if kind == "result" or plan.accumulates:
                m.d.comb += [
                    order[kind].eq(valid),
                    order[f"{kind}_pass"].eq(of),
                    order[f"{kind}_word"].eq(at),
                ]
        accumulate = rom([each.accumulate for each in passes], order.take_pass)[0]
        m.d.comb += order.psum.eq(order.take & accumulate)
        last = order.result_word == rom([each.words - 1 for each in passes], order.result_pass)
        with m.If(order.result & last):
            steps = Array([Const(mask([each.step]), plan.steps) for each in passes])
            m.d.comb += self.finished.eq(steps[order.result_pass])


class Preloads(Elaboratable):
    """Reads weight words where the streams leave the port free, at least W cycles apart."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.done, self.finishing = Signal(plan.steps), Signal(plan.steps)
        self.issue, self.issued, self.over = Signal(), Signal(COUNT_BITS), Signal()
        self.port_free, self.read = Signal(), Signal()
        self.number, self.word = Signal(COUNT_BITS), Signal(COUNT_BITS)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        plan = self.plan
        words = -(-plan.rows // plan.word)
        started, at, left = (
            Signal(COUNT_BITS),
            Signal(range(words + 1), init=words),
            Signal(range(plan.rows + 1)),
        )
        entering, rest = Signal(range(plan.word + 1)), Signal(range(plan.rows + 1))
        begins = Signal()
        moving = entering != 0
        m.d.comb += rest.eq(left - moving)
        with m.If(moving & (left == 1)):
            m.d.comb += self.finishing.eq(
                Array([Const(mask([each.step]), plan.steps) for each in plan.weights])[started - 1]
            )
        after = Array([Const(mask(each.after), plan.steps) for each in plan.weights])[started]
        room = (self.issued + self.issue == started) & (Const(plan.buffers > 1) | self.over)
        m.d.comb += [
            begins.eq((rest == 0) & (started < len(plan.weights)) & room & ~(after & ~self.done).any()),
            self.word.eq(Mux(begins, 0, at)),
            self.number.eq(started - ~begins),
            self.read.eq((self.word < words) & (entering <= 1) & self.port_free),
        ]
        m.d.sync += [left.eq(Mux(begins, plan.rows, rest)), at.eq(self.word), started.eq(started + begins)]
        with m.If(moving):
            m.d.sync += entering.eq(entering - 1)
        with m.If(self.read):
            full = (self.word + 1) * plan.word <= plan.rows
            m.d.sync += [
                entering.eq(Mux(full, plan.word, plan.rows - self.word * plan.word)),
                at.eq(self.word + 1),
            ]
        return m


class Dma(Elaboratable):
    """Section 5: transfers in order, one on the bus, at most two under way, the oldest at the port."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now, self.done, self.finished = Signal(TIME_BITS), Signal(plan.steps), Signal(plan.steps)
        self.port_free, self.move = Signal(), Signal()
        self.number, self.word = Signal(COUNT_BITS), Signal(COUNT_BITS)
        self.in_hbm, self.rests = Signal(TIME_BITS), Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        plan, transfers = self.plan, self.plan.transfers
        self.begun, self.under_way, self.moved = Signal(COUNT_BITS), Signal(2), Signal(COUNT_BITS)
        self.starts = [Signal(TIME_BITS, name=f"start_{n}") for n in range(2)]
        self.bus_taken, self.bus_known, self.bus_until = Signal(), Signal(), Signal(TIME_BITS)
        self.holds_bus, self.begins, self.start = Signal(), Signal(), Signal(TIME_BITS)
        after = Array([Const(mask(each.after), plan.steps) for each in transfers])[self.begun]
        pending = self.begun < len(transfers)
        m.d.comb += [
            self.holds_bus.eq(self.bus_taken & ~(self.bus_known & (self.now >= self.bus_until))),
            self.begins.eq(~self.holds_bus & pending & (self.under_way < 2) & ~(after & ~self.done).any()),
            self.rests.eq(~pending & ~self.holds_bus),
        ]
        self._move(m)
        self._bus(m)
        return m

    def _move(self, m: Module) -> None:
        """The oldest transfer asks for the port when its next word is there."""
        transfers = self.plan.transfers
        waiting = Signal(2)
        m.d.comb += [
            waiting.eq(self.under_way + self.begins),
            self.start.eq(Mux(self.under_way == 0, self.now, self.starts[0])),
            self.number.eq(self.begun - self.under_way),
            self.word.eq(self.moved),
        ]
        words, bus = (rom([getattr(each, name) for each in transfers], self.number) for name in ("words", "bus_cycles"))
        elapsed = Signal(signed(TIME_BITS))
        spill = rom([each.spill for each in transfers], self.number)[0]
        m.d.comb += elapsed.eq(self.now - self.start - self.plan.latency)
        # A word is on the chip when (k + 1) D / n cycles are over, and may leave from k D / n on, rounded down.
        here = (elapsed >= 0) & ((self.moved + 1) * bus <= elapsed * words)
        leaves = self.moved * bus < (self.now - self.start + 1) * words
        last = self.moved == words - 1
        m.d.comb += self.move.eq((waiting != 0) & Mux(spill, leaves, here) & self.port_free)
        m.d.sync += [
            self.begun.eq(self.begun + self.begins),
            self.under_way.eq(waiting - (self.move & last)),
            self.moved.eq(Mux(self.move, Mux(last, 0, self.moved + 1), self.moved)),
        ]
        with m.If(self.begins):
            m.d.sync += Array(self.starts)[self.under_way[0]].eq(self.now)
        with m.If(self.move & last):
            steps = Array([Const(mask([each.step]), self.plan.steps) for each in transfers])
            m.d.comb += self.finished.eq(steps[self.number])
            m.d.sync += self.starts[0].eq(Mux(self.begins & (self.under_way == 1), self.now, self.starts[1]))

    def _bus(self, m: Module) -> None:
        """A fill frees the bus after D cycles; a spill when its last word has crossed it."""
        transfers = self.plan.transfers
        m.d.sync += self.bus_taken.eq(self.holds_bus)
        with m.If(self.begins):
            m.d.sync += [
                self.bus_taken.eq(1),
                self.bus_known.eq(~rom([each.spill for each in transfers], self.begun)[0]),
                self.bus_until.eq(self.now + rom([each.bus_cycles for each in transfers], self.begun)),
            ]
        crossing = rom([-(-each.bus_cycles // each.words) for each in transfers], self.number)
        crossed, until = Signal(TIME_BITS), Signal(TIME_BITS)
        whole = self.start + rom([each.bus_cycles for each in transfers], self.number)
        m.d.comb += [crossed.eq(self.now + 1 + crossing), until.eq(Mux(crossed > whole, crossed, whole))]
        spilled = self.finished.any() & rom([each.spill for each in transfers], self.number)[0]
        with m.If(spilled):
            m.d.sync += [
                self.bus_known.eq(1),
                self.bus_until.eq(until),
                self.in_hbm.eq(until + self.plan.latency),
            ]


class Sequencer(Elaboratable):
    """Lane 0's control: the streams' slots first, then the preload, then the DMA."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now, self.order, self.rests = Signal(TIME_BITS), Signal(ORDER), Signal()
        self.streams, self.preloads, self.dma = Streams(plan), Preloads(plan), Dma(plan)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        streams, preloads, dma, now = self.streams, self.preloads, self.dma, self.now
        m.submodules += [streams, preloads, dma]
        slot, past, done = Signal(range(self.plan.frame)), Signal(self.plan.steps), Signal(self.plan.steps)
        m.d.sync += [
            now.eq(now + 1),
            slot.eq(Mux(slot == self.plan.frame - 1, 0, slot + 1)),
            past.eq(done | streams.finished | dma.finished),
        ]
        owned = streams.order.ifmap | streams.order.psum | streams.order.result
        m.d.comb += [
            done.eq(past | preloads.finishing),
            streams.now.eq(now),
            streams.slot.eq(slot),
            dma.now.eq(now),
            *(unit.done.eq(done) for unit in (streams, preloads, dma)),
            preloads.issue.eq(streams.issue),
            preloads.issued.eq(streams.issued),
            preloads.over.eq(streams.over),
            preloads.port_free.eq(~owned),
            dma.port_free.eq(~owned & ~preloads.read),
            self.rests.eq(done.all() & dma.rests),
            self.order.eq(streams.order),
            self.order.weight.eq(preloads.read),
            self.order.weight_preload.eq(preloads.number),
            self.order.weight_word.eq(preloads.word),
            self.order.dma.eq(dma.move),
            self.order.dma_transfer.eq(dma.number),
            self.order.dma_word.eq(dma.word),
        ]
        return m


class MatrixUnit(Elaboratable):
    """The whole machine."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sequencer = Sequencer(plan)
        self.lanes = [Lane(plan, number) for number in range(plan.lanes)]
        self.elements = [[Element(row, plan.rows, plan.buffers) for _ in range(plan.cols)] for row in range(plan.rows)]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.sequencer = self.sequencer
        m.d.comb += self.lanes[0].order.eq(self.sequencer.order)
        for ahead, lane in pairwise(self.lanes):
            m.d.sync += lane.order.eq(ahead.order)
        for number, lane in enumerate(self.lanes):
            m.submodules[f"lane_{number}"] = lane
        for row, line in enumerate(self.elements):
            for col, element in enumerate(line):
                m.submodules[f"element_{row}_{col}"] = element
                self._wire(m, row, col, element)
        for col, element in enumerate(self.elements[-1]):
            m.d.comb += [self.lanes[col].sum.eq(element.sum), self.lanes[col].sum_valid.eq(element.valid)]
        return m

    def _wire(self, m: Module, row: int, col: int, element: Element) -> None:
        left = self.elements[row][col - 1] if col else self.lanes[row]
        above = self.elements[row - 1][col] if row else self.lanes[col]
        m.d.comb += [
            element.activation_in.eq(left.activation),
            element.valid_in.eq(left.valid),
            element.buffer_in.eq(left.buffer),
            element.sum_in.eq(self.elements[row - 1][col].sum if row else 0),
            element.weight_in.eq(above.weight),
            element.moves_in.eq(above.moves),
            element.row_in.eq(above.row_tag),
            element.weight_buffer_in.eq(above.weight_buffer),
        ]
