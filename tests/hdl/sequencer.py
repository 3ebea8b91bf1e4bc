"""Lane 0's control in the hardware witness: passes, preloads, and the sequencer that gives them and the DMA the port.

What it orders goes from lane to lane, one a cycle.
"""

from __future__ import annotations

from amaranth.hdl import Array, Const, Elaboratable, Module, Mux, Signal
from amaranth.lib import data

from tests.hdl.dma import Dma
from tests.hdl.plan import Plan
from tests.hdl.wires import ARRAY_BITS, COUNT_BITS, ORDER, TIME_BITS, masks, rom

READ = data.StructLayout({"valid": 1, "array": ARRAY_BITS, "number": COUNT_BITS, "word": COUNT_BITS})
"""An ifmap read: which array's, of which pass, and which word."""


class Streams(Elaboratable):
    """Issues passes on the frame grid. Partial sums and results follow each read at a fixed distance."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now, self.slot, self.done = Signal(TIME_BITS), Signal(range(plan.frame)), Signal(plan.steps)
        self.issue, self.issued, self.over = Signal(), Signal(COUNT_BITS), Signal()
        self.order, self.finished = Signal(ORDER), Signal(plan.steps)
        self.state, self.held = Signal(3), Signal(2)

    BUSY, STARVED, WAITING_WEIGHTS, BLOCKED, PORT_STALL, CONVERSION, IDLE = range(7)
    NAMES = ("busy", "starved", "waiting_weights", "blocked", "port_stall", "conversion", "idle")
    # By what holds a fill.
    LATE = (BLOCKED, STARVED, CONVERSION, PORT_STALL)

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
            (masks([getattr(each, kind) for each in passes], plan.steps, number) & ~self.done).any()
            for kind in ("fills", "spills")
        ]
        weights = masks([[plan.weights[each.weights].step] for each in passes], plan.steps, number)
        accumulate = rom([each.accumulate for each in passes], number)[0]
        ready = Signal()
        with m.If(waits[0]):
            m.d.comb += cause.eq(Array(Const(each, 3) for each in self.LATE)[self.held])
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
                over_at.eq(self.now + rom([plan.stream_cycles(each) for each in passes], number)),
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
        """A word for every array at the head of a frame; its partial sums and results follow at fixed distances."""
        plan, passes, order = self.plan, self.plan.passes, self.order
        read, left = Signal(READ), Signal(COUNT_BITS)
        number, word = Signal(COUNT_BITS), Signal(COUNT_BITS)
        m.d.comb += [
            read.valid.eq((left != 0) & (self.slot < plan.arrays)),
            read.array.eq(self.slot),
            read.number.eq(number),
            read.word.eq(word),
            order.ifmap.eq(read.valid),
            order.ifmap_array.eq(read.array),
            order.ifmap_pass.eq(number),
            order.ifmap_buffer.eq(rom([each.weights % plan.buffers for each in passes], number)[0]),
            order.first.eq(word == 0),
        ]
        with m.If(read.valid):
            m.d.sync += [left.eq(left - 1), word.eq(word + 1)]
        with m.If(self.issue):
            m.d.sync += [
                number.eq(self.issued),
                word.eq(0),
                left.eq(rom([each.words for each in passes], self.issued)),
            ]
        line = [read]
        for n in range(max(plan.psum_delay, plan.result_delay)):
            line.append(Signal(READ, name=f"line_{n}"))
            m.d.sync += line[-1].eq(line[-2])
        if plan.accumulates:
            self._take(m, line[plan.psum_delay])
        self._result(m, line[plan.result_delay])

    def _take(self, m: Module, read: data.View) -> None:
        """A collected word goes to the adder."""
        passes, order = self.plan.passes, self.order
        m.d.comb += [
            order.take.eq(read.valid),
            order.take_array.eq(read.array),
            order.psum.eq(read.valid & rom([each.accumulate for each in passes], read.number)[0]),
            order.psum_address.eq(rom([each.result_base for each in passes], read.number) + read.word),
            order.psum_cols.eq(rom([each.cols for each in passes], read.number)),
        ]

    def _result(self, m: Module, read: data.View) -> None:
        """A word is written; the stream is done with the last."""
        passes, order = self.plan.passes, self.order
        m.d.comb += [
            order.result.eq(read.valid),
            order.result_array.eq(read.array),
            order.result_address.eq(rom([each.result_base for each in passes], read.number) + read.word),
            order.result_cols.eq(rom([each.cols for each in passes], read.number)),
        ]
        with m.If(read.valid & (read.word == rom([each.words - 1 for each in passes], read.number))):
            m.d.comb += self.finished.eq(masks([[each.step] for each in passes], self.plan.steps, read.number))


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
        could, begins, delayed = Signal(), Signal(), Signal(COUNT_BITS)
        moving = entering != 0
        m.d.comb += rest.eq(left - moving)
        with m.If(moving & (left == 1)):
            m.d.comb += self.finishing.eq(masks([[each.step] for each in plan.weights], plan.steps, started - 1))
        after = masks([each.after for each in plan.weights], plan.steps, started)
        room = (self.issued + self.issue == started) & (Const(plan.buffers > 1) | self.over)
        m.d.comb += [
            could.eq((rest == 0) & (started < len(plan.weights)) & room & ~(after & ~self.done).any()),
            begins.eq(could & (delayed == rom([each.delay for each in plan.weights], started))),
            self.word.eq(Mux(begins, 0, at)),
            self.number.eq(started - ~begins),
            self.read.eq((self.word < words) & (entering <= 1) & self.port_free),
        ]
        m.d.sync += [left.eq(Mux(begins, plan.rows, rest)), at.eq(self.word), started.eq(started + begins)]
        m.d.sync += delayed.eq(Mux(could & ~begins, delayed + 1, 0))
        with m.If(moving):
            m.d.sync += entering.eq(entering - 1)
        with m.If(self.read):
            full = (self.word + 1) * plan.word <= plan.rows
            m.d.sync += [
                entering.eq(Mux(full, plan.word, plan.rows - self.word * plan.word)),
                at.eq(self.word + 1),
            ]
        return m


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
            streams.held.eq(dma.held),
            self.rests.eq(done.all() & dma.rests),
        ]
        self._order(m)
        return m

    def _order(self, m: Module) -> None:
        """What lane 0 is told: the streams fill in their own part."""
        plan, order, preloads, dma = self.plan, self.order, self.preloads, self.dma
        base, rows, cols = (
            rom([getattr(each, name) for each in plan.weights], preloads.number) for name in ("base", "rows", "cols")
        )
        m.d.comb += [
            order.eq(self.streams.order),
            order.weight.eq(preloads.read),
            order.weight_address.eq(base + preloads.word),
            order.weight_first.eq(preloads.word * plan.word),
            order.weight_rows.eq(rows),
            order.weight_cols.eq(cols),
            order.weight_buffer.eq(preloads.number[0] if plan.buffers > 1 else 0),
            order.dma.eq(dma.move),
            order.dma_transfer.eq(dma.number),
            order.dma_word.eq(dma.word),
            order.dma_fills.eq(~rom([each.spill for each in plan.transfers], dma.number)[0]),
        ]
