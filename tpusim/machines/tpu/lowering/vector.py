"""Depthwise convolutions by the vector unit: its lanes multiply and add, and nothing goes through the array.

A lane has a channel. A step multiplies, word by word, the pixels under some taps by the lane's weights of these taps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from tpusim.base.errors import UnsuitableError
from tpusim.base.words import counted
from tpusim.machines.tpu.cut.geometry import ConvShape, shape_of
from tpusim.machines.tpu.cut.pace import delay_of
from tpusim.machines.tpu.cut.plan import OUT_CHANNEL, K, patch_of, portions, taps_of
from tpusim.machines.tpu.cut.reduction import TapGroups
from tpusim.machines.tpu.cut.stored import padded_map
from tpusim.machines.tpu.cut.tiling import Tiling
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, one_draft
from tpusim.machines.tpu.lowering.vector_units import IGNORED, MapSource, Portion, VectorUnits, feed, in_turn
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.steps import Scalars
from tpusim.machines.tpu.program.transfers import Along, Part, Tensor
from tpusim.machines.tpu.schedule.units import Compute, Moves
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.ops.op import OFMAP


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
    work = units_of(shape_of(layer, batch, hardware), hardware)
    (draft,) = one_draft(lambda: work, lambda _: _explained(work, layer))
    return [replace(draft, estimate=lambda: work.cycles(work.tiling))]


class _Depthwise(VectorUnits):
    """A depthwise convolution: lanes keep the weights of some taps, and add up the products of all.

    Attributes:
        tap_chunks: the taps, by number, as many at a time as a lane keeps the weights of.
    """

    numbers = 1

    def __init__(self, shape: ConvShape, hardware: Hardware) -> None:
        word = hardware.vector_memory.word_elements
        self.taps, self.scalar_words = taps_of(shape), -(-shape.taps // word)
        self.tap_chunks = portions(shape.taps, hardware.vector_unit.scalar_words * word)
        counts = [Arity(len(taps) + (taps.start > 0), len(taps), 0) for taps in self.tap_chunks]
        self.chain = tuple((each.operands, sum(OPERATIONS["multiply_add"].work(each, ()))) for each in counts)
        # A tiling tells of chunks; there are no passes.
        cut, (out_channels, *k) = TapGroups(shape, hardware), shape.tensors.filter
        self.chunks = cut.groups, cut.folds
        ifmap, self.ofmap = (
            Tensor(name, each, converted=True, padded=padded_map(each, hardware))
            for name, each in (("ifmap", shape.tensors.ifmap), (OFMAP, shape.tensors.ofmap))
        )
        # Lanes of several output channels have the same channel of the ifmap.
        self.maps = (MapSource(ifmap, (shape.out_channels, 1, 1, 1)),)
        self.tensors = ifmap, Tensor("filter", (out_channels, prod(k))), self.ofmap
        super().__init__(shape, shape.groups * shape.out_channels, hardware)

    def readied(self, tiling: Tiling[int]) -> int:
        """Words of a block that are made ready: padding, too."""
        return self.outputs.reached(tiling.rows, tiling.cols, tiling.groups)

    def delay(self, of: Portion) -> int:
        return delay_of(self.outputs.reached(*of.block.sizes), self.hardware)

    def scalars(self, number: int, base: int) -> Iterator[Moves]:
        """The weights."""
        channels, taps, word = self.portions[number], range(len(self.taps)), self.hardware.vector_memory.word_elements
        part = Part(base, (0,), (Along(OUT_CHANNEL, channels),), (Along(K, taps),), word)
        yield self.numbers_of(self.tensors[1], part, len(channels) * len(taps))

    def work(self, of: Portion, bases: Sequence[int]) -> Iterator[Compute]:
        """The taps whose weights a lane keeps; then more of them, added to the sums so far."""
        (channels, block), (maps, filter_, results) = of, bases
        lanes, word = len(channels), self.hardware.vector_memory.word_elements
        patch, writes = patch_of(self.outputs, block), feed(lanes, in_turn(results, block.words))
        for taps in self.tap_chunks:
            walks = (self.walk(self.maps[0], self.taps[tap], block, patch, maps) for tap in taps)
            operands = [*(feed(lanes, each) for each in walks), *([writes] if taps.start else [])]
            weights = Scalars(filter_ + taps.start // word, -(-len(taps) // word), len(taps))
            yield Compute("multiply_add", tuple(operands), writes, block.words, weights)


@lru_cache(maxsize=1 << 8)
def units_of(shape: ConvShape, hardware: Hardware) -> _Depthwise:
    """The units. Raises CapacityError. A layer is asked how many steps it takes before it is lowered."""
    return _Depthwise(shape, hardware)


def _explained(work: _Depthwise, layer: ArrayOp) -> Explanation:
    row, col, steps = work.outputs.row, work.outputs.col, len(work.chain)
    kept = "" if steps == 1 else f", in {steps} steps, as a lane keeps {len(work.tap_chunks[0])} weights"
    taps = f"{row.kernel} x {col.kernel} = {len(work.taps)}, multiplied and added by the vector unit{kept}"
    return work.explained(layer, "nothing goes through the array", taps, ("ifmap", "filter"))


VECTOR = Lowering(
    "vector",
    "depthwise convolutions by the vector unit: it multiplies and adds, nothing goes through the array",
    ways,
    partial=True,
    carries=frozenset({"bias", "finish"}),
    ignores=IGNORED - {"patch"} | {"block_n", "block.out_channels"},
)
