"""Depthwise convolutions by the vector unit: its lanes multiply and add, and nothing goes through the array.

A lane has a channel. A step multiplies, word by word, the pixels under some taps by the lane's weights of these taps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from tpusim.base.errors import UnsuitableError
from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import Block
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, one_draft
from tpusim.machines.tpu.lowering.geometry import ConvShape, shape_of
from tpusim.machines.tpu.lowering.maps import CHANNEL
from tpusim.machines.tpu.lowering.traffic import Traffic
from tpusim.machines.tpu.lowering.vector_plan import VectorPlan, delay_of, plan_of
from tpusim.machines.tpu.lowering.vector_units import IGNORED, Portion, VectorUnits, feed
from tpusim.machines.tpu.lowering.weights import OUT_CHANNEL, K
from tpusim.machines.tpu.lowering.words import block_of, blocking_of, buffers_of, words_of
from tpusim.machines.tpu.program.addresses import Counter, Counters
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.steps import Scalars
from tpusim.machines.tpu.program.tensor import Along, Part, Tensor
from tpusim.machines.tpu.schedule.units import Compute, Moves
from tpusim.memory.layout import Box, whole_bursts
from tpusim.network.ops import ArrayOp


def ways(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """One draft.

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
        apart = shape.row.extent * shape.row.stride, shape.col.extent * shape.col.stride
        rows, cols = shape.row.coordinates(patch.rows), shape.col.coordinates(patch.cols)
        channels = self.vector.inputs(of.channels)
        box = Box(range(channels[0], channels[-1] + 1), rows, cols, plan.images(patch.groups))
        items = plan.map_items(rows, cols, patch.groups, apart)
        part = Part(base, (0,), (Along(CHANNEL, channels),), items, plan.word_fill)
        yield Moves(plan.ifmap, (part,), *self.traffic.of((box,), plan.ifmap, apart))

    def delay(self, block: Block) -> int:
        return delay_of(self.plan.shape, (len(block.rows), len(block.cols), len(block.groups)), self.hardware)

    def steps(self, block: Block) -> int:
        return len(self.vector.tap_chunks)

    def work(self, of: Portion, bases: Sequence[int]) -> list[Compute]:
        """The taps whose weights a lane keeps; then more of them, added to the sums so far."""
        (channels, block), (maps, filter_, results) = of, bases
        lanes, word = len(channels), self.hardware.vector_memory.word_elements
        writes = feed(lanes, Counters(results, (Counter(block.words, 0, 1, block.words, 1),)))
        steps: list[Compute] = []
        for taps in self.vector.tap_chunks:
            operands = [feed(lanes, each) for each in self._walks(block, taps, maps)]
            operands += [writes] if taps.start else []
            weights = Scalars(filter_ + taps.start // word, -(-len(taps) // word), len(taps))
            steps.append(Compute("multiply_add", tuple(operands), writes, block.words, weights))
        return steps

    def _walks(self, block: Block, taps: range, base: int) -> list[Counters]:
        """The words under some taps."""
        patch = self.vector.patch(block)
        walks = (self.plan.walk(self.vector.taps[tap], block, patch, by_tap=False) for tap in taps)
        return [each._replace(base=base + each.base) for each in walks]

    def results(self, of: Portion, base: int) -> Moves:
        plan, shape, (channels, block) = self.plan, self.plan.shape, of
        apart = shape.row.extent, shape.col.extent
        items = plan.map_items(block.rows, block.cols, block.groups, apart)
        part = Part(base, (0,), (Along(CHANNEL, channels),), items, plan.word_fill)
        box = Box(channels, block.rows, block.cols, plan.images(block.groups))
        return Moves(plan.ofmap, (part,), *self.traffic.of((box,), plan.ofmap, apart))


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


VECTOR = Lowering(
    "vector",
    "depthwise convolutions by the vector unit: it multiplies and adds, nothing goes through the array",
    ways,
    partial=True,
    carries=frozenset({"bias", "finish"}),
    ignores=IGNORED - {"patch"} | {"block_n", "block.out_channels"},
)
