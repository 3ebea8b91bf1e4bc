"""The matrix unit in Amaranth HDL, written from docs/timing.md alone: a witness for the engines.

Everything here is hardware: registers, adders and wires at the level that a synthesiser takes. It shares no
code with `tpusim`. HBM is outside: whoever simulates the machine gives, for every word that the DMA moves,
its address and contents.

`plan` holds what is fixed before the first cycle, `sequencer` and `dma` are lane 0's control, `lane` is a memory with
its port and all that hangs on it; here are the arrays, and the whole.
"""

from __future__ import annotations

from itertools import pairwise

from amaranth.hdl import Array, Const, Elaboratable, Module, Signal, Value, signed
from amaranth.lib import data

from tests.hdl.lane import Lane
from tests.hdl.plan import Plan
from tests.hdl.sequencer import Sequencer
from tests.hdl.wires import ACTIVATION, OPERAND_BITS, VALUE_BITS, WEIGHT


class SystolicArray(Elaboratable):
    """Rows x columns of PEs between what enters on the left and at the top, and what drops out at the bottom."""

    def __init__(self, plan: Plan, activations: list[data.View], weights: list[data.View]) -> None:
        self.plan, self.activations, self.weights = plan, activations, weights
        self.sums = [Signal(signed(VALUE_BITS), name=f"sum_{col}") for col in range(plan.cols)]
        self.valid = [Signal(name=f"valid_{col}") for col in range(plan.cols)]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        weights, sums = list(self.weights), [Const(0) for _ in self.weights]
        for row, activation in enumerate(self.activations):
            for col in range(self.plan.cols):
                activation, weights[col], sums[col] = self._element(m, row, activation, weights[col], sums[col])
                if row == self.plan.rows - 1:
                    m.d.comb += [self.sums[col].eq(sums[col]), self.valid[col].eq(activation.valid)]
        return m

    def _element(
        self, m: Module, row: int, activation: data.View, weight: data.View, above: Value
    ) -> tuple[data.View, data.View, Value]:
        """One PE: activations pass to the right, sums and weights downwards; the activation tells the weight buffer."""
        held = Array(Signal(signed(OPERAND_BITS), name=f"held_{n}") for n in range(self.plan.buffers))
        right, down, total = Signal(ACTIVATION), Signal(WEIGHT), Signal(signed(VALUE_BITS))
        m.d.sync += [
            right.eq(activation),
            down.eq(weight),
            total.eq(above + activation.value * held[activation.buffer]),
        ]
        with m.If(weight.moves & (weight.row == row)):
            m.d.sync += held[weight.buffer].eq(weight.value)
        return right, down, total


class MatrixUnit(Elaboratable):
    """The whole machine: orders go from lane to lane, and weights from array to array, one a cycle."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sequencer = Sequencer(plan)
        self.lanes = [Lane(plan, number) for number in range(plan.lanes)]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules += [self.sequencer, *self.lanes]
        m.d.comb += self.lanes[0].order.eq(self.sequencer.order)
        for ahead, lane in pairwise(self.lanes):
            m.d.sync += lane.order.eq(ahead.order)
        weights = [lane.weights.weight for lane in self.lanes if lane.collectors]
        for number in range(self.plan.arrays):
            self._array(m, number, weights)
            weights = [self._a_cycle_later(m, weight) for weight in weights]
        return m

    def _array(self, m: Module, number: int, weights: list[data.View]) -> None:
        feeding = [lane.serializers[number].activation for lane in self.lanes if lane.serializers]
        collectors = [lane.collectors[number] for lane in self.lanes if lane.collectors]
        m.submodules += (array := SystolicArray(self.plan, feeding, weights))
        for collector, total, valid in zip(collectors, array.sums, array.valid, strict=True):
            m.d.comb += [collector.sum.eq(total), collector.valid.eq(valid)]

    def _a_cycle_later(self, m: Module, weight: data.View) -> data.View:
        later = Signal(WEIGHT)
        m.d.sync += later.eq(weight)
        return later
