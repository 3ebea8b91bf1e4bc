"""Which tile and split a layer takes: those that are estimated to be fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tpusim.base.errors import CapacityError
from tpusim.machines.gpu.definition import moves_cycles
from tpusim.machines.gpu.lowering.estimate import estimate
from tpusim.machines.gpu.lowering.layer import Layer
from tpusim.machines.gpu.lowering.moves import reduction
from tpusim.machines.gpu.program.kernels import Products, Stage
from tpusim.machines.gpu.sections import Tile

_MOST_PARTS = 32
_LEAST_STEPS = 4
"""A block that makes a part of a sum multiplies at least so many k-steps."""


def fastest(layer: Layer, made: Callable[[Tile], Products | None]) -> Products:
    """The fastest of the tiles that the machine allows, each with the best split. `made` is None where one has no room.

    Raises CapacityError when none has.
    """
    known = [products for tile in tiles(layer) if (products := made(tile))]
    if not known:
        raise CapacityError(f"layer {layer.conv.name}: {_no_room(layer)}")
    return min((_best_split(layer, products) for products in known), key=lambda found: found[0])[1]


def _no_room(layer: Layer) -> str:
    """Why no block fits an SM, and what to do."""
    sm = layer.gpu.sm
    registers = sm.registers_per_output * min(tile.m * tile.n for tile in tiles(layer))
    if registers > sm.registers:
        return (
            f"a block of the smallest tile takes {registers} registers, and an SM has {sm.registers}; set sm.registers "
            "higher, sm.registers_per_output lower, or write a smaller tile"
        )
    return (
        f"what a block stages does not fit the shared memory of an SM, {sm.shared_bytes} B; set sm.shared higher, "
        "mapping.k_step lower, or write a smaller tile"
    )


def tiles(layer: Layer) -> list[Tile]:
    """Those that a layer may take."""
    chosen = layer.gpu.mapping.tile
    if chosen != "auto":
        return [tile for tile in layer.gpu.tiles if tile.text == chosen]
    return [tile for tile in layer.gpu.tiles if layer.is_a_product or not tile.products]


def _best_split(layer: Layer, products: Products) -> tuple[float, Products]:
    """With what it is estimated to take."""
    kinds = Counter(products.stages)
    return min(((_cycles(each, layer, kinds), each) for each in _splits(layer, products)), key=lambda found: found[0])


def _splits(layer: Layer, products: Products) -> Iterator[Products]:
    yield products
    units, room = len(products.steps) // products.unit, layer.gpu.sm.count * products.resident
    how = layer.gpu.mapping.split_k
    allowed = how == "all" or (how == "auto" and not layer.strided)
    for parts in range(2, min(_MOST_PARTS, room // products.count) + 1) if allowed else ():
        cut = replace(products, split=parts)
        if cut.part >= _LEAST_STEPS and (parts - 1) * -(-units // parts) < units:
            yield cut


def _cycles(products: Products, layer: Layer, kinds: Mapping[Stage, int]) -> float:
    gpu, cycles = layer.gpu, estimate(products, layer.gpu, kinds)
    summed = reduction(layer, products)
    return cycles + (moves_cycles(summed, gpu) + gpu.cycles_of(gpu.launch.kernel_ps) if summed else 0)
