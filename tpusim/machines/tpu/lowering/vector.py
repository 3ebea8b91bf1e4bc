"""Depthwise convolutions by the vector unit: its lanes multiply and add, and nothing goes through the array.

A lane has a channel. A step multiplies, word by word, the pixels under some taps by the lane's weights of these taps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from tpusim.base.errors import UnsuitableError
from tpusim.base.words import counted
from tpusim.machines.tpu.cut.geometry import ConvShape, shape_of
from tpusim.machines.tpu.cut.pace import delay_of
from tpusim.machines.tpu.cut.plan import OUT_CHANNEL, Block, Columns, K, Plan, patch_of, portions, taps_of
from tpusim.machines.tpu.cut.reduction import TapGroups
from tpusim.machines.tpu.cut.tiling import Tiling
from tpusim.machines.tpu.cut.traffic import Traffic
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, one_draft
from tpusim.machines.tpu.lowering.vector_units import IGNORED, Portion, VectorCosts, VectorUnits, feed, in_turn
from tpusim.machines.tpu.lowering.words import block_of, blocking_of, buffers_of, words_of
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.steps import Scalars
from tpusim.machines.tpu.program.tensor import Along, Part
from tpusim.machines.tpu.schedule.units import Compute, Moves, Unit
from tpusim.memory.layout import whole_bursts
from tpusim.network.ops.array_op import ArrayOp


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
    work = _Depthwise(plan)
    return one_draft(lambda: work, lambda _: _explained(work, layer))


@lru_cache(maxsize=1 << 12)
def plan_of(shape: ConvShape, hardware: Hardware) -> Plan:
    """The cheapest that fits, by its estimate.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """
    cut, chunks = TapGroups(shape, hardware), _tap_chunks(shape, hardware)
    lanes, word = min(hardware.lanes, shape.groups * shape.out_channels), hardware.vector_memory.word_elements
    counts = [Arity(len(taps) + (number > 0), len(taps), 0) for number, taps in enumerate(chunks)]
    steps = tuple((each.operands, OPERATIONS["multiply_add"].alu(each, ())) for each in counts)
    # A Plan wants chunks; there are no passes.
    costs = _Costs(
        hardware=hardware, outputs=shape, portions=len(_portions(shape, hardware)), channels=lanes,
        into=(-(-lanes // shape.out_channels),), scalar_words=-(-shape.taps // word), steps=steps,
        chunks=(cut.groups, cut.folds),
    )  # fmt: skip
    return Plan(shape, hardware, costs.chosen(), cut)


class _Costs(VectorCosts):
    """What blocks take, of whose ifmap padding is made ready, too."""

    def readied(self, tiling: Tiling[int]) -> int:
        return self.outputs.reached(tiling.rows, tiling.cols, tiling.groups)


def _portions(shape: ConvShape, hardware: Hardware) -> list[range]:
    """The output channels of all groups, as many at a time as there are lanes."""
    return portions(shape.groups * shape.out_channels, hardware.lanes)


def _tap_chunks(shape: ConvShape, hardware: Hardware) -> list[range]:
    """The taps, by number, as many at a time as a lane keeps the weights of."""
    return portions(shape.taps, hardware.vector_unit.scalar_words * hardware.vector_memory.word_elements)


class _Depthwise(VectorUnits):
    """A depthwise convolution: lanes keep the weights of some taps, and add up the products of all."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.hardware, self.tiling, self.blocks = plan, plan.hardware, plan.tiling, plan.blocks
        self.portions, self.tap_chunks = _portions(plan.shape, plan.hardware), _tap_chunks(plan.shape, plan.hardware)
        self.traffic, self.word_fill = Traffic(plan.shape, plan.hardware), plan.word_fill
        self.tensors = plan.ifmap, plan.filter, plan.ofmap

    def scalars(self, channels: range, base: int) -> Iterator[Moves]:
        """The weights."""
        word, taps = self.hardware.vector_memory.word_elements, self.plan.shape.taps
        part = Part(base, (0,), (Along(OUT_CHANNEL, channels),), (Along(K, range(taps)),), word)
        moved = len(channels) * taps * self.hardware.vector_memory.element_bytes
        yield Moves(self.plan.filter, (part,), whole_bursts(moved, self.hardware.hbm.burst_bytes))

    def maps(self, of: Portion, base: int) -> Iterator[Moves]:
        plan = self.plan
        if (patch := patch_of(plan.shape, of.block)).words:
            # Lanes of several output channels have the same channel of the ifmap.
            each = plan.shape.out_channels
            channels = of.channels if each == 1 else tuple(channel // each for channel in of.channels)
            yield self.traffic.moves(plan.ifmap, plan.read(channels, patch, base), plan.ifmap_apart)

    def delay(self, block: Block) -> int:
        return delay_of(self.plan.shape.reached(*block.sizes), self.hardware)

    def steps(self, block: Block) -> int:
        return len(self.tap_chunks)

    def work(self, of: Portion, bases: Sequence[int]) -> list[Compute]:
        """The taps whose weights a lane keeps; then more of them, added to the sums so far."""
        (channels, block), (maps, filter_, results) = of, bases
        lanes, word = len(channels), self.hardware.vector_memory.word_elements
        writes = feed(lanes, in_turn(results, block.words))
        patch, every, steps = patch_of(self.plan.shape, block), taps_of(self.plan.shape), []
        for taps in self.tap_chunks:
            walks = [self.plan.walk(every[tap], block, patch, by_tap=False) for tap in taps]
            operands = [feed(lanes, each._replace(base=maps + each.base)) for each in walks]
            operands += [writes] if taps.start else []
            weights = Scalars(filter_ + taps.start // word, -(-len(taps) // word), len(taps))
            steps.append(Compute("multiply_add", tuple(operands), writes, block.words, weights))
        return steps

    def spill(self, unit: Unit, base: int) -> Moves:
        channels, block = unit.about
        part, (box,) = self.plan.outputs(Columns(channels, 0), 0, block, base)
        return self.traffic.moves(self.plan.ofmap, (part, box), self.plan.strips_apart)


# ---- in words


def _explained(work: _Depthwise, layer: ArrayOp) -> Explanation:
    plan, row, col = work.plan, work.plan.shape.row, work.plan.shape.col
    blocking, steps = replace(blocking_of(plan), col_folds=len(work.portions)), len(work.tap_chunks)
    kept = "" if steps == 1 else f", in {steps} steps, as a lane keeps {len(work.tap_chunks[0])} weights"
    taps = f"{row.kernel} x {col.kernel} = {plan.shape.taps}, multiplied and added by the vector unit"
    aspects = {
        "taps": f"{taps}{kept}",
        "folds": f"{counted(len(work.portions), 'portion')} of at most {plan.hardware.lanes} channels, one a lane",
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
