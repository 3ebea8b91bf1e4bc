"""From a layer to a Program: a layer as products, the k-steps of its sum, the traffic of its blocks, every lowering by
name, and the choice of tile and split with the lowest estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.machines.gpu.definition import BlockPace, dram_cycles, move_cycles, pace_of, waves
from tpusim.machines.gpu.description import BlockTile, Gpu
from tpusim.machines.gpu.program import (
    PART_BYTES,
    Boxes,
    ChannelRun,
    ConsecutiveTiles,
    GpuProgram,
    Kernel,
    KStep,
    MoveKernel,
    ProductKernel,
    StepTraffic,
    unique,
)
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
        """Whether the stride leaves outputs out."""
        return prod(self.conv.stride) > 1

    @property
    def is_a_product(self) -> bool:
        """Whether the layer is a matrix product as it is."""
        return self.conv.is_a_product and self.conv.in_height == self.conv.in_width == 1

    @property
    def ifmap_bytes(self) -> int:
        """Bytes of the ifmap."""
        return prod(self.conv.tensors(self.images).ifmap) * self.gpu.element_bytes

    @property
    def touched_bytes(self) -> int:
        """Bytes of the rows and columns of the ifmap that some tap reads, about."""
        kept = [min(1.0, taps / step) for taps, step in zip(self.conv.kernel, self.conv.stride, strict=True)]
        return round(self.ifmap_bytes * prod(kept))

    @property
    def filter_bytes(self) -> int:
        """Bytes of the filter."""
        return prod(self.conv.tensors(self.images).filter) * self.gpu.element_bytes

    @property
    def ofmap_bytes(self) -> int:
        """Bytes of the ofmap."""
        return self.outputs * self.conv.out_channels * self.gpu.element_bytes


def layer_of(op: Op, batch: int, gpu: Gpu) -> GpuLayer:
    """The layer in the form that lowerings take. Raises UnsuitableError if the op is no convolution or product."""
    if not isinstance(op, ArrayOp) or op.op not in _CONVOLUTIONS:
        made = ", ".join(_CONVOLUTIONS)
        says = f"{op.op} has no lowering on a GPU yet; there are those of {made}"
        advice = "; ops array leaves out what is neither" if op.unit == "vector" else ""
        raise UnsuitableError(f"layer {op.name}: {says}{advice}")
    if op.filter_stored != "computed":
        says = f"layer {op.name}: a GPU widens no {op.filter_stored} weights yet"
        raise UnsuitableError(f"{says}; write stored: computed")
    conv, images = op.convolution(batch)
    return GpuLayer(conv, images, gpu)


def channel_last(layer: GpuLayer) -> GpuProgram:
    """The lowering of the library: blocks gather taps one by one, by offsets worked out ahead, each padded to a k-step.

    Raises CapacityError.
    """
    mapping, launch = layer.gpu.mapping, layer.gpu.launch
    if mapping.pad_taps:
        steps = _padded(layer, channels_outside=False)
        period = len(steps) // layer.taps
    else:
        steps, period = _compact(layer), 1
    read = layer.touched_bytes + layer.filter_bytes
    products = fastest(layer, lambda tile: _gathered(layer, tile, steps, period, read, offsets=not layer.is_a_product))
    ahead: list[Kernel] = []
    if not layer.is_a_product:
        ahead.append(MoveKernel("offsets", "l2", fixed_ps=launch.offsets_ps))
        if layer.strided:
            ahead.append(MoveKernel("strided", "l2", fixed_ps=launch.strided_ps, launched=False))
    return _program(layer, products, ahead)


def block_channel_first(layer: GpuLayer) -> GpuProgram:
    """The paper's algorithm on blocks of a map in place of an array: channels are staged for all taps together.

    A block makes a box of images, rows and columns, so that its taps read many elements several times. The taps of a
    slab of channels read a patch that was staged with the first of them, or find in L1 what the first has fetched.
    If no tile has room for its patch, taps share elements through the cache. Raises CapacityError if nothing fits.
    """
    reuse = layer.gpu.mapping.reuse
    steps = _padded(layer, channels_outside=layer.gpu.mapping.order == "channels_outside")
    try:
        products = fastest(layer, lambda tile: _boxed(layer, tile, steps, reuse))
    except CapacityError:
        if reuse != "patch":
            raise
        products = fastest(layer, lambda tile: _boxed(layer, tile, steps, "cache"))
    return _program(layer, products)


def explicit(layer: GpuLayer) -> GpuProgram:
    """The lowering with an explicit lowered matrix, which a kernel of its own writes to DRAM; the product has no taps.

    A layer that equals its lowered matrix has no such kernel. Raises CapacityError.
    """
    steps = _compact(layer)
    made = (
        0 if layer.conv.is_a_product else layer.outputs * layer.taps * layer.conv.in_channels * layer.gpu.element_bytes
    )
    read = (made or layer.touched_bytes) + layer.filter_bytes
    products = fastest(layer, lambda tile: _gathered(layer, tile, steps, 1, read))
    return _program(layer, products, [MoveKernel("lowered", "dram", layer.touched_bytes, made)] if made else [], made)


LOWERINGS: dict[str, Callable[[GpuLayer], GpuProgram]] = {
    "channel_last": channel_last,
    "block_channel_first": block_channel_first,
    "explicit": explicit,
}
"""Lowerings of a GPU by name, the usual one first."""
GLOSSES = {
    "channel_last": "as the library does it: each tap gathered by itself",
    "block_channel_first": "the paper's, in blocks: taps of a slab of channels share what was staged",
    "explicit": "the lowered matrix written to DRAM first",
}


def _program(
    layer: GpuLayer, products: ProductKernel, ahead: Iterable[Kernel] = (), lowered_bytes: int = 0
) -> GpuProgram:
    """The kernels of a layer. Maps in NCHW order are transposed ahead; the epilogue writes either order."""
    transposed = layer.gpu.mapping.layout == "NCHW" and not layer.is_a_product
    transform = [MoveKernel("transform", "dram", layer.ifmap_bytes, layer.ifmap_bytes)] if transposed else []
    return GpuProgram((*transform, *ahead, products, *reduction(layer, products)), lowered_bytes)


# ---- the k-steps of a sum over taps and channels


def _padded(layer: GpuLayer, channels_outside: bool) -> tuple[KStep, ...]:
    """K-steps in which every tap begins a new one; the rest of a tap's last k-step is zeros."""
    size = layer.gpu.mapping.k_step
    slabs = [(first, min(size, layer.channels - first)) for first in range(0, layer.channels, size)]
    if channels_outside:
        return tuple((ChannelRun(tap, *slab),) for slab in slabs for tap in range(layer.taps))
    return tuple((ChannelRun(tap, *slab),) for tap in range(layer.taps) for slab in slabs)


def _compact(layer: GpuLayer) -> tuple[KStep, ...]:
    """K-steps filled without gaps: one may hold the channels of several taps."""
    size, channels, rows = layer.gpu.mapping.k_step, layer.channels, layer.taps * layer.channels
    steps = []
    for at in range(0, rows, size):
        runs, stop = [], min(at + size, rows)
        while at < stop:
            tap, channel = divmod(at, channels)
            count = min(channels - channel, stop - at)
            runs.append(ChannelRun(tap, channel, count))
            at += count
        steps.append(tuple(runs))
    return tuple(steps)


# ---- blocks that gather every tap anew


def _gathered(
    layer: GpuLayer, tile: BlockTile, steps: tuple[KStep, ...], period: int, read_bytes: int, *, offsets: bool = False
) -> ProductKernel | None:
    """The products of blocks of neighbouring outputs; None if they have no room.

    They read `read_bytes` from DRAM. `offsets` tells whether offsets of taps are worked out ahead.
    """
    resident = layer.gpu.resident(tile, _staged_bytes(layer, tile))
    if not resident:
        return None
    blocks = ConsecutiveTiles(layer.outputs, tile.m)
    # Only the number of channels of a k-step, and of the taps that begin in it, affects its traffic.
    kinds = [(sum(run.channels for run in step), sum(run.first == 0 for run in step)) for step in steps]
    known = {kind: _gathered_step(layer, tile, *kind[: 1 + offsets]) for kind in set(kinds)}
    a_bytes, b_bytes = _operand_bytes(layer, tile, blocks.count)
    return ProductKernel(
        layer.conv, layer.images, tile, blocks, steps, tuple(known[kind] for kind in kinds), period, 1, resident,
        False, a_bytes, b_bytes, read_bytes, layer.ofmap_bytes,
    )  # fmt: skip


def _staged_bytes(layer: GpuLayer, tile: BlockTile) -> int:
    """Bytes of shared memory of a block: the operands of a k-step, for each buffer under way, at least two."""
    return (layer.gpu.sm.loads_under_way + 1) * _stored_bytes(layer, tile.m + tile.n)


def _stored_bytes(layer: GpuLayer, rows: int) -> int:
    """Bytes of shared memory for a k-step of `rows`, with zeros."""
    return rows * layer.gpu.mapping.k_step * layer.gpu.element_bytes


def _gathered_step(layer: GpuLayer, tile: BlockTile, channels: int, taps: int = 0) -> StepTraffic:
    """Traffic of a k-step. Channels of a row come in whole sectors, side by side for neighbouring taps; zeros are
    stored, too.
    """
    fetched = (tile.m + tile.n) * _sectors(layer, channels)
    return StepTraffic(fetched, fetched, _stored_bytes(layer, tile.m + tile.n), taps)


def _sectors(layer: GpuLayer, channels: int) -> int:
    """Bytes of the sectors that hold neighbouring channels."""
    sector = layer.gpu.l2.sector_bytes
    return -(-channels * layer.gpu.element_bytes // sector) * sector


def _operand_bytes(layer: GpuLayer, tile: BlockTile, tiles: int) -> tuple[int, int]:
    """Bytes of map and filter that all blocks fetch: every tap for each column of tiles, the filter for each row of
    tiles.
    """
    columns = -(-layer.out_channels // tile.n)
    sums = layer.taps * layer.channels * layer.gpu.element_bytes
    return layer.outputs * sums * columns * layer.conv.groups, sums * layer.conv.out_channels * tiles


# ---- blocks whose taps share elements


def _boxed(layer: GpuLayer, tile: BlockTile, steps: tuple[KStep, ...], reuse: str) -> ProductKernel | None:
    """The products of blocks that make boxes; None if they have no room."""
    gpu, patch = layer.gpu, reuse == "patch"
    outside = gpu.mapping.order == "channels_outside"

    def staged_by(box: tuple[int, int, int]) -> int:
        if not patch:
            return _staged_bytes(layer, tile)
        # A patch is needed once; it has all channels if taps are outermost. The filter has a buffer for each load.
        slabs = 1 if outside else -(-layer.channels // gpu.mapping.k_step)
        return _stored_bytes(layer, _patch_elements(layer, box) * slabs + (gpu.sm.loads_under_way + 1) * tile.n)

    boxes = _box_of(layer, tile, lambda box: gpu.resident(tile, staged_by(box)))
    if boxes is None:
        return None
    elements, staged = _patch_elements(layer, boxes.box), staged_by(boxes.box)
    resident = gpu.resident(tile, staged)
    # L1 still holds an element for the next tap if all that blocks fetch in between fits beside shared memory.
    between = tile.m * (gpu.mapping.k_step if outside else layer.channels) * layer.gpu.element_bytes
    if reuse == "cache" and resident * (between + staged) > gpu.sm.unified_bytes:
        reuse = "none"
    known = {step: _shared_step(layer, tile, step, elements, reuse) for step in set(steps)}
    a_bytes, b_bytes = _operand_bytes(layer, tile, boxes.count)
    if reuse != "none":
        fetched = sum(number * _patch_elements(layer, box) for number, box in boxes.shapes())
        columns = -(-layer.out_channels // tile.n)
        a_bytes = fetched * layer.conv.in_channels * layer.gpu.element_bytes * columns
    period = layer.taps if outside else len(steps) // layer.taps
    # The first tap of a patch stages it, so a sum may only be cut where a patch ends.
    unit = (layer.taps if outside else len(steps)) if patch else 1
    return ProductKernel(
        layer.conv, layer.images, tile, boxes, steps, tuple(known[step] for step in steps), period, unit, resident,
        patch, a_bytes, b_bytes, layer.touched_bytes + layer.filter_bytes, layer.ofmap_bytes,
    )  # fmt: skip


def _box_of(layer: GpuLayer, tile: BlockTile, room: Callable[[tuple[int, int, int]], int]) -> Boxes | None:
    """The boxes, with as many outputs as the tile has rows, that make the fewest tiles and read the fewest elements.

    An SM must have `room` for a block, better for several; None if it has room for no box.
    """
    extent = layer.images, layer.conv.out_height, layer.conv.out_width
    keys = {}
    divisors = [each for each in range(1, tile.m + 1) if not tile.m % each]
    for images, rows in product(divisors, repeat=2):
        box = images, rows, tile.m // (images * rows)
        if prod(box) == tile.m and (blocks := room(box)):
            boxes = Boxes(extent, box)
            # Fewest tiles first; then room for two blocks, which hide each other's waits; then the smallest patch.
            keys[boxes.count, -min(blocks, 2), _patch_elements(layer, box), box] = boxes
    return keys[min(keys)] if keys else None


def _patch_elements(layer: GpuLayer, box: tuple[int, int, int]) -> int:
    """Different elements of a channel that all taps of a box read, with padding."""
    images, *sides = box
    axes = zip(sides, layer.conv.kernel, layer.conv.stride, layer.conv.dilation, strict=True)
    return images * prod(unique(*axis) for axis in axes)


def _shared_step(layer: GpuLayer, tile: BlockTile, step: KStep, elements: int, reuse: str) -> StepTraffic:
    """Traffic of a k-step whose taps share: with a patch, the first tap stages it for all; from L1, all fetch equal
    shares.
    """
    (run,) = step
    if reuse == "patch":
        rows = elements * (run.tap == 0) + tile.n
        fetched = rows * _sectors(layer, run.channels)
        return StepTraffic(fetched, fetched, _stored_bytes(layer, rows))
    rows = -(-elements // layer.taps) if reuse == "cache" else tile.m
    gathered = _gathered_step(layer, tile, run.channels)
    return gathered._replace(fetched=(rows + tile.n) * _sectors(layer, run.channels))


# ---- which tile, and how many parts of a sum


_MOST_PARTS = 32
_LEAST_STEPS = 4
"""Least k-steps of a block that makes a part of a sum."""


def fastest(layer: GpuLayer, made: Callable[[BlockTile], ProductKernel | None]) -> ProductKernel:
    """The fastest of the tiles that the machine allows, each with its best split. `made` gives None for tiles without
    room.

    Raises CapacityError when no tile has room.
    """
    known = [products for tile in _tiles(layer) if (products := made(tile))]
    if not known:
        sm = layer.gpu.sm
        registers = sm.registers_per_output * min(tile.m * tile.n for tile in _tiles(layer))
        says = (
            f"what a block stages does not fit the shared memory of an SM, {sm.shared_bytes} B; set sm.shared higher, "
            "mapping.k_step lower, or write a smaller tile"
        )
        # Registers are the better reason where both are short: no setting of shared memory would help.
        if registers > sm.registers:
            says = (
                f"a block of the smallest tile takes {registers} registers, and an SM has {sm.registers}; set "
                "sm.registers higher, sm.registers_per_output lower, or write a smaller tile"
            )
        raise CapacityError(f"layer {layer.conv.name}: {says}")
    timed = [
        (_estimate(layer, split, kinds), split)
        for products, kinds in [(each, Counter(each.stages)) for each in known]
        for split in _splits(layer, products)
    ]
    return min(timed, key=lambda found: found[0])[1]


def reduction(layer: GpuLayer, products: ProductKernel) -> list[MoveKernel]:
    """The kernel that adds the parts of a sum, which blocks write as floats; none if there is one part."""
    if products.split == 1:
        return []
    parts = products.split * layer.outputs * layer.conv.out_channels * PART_BYTES
    return [MoveKernel("reduction", "l2", parts, layer.ofmap_bytes, layer.gpu.launch.reduction_ps)]


def _tiles(layer: GpuLayer) -> list[BlockTile]:
    """Tiles that a layer may take."""
    chosen = layer.gpu.mapping.tile
    if chosen != "auto":
        return [tile for tile in layer.gpu.tiles if tile.text == chosen]
    return [tile for tile in layer.gpu.tiles if layer.is_a_product or not tile.products]


def _splits(layer: GpuLayer, products: ProductKernel) -> Iterator[ProductKernel]:
    yield products
    # A split pays while the SMs still have room for more blocks.
    units, room = len(products.steps) // products.unit, layer.gpu.sm.count * products.resident
    how = layer.gpu.mapping.split_k
    allowed = how == "all" or (how == "auto" and not layer.strided)
    for parts in range(2, min(_MOST_PARTS, room // products.count) + 1) if allowed else ():
        cut = replace(products, split=parts)
        if cut.part >= _LEAST_STEPS and (parts - 1) * -(-units // parts) < units:
            yield cut


def _estimate(layer: GpuLayer, products: ProductKernel, kinds: Mapping[StepTraffic, int]) -> float:
    """Estimated cycles of the resident sets one after another, of DRAM if that takes longer, and of adding up parts.

    `kinds` counts the k-steps of the whole sum; a block is assumed to have its share of each kind.
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


def resident_cycles(pace: BlockPace, numbers: list[float], blocks: int) -> float:
    """Estimated cycles of blocks of an SM that begin together: bound by the tensor cores, by the load port, or by each
    block alone.

    `numbers` has the number of k-steps of each kind in the pace.
    """
    holds = loads = chain = 0.0
    for (load, store), number in zip(pace.stages, numbers, strict=True):
        hold = store + pace.step + pace.multiply
        holds += number * hold
        loads += number * load
        chain += number * max(hold, (store * pace.held + load + pace.latency) // pace.ahead)
    begin = pace.stages[0][0] + pace.latency
    return begin + max(holds * max(1, blocks // pace.together), blocks * loads, chain) + blocks * pace.epilogue
