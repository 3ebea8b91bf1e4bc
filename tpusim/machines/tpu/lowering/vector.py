"""Depthwise convolutions by the vector unit: its lanes multiply and add, and nothing goes through the array.

A lane has a channel. A step multiplies, word by word, the pixels under some taps by the lane's weights of these taps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from tpusim.base.errors import UnsuitableError
from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import CHANNEL, Block, Columns
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, one_draft
from tpusim.machines.tpu.lowering.geometry import shape_of
from tpusim.machines.tpu.lowering.plan import OUT_CHANNEL, K
from tpusim.machines.tpu.lowering.traffic import Traffic
from tpusim.machines.tpu.lowering.vector_plan import VectorPlan, delay_of, plan_of
from tpusim.machines.tpu.lowering.vector_units import IGNORED, Portion, VectorUnits, feed
from tpusim.machines.tpu.lowering.words import block_of, blocking_of, buffers_of, words_of
from tpusim.machines.tpu.program.addresses import Counter, Counters
from tpusim.machines.tpu.program.explanation import Explanation
from tpusim.machines.tpu.program.tensor import Along, Part, Tensor
from tpusim.machines.tpu.program.vector import Scalars
from tpusim.machines.tpu.schedule.units import Compute, Moves
from tpusim.memory.layout import Box, whole_bursts
from tpusim.network.ops import ArrayOp


def ways(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """A draft, the only one.

    Raises:
        UnsuitableError: when the layer is not depthwise.
        CapacityError: when nothing fits the vector memories.
    """
    conv, _ = layer.convolution(batch)
    if conv.groups == 1 or conv.groups != conv.in_channels:
        what = f"this one has {counted(conv.in_channels, 'channel')} in {counted(conv.groups, 'group')}"
        raise UnsuitableError(f"the vector unit takes several groups, of one input channel each; {what}")
    # What the vector unit works on may lie in any way.
    hardware = hardware.with_entry("ready")
    plan = plan_of(shape_of(layer, batch, hardware), hardware)
    return one_draft(partial(_Depthwise, plan), lambda program: (program, _explained(plan, layer)))


class _Depthwise(VectorUnits):
    """A depthwise convolution: lanes keep the weights of some taps, and add up the products of all."""

    def __init__(self, plan: VectorPlan) -> None:
        self.vector, self.plan, self.hardware = plan, plan.plan, plan.plan.hardware
        self.tiling, self.portions, self.blocks = plan.plan.tiling, plan.portions, plan.plan.blocks
        self.traffic, self.word_fill = Traffic(plan.plan.shape, plan.plan.hardware), plan.plan.word_fill

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.plan.ifmap, self.plan.filter, self.plan.ofmap

    def scalars(self, channels: range, base: int) -> Iterator[Moves]:
        """The weights."""
        word, taps = self.hardware.vector_memory.word_elements, self.plan.shape.taps
        part = Part(base, (0,), (Along(OUT_CHANNEL, channels),), (Along(K, range(taps)),), word)
        moved = len(channels) * taps * self.hardware.vector_memory.element_bytes
        yield Moves(self.plan.filter, (part,), whole_bursts(moved, self.hardware.hbm.burst_bytes))

    def maps(self, of: Portion, base: int) -> Iterator[Moves]:
        patch, plan, shape = self.vector.patch(of.block), self.plan, self.plan.shape
        if not patch.words:
            return
        rows, cols = shape.row.coordinates(patch.rows), shape.col.coordinates(patch.cols)
        channels = self.vector.inputs(of.channels)
        box = Box(range(channels[0], channels[-1] + 1), rows, cols, plan.images(patch.groups))
        items = plan.map_items(rows, cols, patch.groups, plan.ifmap_apart)
        part = Part(base, (0,), (Along(CHANNEL, channels),), items, plan.word_fill)
        yield Moves(plan.ifmap, (part,), *self.traffic.of((box,), plan.ifmap, plan.ifmap_apart))

    def delay(self, block: Block) -> int:
        return delay_of(self.plan.shape, (len(block.rows), len(block.cols), len(block.groups)), self.hardware)

    def steps(self, block: Block) -> int:
        return len(self.vector.tap_chunks)

    def work(self, of: Portion, bases: Sequence[int]) -> list[Compute]:
        """The taps whose weights a lane keeps; then more of them, added to the sums so far."""
        (channels, block), (maps, filter_, results) = of, bases
        lanes, word = len(channels), self.hardware.vector_memory.word_elements
        writes = feed(lanes, Counters(results, (Counter(block.words, 0, 1, block.words, 1),)))
        patch, steps = self.vector.patch(block), []
        for taps in self.vector.tap_chunks:
            walks = [self.plan.walk(self.vector.taps[tap], block, patch, by_tap=False) for tap in taps]
            operands = [feed(lanes, each._replace(base=maps + each.base)) for each in walks]
            operands += [writes] if taps.start else []
            weights = Scalars(filter_ + taps.start // word, -(-len(taps) // word), len(taps))
            steps.append(Compute("multiply_add", tuple(operands), writes, block.words, weights))
        return steps

    def results(self, of: Portion, base: int) -> Moves:
        plan = self.plan
        part, boxes = plan.outputs(Columns(of.channels, 0), 0, of.block, base)
        return Moves(plan.ofmap, (part,), *self.traffic.of(boxes, plan.ofmap, plan.strips_apart))


# ---- in words


def _explained(vector: VectorPlan, layer: ArrayOp) -> Explanation:
    plan, row, col = vector.plan, vector.plan.shape.row, vector.plan.shape.col
    blocking, steps = replace(blocking_of(plan), col_folds=len(vector.portions)), len(vector.tap_chunks)
    kept = "" if steps == 1 else f", in {steps} steps, as a lane keeps {len(vector.tap_chunks[0])} weights"
    taps = f"{row.kernel} x {col.kernel} = {plan.shape.taps}, multiplied and added by the vector unit"
    aspects = {
        "taps": f"{taps}{kept}",
        "folds": f"{counted(len(vector.portions), 'portion')} of at most {plan.hardware.lanes} channels, one a lane",
        "passes": "none: nothing goes through the array",
        "block": block_of(plan, blocking, layer),
        "order": "portion by portion, in each all blocks",
        "words": words_of(plan, layer),
        "memory": buffers_of(plan),
    }
    return Explanation(1, blocking, dict(vars(plan.tiling)), aspects)


VECTOR = Lowering(
    "vector",
    "depthwise convolutions by the vector unit: it multiplies and adds, nothing goes through the array",
    ways,
    partial=True,
    carries=frozenset({"bias", "finish"}),
    ignores=IGNORED - {"patch"} | {"block_n", "block.out_channels"},
)
