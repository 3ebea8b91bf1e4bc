"""Depthwise convolutions by the vector unit: its lanes multiply and add, and nothing goes through the array.

A lane has a channel. A step multiplies, word by word, the pixels under some taps by the lane's weights of these taps.
"""

from __future__ import annotations

from tpusim.base.collector import at_rest
from tpusim.base.errors import UnsuitableError
from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.banked import in_lanes
from tpusim.machines.tpu.lowering.block import Block
from tpusim.machines.tpu.lowering.geometry import ConvShape, shape_of
from tpusim.machines.tpu.lowering.plan import CHANNEL
from tpusim.machines.tpu.lowering.traffic import Traffic
from tpusim.machines.tpu.lowering.vector_plan import VectorPlan, delay_of, plan_of
from tpusim.machines.tpu.lowering.weights import OUT_CHANNEL, K
from tpusim.machines.tpu.lowering.words import block_of, blocking_of, buffers_of, words_of
from tpusim.machines.tpu.program.addresses import Counter, Counters, Feed, LaneGroup
from tpusim.machines.tpu.program.explanation import Explanation, Lowered, Planned
from tpusim.machines.tpu.program.program import Buffer, Program
from tpusim.machines.tpu.program.steps import Fill, Scalars, Spill, Step, Vector
from tpusim.machines.tpu.program.tensor import Along, Part
from tpusim.memory.layout import Box, whole_bursts
from tpusim.network.ops import ArrayOp


def lower(layer: ArrayOp, batch: int, hardware: Hardware) -> Lowered:
    """Lower one layer for one machine.

    Raises:
        UnsuitableError: when the layer is not depthwise.
        CapacityError: when nothing fits the vector memories, or the machine has banks.
    """
    with at_rest():
        plan = _planned(layer, batch, hardware)
        return _Emitter(plan).program(), _explained(plan, layer)


def planned(layer: ArrayOp, batch: int, hardware: Hardware) -> Planned:
    """How many steps `lower` would write down, those of the vector unit among the transfers. Raises CapacityError."""
    plan = _planned(layer, batch, hardware)
    units = len(plan.portions) * len(plan.plan.blocks)
    return Planned(0, units * (2 + len(plan.tap_chunks)) + len(plan.portions))


def _planned(layer: ArrayOp, batch: int, hardware: Hardware) -> VectorPlan:
    conv, _ = layer.convolution(batch)
    in_lanes(hardware)
    if conv.groups == 1 or conv.groups != conv.in_channels:
        what = f"this one has {counted(conv.in_channels, 'channel')} in {counted(conv.groups, 'group')}"
        raise UnsuitableError(f"the vector unit takes convolutions with one input channel a group; {what}")
    # What the vector unit works on may lie in any way.
    hardware = hardware.with_entry("ready")
    return plan_of(shape_of(layer, batch, hardware), hardware)


class _Emitter:
    """Portion by portion and block by block: the block behind is filled while the vector unit works on one."""

    def __init__(self, plan: VectorPlan) -> None:
        self.vector, self.plan, self.traffic = plan, plan.plan, Traffic(plan.plan)
        self.steps: list[Step] = []
        self.units = [(number, block) for number in range(len(plan.portions)) for block in self.plan.blocks]
        self.filled: list[tuple[int, ...]] = []
        self.weights: dict[int, int] = {}
        self.worked: list[int] = []
        self.spills: list[int] = []

    def program(self) -> Program:
        """The whole layer."""
        for number in range(len(self.units)):
            for ahead in range(len(self.filled), min(number + 2, len(self.units))):
                self._fill(ahead)
            self._work(number)
            self._spill(number)
        tensors = self.plan.ifmap, self.plan.filter, self.plan.ofmap
        return Program(tensors, self._buffers(), tuple(self.steps), self.plan.word_fill)

    def _buffers(self) -> tuple[Buffer, ...]:
        plan, tiling, lanes = self.plan, self.plan.tiling, len(self.vector.portions[0])
        return (
            Buffer(plan.ifmap.name, 0, tiling.ifmap_buffers * tiling.ifmap_words, lanes),
            Buffer("filter", plan.filter_base(0), tiling.filter_buffers * tiling.section_words, lanes),
            Buffer("ofmap", plan.psum_base(0), tiling.psum_buffers * tiling.psum_words, lanes),
        )

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def _freed(self, number: int, steps: list[int]) -> tuple[int, ...]:
        """What last used the buffers of a unit."""
        before = number - self.plan.tiling.ifmap_buffers
        return (steps[before],) if before >= 0 else ()

    # ---- into the lanes

    def _fill(self, number: int) -> None:
        """The weights of a portion before its first block; what a block needs of the ifmap, unless all is padding."""
        portion, block = self.units[number]
        if portion not in self.weights:
            self._fill_weights(portion)
        patch, plan, shape = self.vector.patch(block), self.plan, self.plan.shape
        if not patch.words:
            self.filled.append(())
            return
        apart = shape.row.extent * shape.row.stride, shape.col.extent * shape.col.stride
        rows, cols = shape.row.coordinates(patch.rows), shape.col.coordinates(patch.cols)
        channels = self.vector.inputs(self.vector.portions[portion])
        box = Box(range(channels[0], channels[-1] + 1), rows, cols, plan.images(patch.groups))
        items = plan.map_items(rows, cols, patch.groups, apart)
        part = Part(self._ifmap(number), (0,), (Along(CHANNEL, channels),), items, plan.word_fill)
        moved, regions = self.traffic.of((box,), plan.ifmap, apart)
        freed = self._freed(number, self.worked)
        self.filled.append((self._add(Fill(freed, plan.ifmap, (part,), moved, regions=regions)),))

    def _fill_weights(self, portion: int) -> None:
        plan, hardware, lanes = self.plan, self.plan.hardware, self.vector.portions[portion]
        word, taps = hardware.vector_memory.word_elements, plan.shape.taps
        part = Part(self._filter(portion), (0,), (Along(OUT_CHANNEL, lanes),), (Along(K, range(taps)),), word)
        moved = len(lanes) * taps * hardware.vector_memory.element_bytes
        moved = whole_bursts(moved, hardware.hbm.burst_bytes)
        # The last block that used the buffer.
        last = (portion - plan.tiling.filter_buffers + 1) * len(plan.blocks) - 1
        after = (self.worked[last],) if last >= 0 else ()
        self.weights[portion] = self._add(Fill(after, plan.filter, (part,), moved))

    def _ifmap(self, number: int) -> int:
        return self.plan.ifmap_base(number % self.plan.tiling.ifmap_buffers)

    def _filter(self, portion: int) -> int:
        return self.plan.filter_base(portion % self.plan.tiling.filter_buffers)

    def _results(self, number: int) -> int:
        return self.plan.psum_base(number % self.plan.tiling.psum_buffers)

    # ---- the vector unit, and out

    def _work(self, number: int) -> None:
        """The taps whose weights a lane keeps; then more of them, added to the sums so far."""
        portion, block = self.units[number]
        after = (*self.filled[number], self.weights[portion], *self._freed(number, self.spills))
        lanes, word = len(self.vector.portions[portion]), self.plan.hardware.vector_memory.word_elements
        sums = Counters(self._results(number), (Counter(block.words, 0, 1, block.words, 1),))
        sizes = len(block.rows), len(block.cols), len(block.groups)
        writes, delay = _feed(lanes, sums), delay_of(self.plan.shape, sizes, self.plan.hardware)
        for taps in self.vector.tap_chunks:
            operands = [_feed(lanes, each) for each in self._walks(number, block, taps)]
            operands += [writes] if taps.start else []
            weights = Scalars(self._filter(portion) + taps.start // word, -(-len(taps) // word), len(taps))
            step = Vector(after, "multiply_add", tuple(operands), writes, block.words, weights, delay=delay)
            last, delay = self._add(step), 0
        self.worked.append(last)

    def _walks(self, number: int, block: Block, taps: range) -> list[Counters]:
        """The words under some taps."""
        patch, base = self.vector.patch(block), self._ifmap(number)
        walks = (self.plan.walk(self.vector.taps[tap], block, patch, by_tap=False) for tap in taps)
        return [each._replace(base=base + each.base) for each in walks]

    def _spill(self, number: int) -> None:
        portion, block = self.units[number]
        plan, shape, channels = self.plan, self.plan.shape, self.vector.portions[portion]
        apart = shape.row.extent, shape.col.extent
        items = plan.map_items(block.rows, block.cols, block.groups, apart)
        part = Part(self._results(number), (0,), (Along(CHANNEL, channels),), items, plan.word_fill)
        box = Box(channels, block.rows, block.cols, plan.images(block.groups))
        moved, regions = self.traffic.of((box,), plan.ofmap, apart)
        self.spills.append(self._add(Spill((self.worked[number],), plan.ofmap, (part,), moved, regions=regions)))


def _feed(lanes: int, pattern: Counters) -> Feed:
    """One pattern for all lanes."""
    return Feed((LaneGroup(0, lanes, pattern),))


# ---- in words


def _explained(vector: VectorPlan, layer: ArrayOp) -> Explanation:
    plan = vector.plan
    blocking = blocking_of(plan, col_folds=len(vector.portions))
    aspects = {
        "taps": _taps(plan.shape, vector),
        "folds": f"{counted(len(vector.portions), 'portion')} of at most {plan.hardware.lanes} channels, one a lane",
        "passes": "none: nothing goes through the array",
        "block": block_of(plan, blocking, layer),
        "order": "portion by portion, in each all blocks",
        "words": words_of(plan, layer),
        "memory": buffers_of(plan),
    }
    return Explanation(1, blocking, dict(vars(plan.tiling)), aspects)


def _taps(shape: ConvShape, vector: VectorPlan) -> str:
    height, width, steps = shape.row.kernel, shape.col.kernel, len(vector.tap_chunks)
    kept = "" if steps == 1 else f", in {steps} steps, as a lane keeps {len(vector.tap_chunks[0])} weights"
    each = f"{height} x {width} = {height * width}, multiplied and added by the vector unit"
    return f"{each}{kept}"
