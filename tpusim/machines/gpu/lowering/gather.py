"""Blocks that gather every tap of every k-step anew: neighbouring outputs in order, and the bytes they take."""

from __future__ import annotations

from functools import lru_cache

from tpusim.machines.gpu.lowering.layer import Layer
from tpusim.machines.gpu.program.blocks import InOrder
from tpusim.machines.gpu.program.kernels import KStep, Products, Stage
from tpusim.machines.gpu.sections import Tile


def gathered(
    layer: Layer, tile: Tile, steps: tuple[KStep, ...], period: int, source: str = "ifmap", *, offsets: bool = False
) -> Products | None:
    """The products of such blocks; None where they have no room. `offsets` of taps may have been worked out ahead."""
    gpu = layer.gpu
    resident = gpu.resident(tile, staged_bytes(layer, tile))
    if not resident:
        return None
    blocks, kinds = InOrder(layer.outputs, tile.m), kinds_of(steps)
    known = {kind: stage_of(layer, tile, *kind[: 1 + offsets]) for kind in set(kinds)}
    a_bytes, b_bytes = operand_bytes(layer, tile, blocks.count)
    read = (layer.touched_bytes if source == "ifmap" else lowered_bytes(layer)) + layer.filter_bytes
    return Products(
        layer.conv, layer.images, tile, blocks, 1, steps, tuple(known[kind] for kind in kinds), period, 1, resident,
        False, source, a_bytes, b_bytes, read, layer.ofmap_bytes,
    )  # fmt: skip


def staged_bytes(layer: Layer, tile: Tile) -> int:
    """Shared memory of a block: the operands of a k-step, in as many buffers as are under way, at least two."""
    sm = layer.gpu.sm
    buffers = sm.loads_under_way + 1
    return buffers * (tile.m + tile.n) * layer.gpu.mapping.k_step * layer.gpu.element_bytes


@lru_cache(maxsize=16)
def kinds_of(steps: tuple[KStep, ...]) -> tuple[tuple[int, int], ...]:
    """Channels of each k-step, and taps that begin with it."""
    return tuple((sum(run.channels for run in step), sum(run.first == 0 for run in step)) for step in steps)


def stage_of(layer: Layer, tile: Tile, channels: int, taps: int = 0) -> Stage:
    """The channels of each row come in whole sectors, those of neighbouring taps side by side; zeros are stored too."""
    fetched = (tile.m + tile.n) * sectors(layer, channels)
    return Stage(fetched, fetched, (tile.m + tile.n) * layer.gpu.mapping.k_step * layer.gpu.element_bytes, taps)


def sectors(layer: Layer, channels: int) -> int:
    """Bytes of the sectors that neighbouring channels are in."""
    sector = layer.gpu.l2.sector_bytes
    return -(-channels * layer.gpu.element_bytes // sector) * sector


def operand_bytes(layer: Layer, tile: Tile, tiles: int) -> tuple[int, int]:
    """What all blocks fetch of map and filter: every tap for each column of tiles; the filter for each row of them."""
    columns = -(-layer.out_channels // tile.n)
    sums = layer.taps * layer.channels * layer.gpu.element_bytes
    return layer.outputs * sums * columns * layer.conv.groups, sums * layer.conv.out_channels * tiles


def lowered_bytes(layer: Layer) -> int:
    """The lowered matrix of all groups."""
    return layer.outputs * layer.taps * layer.conv.in_channels * layer.gpu.element_bytes
