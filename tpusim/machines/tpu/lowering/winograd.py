"""Convolutions by minimal filtering: the vector unit transforms, the array multiplies (Winograd; Lavin and Gray).

Tiles of the ifmap are transformed on chip, the filter beforehand. The array then has, for each element of a tile, a 1x1
convolution over all tiles; of its sums the vector unit makes the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tpusim.base.collector import at_rest
from tpusim.base.errors import UnsuitableError
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.banked import in_lanes
from tpusim.machines.tpu.lowering.filtering import Filtering, temporaries
from tpusim.machines.tpu.lowering.geometry import ConvShape, shape_of
from tpusim.machines.tpu.lowering.minimal_filtering import TAPS, MinimalFiltering
from tpusim.machines.tpu.lowering.tile_emitter import TileEmitter
from tpusim.machines.tpu.lowering.tile_plan import TilePlan
from tpusim.machines.tpu.lowering.tile_search import plan_of
from tpusim.machines.tpu.lowering.words import block_of, blocking_of, words_of
from tpusim.machines.tpu.program.explanation import Explanation, Lowered, Lowering, Planned
from tpusim.network.ops import ArrayOp


class Functions(NamedTuple):
    """What a lowering's module has: each of a layer, the batch and the machine."""

    lower: Lowering
    planned: Callable[[ArrayOp, int, Hardware], Planned]
    least: Callable[[ArrayOp, int, Hardware], float]


def of(by: MinimalFiltering) -> Functions:
    """Those of convolutions in such tiles."""
    return Functions(partial(lowered_by, by), partial(planned_by, by), partial(least_by, by))


def lowered_by(by: MinimalFiltering, layer: ArrayOp, batch: int, hardware: Hardware) -> Lowered:
    """Lower one layer for one machine.

    Raises:
        UnsuitableError: when it is no convolution of 3 x 3 taps, stride 1 and one channel group.
        CapacityError: when nothing fits the vector memories, or the machine has banks.
    """
    with at_rest():
        work = _planned(by, layer, batch, hardware)
        return TileEmitter(work).program(), _explained(work, layer)


def planned_by(by: MinimalFiltering, layer: ArrayOp, batch: int, hardware: Hardware) -> Planned:
    """How many steps `lowered_by` would write down, those of the vector unit among the transfers. Raises as it does."""
    work = _planned(by, layer, batch, hardware)
    filtering, blocks = work.filtering, len(work.plan.blocks)
    data = len(filtering.row_folds) * (1 + 2 * len(filtering.data))
    outputs = len(filtering.col_folds) * (1 + len(work.sections) + 2 * len(filtering.inverse))
    kept = blocks * filtering.passes
    weights = by.products * work.plan.shape.channels * work.plan.shape.out_channels
    return Planned(kept, blocks * (data + outputs), weights)


def least_by(by: MinimalFiltering, layer: ArrayOp, batch: int, hardware: Hardware) -> float:
    """Cycles that no run of it can do without. Raises as `lowered_by`, but for what does not fit."""
    shape, hardware = _shape(by, layer, batch, hardware)
    return Filtering(shape, hardware, by).least_cycles


def _planned(by: MinimalFiltering, layer: ArrayOp, batch: int, hardware: Hardware) -> TilePlan:
    return plan_of(*_shape(by, layer, batch, hardware), by)


def _shape(by: MinimalFiltering, layer: ArrayOp, batch: int, hardware: Hardware) -> tuple[ConvShape, Hardware]:
    conv, _ = layer.convolution(batch)
    wanted = (TAPS, TAPS), (1, 1), (1, 1), 1
    if (conv.kernel, conv.stride, conv.dilation, conv.groups) != wanted:
        what = f"F({by.outputs}x{by.outputs}, {TAPS}x{TAPS}) takes convolutions of {TAPS} x {TAPS} taps, stride 1, "
        what += f"dilation 1 and one channel group; this one has {_sizes(conv.kernel)} taps, stride "
        what += f"{_sizes(conv.stride)}, dilation {_sizes(conv.dilation)} and {counted(conv.groups, 'channel group')}"
        raise UnsuitableError(what)
    in_lanes(hardware)
    # What the vector unit works on may lie in any way.
    hardware = hardware.with_entry("ready")
    return shape_of(layer, batch, hardware), hardware


def _sizes(pair: tuple[int, int]) -> str:
    return f"{pair[0]} x {pair[1]}"


# ---- in words


def _explained(work: TilePlan, layer: ArrayOp) -> Explanation:
    plan, filtering = work.plan, work.filtering
    rows = len(filtering.row_folds)
    blocking = replace(blocking_of(plan), row_folds=rows, chunks=1)
    channels, out = layer.folded
    row_folds, col_folds = counted(rows, "row fold"), counted(len(filtering.col_folds), "column fold")
    aspects = {
        "taps": _taps(work),
        "vector": _transforms(filtering),
        "filter": _filter(work),
        "folds": f"{row_folds} for {channels}, {col_folds} for {out}",
        "passes": f"{len(plan.blocks) * filtering.passes:,}, {filtering.passes:,} a block: products x folds",
        "block": block_of(plan, blocking, layer),
        "order": "block by block: the data of all row folds transformed, then column fold by column fold multiplied",
        "words": words_of(plan, layer),
        "memory": _memory(work),
    }
    choices = {**vars(plan.tiling), "tile_outputs": filtering.by.outputs, "products": filtering.by.products}
    return Explanation(1, blocking, choices, aspects)


def _taps(work: TilePlan) -> str:
    by, block = work.filtering.by, work.tiles(work.plan.blocks[0])
    outputs, taps = by.outputs**2, TAPS**2
    fewer = f"{by.products} products for {outputs} outputs instead of {outputs * taps}"
    tiles = f"{block.down} x {block.across}"
    return f"3 x 3, by F({by.outputs}x{by.outputs}, {TAPS}x{TAPS}): {fewer}; a block is {tiles} tiles"


def _transforms(filtering: Filtering) -> str:
    """What they take of the vector unit, which array and streams do not share with it."""
    each = [
        f"{sum(filtering.beat(line).reads + 1 for line in recipe)} words of the port and {filtering.pace(recipe)} "
        f"cycles for {of}{', what they have in common once' if temporaries(recipe) else ''}"
        for recipe, of in (
            (filtering.data, f"{filtering.by.reach} words of data"),
            (filtering.inverse, f"{filtering.by.outputs} words of outputs"),
        )
    ]
    return f"transforms down and then across; {'; '.join(each)}; the array waits meanwhile"


def _filter(work: TilePlan) -> str:
    by, shape, hardware = work.filtering.by, work.plan.shape, work.plan.hardware
    size = work.transformed.bytes(hardware.vector_memory.element_bytes)
    more = by.products / TAPS**2
    return f"transformed beforehand: {SIZE.format(size)} in HBM, {more:.3g} times those of {shape.taps} taps"


def _memory(work: TilePlan) -> str:
    """What of the vector memory is set aside for what."""
    tiling, hardware = work.plan.tiling, work.plan.hardware
    areas = (
        ("ifmap", tiling.ifmap_buffers, tiling.ifmap_words),
        ("filter", tiling.filter_buffers, tiling.section_words),
        ("results", tiling.psum_buffers, tiling.psum_words),
        ("transformed data", 1, work.data_words),
        ("products and what lies between", 1, work.scratch_words),
    )
    word = hardware.word_bytes
    each = [(name, f"{count} x " if count > 1 else "", SIZE.format(words * word)) for name, count, words in areas]
    held = ", ".join(f"{times}{size} of {name}" for name, times, size in each)
    every = sum(count * words for _, count, words in areas)
    capacity = SIZE.format(hardware.vector_memory.capacity_bytes)
    part = f"; a filter buffer holds {len(work.sections[0])} of {work.filtering.by.products} products"
    return f"{SIZE.format(every * word)} of {capacity} a lane: {held}{part if len(work.sections) > 1 else ''}"
