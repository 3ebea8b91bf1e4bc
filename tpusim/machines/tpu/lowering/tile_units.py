"""A `TilePlan` as units: data of a block are transformed, multiplied product by product, and transformed back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from tpusim.machines.tpu.lowering.block import CHANNEL
from tpusim.machines.tpu.lowering.tile_plan import TilePlan
from tpusim.machines.tpu.lowering.tile_stages import data_stages, data_words, inverse_stages, mixed, streamed
from tpusim.machines.tpu.lowering.traffic import Traffic
from tpusim.machines.tpu.lowering.vector_plan import delay_of
from tpusim.machines.tpu.program.addresses import Feed, LaneGroup
from tpusim.machines.tpu.program.program import Derived
from tpusim.machines.tpu.program.tensor import Along, Part, Tensor
from tpusim.machines.tpu.schedule.units import (
    Act,
    Area,
    Compute,
    Moves,
    Need,
    Pass,
    Piece,
    Policy,
    Touch,
    Unit,
    Units,
    Work,
    when_free,
)
from tpusim.memory.layout import Box, whole_bursts

PRODUCT, OUT_CHANNEL, IN_CHANNEL = range(3)
"""The axes of the transformed filter."""


class Stretch(NamedTuple):
    """The data of a block and a row fold, to be transformed; or, with a section, its products for a column fold."""

    block: int
    fold: int
    section: int | None = None


class TileUnits(Units):
    """While vector unit and array are at a stretch, what the next needs comes, and the last results go."""

    def __init__(self, work: TilePlan) -> None:
        self.work, self.plan, self.filtering = work, work.plan, work.filtering
        self.traffic, self.word_fill = Traffic(work.plan.shape, work.plan.hardware), work.plan.word_fill
        self.intermediates = work.transformed.size

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.plan.ifmap, self.work.transformed, self.work.ofmap

    @property
    def more(self) -> Mapping[str, Any]:
        """How the filter is transformed; sums of so many factors are kept in float64."""
        derived = Derived(self.work.transformed.name, "filter", self.filtering.by.transformed)
        return {"derived": (derived,), "doubles": True}

    @cached_property
    def areas(self) -> tuple[Area, ...]:
        """Ifmap, transformed filter, results, transformed data, products."""
        work, plan, (ifmap, weights, results) = self.work, self.plan, self.plan.tiling.buffers
        rows, cols = len(self.filtering.row_folds[0]), max(map(len, plan.col_folds))
        return (
            Area("ifmap", plan.ifmap.name, *ifmap, rows, self._patches, self._ready),
            Area("weights", work.transformed.name, *weights, cols, self._sections),
            Area("results", "ofmap", *results, cols),
            Area("tiles", "tiles", work.data_words, 1, rows),
            Area("products", "products", work.scratch_words, 1, max(rows, cols)),
        )

    @cached_property
    def policy(self) -> Policy:
        """Vector unit and array share the words between stages, so that they take turns."""
        drains = self.plan.hardware.sequencer.between_blocks == "drain"
        return Policy(("ifmap", "weights"), when_free, 1, drains=drains, serial=True)

    def units(self) -> Iterator[Unit]:
        """Block by block: the data of all row folds, then the products, column fold by column fold."""
        sections, by = self.work.sections, self.filtering.by
        data = sum(map(len, self.filtering.data)) + len(by.data_mixes)
        inverse = sum(map(len, self.filtering.inverse)) + len(by.result_mixes)
        for block in range(len(self.plan.blocks)):
            for fold in range(len(self.filtering.row_folds)):
                needs = Need("ifmap", (block, fold)), Need("tiles", 0), Need("products", 0)
                yield Unit(needs, ("data", block), Stretch(block, fold), steps=data)
            for fold in range(len(self.plan.col_folds)):
                for at, section in enumerate(sections):
                    weights, results = Need("weights", (fold, at)), Need("results", (block, fold))
                    last, passes = at == len(sections) - 1, len(section) * len(self.filtering.row_folds)
                    yield Unit(
                        (weights, results, Need("tiles", 0), Need("products", 0)), ("products", block),
                        Stretch(block, fold, at),
                        passes, inverse if last else 0, leaves=1 if last else -1,
                    )  # fmt: skip

    # ---- into the lanes

    def _ready(self, key: tuple[int, int]) -> int:
        """Before the first row fold of a block."""
        at, fold = key
        block = self.plan.blocks[at]
        sizes = len(block.rows), len(block.cols), len(block.groups)
        return 0 if fold else delay_of(self.plan.shape, sizes, self.plan.hardware)

    def _patches(self, key: tuple[int, int], gaps: int, grows: bool) -> list[Piece]:
        return [Piece(0, (0,), partial(self._patch, *key))]

    def _patch(self, at: int, fold: int, base: int) -> Iterator[Moves]:
        """What a block needs of a row fold, unless all of it is padding."""
        plan, shape = self.plan, self.plan.shape
        patch, channels = self.work.patch(plan.blocks[at]), self.filtering.row_folds[fold]
        if patch.words:
            rows, cols = shape.row.coordinates(patch.rows), shape.col.coordinates(patch.cols)
            items = plan.map_items(rows, cols, patch.groups, plan.ifmap_apart)
            part = Part(base, (0,), (Along(CHANNEL, channels),), items, plan.word_fill)
            box = Box(channels, rows, cols, plan.images(patch.groups))
            yield Moves(plan.ifmap, (part,), *self.traffic.of((box,), plan.ifmap, plan.ifmap_apart))

    def _sections(self, key: tuple[int, int], gaps: int, grows: bool) -> list[Piece]:
        return [Piece(0, (0,), partial(self._section, *key))]

    def _section(self, fold: int, section: int, base: int) -> Iterator[Moves]:
        """Product by product, the weights of all row folds."""
        work, hardware, parts = self.work, self.plan.hardware, []
        lane, products = (Along(OUT_CHANNEL, self.plan.col_folds[fold]),), work.sections[section]
        for number in products:
            for rows, words in zip(self.filtering.row_folds, self.filtering.weight_words, strict=True):
                items = Along(PRODUCT, range(number, number + 1)), Along(IN_CHANNEL, rows)
                parts.append(Part(base, (0,), lane, items, hardware.vector_memory.word_elements))
                base += words
        elements = len(products) * self.plan.shape.channels * len(self.plan.col_folds[fold])
        moved = whole_bursts(elements * hardware.vector_memory.element_bytes, hardware.hbm.burst_bytes)
        yield Moves(work.transformed, tuple(parts), moved)

    # ---- the vector unit and the array, and out

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[Act]:
        stretch = unit.about
        return self._transform(stretch, *bases) if stretch.section is None else self._multiply(stretch, bases)

    def _transform(self, stretch: Stretch, patch: int, data: int, scratch: int) -> Iterator[Work]:
        """The data of a row fold, one axis after the other; the patch is free after the first."""
        work, block, lanes = self.work, self.plan.blocks[stretch.block], len(self.filtering.row_folds[stretch.fold])
        data += data_words(work, block, stretch.fold)
        first, second = data_stages(work, block, patch, scratch, data)
        yield from _in_turn(first.steps(lanes), Touch(0))
        yield from _in_turn(second.steps(lanes))
        yield from _in_turn(mixed(self.filtering.by.data_mixes, data, work.tiles(block).words, lanes))

    def _multiply(self, stretch: Stretch, bases: Sequence[int]) -> Iterator[Act]:
        """The products of a section, each over all row folds; behind the last the outputs."""
        work, by, block = self.work, self.filtering.by, self.plan.blocks[stretch.block]
        (weights, results, data, scratch), words = bases, work.tiles(block).words
        lanes, folds = len(self.plan.col_folds[stretch.fold]), self.filtering.row_folds
        assert stretch.section is not None
        for product in (by.products[place] for place in work.sections[stretch.section]):
            result, streams = scratch + product.results * words, len(product.data) * words
            for at, rows in enumerate(folds):
                tiles = data + data_words(work, block, at)
                feed = Feed((LaneGroup(0, len(rows), streamed(product, tiles, words)),))
                size, begins = self.filtering.weight_words[at], at == 0 and not product.adds
                sizes = size, len(rows), lanes
                yield Pass(Touch(0), None, 3, begins, weights, *sizes, feed, result, streams)
                weights += size
        if stretch.section == len(work.sections) - 1:
            yield from _in_turn(mixed(by.result_mixes, scratch, words, lanes))
            first, second = inverse_stages(work, block, scratch, results)
            yield from _in_turn(first.steps(lanes))
            yield Work([*second.steps(lanes)], (), 1, True)

    def spill(self, unit: Unit, base: int) -> Moves:
        plan, block, channels = self.plan, self.plan.blocks[unit.about.block], self.plan.col_folds[unit.about.fold]
        apart = plan.shape.row.extent, plan.shape.col.extent
        items = plan.map_items(block.rows, block.cols, block.groups, apart)
        part = Part(base, (0,), (Along(CHANNEL, channels),), items, plan.word_fill)
        box = Box(channels, block.rows, block.cols, plan.images(block.groups))
        return Moves(self.work.ofmap, (part,), *self.traffic.of((box,), plan.ofmap, apart))


def _in_turn(steps: Iterable[Compute], *reads: Touch) -> Iterator[Work]:
    """The steps of a stage, if there are any."""
    if found := [*steps]:
        yield Work(found, reads)
