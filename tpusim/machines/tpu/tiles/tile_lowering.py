"""Convolutions in tiles as a lowering: the vector unit transforms, the array multiplies.

Tiles of the ifmap are transformed on chip, the filter beforehand. The array then has, for each number of a transformed
tile, a 1x1 convolution over all tiles; of its sums the vector unit makes the outputs, as a `TileAlgorithm` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import product
from math import inf
from operator import itemgetter, mul
from typing import Any, NamedTuple

from tpusim.base.errors import UnsuitableError
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.cut.blocks import Block, halves, padded, portions
from tpusim.machines.tpu.cut.geometry import ConvShape, MapAxis, in_other_strips, shape_of
from tpusim.machines.tpu.cut.plan import Plan
from tpusim.machines.tpu.cut.reduction import TapGroups
from tpusim.machines.tpu.cut.tiling import Demand, Tiling, delay_of, fitting, given_outputs
from tpusim.machines.tpu.cut.traffic import Traffic
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import ranked_shapes
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, block_of, blocking_of, memory_of, words_of
from tpusim.machines.tpu.lowering.vector import IGNORED, feed, in_turn, nested
from tpusim.machines.tpu.program.addresses import Counter, Counters, Feed
from tpusim.machines.tpu.program.program import DerivedTensor, Explanation
from tpusim.machines.tpu.program.steps import Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Part
from tpusim.machines.tpu.schedule.units import (
    Act,
    Area,
    Moves,
    Pass,
    Policy,
    SlotNeed,
    Touch,
    Unit,
    Units,
    VectorWork,
    in_one,
    when_free,
)
from tpusim.machines.tpu.search.search import MOST_TIMED, RankedTiling
from tpusim.machines.tpu.tiles.tile_algorithm import Filtering, Mix, Recipe, TileChoice, TilePlaces, TileProduct, Tiles
from tpusim.memory.hbm_layout import TRANSFORMED, whole_bursts
from tpusim.network.ops.array_op import ArrayOp, Conv2d

At = Callable[[int], Counters]
"""The words of an input or an output, by its number."""


@dataclass(frozen=True, kw_only=True)
class TilePlan(Plan):
    """How a layer is cut up: maps lie as those of any plan, but passes are those of products of tiles.

    Behind the buffers come the transformed data of a block, [row fold, place, tile], and what lies between stages.
    """

    filtering: Filtering

    @cached_property
    def filter(self) -> Tensor:
        """The filter in HBM, transformed beforehand: [product, out_channel, channel]."""
        return Tensor(TRANSFORMED, (len(self.filtering.by.products), self.shape.out_channels, self.shape.channels))

    @cached_property
    def ofmap(self) -> Tensor:
        """The outputs, on chip larger by what makes the transformed filter whole numbers, or not quite whole."""
        by = self.filtering.by
        return replace(super().ofmap, scale=by.outputs_scale, lost=by.lost(self.shape.channels))

    @cached_property
    def shared(self) -> list[range]:
        """Products whose weights share a filter buffer, with all row folds of each."""
        each = self.tiling.section_passes // len(self.filtering.row_folds)
        return portions(len(self.filtering.by.products), each)

    @cached_property
    def data_words(self) -> int:
        """Words of the transformed data."""
        return len(self.filtering.row_folds) * self.filtering.by.data_places * self._most.words

    @cached_property
    def scratch_words(self) -> int:
        """Words of what lies between stages."""
        return self.filtering.scratch_words(self._most)

    @property
    def words(self) -> int:
        """Words that a lane needs."""
        return self.tiling.words + self.data_words + self.scratch_words

    @cached_property
    def _most(self) -> Tiles:
        """Tiles of the largest block."""
        return self.filtering.tiles(self.tiling.rows, self.tiling.cols, self.tiling.groups)

    def tiles(self, block: Block) -> Tiles:
        """The tiles of a block; of columns there is one at least, perhaps of padding."""
        cols = len(self.shape.patch(block).cols)
        return self.filtering.tiles(*block.sizes)._replace(cols=max(1, cols))

    # ---- about how long

    def cycles(self) -> float:
        """Block after block the longer of vector unit and array in turns, and of the bus."""
        filtering, hardware, tiling = self.filtering, self.hardware, self.tiling
        row_folds, folds = len(filtering.row_folds), len(filtering.col_folds)
        data, inverse = filtering.vector_cycles(self._most)
        # A pass takes at least as long as the next one's weights; before and behind products the array runs empty.
        streams = (filtering.frame.frames(len(each.data) * self._most.words) for each in filtering.by.products)
        a_fold = sum(max(frames * filtering.frame.period, hardware.array.rows) for frames in streams)
        streamed = a_fold * row_folds * folds + folds * 2 * hardware.array.rows
        worked = data + inverse + streamed
        patches, weights, results = self._moved()
        first = patches / row_folds + results / folds + 2 * hardware.latency_cycles
        if tiling.filter_buffers * tiling.section_passes < filtering.passes:
            return float(tiling.blocks * Demand(worked, patches + weights + results).busiest + first)
        return float(tiling.blocks * Demand(worked, patches + results).busiest + max(0.0, weights - worked) + first)

    def _moved(self) -> tuple[float, float, float]:
        """Cycles of the bus for the patches of a block, for all weights, for the results of a block."""
        filtering, hardware, shape, tiling = self.filtering, self.hardware, self.shape, self.tiling
        unit, fill = hardware.vector_unit, self.word_fill
        element = hardware.vector_memory.element_bytes / float(hardware.hbm_bytes_per_cycle)
        words, results = tiling.ifmap_words, tiling.rows * tiling.cols * tiling.groups
        # A run of images that is not all of them is rounded up to whole bursts.
        run = tiling.groups * (fill // shape.strips) * hardware.vector_memory.element_bytes
        waste = 1.0
        if tiling.groups < filtering.word_groups[0]:
            every = shape.images * hardware.vector_memory.element_bytes
            waste = min(every, whole_bursts(run, hardware.hbm.burst_bytes)) / run
        filled = Demand(
            bus=words * fill * padded(shape.channels, hardware.hbm.channel_multiple) * element * waste,
            converted=words * len(filtering.row_folds) * float(unit.unpack_cycles),
        )
        spilled = Demand(
            bus=results * fill * padded(shape.out_channels, hardware.hbm.channel_multiple) * element * waste,
            converted=results * len(filtering.col_folds) * float(unit.pack_cycles),
        )
        weights = len(filtering.by.products) * shape.channels * shape.out_channels * element
        return filled.busiest, weights, spilled.busiest


@lru_cache(maxsize=1 << 12)
def ranks_of(filtering: Filtering) -> tuple[RankedTiling, ...]:
    """The tilings from which a simulation should choose, by estimated cycles, or the estimate's choice alone.

    Raises:
        CapacityError: when not even a block of one tile fits; says how much memory would do.
    """
    hardware, least, costs = filtering.hardware, filtering.least_cycles, dict[Tiling[int], float]()
    plans = (_plan(each, tiling) for each in _by_recipes(filtering) for tiling in tilings_of(filtering))
    for plan in fitting(plans, lambda plan: plan.words, hardware):
        costs[plan.tiling] = min(plan.cycles(), costs.get(plan.tiling, inf))
    found = sorted(costs.items(), key=itemgetter(1))
    if hardware.mapping.search != "simulate":
        return tuple(
            [RankedTiling(tiling, 0.0, partial(float, cost), partial(mul, least)) for tiling, cost in found[:1]]
        )
    return tuple(
        [
            RankedTiling(tiling, least, partial(float, cost), partial(mul, least), cost)
            for tiling, cost in found[:MOST_TIMED]
        ]
    )


def plan_of(filtering: Filtering, tiling: Tiling[int]) -> TilePlan:
    """The plan of a tiling with the recipes that fit and are estimated to be fastest."""
    plans = (_plan(each, tiling) for each in _by_recipes(filtering))
    return min(fitting(plans, lambda plan: plan.words, filtering.hardware), key=TilePlan.cycles)


def _by_recipes(filtering: Filtering) -> list[Filtering]:
    """The layer with the fastest recipes, and with the recipes that need the fewest places."""
    return [replace(filtering, fewest_places=fewest) for fewest in (False, True)]


def _plan(filtering: Filtering, tiling: Tiling[int]) -> TilePlan:
    # The cut is what a Plan wants; passes are not those of taps.
    shape, hardware = filtering.shape, filtering.hardware
    return TilePlan(shape, hardware, tiling, TapGroups(shape, hardware), filtering=filtering)


def tilings_of(filtering: Filtering) -> Iterator[Tiling[int]]:
    """Every one to try: extents of the block, products a section, and whether all sections stay on chip."""
    shape, hardware, by, (groups, _) = filtering.shape, filtering.hardware, filtering.by, filtering.word_groups
    cut = TapGroups(shape, hardware)
    (rows, cols, together), products = given_outputs(shape, hardware), len(by.products)
    extents = (
        _extents(rows, shape.row, by.down.outputs),
        _extents(cols, shape.col, by.across.outputs),
        [together] if together else halves(groups),
    )
    row_folds, col_folds, size = len(filtering.row_folds), len(filtering.col_folds), by.down.outputs
    for (high, wide, of_groups), section in product(product(*extents), halves(products)):
        blocks = -(-shape.row.extent // high) * -(-shape.col.extent // wide) * -(-groups // of_groups)
        sections = -(-products // section) * col_folds
        for buffers in sorted({min(2, sections), sections}):
            yield Tiling(
                rows=high, cols=wide, groups=of_groups, span=0, blocks=blocks, loop_order="block_major", kept_folds=1,
                chunk_taps=cut.groups, chunk_folds=cut.folds, section_passes=section * row_folds,
                ifmap_buffers=min(2, blocks * row_folds), filter_buffers=buffers,
                psum_buffers=min(2, blocks * col_folds),
                ifmap_words=shape.row.most_stored(high) * shape.col.most_stored(wide) * of_groups,
                section_words=section * sum(filtering.weight_words),
                psum_words=-(-high // size) * size * wide * of_groups, lag=1,
            )  # fmt: skip


def _extents(wanted: int | None, axis: MapAxis, size: int) -> list[int]:
    """Outputs along an axis: whole tiles of `size`, unless given otherwise."""
    return [wanted] if wanted else [min(each * size, axis.extent) for each in halves(-(-axis.extent // size))]


PRODUCT, OUT_CHANNEL, IN_CHANNEL = range(3)
"""The axes of the transformed filter."""


class TileStretch(NamedTuple):
    """The data of a block and a row fold, to be transformed; or, with a section, its products for a column fold."""

    block: int
    fold: int
    section: int | None = None


class TileUnits(Units):
    """While vector unit and array are at a stretch, what the next needs comes, and the last results go."""

    def __init__(self, plan: TilePlan) -> None:
        self.plan, self.filtering = plan, plan.filtering
        self.traffic, self.word_fill = Traffic(plan.hardware, plan.shape), plan.word_fill
        self.intermediates, self.tensors = plan.filter.size, (plan.ifmap, plan.filter, plan.ofmap)
        # Vector unit and array share the words between stages, so that they take turns.
        drains = plan.hardware.sequencer.between_blocks == "drain"
        self.policy = Policy(("ifmap", "weights"), when_free, 1, drains=drains, serial=True)

    @property
    def more(self) -> Mapping[str, Any]:
        """How the filter is transformed; sums of that many factors are kept in float64."""
        derived = DerivedTensor(self.plan.filter.name, "filter", self.filtering.by.transformed)
        return {"derived": (derived,), "doubles": True}

    @property
    def areas(self) -> tuple[Area, ...]:
        """Ifmap, transformed filter, results, transformed data, products."""
        plan, (ifmap, weights, results) = self.plan, self.plan.tiling.buffers
        rows, cols = len(self.filtering.row_folds[0]), max(map(len, plan.col_folds))
        return (
            Area("ifmap", plan.ifmap.name, *ifmap, rows, in_one(self._patch), self._ready),
            Area("weights", plan.filter.name, *weights, cols, in_one(self._section)),
            Area("results", "ofmap", *results, cols),
            Area("tiles", "tiles", plan.data_words, 1, rows),
            Area("products", "products", plan.scratch_words, 1, max(rows, cols)),
        )

    def units(self) -> Iterator[Unit]:
        """Block by block: the data of all row folds, then the products, column fold by column fold."""
        sections, by = self.plan.shared, self.filtering.by
        data = sum(map(len, self.filtering.data)) + len(by.data_mixes)
        inverse = sum(map(len, self.filtering.inverse)) + len(by.result_mixes)
        for block in range(len(self.plan.blocks)):
            for fold in range(len(self.filtering.row_folds)):
                needs = SlotNeed("ifmap", (block, fold)), SlotNeed("tiles", 0), SlotNeed("products", 0)
                yield Unit(needs, ("data", block), TileStretch(block, fold), steps=data)
            for fold in range(len(self.plan.col_folds)):
                for at, section in enumerate(sections):
                    weights, results = SlotNeed("weights", (fold, at)), SlotNeed("results", (block, fold))
                    last, passes = at == len(sections) - 1, len(section) * len(self.filtering.row_folds)
                    yield Unit(
                        (weights, results, SlotNeed("tiles", 0), SlotNeed("products", 0)), ("products", block),
                        TileStretch(block, fold, at),
                        passes, inverse if last else 0, leaves=1 if last else -1,
                    )  # fmt: skip

    # ---- into the lanes

    def _ready(self, key: tuple[int, int]) -> int:
        """Before the first row fold of a block."""
        block, fold = key
        return 0 if fold else delay_of(self.plan.shape.reached(*self.plan.blocks[block].sizes), self.plan.hardware)

    def _patch(self, key: tuple[int, int], base: int) -> Iterator[Moves]:
        """What a block needs of a row fold, unless all of it is padding."""
        plan, (at, fold) = self.plan, key
        if (patch := plan.shape.patch(plan.blocks[at])).words:
            part, box = plan.read(self.filtering.row_folds[fold], patch, base)
            yield self.traffic.moves(plan.ifmap, (part,), (box,), plan.shape.ifmap_apart)

    def _section(self, key: tuple[int, int], base: int) -> Iterator[Moves]:
        """Product by product, the weights of all row folds."""
        (fold, section), word, parts = key, self.plan.hardware.vector_memory.word_elements, []
        lane, products = (Along(OUT_CHANNEL, self.plan.col_folds[fold]),), self.plan.shared[section]
        for number in products:
            for rows, words in zip(self.filtering.row_folds, self.filtering.weight_words, strict=True):
                items = Along(PRODUCT, range(number, number + 1)), Along(IN_CHANNEL, rows)
                parts.append(Part(base, (0,), lane, items, word))
                base += words
        elements = len(products) * self.plan.shape.channels * len(self.plan.col_folds[fold])
        yield self.traffic.numbers(self.plan.filter, tuple(parts), elements)

    # ---- the vector unit and the array, and out

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[Act]:
        stretch = unit.about
        return self._transform(stretch, *bases) if stretch.section is None else self._multiply(stretch, bases)

    def _transform(self, stretch: TileStretch, patch: int, data: int, scratch: int) -> Iterator[VectorWork]:
        """The data of a row fold, one axis after the other; the patch is free after the first."""
        plan, block, lanes = self.plan, self.plan.blocks[stretch.block], len(self.filtering.row_folds[stretch.fold])
        by, words = self.filtering.by, plan.tiles(block).words
        data += stretch.fold * by.data_places * words
        first, second = data_stages(plan, block, patch, scratch, data)
        yield from _in_turn(first.steps(lanes), Touch(0))
        yield from _in_turn(second.steps(lanes))
        yield from _in_turn(mixed(by.data_mixes, data, words, lanes))

    def _multiply(self, stretch: TileStretch, bases: Sequence[int]) -> Iterator[Act]:
        """The products of a section, each over all row folds; behind the last the outputs."""
        plan, by, block = self.plan, self.filtering.by, self.plan.blocks[stretch.block]
        (weights, results, data, scratch), words = bases, plan.tiles(block).words
        lanes, folds = len(plan.col_folds[stretch.fold]), self.filtering.row_folds
        assert stretch.section is not None
        for each in (by.products[place] for place in plan.shared[stretch.section]):
            result, streams = scratch + each.results * words, len(each.data) * words
            for at, (rows, size) in enumerate(zip(folds, self.filtering.weight_words, strict=True)):
                reads = feed(len(rows), streamed(each, data + at * by.data_places * words, words))
                sizes, begins = (size, len(rows), lanes), at == 0 and not each.adds
                yield Pass(Touch(0), None, 3, begins, weights, *sizes, reads, result, streams)
                weights += size
        if stretch.section == len(plan.shared) - 1:
            yield from _in_turn(mixed(by.result_mixes, scratch, words, lanes))
            first, second = inverse_stages(plan, block, scratch, results)
            yield from _in_turn(first.steps(lanes))
            yield VectorWork([*second.steps(lanes)], (), 1, True)

    def spill(self, unit: Unit, base: int) -> Moves:
        plan, about = self.plan, unit.about
        part, boxes = plan.outputs(plan.columns[about.fold], 0, plan.blocks[about.block], base)
        return self.traffic.moves(plan.ofmap, (part,), boxes, plan.shape.ofmap_apart)


def _in_turn(steps: Iterable[Vector], *reads: Touch) -> Iterator[VectorWork]:
    """The steps of a stage, if there are any."""
    if found := [*steps]:
        yield VectorWork(found, reads)


# ---- the transforms of a block as steps of the vector unit, one axis after the other


class LineTransform(NamedTuple):
    """A one-dimensional transform of many words: where inputs and outputs lie, and what is kept between."""

    recipe: Recipe
    inputs: At
    outputs: At
    between: int

    def steps(self, lanes: int) -> Iterator[Vector]:
        """A step a line."""
        words = self.inputs(0).words
        for line in self.recipe:
            operands = tuple(self._feed(name, words, lanes) for name in line.factors)
            factors = tuple(map(float, line.factors.values()))
            made = self._feed(line.made, words, lanes)
            yield Vector((), "combine", operands, made, words, coefficients=factors)

    def _feed(self, name: str, words: int, lanes: int) -> Feed:
        kind, number = name[0], int(name[1:])
        if kind == "z":
            return feed(lanes, in_turn(self.between + number * words, words))
        return feed(lanes, (self.inputs if kind == "x" else self.outputs)(number))


def data_stages(
    plan: TilePlan, block: Block, patch_base: int, scratch: int, data: int
) -> tuple[LineTransform, LineTransform]:
    """From a patch to the transformed data of a row fold, at word `data`: down the columns, then along the rows.

    Tiles that lie side by side share columns, which are transformed once.
    """
    filtering, tiles, patch = plan.filtering, plan.tiles(block), plan.shape.patch(block)
    by, words, row_words = filtering.by, tiles.words, tiles.down * tiles.cols * tiles.groups
    reach, rows = by.down.reach, scratch
    between = rows + reach * row_words

    def along_a_row(number: int) -> Counters:
        """The element of that number of all transformed rows, of all tiles."""
        start = block.cols.start + number - patch.cols.start
        down = Counter(reach * tiles.down, 0, 1, reach * tiles.down, tiles.cols * tiles.groups)
        across = Counter(tiles.across, start, by.across.outputs, len(patch.cols), tiles.groups)
        return Counters(rows, (down, across, Counter(tiles.groups, 0, 1, tiles.groups, 1)))

    def product(number: int) -> Counters:
        """The products of that column of all transformed rows."""
        return nested(data + number * words, (reach, by.across.reach * words), (words, 1))

    def row_of_patch(number: int) -> Counters:
        """The row of that number of all tiles that lie below one another, all its columns."""
        start = block.rows.start + number - patch.rows.start
        down = Counter(tiles.down, start, by.down.outputs, len(patch.rows), len(patch.cols) * tiles.groups)
        across = Counter(tiles.cols, 0, 1, len(patch.cols), tiles.groups)
        return Counters(patch_base, (down, across, Counter(tiles.groups, 0, 1, tiles.groups, 1)))

    def row_of_tiles(number: int) -> Counters:
        return in_turn(rows + number * row_words, row_words)

    first, second = filtering.data
    rows_first = LineTransform(first, row_of_patch, row_of_tiles, between)
    return rows_first, LineTransform(second, along_a_row, product, between)


def inverse_stages(plan: TilePlan, block: Block, products: int, results: int) -> tuple[LineTransform, LineTransform]:
    """From the products of a column fold to its outputs; columns beyond the block are kept nowhere."""
    filtering, tiles = plan.filtering, plan.tiles(block)
    by, words = filtering.by, tiles.words
    reach, size, rows = by.across.reach, by.down.outputs, products + by.result_places * words
    between, width = rows + size * reach * words, len(block.cols) * tiles.groups

    def row(base: int) -> At:
        return lambda number: in_turn(base + number * reach * words, reach * words)

    def column(number: int) -> Counters:
        return nested(rows + number * words, (size, reach * words), (words, 1))

    def outputs(number: int) -> Counters:
        """The output of that number of each row of all tiles."""
        below, down = Counter(size, 0, 1, size, width), Counter(tiles.down, 0, 1, tiles.down, size * width)
        across = Counter(tiles.across, number, by.across.outputs, len(block.cols), tiles.groups)
        return Counters(results, (below, down, across, Counter(tiles.groups, 0, 1, tiles.groups, 1)))

    down, across = filtering.inverse
    return LineTransform(down, row(products), row(rows), between), LineTransform(across, column, outputs, between)


def mixed(mixes: tuple[Mix, ...], base: int, words: int, lanes: int) -> Iterator[Vector]:
    """A step a mix, of `words` a place."""

    def over(grid: TilePlaces) -> Feed:
        down, across = grid.apart
        sides = (grid.down, down * words), (grid.across, across * words)
        return feed(lanes, nested(base + grid.first * words, *sides, (words, 1)))

    for mix in mixes:
        operands = tuple(over(grid) for grid, _ in mix.terms)
        factors = tuple(float(factor) for _, factor in mix.terms)
        yield Vector((), "combine", operands, over(mix.made), mix.made.size * words, coefficients=factors)


def streamed(product: TileProduct, data: int, words: int) -> Counters:
    """The data that the weights of a product meet, place after place."""
    first, *others = product.data
    if not others:
        return in_turn(data + first * words, words)
    (second,) = others
    return nested(data + first * words, (2, (second - first) * words), (words, 1))


# ---- the lowering


def in_tiles(name: str, gloss: str, choice: TileChoice) -> Lowering:
    """The lowering of convolutions in such tiles, which raises UnsuitableError for others."""

    def filtering(layer: ArrayOp, batch: int, hardware: Hardware) -> Filtering:
        by = choice(layer.convolution(batch)[0])
        # What the vector unit works on may lie in any way.
        hardware = hardware.having("mapping", entry="ready")
        return Filtering(shape_of(layer, batch, hardware), hardware, by)

    def ways(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
        own = filtering(layer, batch, hardware)

        def of(shape: ConvShape, on: Hardware) -> Filtering:
            return replace(own, shape=shape, hardware=on)

        def draft(shape: ConvShape, rank: RankedTiling) -> Draft:
            plan = plan_of(of(shape, own.hardware), rank.tiling)
            units, told = partial(TileUnits, plan), partial(_explained, plan, layer)
            return Draft(units, lambda each: (each, told()), rank.tiling.blocks, rank.least, rank.estimate)

        ranked = ranked_shapes(lambda shape, on: ranks_of(of(shape, on)), own.shape, own.hardware, own.tile)
        return [draft(*each) for each in ranked]

    def least(layer: ArrayOp, batch: int, hardware: Hardware) -> float:
        own = filtering(layer, batch, hardware)
        others = (replace(own, shape=shape) for shape, _ in in_other_strips(own.shape, own.hardware, own.tile))
        return min(each.least_cycles for each in (own, *others))

    return Lowering(name, gloss, ways, partial=True, carries=frozenset(), least=least, ignores=IGNORED - {"search"})


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
    buffers = [(words, count if count > 1 else 0) for words, count in plan.tiling.buffers]
    names = "ifmap", "filter", "results", "transformed data", "products and what lies between"
    areas = zip(names, (*buffers, (plan.data_words, 0), (plan.scratch_words, 0)), strict=True)
    part = f"; a filter buffer holds {len(plan.shared[0])} of {len(by.products)} products"
    aspects = {
        "taps": f"{taps}, by {by.name}: {fewer}; a block is {block.down} x {block.across} tiles",
        "vector": f"transforms down and then across; {data}; {inverse}; the array waits meanwhile",
        "filter": f"transformed beforehand: {size} in HBM, {more:.3g} times those of {plan.shape.taps} taps",
        "folds": f"{row_folds} for {channels}, {col_folds} for {out}",
        "passes": f"{len(plan.blocks) * filtering.passes:,}, {filtering.passes:,} a block: products x folds",
        "block": block_of(plan, blocking, layer),
        "order": "block by block: the data of all row folds transformed, then column fold by column fold multiplied",
        "words": words_of(plan, layer),
        "memory": memory_of(areas, plan.hardware) + (part if len(plan.shared) > 1 else ""),
    }
    choices = {**vars(plan.tiling), "tile_outputs": by.down.outputs, "products": by.multiplications}
    return Explanation(1, blocking, choices, aspects)


def _transform(filtering: Filtering, recipes: tuple[Recipe, Recipe], of: str, mixes: tuple[Mix, ...]) -> str:
    each = [
        f"{sum(len(line.factors) + 1 for line in recipe)} words of the port and {filtering.pace(recipe)} cycles"
        for recipe in recipes[: 1 if recipes[0] == recipes[1] else 2]
    ]
    once = ", what they have in common once" if any(recipe.temporaries for recipe in recipes) else ""
    mixed = f", and {filtering.mixed(mixes):,} cycles a tile to combine them" if mixes else ""
    return f"{' and '.join(each)} for {of}{once}{mixed}"
