"""The DMA of the hardware witness: when a word crosses lane 0's port, on its way from HBM or to it."""

from __future__ import annotations

from amaranth.hdl import Array, Elaboratable, Module, Mux, Signal, signed

from tests.hdl.plan import Plan
from tests.hdl.wires import COUNT_BITS, TIME_BITS, masks, rom


class Dma(Elaboratable):
    """Section 5: transfers in order, one on the bus, at most two under way, the oldest at the port."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now, self.done, self.finished = Signal(TIME_BITS), Signal(plan.steps), Signal(plan.steps)
        self.port_free, self.move = Signal(), Signal()
        self.number, self.word = Signal(COUNT_BITS), Signal(COUNT_BITS)
        self.in_hbm, self.rests = Signal(TIME_BITS), Signal()
        # What holds the oldest transfer that is not done.
        self.held = Signal(2)

    FREED, COME, CONVERTED, PORT = range(4)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        plan, transfers = self.plan, self.plan.transfers
        self.begun, self.under_way, self.moved = Signal(COUNT_BITS), Signal(2), Signal(COUNT_BITS)
        self.starts = [Signal(TIME_BITS, name=f"start_{n}") for n in range(2)]
        self.bus_taken, self.bus_known, self.bus_until = Signal(), Signal(), Signal(TIME_BITS)
        self.holds_bus, self.begins, self.start = Signal(), Signal(), Signal(TIME_BITS)
        after = masks([each.after for each in transfers], plan.steps, self.begun)
        pending = self.begun < len(transfers)
        launched = self.now >= plan.launch
        m.d.comb += [
            self.holds_bus.eq(self.bus_taken & ~(self.bus_known & (self.now >= self.bus_until))),
            self.begins.eq(launched & ~self.holds_bus & pending & (self.under_way < 2) & ~(after & ~self.done).any()),
            self.rests.eq(~pending & ~self.holds_bus),
        ]
        self._move(m)
        self._bus(m)
        self._hold(m, (after & ~self.done).any())
        return m

    def _hold(self, m: Module, waits: Signal) -> None:
        """Section 5, in its order."""
        plan, transfers = self.plan, self.plan.transfers
        come, converted = (
            rom([plan.last_word(each, cycles(each)) for each in transfers], self.number)
            for cycles in (plan.byte_cycles, plan.bus_cycles)
        )
        under_way = (self.under_way != 0) | self.begins
        with m.If(~under_way & waits):
            m.d.comb += self.held.eq(self.FREED)
        with m.Elif(~under_way | (self.now <= self.start + come)):
            m.d.comb += self.held.eq(self.COME)
        with m.Elif(self.now <= self.start + converted):
            m.d.comb += self.held.eq(self.CONVERTED)
        with m.Else():
            m.d.comb += self.held.eq(self.PORT)

    def _move(self, m: Module) -> None:
        """The oldest transfer asks for the port when its next word is there."""
        plan, transfers = self.plan, self.plan.transfers
        waiting = Signal(2)
        m.d.comb += [
            waiting.eq(self.under_way + self.begins),
            self.start.eq(Mux(self.under_way == 0, self.now, self.starts[0])),
            self.number.eq(self.begun - self.under_way),
            self.word.eq(self.moved),
        ]
        words = rom([each.words for each in transfers], self.number)
        bus = rom([plan.bus_cycles(each) for each in transfers], self.number)
        elapsed = Signal(signed(TIME_BITS))
        spill = rom([each.spill for each in transfers], self.number)[0]
        m.d.comb += elapsed.eq(self.now - self.start - plan.latency)
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
            m.d.comb += self.finished.eq(masks([[each.step] for each in transfers], plan.steps, self.number))
            m.d.sync += self.starts[0].eq(Mux(self.begins & (self.under_way == 1), self.now, self.starts[1]))

    def _bus(self, m: Module) -> None:
        """A fill frees the bus after D cycles; a spill when its last word has crossed it."""
        plan, transfers = self.plan, self.plan.transfers
        m.d.sync += self.bus_taken.eq(self.holds_bus)
        with m.If(self.begins):
            m.d.sync += [
                self.bus_taken.eq(1),
                self.bus_known.eq(~rom([each.spill for each in transfers], self.begun)[0]),
                self.bus_until.eq(self.now + rom([plan.bus_cycles(each) for each in transfers], self.begun)),
            ]
        crossing = rom([-(-plan.bus_cycles(each) // each.words) for each in transfers], self.number)
        crossed, until = Signal(TIME_BITS), Signal(TIME_BITS)
        whole = self.start + rom([plan.bus_cycles(each) for each in transfers], self.number)
        m.d.comb += [crossed.eq(self.now + 1 + crossing), until.eq(Mux(crossed > whole, crossed, whole))]
        spilled = self.finished.any() & rom([each.spill for each in transfers], self.number)[0]
        with m.If(spilled):
            m.d.sync += [
                self.bus_known.eq(1),
                self.bus_until.eq(until),
                self.in_hbm.eq(until + plan.latency),
            ]
