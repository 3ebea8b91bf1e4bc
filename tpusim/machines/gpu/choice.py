"""A layer as products on a GPU, and which tile and split it takes: those that are estimated to be fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.machines.gpu.definition import Pace, dram_cycles, move_cycles, pace_of, waves
from tpusim.machines.gpu.description import BlockTile, Gpu
from tpusim.machines.gpu.program import PART_BYTES, MoveKernel, ProductKernel, StepTraffic
from tpusim.network.ops.array_op import ArrayOp, Conv2d
from tpusim.network.ops.op import Op

_CONVOLUTIONS = "conv2d", "conv1d", "gemm"


@dataclass(frozen=True)
class GpuLayer:
    """A convolution of `images` images, on a GPU."""

    conv: Conv2d
    images: int
    gpu: Gpu

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return self.conv.in_channels // self.conv.groups

    @property
    def out_channels(self) -> int:
        """Output channels of a group."""
        return self.conv.out_channels // self.conv.groups

    @property
    def taps(self) -> int:
        """Taps of the filter."""
        return prod(self.conv.kernel)

    @property
    def outputs(self) -> int:
        """Rows of the product: outputs of a channel."""
        return self.images * self.conv.out_height * self.conv.out_width

    @property
    def strided(self) -> bool:
        """Whether it leaves outputs out."""
        return prod(self.conv.stride) > 1

    @property
    def is_a_product(self) -> bool:
        """Whether it is a matrix product by itself."""
        return self.conv.is_a_product and self.conv.in_height == self.conv.in_width == 1

    @property
    def ifmap_bytes(self) -> int:
        """The size of the ifmap."""
        return prod(self.conv.tensors(self.images).ifmap) * self.gpu.element_bytes

    @property
    def touched_bytes(self) -> int:
        """The size of the rows and columns of the ifmap that some tap reads, about."""
        kept = [min(1.0, taps / step) for taps, step in zip(self.conv.kernel, self.conv.stride, strict=True)]
        return round(self.ifmap_bytes * prod(kept))

    @property
    def filter_bytes(self) -> int:
        """The size of the filter."""
        return prod(self.conv.tensors(self.images).filter) * self.gpu.element_bytes

    @property
    def ofmap_bytes(self) -> int:
        """The size of the ofmap."""
        return self.outputs * self.conv.out_channels * self.gpu.element_bytes


def layer_of(op: Op, batch: int, gpu: Gpu) -> GpuLayer:
    """What lowerings ask of a layer. Raises UnsuitableError where an op is no convolution or product."""
    if not isinstance(op, ArrayOp) or op.op not in _CONVOLUTIONS:
        made = ", ".join(_CONVOLUTIONS)
        says = f"{op.op} has no lowering on a GPU yet; there are those of {made}"
        advice = "; --ops array leaves out what is neither" if op.unit == "vector" else ""
        raise UnsuitableError(f"layer {op.name}: {says}{advice}")
    conv, images = op.convolution(batch)
    return GpuLayer(conv, images, gpu)


_MOST_PARTS = 32
_LEAST_STEPS = 4
"""The fewest k-steps of a block that makes a part of a sum."""


def fastest(layer: GpuLayer, made: Callable[[BlockTile], ProductKernel | None]) -> ProductKernel:
    """The fastest of the tiles that the machine allows, each with the best split. `made` is None where one has no room.

    Raises CapacityError when none has.
    """
    known = [products for tile in _tiles(layer) if (products := made(tile))]
    if not known:
        raise CapacityError(f"layer {layer.conv.name}: {_no_room(layer)}")
    timed = [
        (_estimate(layer, split, kinds), split)
        for products, kinds in [(each, Counter(each.stages)) for each in known]
        for split in _splits(layer, products)
    ]
    return min(timed, key=lambda found: found[0])[1]


def reduction(layer: GpuLayer, products: ProductKernel) -> list[MoveKernel]:
    """The kernel that adds the parts of a sum, which blocks write as floats in their epilogues; none for one part."""
    if products.split == 1:
        return []
    parts = products.split * layer.outputs * layer.conv.out_channels * PART_BYTES
    return [MoveKernel("reduction", "l2", parts, layer.ofmap_bytes, layer.gpu.launch.reduction_ps)]


def _no_room(layer: GpuLayer) -> str:
    """Why no block fits an SM, and what to do."""
    sm = layer.gpu.sm
    registers = sm.registers_per_output * min(tile.m * tile.n for tile in _tiles(layer))
    if registers > sm.registers:
        return (
            f"a block of the smallest tile takes {registers} registers, and an SM has {sm.registers}; set sm.registers "
            "higher, sm.registers_per_output lower, or write a smaller tile"
        )
    return (
        f"what a block stages does not fit the shared memory of an SM, {sm.shared_bytes} B; set sm.shared higher, "
        "mapping.k_step lower, or write a smaller tile"
    )


def _tiles(layer: GpuLayer) -> list[BlockTile]:
    """The tiles that a layer may take."""
    chosen = layer.gpu.mapping.tile
    if chosen != "auto":
        return [tile for tile in layer.gpu.tiles if tile.text == chosen]
    return [tile for tile in layer.gpu.tiles if layer.is_a_product or not tile.products]


def _splits(layer: GpuLayer, products: ProductKernel) -> Iterator[ProductKernel]:
    yield products
    units, room = len(products.steps) // products.unit, layer.gpu.sm.count * products.resident
    how = layer.gpu.mapping.split_k
    allowed = how == "all" or (how == "auto" and not layer.strided)
    for parts in range(2, min(_MOST_PARTS, room // products.count) + 1) if allowed else ():
        cut = replace(products, split=parts)
        if cut.part >= _LEAST_STEPS and (parts - 1) * -(-units // parts) < units:
            yield cut


def _estimate(layer: GpuLayer, products: ProductKernel, kinds: Mapping[StepTraffic, int]) -> float:
    """Cycles of resident sets one after another, each as long as what binds it, but at least what the DRAM takes; and
    of the sum of parts.

    `kinds` are the k-steps of the whole sum, counted; a block is taken to have its share of each.
    """
    gpu, share = layer.gpu, products.part / len(products.steps)
    sets = Counter(tuple(wave.items()) for wave in waves(products, gpu))
    cycles = 0.0
    for wave, number in sets.items():
        pace = pace_of(products, gpu, sum(sms for _, sms in wave), tuple(kinds))
        numbers = [share * count for count in kinds.values()]
        cycles += number * resident_cycles(pace, numbers, max(blocks for blocks, _ in wave))
    cycles = max(cycles, dram_cycles(products, gpu))
    return cycles + sum(gpu.launch_cycles + move_cycles(each, gpu) for each in reduction(layer, products))


def resident_cycles(pace: Pace, numbers: list[float], blocks: int) -> float:
    """Cycles of the blocks of an SM that begin together: bound by what they hold the SM for, by the
    load port, or each by itself.

    `numbers` says how often each of the k-steps of the pace comes.
    """
    holds = loads = chain = 0.0
    for (load, store), number in zip(pace.stages, numbers, strict=True):
        hold = store + pace.step + pace.multiply
        holds += number * hold
        loads += number * load
        chain += number * max(hold, (store * pace.held + load + pace.latency) // pace.ahead)
    begin = pace.stages[0][0] + pace.latency
    return begin + max(holds * max(1, blocks // pace.together), blocks * loads, chain) + blocks * pace.epilogue
