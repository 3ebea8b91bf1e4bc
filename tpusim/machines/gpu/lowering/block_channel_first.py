"""Blocks of a map stage channels of all taps together: the paper's algorithm, on a block instead of an array.

A block makes a box of images, rows and columns, so that its taps read many an element several times. The taps of a slab
of channels read a patch that was staged with the first of them, or find in L1 what the first has fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from tpusim.base.errors import CapacityError
from tpusim.machines.gpu.lowering.choice import fastest
from tpusim.machines.gpu.lowering.gather import operand_bytes, sectors, stage_of, staged_bytes
from tpusim.machines.gpu.lowering.layer import Layer
from tpusim.machines.gpu.lowering.moves import reduction, transforms
from tpusim.machines.gpu.lowering.steps import padded
from tpusim.machines.gpu.program.blocks import Boxes
from tpusim.machines.gpu.program.kernels import KStep, Products, Program, Stage
from tpusim.machines.gpu.program.overlap import unique
from tpusim.machines.gpu.sections import Tile


def lower(layer: Layer) -> Program:
    """Where no tile has room for its patch, taps reuse by the cache. Raises CapacityError where nothing fits."""
    mapping = layer.gpu.mapping
    outside = mapping.order == "channels_outside"
    steps = padded(layer.taps, layer.channels, mapping.k_step, outside)
    try:
        products = fastest(layer, lambda tile: _products(layer, tile, steps, outside, mapping.reuse))
    except CapacityError:
        if mapping.reuse != "patch":
            raise
        products = fastest(layer, lambda tile: _products(layer, tile, steps, outside, "cache"))
    summed = reduction(layer, products)
    return Program((*transforms(layer), products, *([summed] if summed else [])))


def _products(layer: Layer, tile: Tile, steps: tuple[KStep, ...], outside: bool, reuse: str) -> Products | None:
    patch = reuse == "patch"

    def staged_by(boxes: Boxes) -> int:
        elements = patch_elements(layer, boxes.box)
        return _patched_bytes(layer, tile, elements, outside) if patch else staged_bytes(layer, tile)

    boxes = box_of(layer, tile, lambda boxes: layer.gpu.resident(tile, staged_by(boxes)))
    if boxes is None:
        return None
    elements, staged = patch_elements(layer, boxes.box), staged_by(boxes)
    resident = layer.gpu.resident(tile, staged)
    shared = reuse == "cache" and _cached(layer, tile, resident, staged, outside)
    known = {step: _stage(layer, tile, step, elements, reuse if patch or shared else "none") for step in set(steps)}
    once = patch or shared
    fetched = sum(number * patch_elements(layer, box) for number, box in boxes.shapes())
    a_bytes, b_bytes = operand_bytes(layer, tile, boxes.count)
    columns = -(-layer.out_channels // tile.n)
    reused = fetched * layer.conv.in_channels * layer.gpu.element_bytes * columns
    period = layer.taps if outside else len(steps) // layer.taps
    # Parts of a sum are cut where a patch ends.
    unit = (layer.taps if outside else len(steps)) if patch else 1
    return Products(
        layer.conv, layer.images, tile, boxes, 1, steps, tuple(known[step] for step in steps), period, unit, resident,
        patch, "ifmap", reused if once else a_bytes, b_bytes, layer.touched_bytes + layer.filter_bytes,
        layer.ofmap_bytes,
    )  # fmt: skip


def box_of(layer: Layer, tile: Tile, room: Callable[[Boxes], int]) -> Boxes | None:
    """The boxes of as many outputs as the tile has rows that make the fewest tiles, and read the fewest elements.

    Only those that an SM has `room` for, and rather several than one; None where it has for none.
    """
    conv = layer.conv
    extent = layer.images, conv.out_height, conv.out_width
    candidates = [(Boxes(extent, box), room(Boxes(extent, box))) for box in _factors(tile.m)]
    keys = {
        (boxes.count, -min(blocks, 2), patch_elements(layer, boxes.box), boxes.box): boxes
        for boxes, blocks in candidates
        if blocks
    }
    return keys[min(keys)] if keys else None


def patch_elements(layer: Layer, box: tuple[int, int, int]) -> int:
    """Different elements of a channel that all taps of such a box read, padding included."""
    images, *sides = box
    axes = zip(sides, layer.conv.kernel, layer.conv.stride, layer.conv.dilation, strict=True)
    return images * prod(unique(*axis) for axis in axes)


def _factors(size: int) -> Iterator[tuple[int, int, int]]:
    for images in (each for each in range(1, size + 1) if size % each == 0):
        rest = size // images
        yield from ((images, rows, rest // rows) for rows in range(1, rest + 1) if rest % rows == 0)


def _patched_bytes(layer: Layer, tile: Tile, elements: int, outside: bool) -> int:
    """One patch, of all channels where taps are outermost, and the filter as buffers have it."""
    gpu = layer.gpu
    step = gpu.mapping.k_step
    channels = step if outside else -(-layer.channels // step) * step
    return (elements * channels + (gpu.sm.loads_under_way + 1) * tile.n * step) * gpu.element_bytes


def _cached(layer: Layer, tile: Tile, resident: int, staged: int, outside: bool) -> bool:
    """Whether L1 still has an element when the next tap reads it: what blocks fetch in between fits what is left."""
    gpu = layer.gpu
    between = tile.m * (gpu.mapping.k_step if outside else layer.channels) * gpu.element_bytes
    return resident * (between + staged) <= gpu.sm.unified_bytes


def _stage(layer: Layer, tile: Tile, step: KStep, elements: int, reuse: str) -> Stage:
    """With a patch, the first tap stages it for all; what L1 has, taps fetch in equal shares."""
    (run,) = step
    if reuse == "patch":
        rows = elements * (run.tap == 0)
        fetched = (rows + tile.n) * sectors(layer, run.channels)
        return Stage(fetched, fetched, (rows + tile.n) * layer.gpu.mapping.k_step * layer.gpu.element_bytes)
    rows = -(-elements // layer.taps) if reuse == "cache" else tile.m
    stage = stage_of(layer, tile, run.channels)
    return stage._replace(fetched=(rows + tile.n) * sectors(layer, run.channels))
