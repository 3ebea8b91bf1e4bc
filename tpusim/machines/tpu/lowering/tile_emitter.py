"""Write a `TilePlan` down as the steps of a Program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tpusim.machines.tpu.lowering.block import Block
from tpusim.machines.tpu.lowering.maps import CHANNEL
from tpusim.machines.tpu.lowering.schedule import Load, assign_buffers
from tpusim.machines.tpu.lowering.tile_plan import TilePlan
from tpusim.machines.tpu.lowering.tile_stages import data_base, data_stages, inverse_stages, mixed, streamed
from tpusim.machines.tpu.lowering.traffic import Traffic
from tpusim.machines.tpu.lowering.vector_plan import delay_of
from tpusim.machines.tpu.program.addresses import Feed, LaneGroup
from tpusim.machines.tpu.program.passes import Preload, Stream
from tpusim.machines.tpu.program.program import Buffer, Derived, Program
from tpusim.machines.tpu.program.step import Step
from tpusim.machines.tpu.program.tensor import Along, Part
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.machines.tpu.program.vector import Vector
from tpusim.memory.layout import Box, whole_bursts

PRODUCT, OUT_CHANNEL, IN_CHANNEL = range(3)
"""The axes of the transformed filter."""


class TileUnit(NamedTuple):
    """The data of a block and a row fold transformed; or, with a section, its products for a column fold."""

    block: int
    fold: int
    section: int | None = None


class TileEmitter:
    """Unit by unit: while vector unit and array are at one, what the next needs comes, and the last results go."""

    def __init__(self, work: TilePlan) -> None:
        self.work, self.plan, self.filtering = work, work.plan, work.filtering
        self.traffic, self.blocks = Traffic(self.plan.shape, self.plan.hardware), self.plan.blocks
        self.steps: list[Step] = []
        self.units = [*_units(work)]
        self.filled: dict[int, tuple[int, ...]] = {}
        self.freed: dict[int, int] = {}
        self.buffer: dict[int, int] = {}
        self.queue: defaultdict[int, list[tuple[int, Callable[[], None]]]] = defaultdict(list)
        patches = [at for at, unit in enumerate(self.units) if unit.section is None]
        weights = [at for at, unit in enumerate(self.units) if unit.section is not None]
        self._enqueue(patches, [self.units[at] for at in patches], self.plan.tiling.ifmap_buffers, self._fill_patch)
        wanted = [self.units[at]._replace(block=0) for at in weights]
        self._enqueue(weights, wanted, self.plan.tiling.filter_buffers, self._fill_weights)
        self.last: tuple[int, ...] = ()
        self.spills: list[int] = []
        self.unspilled: list[TileUnit] = []

    def program(self) -> Program:
        """The whole layer."""
        for number, unit in enumerate(self.units):
            for _, emit in sorted(self.queue[number], key=lambda entry: entry[0]):
                emit()
            self._spill()
            if unit.section is None:
                self._transform(number, unit)
            else:
                self._multiply(number, unit, unit.section)
        self._spill()
        work, plan, by = self.work, self.plan, self.filtering.by
        tensors, steps = (plan.ifmap, work.transformed, work.ofmap), tuple(self.steps)
        derived = (Derived(work.transformed.name, "filter", by.transformed),)
        return Program(tensors, self._buffers(), steps, plan.word_fill, derived=derived, doubles=True)

    def _buffers(self) -> tuple[Buffer, ...]:
        work, plan, tiling = self.work, self.plan, self.plan.tiling
        rows, cols = len(self.filtering.row_folds[0]), max(map(len, plan.col_folds))
        return (
            Buffer(plan.ifmap.name, 0, tiling.ifmap_buffers * tiling.ifmap_words, rows),
            Buffer(work.transformed.name, plan.filter_base(0), tiling.filter_buffers * tiling.section_words, cols),
            Buffer("ofmap", plan.psum_base(0), tiling.psum_buffers * tiling.psum_words, cols),
            Buffer("tiles", work.data_base, work.data_words, rows),
            Buffer("products", work.scratch_base, work.scratch_words, max(rows, cols)),
        )

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    # ---- into the lanes

    def _enqueue(
        self,
        places: list[int],
        wanted: list[TileUnit],
        buffers: int,
        fill: Callable[[int, Load[TileUnit]], tuple[int, ...]],
    ) -> None:
        """Each load as soon as its buffer is free, but not ahead of what comes before it is used."""
        loads, uses = assign_buffers(wanted, buffers)
        of_load: dict[int, list[int]] = defaultdict(list)
        for place, used in zip(places, uses, strict=True):
            of_load[used].append(place)
            self.buffer[place] = loads[used].buffer

        def emit(load: Load[TileUnit], users: list[int]) -> Callable[[], None]:
            def now() -> None:
                step = fill(-1 if load.freed < 0 else places[load.freed], load)
                self.filled.update(dict.fromkeys(users, step))

            return now

        for number, load in enumerate(loads):
            before = places[loads[number - 1].stage] if number else 0
            free = places[load.freed] + 1 if load.freed >= 0 else 0
            slot = min(max(before, free), places[load.stage])
            self.queue[slot].append((places[load.stage], emit(load, of_load[number])))

    def _fill_patch(self, freed: int, load: Load[TileUnit]) -> tuple[int, ...]:
        """What a block needs of a row fold, unless all of it is padding."""
        plan, shape, block = self.plan, self.plan.shape, self.blocks[load.key.block]
        patch, channels = self.work.patch(block), self.filtering.row_folds[load.key.fold]
        if not patch.words:
            return ()
        apart = shape.row.extent * shape.row.stride, shape.col.extent * shape.col.stride
        rows, cols = shape.row.coordinates(patch.rows), shape.col.coordinates(patch.cols)
        items = plan.map_items(rows, cols, patch.groups, apart)
        part = Part(plan.ifmap_base(load.buffer), (0,), (Along(CHANNEL, channels),), items, plan.word_fill)
        moved, regions = self.traffic.of((Box(channels, rows, cols, plan.images(patch.groups)),), plan.ifmap, apart)
        return (self._add(Fill(self._after(freed), plan.ifmap, (part,), moved, regions=regions)),)

    def _fill_weights(self, freed: int, load: Load[TileUnit]) -> tuple[int, ...]:
        """Product by product, the weights of all row folds."""
        work, hardware, section = self.work, self.plan.hardware, load.key.section
        assert section is not None
        base, parts = self.plan.filter_base(load.buffer), []
        lane, products = (Along(OUT_CHANNEL, self.plan.col_folds[load.key.fold]),), work.sections[section]
        for number in products:
            for fold, words in zip(self.filtering.row_folds, self.filtering.weight_words, strict=True):
                items = Along(PRODUCT, range(number, number + 1)), Along(IN_CHANNEL, fold)
                parts.append(Part(base, (0,), lane, items, hardware.vector_memory.word_elements))
                base += words
        elements = len(products) * self.plan.shape.channels * len(self.plan.col_folds[load.key.fold])
        moved = whole_bursts(elements * hardware.vector_memory.element_bytes, hardware.hbm.burst_bytes)
        return (self._add(Fill(self._after(freed), work.transformed, tuple(parts), moved)),)

    def _after(self, freed: int) -> tuple[int, ...]:
        """What last used the buffer that is loaded again."""
        return (self.freed[freed],) if freed >= 0 else ()

    # ---- the vector unit and the array

    def _transform(self, number: int, unit: TileUnit) -> None:
        """The data of a row fold, one axis after the other; the patch is free after the first."""
        block, lanes = self.blocks[unit.block], len(self.filtering.row_folds[unit.fold])
        first, second = data_stages(self.work, block, self.plan.ifmap_base(self.buffer[number]), unit.fold)
        sizes = len(block.rows), len(block.cols), len(block.groups)
        delay = 0 if unit.fold else delay_of(self.plan.shape, sizes, self.plan.hardware)
        self._work(first.steps(lanes, (*self.filled[number], *self.last), delay))
        (self.freed[number],) = self.last
        self._work(second.steps(lanes, self.last))
        data, words = data_base(self.work, block, unit.fold), self.work.tiles(block).words
        self._work(mixed(self.filtering.by.data_mixes, data, words, lanes, self.last))

    def _work(self, steps: Iterable[Vector]) -> None:
        for step in steps:
            self.last = (self._add(step),)

    def _multiply(self, number: int, unit: TileUnit, section: int) -> None:
        """The products of a section, each over all row folds; behind the last the outputs."""
        work, block, fold = self.work, self.blocks[unit.block], self.plan.col_folds[unit.fold]
        words, folds = work.tiles(block).words, self.filtering.row_folds
        weights, loaded = self.plan.filter_base(self.buffer[number]), self._drained(unit, section)
        vectors, preload = self.last, -1
        for product in (self.filtering.by.products[place] for place in work.sections[section]):
            result, streams = work.scratch_base + product.results * words, len(product.data) * words
            for at, rows in enumerate(folds):
                reads, sizes = streamed(product, data_base(work, block, at), words), (len(rows), len(fold))
                after = (*self.filled[number], *loaded)
                preload = self._add(Preload(after, weights, self.filtering.weight_words[at], *sizes))
                feed, adds = Feed((LaneGroup(0, len(rows), reads),)), at > 0 or product.adds
                self.last = (self._add(Stream(vectors, preload, feed, result, streams, *sizes, adds)),)
                weights, loaded = weights + self.filtering.weight_words[at], ()
        self.freed[number] = preload
        if section == len(work.sections) - 1:
            self._outputs(block, len(fold))
            self.unspilled.append(unit)

    def _drained(self, unit: TileUnit, section: int) -> tuple[int, ...]:
        """The end of the loop body ahead, where blocks do not overlap."""
        begins = unit.fold == section == 0
        return self.last if begins and self.plan.hardware.sequencer.between_blocks == "drain" else ()

    def _outputs(self, block: Block, lanes: int) -> None:
        tiling, number = self.plan.tiling, len(self.spills) + len(self.unspilled)
        freed = number - tiling.psum_buffers
        products, words = self.work.scratch_base, self.work.tiles(block).words
        self._work(mixed(self.filtering.by.result_mixes, products, words, lanes, self.last))
        first, second = inverse_stages(self.work, block, self._results(number))
        self._work(first.steps(lanes, self.last))
        self._work(second.steps(lanes, (*self.last, *((self.spills[freed],) if freed >= 0 else ()))))

    def _results(self, number: int) -> int:
        """First word of the results of that number."""
        return self.plan.psum_base(number % self.plan.tiling.psum_buffers)

    # ---- out

    def _spill(self) -> None:
        """The results that are there, if they are not on their way yet."""
        plan, shape = self.plan, self.plan.shape
        for unit in self.unspilled:
            block, channels = self.blocks[unit.block], plan.col_folds[unit.fold]
            apart = shape.row.extent, shape.col.extent
            items = plan.map_items(block.rows, block.cols, block.groups, apart)
            base = self._results(len(self.spills))
            part = Part(base, (0,), (Along(CHANNEL, channels),), items, plan.word_fill)
            box = Box(channels, block.rows, block.cols, plan.images(block.groups))
            moved, regions = self.traffic.of((box,), plan.ofmap, apart)
            self.spills.append(self._add(Spill(self.last, self.work.ofmap, (part,), moved, regions=regions)))
        self.unspilled = []


def _units(work: TilePlan) -> list[TileUnit]:
    """Block by block: the data of all row folds, then the products, column fold by column fold."""
    filtering, sections = work.filtering, len(work.sections)
    return [
        unit
        for block in range(len(work.plan.blocks))
        for unit in (
            *(TileUnit(block, fold) for fold in range(len(filtering.row_folds))),
            *(TileUnit(block, fold, at) for fold in range(len(work.plan.col_folds)) for at in range(sections)),
        )
    ]
