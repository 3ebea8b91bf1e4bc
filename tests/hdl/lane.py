"""A lane of the hardware witness: a memory with one port, and all that hangs on it.

Lane i feeds row i of every array with a serializer each, collects column i of every array with a de-serializer
and adder each, and has one serializer for the weights of column i, which go from array to array.
"""

from __future__ import annotations

from itertools import pairwise

from amaranth.hdl import Array, Cat, Const, Elaboratable, Module, Mux, Signal, Value, signed
from amaranth.lib import data, memory

from tests.hdl.plan import Plan
from tests.hdl.wires import ACTIVATION, COUNT_BITS, OPERAND_BITS, ORDER, TIME_BITS, VALUE_BITS, WEIGHT, rom, word_of


class AddressGenerator(Elaboratable):
    """Where the next ifmap word of a lane lies, if it is not padding."""

    def __init__(self, plan: Plan, number: int, order: data.View) -> None:
        self.passes, self.order = plan.passes, order
        self.starts = [each.starts[number] for each in plan.passes]
        self.asks, self.address = Signal(), Signal(range(plan.depth))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        order, passes = self.order, self.passes
        counters = [Signal(COUNT_BITS, name=f"count_{n}") for n in range(3)]
        current = [Mux(order.first, 0, counter) for counter in counters]
        row, col = Signal(signed(TIME_BITS)), Signal(signed(TIME_BITS))
        for axis, (place, count) in enumerate(zip((row, col), current, strict=False)):
            start = rom([each[1 + axis] if each else 0 for each in self.starts], order.ifmap_pass)
            m.d.comb += place.eq(start + count * rom([each.stride[axis] for each in passes], order.ifmap_pass))
        rows, cols = (rom([each.extent[axis] for each in passes], order.ifmap_pass) for axis in (0, 1))
        groups = rom([each.counts[2] for each in passes], order.ifmap_pass)
        base = rom([each[0] if each else 0 for each in self.starts], order.ifmap_pass)
        inside = (row >= 0) & (row < rows) & (col >= 0) & (col < cols)
        fed = rom([each is not None for each in self.starts], order.ifmap_pass)[0]
        m.d.comb += [
            self.asks.eq(order.ifmap & fed & inside),
            self.address.eq(base + (row * cols + col) * groups + current[2]),
        ]
        with m.If(order.ifmap):
            self._count_on(m, counters, current)
        return m

    def _count_on(self, m: Module, counters: list[Signal], current: list[Value]) -> None:
        """The group runs fastest, then the col, then the row."""
        limits = [rom([each.counts[n] for each in self.passes], self.order.ifmap_pass) for n in range(3)]
        m.d.sync += [counter.eq(value) for counter, value in zip(counters, current, strict=True)]
        with m.If(current[2] + 1 < limits[2]):
            m.d.sync += counters[2].eq(current[2] + 1)
        with m.Else():
            m.d.sync += counters[2].eq(0)
            with m.If(current[1] + 1 < limits[1]):
                m.d.sync += counters[1].eq(current[1] + 1)
            with m.Else():
                m.d.sync += [counters[1].eq(0), counters[0].eq(current[0] + 1)]


class Serializer(Elaboratable):
    """Issues a word to a row of an array in the E cycles after its read."""

    def __init__(self, plan: Plan) -> None:
        self.elements = plan.elements
        self.load, self.buffer, self.word = Signal(), Signal(), Signal(word_of(plan))
        self.activation, self.error = Signal(ACTIVATION), Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        register = [Signal(signed(OPERAND_BITS), name=f"serial_{n}") for n in range(self.elements)]
        left, buffer = Signal(range(self.elements + 1)), Signal()
        m.d.comb += [
            self.activation.valid.eq(left != 0),
            self.activation.value.eq(Mux(left != 0, register[0], 0)),
            self.activation.buffer.eq(buffer),
            self.error.eq(self.load & (left > 1)),
        ]
        m.d.sync += [here.eq(behind) for here, behind in pairwise(register)]
        with m.If(left != 0):
            m.d.sync += left.eq(left - 1)
        with m.If(self.load):
            m.d.sync += [left.eq(self.elements), buffer.eq(self.buffer)]
            m.d.sync += [element.eq(self.word[n]) for n, element in enumerate(register)]
        return m


class WeightSerializer(Elaboratable):
    """Issues the W weights of a word to a column in the W cycles after their read."""

    def __init__(self, plan: Plan, number: int, order: data.View) -> None:
        self.plan, self.number, self.order = plan, number, order
        self.word = Signal(word_of(plan))
        self.asks, self.weight, self.error = Signal(), Signal(WEIGHT), Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        plan, order = self.plan, self.order
        register = [Signal(signed(OPERAND_BITS), name=f"weight_{n}") for n in range(plan.word)]
        left, row, buffer = Signal(range(plan.word + 1)), Signal(COUNT_BITS), Signal()
        first, rows = order.weight_first, order.weight_rows
        m.d.comb += [
            self.asks.eq(order.weight & (self.number < order.weight_cols) & (first < rows)),
            self.error.eq(order.weight & (left > 1)),
            self.weight.moves.eq(left != 0),
            self.weight.value.eq(register[0]),
            self.weight.row.eq(row),
            self.weight.buffer.eq(buffer),
        ]
        m.d.sync += [here.eq(behind) for here, behind in pairwise(register)]
        with m.If(left != 0):
            m.d.sync += [left.eq(left - 1), row.eq(row + 1)]
        with m.If(order.weight):
            full = first + plan.word <= plan.rows
            m.d.sync += [
                left.eq(Mux(full, plan.word, plan.rows - first)),
                row.eq(first),
                buffer.eq(order.weight_buffer),
            ]
            for n, element in enumerate(register):
                m.d.sync += element.eq(Mux(self.asks & (first + n < rows), self.word[n], 0))
        return m


class Collector(Elaboratable):
    """The de-serializer of a column: E sums make a word, which one register holds until the lane wants it.

    Where passes accumulate, `take` hands the word and its partial sums to the adder, else `result` writes it.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sum, self.valid = Signal(signed(VALUE_BITS)), Signal()
        self.take, self.psum, self.word, self.result = Signal(), Signal(), Signal(word_of(plan)), Signal()
        self.total = [Signal(signed(VALUE_BITS), name=f"total_{n}") for n in range(plan.elements)]
        self.error = Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        plan, elements = self.plan, self.plan.elements
        collected = Array(Signal(signed(VALUE_BITS), name=f"collected_{n}") for n in range(elements))
        held = [Signal(signed(VALUE_BITS), name=f"held_{n}") for n in range(elements)]
        at, holds, full = Signal(range(elements + 1)), Signal(), Signal()
        word = [*(collected[n] for n in range(elements - 1)), self.sum]
        m.d.comb += full.eq(self.valid & (at == elements - 1))
        with m.If(self.valid):
            m.d.sync += [collected[at].eq(self.sum), at.eq(Mux(full, 0, at + 1))]
        wanted = self.take if plan.accumulates else self.result
        passes_by = wanted & ~holds if plan.accumulates else Const(0)
        with m.If(full & ~passes_by):
            m.d.sync += [holds.eq(1), *(here.eq(new) for here, new in zip(held, word, strict=True))]
        with m.Elif(wanted):
            m.d.sync += holds.eq(0)
        errors = [full & holds & ~wanted, wanted & ~holds & ~(full if plan.accumulates else Const(0))]
        if plan.accumulates:
            errors += self._add(m, [Mux(holds, old, new) for old, new in zip(held, word, strict=True)])
        else:
            m.d.comb += [total.eq(old) for total, old in zip(self.total, held, strict=True)]
        m.d.comb += self.error.eq(Cat(*errors).any())
        return m

    def _add(self, m: Module, word: list[Value]) -> list[Value]:
        """The column's share of the vector unit: the elements of a word are added in `adds` cycles, in order.

        The sums stay in a register of their own until the port has time for them.
        """
        plan, elements = self.plan, self.plan.elements
        operand, psum, sums, kept = (
            [Signal(signed(VALUE_BITS), name=f"{name}_{n}") for n in range(elements)]
            for name in ("operand", "psum", "sum", "kept")
        )
        left, ready, last = Signal(range(plan.adds + 1)), Signal(), Signal()
        m.d.comb += last.eq(left == 1)
        with m.If(left != 0):
            m.d.sync += left.eq(left - 1)
        for n in range(elements):
            # The element's turn is the last cycle in which it can be added without delaying the word.
            turn = -(-(n + 1) * plan.adds // elements) - 1
            now = Signal(signed(VALUE_BITS), name=f"now_{n}")
            m.d.comb += [
                now.eq(operand[n] + psum[n] if turn == plan.adds - 1 else sums[n]),
                self.total[n].eq(Mux(ready, kept[n], now)),
            ]
            with m.If(left == plan.adds - turn):
                m.d.sync += sums[n].eq(operand[n] + psum[n])
            with m.If(last):
                m.d.sync += kept[n].eq(now)
        with m.If(self.take):
            m.d.sync += left.eq(plan.adds)
            for n in range(elements):
                m.d.sync += [operand[n].eq(word[n]), psum[n].eq(Mux(self.psum, self.word[n], 0))]
        with m.If(last):
            m.d.sync += ready.eq(ready | ~self.result)
        with m.Elif(self.result):
            m.d.sync += ready.eq(0)
        return [self.take & (left > 1), self.result & ~ready & ~last, last & ready & ~self.result]


class Lane(Elaboratable):
    """One address and one word a cycle, and where they come from and go to."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.plan, self.number = plan, number
        self.order = Signal(ORDER)
        # To and from HBM.
        self.takes_part, self.dma_address, self.dma_word = Signal(), Signal(range(plan.depth)), Signal(word_of(plan))
        # To and from the arrays. A lane beyond the last row feeds none, one beyond the last column collects from none.
        arrays = range(plan.arrays)
        self.generator = AddressGenerator(plan, number, self.order)
        self.serializers = [Serializer(plan) for _ in arrays] if number < plan.rows else []
        self.weights = WeightSerializer(plan, number, self.order)
        self.collectors = [Collector(plan) for _ in arrays] if number < plan.cols else []
        # What the port does; and what must never be.
        self.owners, self.asks, self.writes = Signal(5), Signal(5), Signal()
        self.address, self.contents = Signal(range(plan.depth)), Signal(word_of(plan))
        self.asked_twice, self.slot_twice, self.lost = Signal(), Signal(), Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = store = memory.Memory(shape=word_of(self.plan), depth=self.plan.depth, init=[])
        self.read_port, self.write_port = store.read_port(domain="comb"), store.write_port(granularity=1)
        self.asks_psum, self.asks_result = Signal(), Signal()
        self._feed(m)
        self._collect(m)
        self._port(m)
        self._guard(m)
        return m

    def _feed(self, m: Module) -> None:
        """What is read goes to the serializers; padding is zero."""
        order, word = self.order, self.read_port.data
        m.submodules += [self.generator, self.weights, *self.serializers]
        m.d.comb += self.weights.word.eq(word)
        for array, serializer in enumerate(self.serializers):
            m.d.comb += [
                serializer.load.eq(order.ifmap & (order.ifmap_array == array)),
                serializer.buffer.eq(order.ifmap_buffer),
                serializer.word.eq(Mux(self.generator.asks, word, 0)),
            ]

    def _collect(self, m: Module) -> None:
        """Partial sums meet the word of their array; the array whose turn it is has its result written."""
        order = self.order
        m.submodules += self.collectors
        m.d.comb += [
            self.asks_psum.eq(order.psum & (self.number < order.psum_cols)),
            self.asks_result.eq(order.result & (self.number < order.result_cols)),
        ]
        for array, collector in enumerate(self.collectors):
            m.d.comb += [
                collector.take.eq(order.take & (order.take_array == array)),
                collector.psum.eq(self.asks_psum),
                collector.word.eq(self.read_port.data),
                collector.result.eq(order.result & (order.result_array == array)),
            ]

    def _port(self, m: Module) -> None:
        """One address, one word, read or written."""
        plan, order, asks = self.plan, self.order, self.asks
        asks_dma, fills = Signal(), Signal()
        m.d.comb += [
            asks_dma.eq(order.dma & self.takes_part),
            fills.eq(asks_dma & order.dma_fills),
            asks.eq(Cat(self.generator.asks, self.asks_psum, self.asks_result, self.weights.asks, asks_dma)),
            self.writes.eq(self.asks_result | fills),
            self.read_port.addr.eq(self.address),
            self.write_port.addr.eq(self.address),
            self.write_port.data.eq(self.contents),
            self.contents.eq(self.read_port.data),
        ]
        with m.If(self.generator.asks):
            m.d.comb += self.address.eq(self.generator.address)
        with m.Elif(self.asks_psum):
            m.d.comb += self.address.eq(order.psum_address)
        with m.Elif(self.asks_result):
            m.d.comb += [self.address.eq(order.result_address), self.write_port.en.eq((1 << plan.elements) - 1)]
            for array, collector in enumerate(self.collectors):
                with m.If(order.result_array == array):
                    m.d.comb += [self.contents[n].eq(total) for n, total in enumerate(collector.total)]
        with m.Elif(self.weights.asks):
            m.d.comb += self.address.eq(order.weight_address)
        with m.Elif(asks_dma):
            m.d.comb += self.address.eq(self.dma_address)
            with m.If(fills):
                m.d.comb += [self.contents.eq(self.dma_word), self.write_port.en.eq((1 << plan.word) - 1)]

    def _guard(self, m: Module) -> None:
        """Two at the port, two owners of a slot, or a word too early or too late: noted for good."""
        order, asks, owners = self.order, self.asks, self.owners
        m.d.comb += owners.eq(Cat(order.ifmap, order.psum, order.result, order.weight, order.dma))
        with m.If((asks & (asks - 1)[:5]).any()):
            m.d.sync += self.asked_twice.eq(1)
        with m.If((owners & (owners - 1)[:5]).any()):
            m.d.sync += self.slot_twice.eq(1)
        with m.If(Cat(unit.error for unit in (self.weights, *self.serializers, *self.collectors)).any()):
            m.d.sync += self.lost.eq(1)
