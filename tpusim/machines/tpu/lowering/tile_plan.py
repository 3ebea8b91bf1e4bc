"""The plan of a convolution in tiles: blocks of them, the cheapest that fit, and where their words lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import prod

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import Block, halves, patch_of, portions
from tpusim.machines.tpu.lowering.geometry import ConvShape, MapAxis
from tpusim.machines.tpu.lowering.pace import Demand
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.reduction import TapGroups
from tpusim.machines.tpu.lowering.tile_algorithm import Filtering, TileAlgorithm, Tiles
from tpusim.machines.tpu.lowering.tiling import Tiling, fitting, given_block
from tpusim.machines.tpu.program.tensor import Tensor
from tpusim.memory.orders import TRANSFORMED


@dataclass(frozen=True)
class TilePlan:
    """How a layer is cut up; `plan` tells how its maps lie, and where their buffers are.

    Behind these come the transformed data of a block, [row fold, place, tile], and what lies between stages.
    """

    plan: Plan
    filtering: Filtering

    @cached_property
    def transformed(self) -> Tensor:
        """The filter in HBM, transformed beforehand: [product, out_channel, channel]."""
        shape = self.plan.shape
        return Tensor(TRANSFORMED, (len(self.filtering.by.products), shape.out_channels, shape.channels))

    @cached_property
    def ofmap(self) -> Tensor:
        """The outputs, on chip larger by what makes the transformed filter whole numbers, or not quite whole."""
        by = self.filtering.by
        return replace(self.plan.ofmap, scale=by.outputs_scale, lost=by.lost(self.plan.shape.channels))

    @cached_property
    def sections(self) -> list[range]:
        """Products whose weights share a filter buffer, with all row folds of each."""
        each = self.plan.tiling.section_passes // len(self.filtering.row_folds)
        return portions(len(self.filtering.by.products), each)

    @cached_property
    def data_words(self) -> int:
        """Words of the transformed data."""
        return self.filtering.data_words(self._most)

    @cached_property
    def scratch_words(self) -> int:
        """Words of what lies between stages."""
        return self.filtering.scratch_words(self._most)

    @property
    def words(self) -> int:
        """Words that a lane needs."""
        return self.plan.tiling.words + self.data_words + self.scratch_words

    @cached_property
    def _most(self) -> Tiles:
        """Tiles of the largest block."""
        tiling = self.plan.tiling
        return self.filtering.tiles(tiling.rows, tiling.cols, tiling.groups)

    def tiles(self, block: Block) -> Tiles:
        """Those of a block; of columns there is one at least, perhaps of padding."""
        cols = len(patch_of(self.plan.shape, block).cols)
        return self.filtering.tiles(*block.sizes)._replace(cols=max(1, cols))

    # ---- about how long

    def cycles(self) -> float:
        """Block after block the longer of vector unit and array in turns, and of the bus."""
        filtering, hardware, tiling = self.filtering, self.plan.hardware, self.plan.tiling
        row_folds, folds = len(filtering.row_folds), len(filtering.col_folds)
        data, inverse = filtering.vector_cycles(self._most)
        # A pass takes at least as long as the next one's weights; before and behind products the array runs empty.
        streams = (filtering.frame.frames(len(each.data) * self._most.words) for each in filtering.by.products)
        a_fold = sum(max(frames * filtering.frame.period, hardware.array.rows) for frames in streams)
        streamed = a_fold * row_folds * folds + folds * 2 * hardware.array.rows
        worked = row_folds * data + folds * inverse + streamed
        patches, weights, results = self._moved()
        first = patches / row_folds + results / folds + 2 * hardware.latency_cycles
        if tiling.filter_buffers * tiling.section_passes < filtering.passes:
            return float(tiling.blocks * Demand(worked, patches + weights + results).busiest + first)
        return float(tiling.blocks * Demand(worked, patches + results).busiest + max(0.0, weights - worked) + first)

    def _moved(self) -> tuple[float, float, float]:
        """Cycles of the bus for the patches of a block, for all weights, for the results of a block."""
        filtering, hardware, shape, tiling = self.filtering, self.plan.hardware, self.plan.shape, self.plan.tiling
        unit, fill = hardware.vector_unit, filtering.word_groups[1]
        element = hardware.vector_memory.element_bytes / float(hardware.hbm_bytes_per_cycle)
        words, results = tiling.ifmap_words, tiling.rows * tiling.cols * tiling.groups
        filled = Demand(
            bus=words * fill * shape.channels * element,
            converted=words * len(filtering.row_folds) * float(unit.unpack_cycles),
        )
        spilled = Demand(
            bus=results * fill * shape.out_channels * element,
            converted=results * len(filtering.col_folds) * float(unit.pack_cycles),
        )
        weights = len(filtering.by.products) * shape.channels * shape.out_channels * element
        return filled.busiest, weights, spilled.busiest


@lru_cache(maxsize=1 << 12)
def plan_of(shape: ConvShape, hardware: Hardware, by: TileAlgorithm) -> TilePlan:
    """The cheapest that fits, by its estimate.

    Raises:
        CapacityError: when not even a block of one tile fits; says how much memory would do.
    """
    ways = (each for fewest in (False, True) for each in plans_of(Filtering(shape, hardware, by, fewest)))
    return min(fitting(ways, lambda plan: plan.words, hardware), key=TilePlan.cycles)


def plans_of(filtering: Filtering) -> Iterator[TilePlan]:
    """Every one to try: extents of the block, products a section, and whether all sections stay on chip."""
    shape, hardware, by, (groups, _) = filtering.shape, filtering.hardware, filtering.by, filtering.word_groups
    # What a Plan wants; passes are not those of taps.
    cut = TapGroups(shape, hardware)
    given, products = given_block(shape, hardware, cut), len(by.products)
    extents = (
        _extents(given.rows, shape.row, by.down.outputs),
        _extents(given.cols, shape.col, by.across.outputs),
        [given.groups] if given.groups else halves(groups),
    )
    for block, section in product(product(*extents), halves(products)):
        sections = -(-products // section) * len(filtering.col_folds)
        for buffers in sorted({min(2, sections), sections}):
            yield TilePlan(Plan(shape, hardware, _tiling(filtering, cut, block, section, buffers), cut), filtering)


def _tiling(
    filtering: Filtering, cut: TapGroups, block: tuple[int, int, int], section: int, filter_buffers: int
) -> Tiling[int]:
    shape, size, (rows, cols, groups) = filtering.shape, filtering.by.down.outputs, block
    whole = shape.row.extent, shape.col.extent, filtering.word_groups[0]
    blocks = prod(-(-extent // part) for extent, part in zip(whole, block, strict=True))
    return Tiling(
        rows=rows, cols=cols, groups=groups, span=0, blocks=blocks, loop_order="block_major", kept_folds=1,
        chunk_taps=cut.groups, chunk_folds=cut.folds, section_passes=section * len(filtering.row_folds),
        ifmap_buffers=min(2, blocks * len(filtering.row_folds)), filter_buffers=filter_buffers,
        psum_buffers=min(2, blocks * len(filtering.col_folds)),
        ifmap_words=shape.row.most_stored(rows) * shape.col.most_stored(cols) * groups,
        section_words=section * sum(filtering.weight_words), psum_words=-(-rows // size) * size * cols * groups, lag=1,
    )  # fmt: skip


def _extents(wanted: int | None, axis: MapAxis, size: int) -> list[int]:
    """Outputs along an axis: whole tiles of `size`, unless given otherwise."""
    return [wanted] if wanted else [min(each * size, axis.extent) for each in halves(-(-axis.extent // size))]
