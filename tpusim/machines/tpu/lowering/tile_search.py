"""Which blocks of tiles: the cheapest that fit, by what they take of memory, vector unit, array and bus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.filtering import Filtering
from tpusim.machines.tpu.lowering.geometry import ConvShape, MapAxis
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.schedule import halves
from tpusim.machines.tpu.lowering.tap_groups import TapGroups
from tpusim.machines.tpu.lowering.tile_algorithm import TileAlgorithm
from tpusim.machines.tpu.lowering.tile_plan import TilePlan
from tpusim.machines.tpu.lowering.tiling import Given, Tiling, given_block, too_small


@lru_cache(maxsize=1 << 12)
def plan_of(shape: ConvShape, hardware: Hardware, by: TileAlgorithm) -> TilePlan:
    """The cheapest that fits, by its estimate.

    Raises:
        CapacityError: when not even a block of one tile fits; says how much memory would do.
    """
    choices = [_Costs(Filtering(shape, hardware, by, fewest_places)) for fewest_places in (False, True)]
    fitting = ((costs, each) for costs in choices for each in costs.fitting())
    costs, best = min(fitting, key=lambda pair: pair[0].cycles(pair[1]), default=(choices[0], None))
    if best is None:
        raise too_small(min(costs.words(each) for costs in choices for each in costs.all()), hardware)
    return TilePlan(Plan(shape, hardware, best, costs.cut), costs.filtering)


@dataclass(frozen=True)
class _Costs:
    """What blocks take of memory, and about how long."""

    filtering: Filtering

    @cached_property
    def cut(self) -> TapGroups:
        """What a Plan wants; passes are not those of taps."""
        return TapGroups(self.filtering.shape, self.filtering.hardware)

    @cached_property
    def given(self) -> Given:
        """What the machine's policy says of blocks."""
        return given_block(self.filtering.shape, self.filtering.hardware, self.cut)

    def all(self) -> Iterator[Tiling[int]]:
        """Every one to try: extents of the block, products a section, and whether all sections stay on chip."""
        (groups, _), shape, given = self.filtering.word_groups, self.filtering.shape, self.given
        products, by = len(self.filtering.by.products), self.filtering.by
        extents = (
            _extents(given.rows, shape.row, by.down.outputs),
            _extents(given.cols, shape.col, by.across.outputs),
            [given.groups] if given.groups else halves(groups),
        )
        for block in product(*extents):
            for section in halves(products):
                sections = -(-products // section) * len(self.filtering.col_folds)
                for buffers in sorted({min(2, sections), sections}):
                    yield self._tiling(block, section, buffers)

    def fitting(self) -> Iterator[Tiling[int]]:
        """Those that fit."""
        capacity = self.filtering.hardware.capacity_words
        return (each for each in self.all() if self.words(each) <= capacity)

    def _tiling(self, block: tuple[int, int, int], section: int, filter_buffers: int) -> Tiling[int]:
        filtering, (rows, cols, groups) = self.filtering, block
        shape, size = filtering.shape, filtering.by.down.outputs
        whole = shape.row.extent, shape.col.extent, filtering.word_groups[0]
        blocks = prod(-(-extent // part) for extent, part in zip(whole, block, strict=True))
        return Tiling(
            rows=rows,
            cols=cols,
            groups=groups,
            span=0,
            blocks=blocks,
            loop_order="block_major",
            kept_folds=1,
            chunk_taps=self.cut.groups,
            chunk_folds=self.cut.folds,
            section_passes=section * len(filtering.row_folds),
            ifmap_buffers=min(2, blocks * len(filtering.row_folds)),
            filter_buffers=filter_buffers,
            psum_buffers=min(2, blocks * len(filtering.col_folds)),
            ifmap_words=shape.row.most_stored(rows) * shape.col.most_stored(cols) * groups,
            section_words=section * sum(filtering.weight_words),
            psum_words=-(-rows // size) * size * cols * groups,
            lag=1,
        )

    def words(self, tiling: Tiling[int]) -> int:
        """Words a lane needs for all of it."""
        tiles = self.filtering.tiles(tiling.rows, tiling.cols, tiling.groups)
        return tiling.words + self.filtering.data_words(tiles) + self.filtering.scratch_words(tiles)

    def cycles(self, tiling: Tiling[int]) -> float:
        """Block after block the longer of vector unit and array in turns, and of the bus."""
        filtering, hardware = self.filtering, self.filtering.hardware
        tiles, folds = filtering.tiles(tiling.rows, tiling.cols, tiling.groups), len(filtering.col_folds)
        data, inverse = filtering.vector_cycles(tiles)
        # A pass takes at least as long as the next one's weights; before and behind products the array runs empty.
        streams = (filtering.frame.frames(len(each.data) * tiles.words) for each in filtering.by.products)
        a_fold = sum(max(frames * filtering.frame.period, hardware.array.rows) for frames in streams)
        streamed = a_fold * len(filtering.row_folds) * folds + folds * 2 * hardware.array.rows
        worked = len(filtering.row_folds) * data + folds * inverse + streamed
        patches, weights, results = self._moved(tiling)
        first = patches / len(filtering.row_folds) + results / folds + 2 * hardware.latency_cycles
        if tiling.filter_buffers * tiling.section_passes < filtering.passes:
            return tiling.blocks * max(worked, patches + weights + results) + first
        return tiling.blocks * max(worked, patches + results) + max(0.0, weights - worked) + first

    def _moved(self, tiling: Tiling[int]) -> tuple[float, float, float]:
        """Cycles of the bus for the patches of a block, for all weights, for the results of a block."""
        filtering, hardware, shape = self.filtering, self.filtering.hardware, self.filtering.shape
        unit, fill = hardware.vector_unit, filtering.word_groups[1]
        element = hardware.vector_memory.element_bytes / float(hardware.hbm_bytes_per_cycle)
        results = tiling.rows * tiling.cols * tiling.groups
        weights = len(filtering.by.products) * shape.channels * shape.out_channels * element
        return (
            max(
                tiling.ifmap_words * fill * shape.channels * element,
                tiling.ifmap_words * len(filtering.row_folds) * float(unit.unpack_cycles),
            ),
            weights,
            max(
                results * fill * shape.out_channels * element,
                results * len(filtering.col_folds) * float(unit.pack_cycles),
            ),
        )


def _extents(wanted: int | None, axis: MapAxis, size: int) -> list[int]:
    """Outputs along an axis: whole tiles of so many, unless given otherwise."""
    return [wanted] if wanted else [min(each * size, axis.extent) for each in halves(-(-axis.extent // size))]
