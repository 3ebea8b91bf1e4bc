"""Write a `Plan` down as the steps of a `Program`."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

from tpusim.machines.tpu.lowering.block import Patch
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.schedule import Key, Load, assign_buffers, even, growing, slots_for, spread
from tpusim.machines.tpu.lowering.stages import Stage
from tpusim.machines.tpu.lowering.tiling import MOST_PIECES
from tpusim.machines.tpu.lowering.traffic import Traffic
from tpusim.machines.tpu.program.addresses import Feed
from tpusim.machines.tpu.program.passes import Preload, Stream
from tpusim.machines.tpu.program.program import Buffer, Program
from tpusim.machines.tpu.program.step import Step
from tpusim.machines.tpu.program.tensor import Along, Part
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.memory.layout import whole_bursts

_Streamed = tuple[int, tuple[int, ...], Feed]
"""A pass: its rows, the fill of its ifmap, and where it reads."""

_IfmapLoad = Load[tuple[int, int, int]]
"""Of a channel group, a block and a chunk."""


class Emitter:
    """Emits stage after stage, each preceded by the fills of the DMA slot that runs beside the stage before.

    Step indices are remembered per load so that `after` can name what a step really waits for.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.drains = plan.hardware.sequencer.between_blocks == "drain"
        self.steps: list[Step] = []
        stages, chunk_of = plan.stages, [section.chunk for section in plan.sections]
        self.ifmaps, self.ifmap_of = assign_buffers(
            [(s.group, s.block, chunk_of[s.section]) for s in stages], plan.tiling.ifmap_buffers
        )
        self.filters, self.filter_of = assign_buffers(
            [(s.group, s.fold, s.section) for s in stages], plan.tiling.filter_buffers
        )
        self.place_ready: dict[tuple[int, int], int] = {}
        self.weights_ready: dict[tuple[int, int], int] = {}
        self.last_stream: list[int] = []
        self.last_preload: list[int] = []
        self.results: dict[tuple[int, int, int], int] = {}
        self.spills: list[int] = []
        self.traffic = Traffic(plan.shape, plan.hardware)
        self.streamed: dict[int, dict[int, _Streamed]] = {}

    def program(self) -> Program:
        """The whole layer."""
        plan = self.plan
        queue = self._queue()
        finished: deque[int] = deque()
        for index, stage in enumerate(plan.stages):
            for _, emit in sorted(queue.pop(index, ()), key=lambda entry: entry[0]):
                emit()
            if finished and finished[0] + plan.tiling.lag <= index:
                self._spill(finished.popleft())
            self._compute(index, stage)
            if stage.section in plan.last_sections:
                finished.append(index)
        for index in finished:
            self._spill(index)
        tensors = plan.ifmap, plan.filter, plan.ofmap
        return Program(tensors, self._buffers(), tuple(self.steps), plan.word_fill, word_cycles=plan.word_cycles)

    def _buffers(self) -> tuple[Buffer, ...]:
        """Ifmap buffers, then filter buffers, then partial sums."""
        plan, tiling = self.plan, self.plan.tiling
        cols = max(map(plan.width, plan.columns))
        return (
            Buffer(
                plan.ifmap.name, 0, tiling.ifmap_buffers * tiling.ifmap_words, max(each.rows for each in plan.passes)
            ),
            Buffer("filter", plan.filter_base(0), tiling.filter_buffers * tiling.section_words, cols),
            Buffer("ofmap", plan.psum_base(0), tiling.psum_buffers * tiling.psum_words, cols),
        )

    def add(self, step: Step) -> int:
        """Write a step down; its index."""
        self.steps.append(step)
        return len(self.steps) - 1

    # ---- the DMA queue

    def _queue(self) -> dict[int, list[tuple[tuple[int, int, int], Callable[[], None]]]]:
        """For each slot the fills in it, with the sort key (stage, pass, kind) that first needs each."""
        queue: dict[int, list[tuple[tuple[int, int, int], Callable[[], None]]]] = defaultdict(list)
        for index, load in enumerate(self.filters):
            cuts = self._cuts(load.stage, len(self.plan.sections[load.key[2]].numbers))
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

    def _ifmap_fills(self, index: int, load: _IfmapLoad) -> list[tuple[int, int, Callable[[], None]]]:
        """(first place, slot, emit) of each piece: by places where they come one by one, else by rows."""
        _, block, number = load.key
        chunk = self.plan.chunks[number]
        patch = self.plan.patch(self.plan.blocks[block], chunk)
        places, slots = len(chunk.places), slots_for(load)
        if chunk.one_by_one:
            pieces = [(cut, patch) for cut in self._cuts(load.stage, places)]
        else:
            # Pieces share the rows that taps of both stand on; where those go to other words, they come again.
            most = 1 if chunk.shares_points else min(len(slots), MOST_PIECES)
            pieces = [(range(places), part) for part in patch.cut(most)]
        where = spread(len(pieces), slots)
        return [
            (cut.start, slot, self._ifmap_fill(index, load, patch, cut, part))
            for slot, (cut, part) in zip(where, pieces, strict=True)
        ]

    def _ifmap_fill(
        self, index: int, load: _IfmapLoad, patch: Patch, places: range, filled: Patch
    ) -> Callable[[], None]:
        def emit() -> None:
            parts = tuple(self._ifmap_part(load, patch, place, base, items) for place in places)
            if parts[0].words:
                waits = (*self._freed(load, self.last_stream), *self._written(filled))
                step = self.add(Fill(waits, self.plan.ifmap, parts, moved, regions=regions))
                self.place_ready.update({(index, place): step for place in places})

        plan, shape = self.plan, self.plan.shape
        apart = shape.row.extent * shape.row.stride, shape.col.extent * shape.col.stride
        rows, cols = shape.row.coordinates(filled.rows), shape.col.coordinates(filled.cols)
        brought = plan.brought(plan.chunks[load.key[2]], places, filled, load.key[0])
        moved, regions = self.traffic.of(brought, plan.ifmap, apart)
        items = plan.map_items(rows, cols, filled.groups, apart)
        base = patch.words_before(filled)
        return emit

    def _ifmap_part(self, load: _IfmapLoad, patch: Patch, place: int, offset: int, items: tuple[Along, ...]) -> Part:
        """One place, in all its copies."""
        plan, (group, _, chunk) = self.plan, load.key
        held = plan.chunks[chunk].places[place]
        return Part(
            base=plan.ifmap_base(load.buffer) + place * patch.words + offset,
            first_lanes=held.first_lanes,
            lane=plan.lanes_of(held, group),
            items=items,
            per_word=plan.word_fill,
        )

    def _filter_fill(self, index: int, load: Load[tuple[int, int, int]], cut: range) -> Callable[[], None]:
        """The weights of some passes; lane c takes those of array column c, W to a word."""
        plan = self.plan
        group, fold, section = load.key
        numbers = plan.sections[section].numbers
        at = plan.columns[fold]
        first = plan.filter_base(load.buffer) - plan.weight_offsets[numbers.start]
        cut_numbers = numbers[cut.start : cut.stop]

        def emit() -> None:
            placed = [(number, first + plan.weight_offsets[number]) for number in cut_numbers]
            parts = tuple(part for number, base in placed for part in plan.weights.parts(at, group, number, base))
            elements = plan.weights.count(at, group, cut_numbers)
            hardware = plan.hardware
            moved = whole_bursts(elements * hardware.vector_memory.element_bytes, hardware.hbm.burst_bytes)
            step = self.add(Fill(self._freed(load, self.last_preload), plan.filter, parts, moved))
            self.weights_ready.update({(index, number): step for number in cut_numbers})

        return emit

    def _freed(self, load: Load[Key], last: list[int]) -> tuple[int, ...]:
        """What last used the buffer that is loaded again."""
        return self._begun() if load.freed < 0 else (last[load.freed],)

    # ---- what may have to come before

    def _begun(self) -> tuple[int, ...]:
        """The steps that must be done before any buffer is used."""
        return ()

    def _written(self, filled: Patch) -> tuple[int, ...]:
        """The steps that write the part of the ifmap that is filled next; nothing, where it is there from the start."""
        return ()

    # ---- compute and spill

    def _compute(self, index: int, stage: Stage) -> None:
        """A preload and a stream for each pass. What passes share is worked out ahead: networks have a million."""
        plan = self.plan
        filter_load, number = self.filter_of[index], self._result(stage)
        streamed = self._streamed(self.ifmap_of[index])
        result, freed = self._result_base(number), self._cleared(number)
        weights = plan.filter_base(self.filters[filter_load].buffer)
        cols, words = plan.width(plan.columns[stage.fold]), plan.results(plan.blocks[stage.block])
        preload, stream, delay = -1, -1, self._delay(index, stage)
        for place in plan.sections[stage.section].numbers:
            rows, filled, reads = streamed[place]
            loaded: tuple[int, ...] = (self.weights_ready[filter_load, place],)
            accumulate = place not in plan.first_passes
            if not accumulate:
                filled = (*filled, *freed)
            if preload < 0:
                loaded = (*loaded, *self._drained(index))
                filled = (*filled, *self._whole(index, stage))
            preload = self.add(Preload(loaded, weights, plan.pass_words[place], rows, cols, delay))
            stream = self.add(Stream(filled, preload, reads, result, words, rows, cols, accumulate))
            weights, delay = weights + plan.pass_words[place], 0
        self.last_preload.append(preload)
        self.last_stream.append(stream)

    def _result(self, stage: Stage) -> int:
        """The number of the results of a block and column fold, in the order in which they begin."""
        return self.results.setdefault((stage.group, stage.block, stage.fold), len(self.results))

    def _drained(self, index: int) -> tuple[int, ...]:
        """The end of the body ahead, where blocks do not overlap."""
        return tuple(self.last_stream[-1:]) if self.drains and self._begins(index) else ()

    def _whole(self, index: int, stage: Stage) -> tuple[int, ...]:
        """What the first stream of a body waits for where loads are to be whole: its ifmap, and its weights."""
        plan, ifmap = self.plan, self.ifmap_of[index]
        if plan.hardware.mapping.loads == "pieces" or not self._begins(index):
            return ()
        filter_load, numbers = self.filter_of[index], plan.sections[stage.section].numbers
        places = range(len(plan.chunks[self.ifmaps[ifmap].key[2]].places))
        filled = {self.place_ready[ifmap, place] for place in places if (ifmap, place) in self.place_ready}
        return tuple(sorted(filled | {self.weights_ready[filter_load, number] for number in numbers}))

    def _begins(self, index: int) -> bool:
        """Whether a stage is the first of a body: of a chunk of a block, for all column folds that the block keeps."""
        return index == 0 or self._body(self.plan.stages[index - 1]) != self._body(self.plan.stages[index])

    def _body(self, stage: Stage) -> tuple[int, int, int, int]:
        """What stages of one body have in common."""
        chunk, kept = self.plan.sections[stage.section].chunk, self.plan.tiling.kept_folds
        return stage.group, stage.block, stage.fold // kept, chunk

    def _delay(self, index: int, stage: Stage) -> int:
        """What is done before the first weights of a stage: where it begins a body, and where its ifmap is new."""
        plan, load = self.plan, self.ifmaps[self.ifmap_of[index]]
        delay = plan.hardware.sequencer.block_cycles if self._begins(index) else 0
        if load.stage == index:
            delay += plan.preparation_cycles(plan.blocks[stage.block], plan.chunks[load.key[2]])
        return delay

    def _cleared(self, number: int) -> tuple[int, ...]:
        """The spill that frees the partial sums of a block."""
        freed = number - self.plan.tiling.psum_buffers
        return (self.spills[freed],) if freed >= 0 else ()

    def _streamed(self, ifmap_load: int) -> dict[int, _Streamed]:
        """Each pass, by number, over an ifmap load whose fills have all been emitted."""
        if ifmap_load not in self.streamed:
            load, plan = self.ifmaps[ifmap_load], self.plan
            chunk, block = plan.chunks[load.key[2]], plan.blocks[load.key[1]]
            ready = {place: self.place_ready.get((ifmap_load, place), -1) for place in range(len(chunk.places))}
            feeds = plan.reads(chunk, block, plan.ifmap_base(load.buffer))
            self.streamed[ifmap_load] = {
                number: (each.rows, tuple(sorted({ready[place] for place in each.places} - {-1})), feed)
                for number, each, feed in zip(chunk.numbers, chunk.passes, feeds, strict=True)
            }
        return self.streamed[ifmap_load]

    def _spill(self, index: int) -> None:
        plan, stage = self.plan, self.plan.stages[index]
        base, parts, boxes = self._result_base(self._result(stage)), [], []
        for each in plan.blocks[stage.block].rectangles:
            part, held = plan.outputs(plan.columns[stage.fold], stage.group, each, base)
            parts.append(part)
            boxes += held
            base += part.words
        moved, regions = self.traffic.of(boxes, plan.ofmap, plan.strips_apart)
        after = (self.last_stream[index],)
        self.spills.append(self.add(Spill(after, plan.ofmap, tuple(parts), moved, regions=regions)))

    def _result_base(self, number: int) -> int:
        """First word of the partial sums of the results of that number."""
        return self.plan.psum_base(number % self.plan.tiling.psum_buffers)
