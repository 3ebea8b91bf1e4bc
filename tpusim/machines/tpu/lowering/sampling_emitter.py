"""Write a `Sampling` down: the emitter of its plan, whose ifmap the vector unit gathers instead of a fill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tpusim.machines.tpu.definition.beat import ready_delay
from tpusim.machines.tpu.lowering.block import Patch
from tpusim.machines.tpu.lowering.emitter import Emitter
from tpusim.machines.tpu.lowering.maps import CHANNEL
from tpusim.machines.tpu.lowering.sampled_taps import Lanes
from tpusim.machines.tpu.lowering.samples import CORNERS
from tpusim.machines.tpu.lowering.sampling import OPERATION, POINTERS, Sampling, TableKey, kinds_of
from tpusim.machines.tpu.lowering.schedule import Load
from tpusim.machines.tpu.program.addresses import Counter, Counters, Feed, LaneGroup
from tpusim.machines.tpu.program.pointers import ElementTable, Picked
from tpusim.machines.tpu.program.program import Buffer, Constant, Program
from tpusim.machines.tpu.program.tensor import Along, Part, Tensor
from tpusim.machines.tpu.program.transfers import Fill
from tpusim.machines.tpu.program.vector import Vector
from tpusim.memory.layout import Box, Region, whole_bursts
from tpusim.memory.stored import Stored

_Gathered = Load[tuple[int, int, int]]
LAST = 1 << 30
"""Behind all fills of a slot of the queue."""


class SamplingEmitter(Emitter):
    """Gathers a chunk right before the passes that stream it; what the next one needs is filled meanwhile."""

    def __init__(self, sampling: Sampling) -> None:
        super().__init__(sampling.plan)
        self.sampling = sampling
        self.gathers: list[int] = []
        self.bands: dict[int, int] = {}
        self.tables: dict[int, tuple[int, ...]] = {}
        self.numbers: list[np.ndarray] = []
        self.first: dict[tuple[TableKey, int], tuple[int, int]] = {}
        self.stored: dict[tuple[TableKey, int], list[list[int]]] = {}

    def program(self) -> Program:
        sampling = self.sampling
        # How many pointers there are is known at the end, and every fill of them names their tensor.
        program = super().program()
        numbers = np.concatenate(self.numbers).astype(np.int32)
        pointers = self._pointers(numbers.size)
        steps = tuple(
            replace(step, tensor=pointers) if isinstance(step, Fill) and step.tensor.name == POINTERS else step
            for step in program.steps
        )
        blend = Constant(
            sampling.blend.name, sampling.samples.blend().astype(np.int32).tobytes(), sampling.samples.parts
        )
        return replace(
            program,
            tensors=(sampling.ifmap, *program.tensors[1:], pointers, sampling.blend),
            buffers=(*program.buffers, *self._beside()),
            steps=steps,
            constants=(Constant(POINTERS, numbers.tobytes()), blend),
        )

    def _pointers(self, size: int) -> Tensor:
        return Tensor(POINTERS, (1, size), number_bytes=self.sampling.pointer_bytes)

    def _beside(self) -> tuple[Buffer, ...]:
        sampling = self.sampling
        lanes, plan = max(each.rows for each in self.plan.passes), self.plan
        tables = sampling.copies * sampling.tables_a_chunk
        pointers, blends = (tables * words for words in sampling.table_words)
        return (
            Buffer("ifmap", plan.tiling.words, sampling.copies * sampling.band_words, lanes),
            Buffer(POINTERS, sampling.pointer_base(0, 0), pointers, 1),
            Buffer(sampling.blend.name, sampling.pointer_base(0, 0) + pointers, blends, lanes),
        )

    # ---- what takes the place of a fill of the ifmap

    def _ifmap_fills(self, index: int, load: _Gathered) -> list[tuple[int, int, Callable[[], None]]]:
        """Behind all that the stage waits for besides."""

        def emit() -> None:
            self._fill(index)
            self._gather(index, load)
            if index + 1 < len(self.ifmaps):
                self._fill(index + 1)

        return [(LAST, load.stage, emit)]

    def _fill(self, index: int) -> None:
        """What a chunk is gathered from, unless it is there, or on its way."""
        sampling = self.sampling
        bands, band_of = sampling.bands
        if (band := band_of[index]) not in self.bands:
            self.bands[band] = self._fill_band(index, bands[band])
        tables, table_of = sampling.tables
        if (table := table_of[index]) not in self.tables:
            self.tables[table] = self._fill_tables(index, tables[table])

    def _freed_by(self, freed: int) -> tuple[int, ...]:
        """The last gathering from what is filled again."""
        return (self.gathers[freed],) if freed >= 0 else ()

    def _fill_band(self, index: int, load: Load[tuple[int, int, int]]) -> int:
        """Whole rows, for each place."""
        plan, sampling = self.plan, self.sampling
        group, at, number = self.ifmaps[index].key
        block, chunk = plan.blocks[at], plan.chunks[number]
        rows, cols = sampling.band(block), range(sampling.cut.layer.in_width)
        items, apart = plan.map_items(rows, cols, block.groups, (0, 0)), (0, 0)
        parts, boxes, base = [], [], sampling.band_base(load.buffer)
        for place in chunk.places:
            lanes = tuple(group * plan.shape.channels + channel for channel in place.channels)
            parts.append(Part(base, (0,), (Along(CHANNEL, lanes),), items, plan.word_fill))
            boxes.append(Box(range(min(lanes), max(lanes) + 1), rows, cols, plan.images(block.groups)))
            base += parts[-1].words
        moved, regions = self.traffic.of(boxes, sampling.ifmap, apart)
        return self.add(Fill(self._freed_by(load.freed), sampling.ifmap, tuple(parts), moved, regions=regions))

    def _fill_tables(self, index: int, load: Load[TableKey]) -> tuple[int, ...]:
        """Pointers to lane 0, blends to all lanes."""
        after, key, steps = self._freed_by(load.freed), load.key, []
        _, at, number = self.ifmaps[index].key
        patch = self.plan.patch(self.plan.blocks[at], self.plan.chunks[number])
        for kind, lanes in enumerate(key.lanes):
            table = self.sampling.table(lanes, patch, load.buffer, kind)
            steps += [self._fill_pointers(after, key, kind, table, patch)]
            steps += [self._fill_blend(after, lanes, patch, self.sampling.blend_base(load.buffer, kind))]
        return tuple(steps)

    def _fill_pointers(
        self, after: tuple[int, ...], key: TableKey, kind: int, table: ElementTable, patch: Patch
    ) -> int:
        if (key, kind) not in self.first:
            numbers = self.sampling.pointer_numbers(key, key.lanes[kind], patch)
            self.first[key, kind] = sum(each.size for each in self.numbers), numbers.size
            self.numbers.append(numbers.reshape(-1))
            own = numbers[:, : table.pointers].reshape(patch.words, table.operands, table.elements, table.together)
            self.stored[key, kind] = np.count_nonzero(own % 2 == 0, axis=(0, 2)).tolist()
        first, size = self.first[key, kind]
        part = Part(table.base, (0,), (Along(0, range(1)),), (Along(1, range(first, first + size)),), table.per_word)
        moved = whole_bursts(size * self.sampling.pointer_bytes, self.plan.hardware.hbm.burst_bytes)
        return self.add(Fill(after, self._pointers(first + size), (part,), moved))

    def _fill_blend(self, after: tuple[int, ...], lanes: tuple[Lanes, ...], patch: Patch, base: int) -> int:
        """Each lane gets those of its offset group and tap; HBM hands out what differs."""
        blend, width, fill = self.sampling.blend, self.sampling.cut.layer.kernel[1], self.plan.word_fill
        kinds = [
            (group, row * width + col) for group, (row, col) in (each.kind for each in lanes for _ in range(each.lanes))
        ]
        axes = patch.rows, patch.cols, patch.groups, range(len(CORNERS)), range(fill)
        items = tuple(Along(axis, each) for axis, each in enumerate(axes, 2))
        lane = tuple(Along(axis, every) for axis, every in enumerate(zip(*kinds, strict=True)))
        regions = tuple((range(og, og + 1), range(tap, tap + 1), *axes) for og, tap in dict.fromkeys(kinds))
        part = Part(base, (0,), lane, items, fill)
        return self.add(Fill(after, blend, (part,), sum(map(self._moved, regions)), regions=regions))

    def _moved(self, region: Region) -> int:
        """Bytes of a part of the blends, which lie as their axes follow one another."""
        shape, burst = self.sampling.blend.shape, self.plan.hardware.hbm.burst_bytes
        axes = tuple(range(len(shape)))
        runs = Stored(0, shape, shape, axes, axes, self.plan.hardware.vector_memory.element_bytes, burst).runs(region)
        return runs.moved(burst) if runs else 0

    # ---- the vector unit

    def _gather(self, index: int, load: _Gathered) -> None:
        """The words of every place."""
        plan, sampling = self.plan, self.sampling
        group, at, number = load.key
        chunk, block = plan.chunks[number], plan.blocks[at]
        patch, table = plan.patch(block, chunk), sampling.tables[1][index]
        band, tables = sampling.bands[1][index], sampling.tables[0][table]
        after = (self.bands[band], *self.tables[table], *self._freed(load, self.last_stream))
        new = index == 0 or band != sampling.bands[1][index - 1]
        for place in range(len(chunk.places)):
            lanes = sampling.cut.lanes_of(chunk, place, group)
            kind = tables.key.lanes.index(lanes)
            base = sampling.band_base(sampling.bands[0][band].buffer) + place * sampling.band_size(block)
            operands = self._operands(tables, kind, patch, base)
            into = plan.ifmap_base(load.buffer) + place * patch.words
            delay = self._ready(sampling.band_size(block) * len(chunk.places)) if new and not place else 0
            writes = _all(lanes, Counters(into, (Counter(patch.words, 0, 1, patch.words, 1),)))
            step = self.add(Vector(after, OPERATION, operands, writes, patch.words, delay=delay))
            self.place_ready[index, place] = step
        self.gathers.append(step)

    def _ready(self, words: int) -> int:
        """Cycles in which what has come is made ready for the vector unit."""
        return ready_delay(words, self.plan.hardware)

    def _operands(self, load: Load[TableKey], kind: int, patch: Patch, base: int) -> tuple[Feed, ...]:
        """Corner by corner the elements, and how near they are."""
        lanes, blends = load.key.lanes[kind], self.sampling.blend_base(load.buffer, kind)
        table = self.sampling.table(lanes, patch, load.buffer, kind)
        kinds, operands = kinds_of(lanes), []
        for corner in range(len(CORNERS)):
            stored = self.stored[load.key, kind][corner]
            groups = [
                LaneGroup(first, count, Picked(table, corner, kinds.index(each), base, stored[kinds.index(each)]))
                for first, count, each in lanes
            ]
            near = Counters(blends + corner, (Counter(patch.words, 0, 1, patch.words, len(CORNERS)),))
            operands += [Feed(tuple(groups)), _all(lanes, near)]
        return tuple(operands)


def _all(lanes: tuple[Lanes, ...], pattern: Counters) -> Feed:
    """One pattern for all lanes of a place."""
    return Feed((LaneGroup(0, sum(each.lanes for each in lanes), pattern),))
