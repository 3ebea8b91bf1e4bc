"""Write a `Plan` down as the steps of a `Program`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from tpusim.machines.tpu.lowering.geometry import padded
from tpusim.machines.tpu.lowering.plan import Block, Plan, Stage, burst_bytes
from tpusim.machines.tpu.lowering.schedule import Load, assign_buffers, even, growing, slots_for, spread
from tpusim.machines.tpu.lowering.tiling import MOST_PIECES
from tpusim.machines.tpu.program.steps import (
    Box,
    FilterFill,
    FilterTile,
    IfmapFill,
    LaneGroup,
    Preload,
    Program,
    Spill,
    Step,
    Stream,
    inside,
)

_Streamed = tuple[int, tuple[int, ...], tuple[LaneGroup, ...]]
"""Of a pass: its rows, the fill of its ifmap, and where it reads."""


class Emitter:
    """Emits stage after stage, each preceded by the fills of the DMA slot that runs beside the stage before.

    Step indices are remembered per load so that `after` can name what a step really waits for.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.drains = plan.hardware.sequencer.between_blocks == "drain"
        self.steps: list[Step] = []
        stages = plan.stages
        self.ifmaps, self.ifmap_of = assign_buffers([(s.group, s.block) for s in stages], plan.tiling.ifmap_buffers)
        self.filters, self.filter_of = assign_buffers(
            [(s.group, s.fold, s.chunk) for s in stages], plan.tiling.filter_buffers
        )
        self.fold_ready: dict[tuple[int, int], int] = {}
        self.weights_ready: dict[tuple[int, int], int] = {}
        self.last_stream: list[int] = []
        self.last_preload: list[int] = []
        self.spills: list[int] = []
        self.streamed: dict[int, list[_Streamed]] = {}

    def program(self) -> Program:
        """The whole layer."""
        plan = self.plan
        queue = self._queue()
        finished: int | None = None
        for index, stage in enumerate(plan.stages):
            for _, emit in sorted(queue[index], key=lambda entry: entry[0]):
                emit()
            if finished is not None:
                self._spill(finished)
            self._compute(index, stage)
            finished = index if stage.chunk == len(plan.chunks) - 1 else None
        self._spill(len(plan.stages) - 1)
        return Program(
            steps=tuple(self.steps),
            images=plan.shape.images,
            word_fill=plan.word_fill,
            strips=plan.shape.row.strips,
            ifmap_strip=plan.shape.row.extent * plan.shape.row.stride,
            ofmap_strip=plan.shape.row.extent,
            ifmap_shape=plan.shape.ifmap_shape,
            filter_shape=plan.shape.filter_shape,
            ofmap_shape=plan.shape.ofmap_shape,
            multi_tile=plan.multi_tile,
            peak_words=plan.tiling.words,
            ifmap_words=plan.tiling.ifmap_buffers * plan.tiling.ifmap_words,
        )

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    # ---- the DMA queue

    def _queue(self) -> dict[int, list[tuple[tuple[int, int, int], Callable[[], None]]]]:
        """For each slot the fills in it, with the sort key (stage, pass, kind) that first needs each."""
        queue: dict[int, list[tuple[tuple[int, int, int], Callable[[], None]]]] = defaultdict(list)
        for index, load in enumerate(self.filters):
            cuts = self._cuts(load.stage, len(self.plan.chunks[load.key[2]]))
            for cut, slot in zip(cuts, spread(len(cuts), slots_for(load)), strict=True):
                queue[slot].append(((load.stage, cut.start, 0), self._filter_fill(index, load, cut)))
        for index, ifmap_load in enumerate(self.ifmaps):
            for order, slot, emit in self._ifmap_fills(index, ifmap_load):
                queue[slot].append(((ifmap_load.stage, order, 1), emit))
        return queue

    def _cuts(self, stage: int, count: int) -> list[range]:
        """The first load of its kind grows piece by piece, so that the first pass waits for little.

        A loop over blocks that drains has one body for all of them, the first included.
        """
        if stage == 0 and not self.drains:
            return growing(count, -(-count // MOST_PIECES))
        return even(count, MOST_PIECES)

    def _ifmap_fills(self, index: int, load: Load[tuple[int, int]]) -> list[tuple[int, int, Callable[[], None]]]:
        """(first row fold, slot, emit) of each piece: by row folds where there are several, else by rows."""
        block = self.plan.blocks[load.key[1]]
        folds = len(self.plan.row_folds)
        slots = slots_for(load)
        if folds > 1:
            cuts = self._cuts(load.stage, folds)
            pieces = [(cut, block.grid_rows) for cut in cuts]
        else:
            cuts = even(len(block.grid_rows), min(len(slots), MOST_PIECES))
            pieces = [(range(1), block.grid_rows[cut.start : cut.stop]) for cut in cuts]
        where = spread(len(pieces), slots)
        return [
            (cut.start, slot, self._ifmap_fill(index, load, block, cut, rows))
            for slot, (cut, rows) in zip(where, pieces, strict=True)
        ]

    def _ifmap_fill(
        self, index: int, load: Load[tuple[int, int]], block: Block, folds: range, grid_rows: range
    ) -> Callable[[], None]:
        plan, shape = self.plan, self.plan.shape
        row_words = len(block.grid_cols) * len(block.groups)
        words = len(folds) * len(grid_rows) * row_words
        first, last = plan.row_folds[folds.start], plan.row_folds[folds.stop - 1]
        at = load.key[0] * shape.channels
        box = Box(
            channels=range(at + first.start, at + last.stop),
            rows=shape.row.coordinates(grid_rows),
            cols=shape.col.coordinates(block.grid_cols),
            images=plan.images(block.groups),
        )
        offset = folds.start * block.grid_words + (grid_rows.start - block.grid_rows.start) * row_words

        def emit() -> None:
            if not words:
                return
            step = self._add(
                IfmapFill(
                    after=() if load.freed < 0 else (self.last_stream[load.freed],),
                    box=box,
                    base=plan.ifmap_base(load.buffer) + offset,
                    fold_channels=len(plan.row_folds[0]),
                    fold_stride=block.grid_words,
                    copies=plan.multi_tile,
                    words=words,
                    lane_words=plan.multi_tile * len(box.channels) * len(grid_rows) * row_words,
                    hbm_bytes=self._bytes(box, shape.ifmap_shape, shape.row.extent * shape.row.stride),
                )
            )
            for fold in folds:
                self.fold_ready[index, fold] = step

        return emit

    def _filter_fill(self, index: int, load: Load[tuple[int, int, int]], cut: range) -> Callable[[], None]:
        plan = self.plan
        group, fold, chunk = load.key
        base = plan.filter_base(load.buffer)
        numbers = plan.chunks[chunk]
        tiles = tuple(self._tile(number, numbers, base, group, fold) for number in numbers[cut.start : cut.stop])

        def emit() -> None:
            words = [plan.pass_words[number] for number in numbers[cut.start : cut.stop]]
            elements = sum(tile.rows for tile in tiles) * len(tiles[0].out_channels)
            step = self._add(
                FilterFill(
                    after=() if load.freed < 0 else (self.last_preload[load.freed],),
                    tiles=tiles,
                    words=sum(words),
                    lane_words=sum(words) * len(tiles[0].out_channels),
                    hbm_bytes=self._whole_bursts(elements),
                )
            )
            for number in numbers[cut.start : cut.stop]:
                self.weights_ready[index, number] = step

        return emit

    def _tile(self, number: int, chunk: range, base: int, group: int, fold: int) -> FilterTile:
        plan = self.plan
        each, columns = plan.passes[number], plan.col_folds[fold]
        at = group * plan.shape.out_channels
        return FilterTile(
            base=base + plan.weight_offsets[number] - plan.weight_offsets[chunk.start],
            taps=each.taps,
            channels=each.channels,
            out_channels=range(at + columns.start, at + columns.stop),
        )

    # ---- compute and spill

    def _compute(self, index: int, stage: Stage) -> None:
        """A preload and a stream for each pass. What passes share is worked out ahead: networks have a million."""
        plan = self.plan
        filter_load, tile = self.filter_of[index], index // len(plan.chunks)
        streamed = self._streamed(self.ifmap_of[index])
        result = plan.psum_base(tile % plan.tiling.psum_buffers)
        weights = plan.filter_base(self.filters[filter_load].buffer)
        cols, words = len(plan.col_folds[stage.fold]), plan.blocks[stage.block].words
        preload = stream = -1
        for number in plan.chunks[stage.chunk]:
            rows, filled, reads = streamed[number]
            loaded: tuple[int, ...] = (self.weights_ready[filter_load, number],)
            if number == 0:
                loaded, filled = (*loaded, *self._drained()), (*filled, *self._cleared(tile))
            preload = self._add(Preload(loaded, weights, rows, cols))
            stream = self._add(Stream(filled, preload, reads, result, words, rows, cols, number > 0))
            weights += plan.pass_words[number]
        self.last_preload.append(preload)
        self.last_stream.append(stream)

    def _drained(self) -> tuple[int, ...]:
        """The end of the block ahead, where blocks do not overlap."""
        return tuple(self.last_stream[-1:]) if self.drains else ()

    def _cleared(self, tile: int) -> tuple[int, ...]:
        """The spill that frees the partial sums of a block."""
        freed = tile - self.plan.tiling.psum_buffers
        return (self.spills[freed],) if freed >= 0 else ()

    def _streamed(self, ifmap_load: int) -> list[_Streamed]:
        """Of each pass over an ifmap load whose fills have all been emitted."""
        if ifmap_load not in self.streamed:
            load, plan = self.ifmaps[ifmap_load], self.plan
            base, block = plan.ifmap_base(load.buffer), plan.blocks[load.key[1]]
            fills = [self.fold_ready.get((ifmap_load, fold)) for fold in range(len(plan.row_folds))]
            waits = [() if fill is None else (fill,) for fill in fills]
            self.streamed[ifmap_load] = [
                (each.rows, waits[each.fold], plan.reads(each, block, base)) for each in plan.passes
            ]
        return self.streamed[ifmap_load]

    def _spill(self, index: int) -> None:
        plan, stage = self.plan, self.plan.stages[index]
        tile = index // len(plan.chunks)
        block, columns = plan.blocks[stage.block], plan.col_folds[stage.fold]
        at = stage.group * plan.shape.out_channels
        channels = range(at + columns.start, at + columns.stop)
        box = Box(channels, block.rows, block.cols, plan.images(block.groups))
        self.spills.append(
            self._add(
                Spill(
                    after=(self.last_stream[index],),
                    box=box,
                    base=plan.psum_base(tile % plan.tiling.psum_buffers),
                    words=block.words,
                    lane_words=block.words * len(columns),
                    hbm_bytes=self._bytes(box, plan.shape.ofmap_shape, plan.shape.row.extent),
                )
            )
        )

    def _bytes(self, box: Box, shape: tuple[int, int, int, int], strip_rows: int) -> int:
        """HBM bytes of `box` in every strip, each displaced by `strip_rows`."""
        element, burst = self.plan.hardware.vector_memory.element_bytes, self.plan.hardware.hbm.burst_bytes
        rows = (inside(box.rows, strip * strip_rows, shape[1]) for strip in range(self.plan.shape.row.strips))
        stored = padded(shape[0], self.plan.hardware.hbm.channel_multiple)
        # Padding comes after the last of all channels.
        channels = range(box.channels.start, stored if box.channels.stop == shape[0] else box.channels.stop)
        return sum(
            burst_bytes(replace(box, channels=channels, rows=part), (stored, *shape[1:]), element, burst)
            for part in rows
        )

    def _whole_bursts(self, elements: int) -> int:
        burst = self.plan.hardware.hbm.burst_bytes
        return -(-elements * self.plan.hardware.vector_memory.element_bytes // burst) * burst
