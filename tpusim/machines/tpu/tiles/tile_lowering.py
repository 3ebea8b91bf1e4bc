"""Convolutions in tiles: the vector unit transforms, the array multiplies.

Tiles of the ifmap are transformed on chip, the filter beforehand. The array then has, for each number of a transformed
tile, a 1x1 convolution over all tiles; of its sums the vector unit makes the outputs. What transforms and products are,
a `TileAlgorithm` says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from tpusim.base.errors import UnsuitableError
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.cut.geometry import ConvShape, shape_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, one_draft
from tpusim.machines.tpu.lowering.vector_units import IGNORED
from tpusim.machines.tpu.lowering.words import block_of, blocking_of, memory_of, words_of
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.tiles.tile_algorithm import Filtering, Mix, Recipes, TileAlgorithm
from tpusim.machines.tpu.tiles.tile_units import TilePlan, TileUnits, plan_of
from tpusim.network.ops.array_op import ArrayOp, Conv2d

Choice: TypeAlias = Callable[[Conv2d], TileAlgorithm]
"""Which tiles such a convolution takes; raises UnsuitableError for those that it is not for."""


def ways(choice: Choice, layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """A draft, the only one.

    Raises:
        UnsuitableError: when it is no convolution for such tiles.
        CapacityError: when nothing fits the vector memories.
    """
    plan = plan_of(*_shape(choice, layer, batch, hardware))
    return one_draft(partial(TileUnits, plan), lambda _: _explained(plan, layer))


def least(choice: Choice, layer: ArrayOp, batch: int, hardware: Hardware) -> float:
    """Cycles that no run can do without. Raises UnsuitableError."""
    return Filtering(*_shape(choice, layer, batch, hardware)).least_cycles


def _shape(choice: Choice, layer: ArrayOp, batch: int, hardware: Hardware) -> tuple[ConvShape, Hardware, TileAlgorithm]:
    by = choice(layer.convolution(batch)[0])
    # What the vector unit works on may lie in any way.
    hardware = hardware.with_entry("ready")
    return shape_of(layer, batch, hardware), hardware, by


def in_tiles(name: str, gloss: str, choice: Choice) -> Lowering:
    """The lowering of convolutions in such tiles."""
    found = partial(ways, choice)
    bound, nothing = partial(least, choice), frozenset[str]()
    return Lowering(name, gloss, found, partial=True, carries=nothing, least=bound, ignores=IGNORED)


# ---- in words


def refused(name: str, taps: str, conv: Conv2d) -> UnsuitableError:
    """An error: tiles of that name are not for a convolution."""
    sizes = [f"{size[0]} x {size[1]}" for size in (conv.kernel, conv.stride, conv.dilation)]
    takes = f"{name} takes convolutions of {taps} taps, stride 1, dilation 1 and one channel group"
    this = f"{sizes[0]} taps, stride {sizes[1]}, dilation {sizes[2]} and {counted(conv.groups, 'channel group')}"
    return UnsuitableError(f"{takes}; this one has {this}")


def _explained(plan: TilePlan, layer: ArrayOp) -> Explanation:
    filtering = plan.filtering
    by, block, rows = filtering.by, plan.tiles(plan.blocks[0]), len(filtering.row_folds)
    taps, more = f"{by.down.taps} x {by.across.taps}", len(by.products) / by.taps
    fewer = f"{by.multiplications} products for {by.outputs} outputs instead of {by.outputs * by.taps}"
    # What transforms take of the vector unit, which array and streams do not share with it.
    data = _transform(filtering, filtering.data, f"{by.down.reach} words of data", by.data_mixes)
    made = by.down.outputs if by.down.outputs == by.across.outputs else f"{by.down.outputs} and {by.across.outputs}"
    inverse = _transform(filtering, filtering.inverse, f"{made} words of outputs", by.result_mixes)
    size = SIZE.format(plan.filter.bytes(plan.hardware.vector_memory.element_bytes))
    blocking = replace(blocking_of(plan), row_folds=rows, chunks=1)
    channels, out = layer.folded
    row_folds, col_folds = counted(rows, "row fold"), counted(len(filtering.col_folds), "column fold")
    aspects = {
        "taps": f"{taps}, by {by.name}: {fewer}; a block is {block.down} x {block.across} tiles",
        "vector": f"transforms down and then across; {data}; {inverse}; the array waits meanwhile",
        "filter": f"transformed beforehand: {size} in HBM, {more:.3g} times those of {plan.shape.taps} taps",
        "folds": f"{row_folds} for {channels}, {col_folds} for {out}",
        "passes": f"{len(plan.blocks) * filtering.passes:,}, {filtering.passes:,} a block: products x folds",
        "block": block_of(plan, blocking, layer),
        "order": "block by block: the data of all row folds transformed, then column fold by column fold multiplied",
        "words": words_of(plan, layer),
        "memory": _memory(plan),
    }
    choices = {**vars(plan.tiling), "tile_outputs": by.down.outputs, "products": by.multiplications}
    return Explanation(1, blocking, choices, aspects)


def _transform(filtering: Filtering, recipes: Recipes, of: str, mixes: tuple[Mix, ...]) -> str:
    each = [
        f"{sum(len(line.factors) + 1 for line in recipe)} words of the port and {filtering.pace(recipe)} cycles"
        for recipe in recipes[: 1 if recipes.down == recipes.across else 2]
    ]
    once = ", what they have in common once" if any(recipe.temporaries for recipe in recipes) else ""
    mixed = f", and {filtering.mixed(mixes):,} cycles a tile to combine them" if mixes else ""
    return f"{' and '.join(each)} for {of}{once}{mixed}"


def _memory(plan: TilePlan) -> str:
    """What of the vector memory is set aside for what."""
    buffers = [(words, count if count > 1 else 0) for words, count in plan.tiling.buffers]
    names = "ifmap", "filter", "results", "transformed data", "products and what lies between"
    areas = zip(names, (*buffers, (plan.data_words, 0), (plan.scratch_words, 0)), strict=True)
    part = f"; a filter buffer holds {len(plan.shared[0])} of {len(plan.filtering.by.products)} products"
    return memory_of(areas, plan.hardware) + (part if len(plan.shared) > 1 else "")
