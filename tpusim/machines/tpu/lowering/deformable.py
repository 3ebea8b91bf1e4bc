"""Deformable convolutions: the vector unit gathers samples into words of their own, which the array multiplies.

The images of a word have offsets of their own, so that its elements come from as many words, four each: the elements
around a sample. Their addresses, and their weights by distance are worked out beforehand, as the pointers of `indirect`
are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tpusim.base.errors import UnsuitableError
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.cut.blocks import CHANNEL, Block, Patch
from tpusim.machines.tpu.cut.geometry import padded_map
from tpusim.machines.tpu.cut.plan import Plan
from tpusim.machines.tpu.cut.reduction import Chunk
from tpusim.machines.tpu.definition import ready_delay
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import Convolution, Load
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, explanation_of, one_draft
from tpusim.machines.tpu.lowering.sampling import CORNERS, OPERATION, LaneRun, SampledTaps, kinds_of, sampling_of
from tpusim.machines.tpu.lowering.vector import feed, in_turn
from tpusim.machines.tpu.program.addresses import (
    ElementTable,
    Feed,
    LaneGroup,
    PickedWords,
    pointer_bytes,
    pointers_a_word,
)
from tpusim.machines.tpu.program.program import Constant, Explanation, Program
from tpusim.machines.tpu.program.steps import Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Fill, Part
from tpusim.machines.tpu.schedule.units import Area, Moves, Piece, SlotNeed, in_one, when_free, when_needed
from tpusim.memory.hbm_layout import Box
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.ops.deform_conv2d import DeformConv2d

POINTERS, BLEND = "pointers", "blend"
"""Names of the tensors that hold the tables."""
GATHERED_LAST = 1 << 30
"""Order of the areas: gathered samples come behind the bands and tables that they are gathered from."""


class TableKey(NamedTuple):
    """Identifies a table: the block, and the lanes of each place."""

    block: int
    lanes: tuple[tuple[LaneRun, ...], ...]


class SampledConvolution(Convolution):
    """Units whose chunks are gathered right before the passes that stream them; bands and tables of the next one come
    meanwhile.

    Attributes:
        copies: of bands and of tables.
        cut: the plan's, and its samples.
        ifmap: what is sampled.
        pointers: to the elements around samples, table after table.
        blend: how near each corner is: [offset_group, tap, row, col, word, corner, element].
    """

    def __init__(self, plan: Plan, copies: int) -> None:
        super().__init__(plan)
        assert isinstance(plan.cut, SampledTaps)
        self.copies, self.cut, self.samples = copies, plan.cut, plan.cut.samples
        ifmap, layer, samples = plan.shape.tensors.ifmap, plan.cut.layer, plan.cut.samples
        self.ifmap = Tensor("ifmap", ifmap, converted=True, padded=padded_map(ifmap, plan.hardware))
        taps, points = prod(layer.kernel), (layer.out_height, layer.out_width)
        shape = (layer.offset_groups, taps, *points, samples.words, len(CORNERS), samples.word_fill)
        self.blend = Tensor(BLEND, shape, number_bytes=plan.hardware.vector_memory.element_bytes)
        chunks = self._chunks.items()
        tables = [self.table(each, self.patch(key.block, chunk), 0, 0) for key, chunk in chunks for each in key.lanes]
        size = sum(each.words * each.word_words * each.per_word for each in tables)
        self.pointers = Tensor(POINTERS, (1, size), number_bytes=pointer_bytes(plan.hardware))
        self.tensors = self.ifmap, plan.filter, plan.ofmap, self.pointers, self.blend
        # A chunk can be gathered only once its bands and tables are there, so these come first.
        self.policy = self.policy._replace(order=("weights", "ifmap", "bands", "pointers", "blends"))
        self._folds = [chunk.passes[0].runs[0].channels.start for chunk in plan.chunks]

    @property
    def areas(self) -> tuple[Area, ...]:
        """Areas of the product, and areas for bands of the ifmap, for pointers to elements in them, and for blends."""
        (ifmap, *others), copies = super().areas, self.copies
        pointers, blends = (self.tables_a_chunk * words for words in self.table_words)
        source = partial(Area, gaps=when_free)

        def ready(key: Load) -> int:
            block, chunk = self._band_of(key)
            return ready_delay(self.band_size(block) * len(chunk.places), self.plan.hardware)

        return (
            replace(ifmap, gaps=when_needed, ready=None),
            *others,
            source("bands", "ifmap", self.band_words, copies, ifmap.lanes, in_one(self._band), ready),
            source("pointers", POINTERS, pointers, copies, 1, partial(self._kinds, self._pointers)),
            source("blends", BLEND, blends, copies, ifmap.lanes, partial(self._kinds, self._blends)),
        )

    def counted(self) -> None:
        """Return None, so that the scheduler counts: the formula leaves out gathering."""

    @cached_property
    def more(self) -> Mapping[str, Any]:
        """Fields with the pointers and blends, which are worked out before the layer begins."""
        numbers = np.concatenate([each.ravel() for each, _ in self._numbers.values()])
        pointers = Constant(POINTERS, numbers.astype(np.int32).tobytes())
        blend = Constant(BLEND, self.samples.blend().astype(np.int32).tobytes(), self.samples.parts)
        return {**super().more, "constants": (pointers, blend)}

    # ---- sources of gathered chunks

    def table_key(self, group: int, block: int, chunk: int) -> TableKey:
        """The table by which a chunk of a group and a block is gathered; places that sample alike share a table."""
        held = self.plan.chunks[chunk]
        lanes = (self.cut.lanes_of(held, place, group) for place in range(len(held.places)))
        return TableKey(block, tuple(dict.fromkeys(lanes)))

    @cached_property
    def band_words(self) -> int:
        """Words of a band, of all places of a chunk."""
        return max(map(self.band_size, self.plan.blocks)) * max(len(chunk.places) for chunk in self.plan.chunks)

    def band_size(self, block: Block) -> int:
        """Words of a band for one place."""
        return len(self.samples.band(block.rows)) * self.cut.layer.in_width * len(block.groups)

    @cached_property
    def table_words(self) -> tuple[int, int]:
        """Words of a table of pointers, and of a table of blends, for the largest block and the most kinds."""
        words = max(self.plan.patch(block, self.plan.chunks[0]).words for block in self.plan.blocks)
        return words * self.cut.pointer_words(self.plan.hardware), words * len(CORNERS)

    @cached_property
    def tables_a_chunk(self) -> int:
        """Number of tables side by side."""
        groups, chunks = range(self.plan.shape.groups), range(len(self.plan.chunks))
        return max(len(self.table_key(group, 0, chunk).lanes) for group in groups for chunk in chunks)

    def table(self, lanes: Sequence[LaneRun], patch: Patch, base: int, number: int) -> ElementTable:
        """Pointers of a place, in one of the tables from word `base` on."""
        hardware, kinds = self.plan.hardware, len(kinds_of(lanes))
        first, fill = base + number * self.table_words[0], self.word_fill
        return ElementTable(first, patch.words, len(CORNERS), fill, kinds, pointers_a_word(hardware))

    @cached_property
    def _chunks(self) -> dict[TableKey, int]:
        """The first chunk that reads by each table."""
        found: dict[TableKey, int] = {}
        for stage in self.plan.stages:
            chunk = self.plan.sections[stage.section].chunk
            found.setdefault(self.table_key(stage.group, stage.block, chunk), chunk)
        return found

    @cached_property
    def _numbers(self) -> dict[tuple[TableKey, int], tuple[np.ndarray, int]]:
        """Pointers of each table and kind of place, [word, number], with the number of pointers ahead of them; every
        word of samples begins a new word.
        """
        found: dict[tuple[TableKey, int], tuple[np.ndarray, int]] = {}
        first = 0
        for key, chunk in self._chunks.items():
            patch, band = self.patch(key.block, chunk), self.samples.band(self.plan.blocks[key.block].rows)
            for kind, lanes in enumerate(key.lanes):
                numbers = self.samples.pointers(patch, kinds_of(lanes), band).reshape(patch.words, -1)
                table = self.table(lanes, patch, 0, 0)
                numbers = np.pad(numbers, ((0, 0), (0, table.word_words * table.per_word - table.pointers)))
                found[key, kind] = numbers, first
                first += numbers.size
        return found

    def _band_of(self, key: Load) -> tuple[Block, Chunk]:
        """The block of a table, and the first chunk of its row fold: all chunks of the fold read the same band."""
        _, block, fold = key
        return self.plan.blocks[block], self.plan.chunks[self._folds.index(fold)]

    def _band(self, key: Load, base: int) -> Iterator[Moves]:
        """Moves of whole rows, for each place."""
        plan, (block, chunk) = self.plan, self._band_of(key)
        rows, cols = self.samples.band(block.rows), range(self.cut.layer.in_width)
        items, parts, boxes = plan.map_items(rows, cols, block.groups, (0, 0)), [], []
        for place in chunk.places:
            lanes = tuple(key[0] * plan.shape.channels + channel for channel in place.channels)
            parts.append(Part(base, (0,), (Along(CHANNEL, lanes),), items, plan.word_fill))
            boxes.append(Box(range(min(lanes), max(lanes) + 1), rows, cols, plan.images(block.groups)))
            base += parts[-1].words
        yield self.traffic.moves(self.ifmap, tuple(parts), boxes)

    def _kinds(self, brings: Callable[..., Iterator[Moves]], key: TableKey, gaps: int, grows: bool) -> list[Piece]:
        """Pieces, a kind at a time."""
        return [Piece(kind, (kind,), partial(brings, key, kind)) for kind in range(len(key.lanes))]

    def _pointers(self, key: TableKey, kind: int, base: int) -> Iterator[Moves]:
        """Moves of pointers to lane 0."""
        numbers, first = self._numbers[key, kind]
        table = self.table(key.lanes[kind], self.patch(key.block, self._chunks[key]), base, kind)
        items = (Along(1, range(first, first + numbers.size)),)
        part = Part(table.base, (0,), (Along(0, range(1)),), items, table.per_word)
        yield self.traffic.numbers(self.pointers, (part,), numbers.size)

    def _blends(self, key: TableKey, kind: int, base: int) -> Iterator[Moves]:
        """Moves of blends to all lanes: each lane gets those of its offset group and tap, and HBM delivers
        each once.
        """
        blend, width, fill = self.blend, self.cut.layer.kernel[1], self.word_fill
        lanes, patch = key.lanes[kind], self.patch(key.block, self._chunks[key])
        own = (each.kind for each in lanes for _ in range(each.lanes))
        kinds = [(group, row * width + col) for group, (row, col) in own]
        axes = patch.rows, patch.cols, patch.groups, range(len(CORNERS)), range(fill)
        items = tuple(Along(axis, each) for axis, each in enumerate(axes, 2))
        lane = tuple(Along(axis, every) for axis, every in enumerate(zip(*kinds, strict=True)))
        regions = tuple((range(og, og + 1), range(tap, tap + 1), *axes) for og, tap in dict.fromkeys(kinds))
        part = Part(base + kind * self.table_words[1], (0,), lane, items, fill)
        yield Moves(blend, (part,), *self.traffic.moved(blend, regions))

    # ---- gathering

    def cut_ifmap(self, load: Load, gaps: int, grows: bool) -> list[Piece]:
        """Pieces with the words of one place each."""
        group, block, chunk, *_ = load
        table = self.table_key(group, block, chunk)
        band = SlotNeed("bands", (group, block, self._folds[chunk]))
        needs = band, SlotNeed("pointers", table), SlotNeed("blends", table)
        places = range(len(self.plan.chunks[chunk].places))
        return [Piece(GATHERED_LAST, (at,), partial(self._gathered, load, table, at), needs) for at in places]

    def _gathered(
        self, load: Load, key: TableKey, place: int, into: int, band: int, pointers: int, blends: int
    ) -> Iterator[Vector]:
        """Vector steps that gather corner by corner, weighting each element by its distance."""
        group, block, chunk, *_ = load
        patch, lanes = self.patch(block, chunk), self.cut.lanes_of(self.plan.chunks[chunk], place, group)
        kind, count = key.lanes.index(lanes), sum(each.lanes for each in lanes)
        table, kinds, operands = self.table(lanes, patch, pointers, kind), kinds_of(lanes), []
        base, near = band + place * self.band_size(self.plan.blocks[block]), blends + kind * self.table_words[1]
        numbers, _ = self._numbers[key, kind]
        own = numbers[:, : table.pointers].reshape(patch.words, table.operands, table.elements, table.together)
        stored = np.count_nonzero(own % 2 == 0, axis=(0, 2)).tolist()
        for corner in range(len(CORNERS)):
            groups = []
            for first, some, each in lanes:
                at = kinds.index(each)
                groups.append(LaneGroup(first, some, PickedWords(table, corner, at, base, stored[corner][at])))
            walk = in_turn(near + corner, patch.words, len(CORNERS))
            operands += [Feed(tuple(groups)), feed(count, walk)]
        writes = in_turn(into + place * patch.words, patch.words)
        yield Vector((), OPERATION, tuple(operands), feed(count, writes), patch.words)


def ways(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """The only draft of a deformable convolution.

    Raises:
        UnsuitableError: when it is no deformable convolution.
        CapacityError: when no tiling fits the vector memories, or a word holds no pointer.
    """
    if not isinstance(layer, DeformConv2d):
        says = f"this lowering is for deform_conv2d, not for {layer.op}"
        raise UnsuitableError(f"{says}; name it as the own lowering: of such layers")
    work = SampledConvolution(*sampling_of(layer, batch, hardware))
    return one_draft(work, partial(_explained, explanation_of(work.plan, layer), work))


# ---- in words


def _explained(told: Explanation, work: SampledConvolution, program: Program) -> Explanation:
    """The explanation of the product, with two more aspects."""
    plan, cut = work.plan, work.cut
    (rows, cols), groups = cut.layer.kernel, plan.shape.groups
    taps = f"{rows} x {cols} = {rows * cols}, each sampled by itself, over {counted(plan.shape.channels, 'channel')}"
    taps += f" in each of {groups} groups" if groups > 1 else ""
    taps += f"; {cut.stacked}" if cut.stacked else ""
    beside = work.band_words + work.tables_a_chunk * sum(work.table_words)
    words = SIZE.format(work.copies * beside * work.plan.hardware.word_bytes)
    memory = f"{told.aspects['memory']}; beside them {words} of bands of the ifmap and tables"
    # Bytes of the tables in HBM, read before the layer begins.
    names = {each.tensor for each in program.constants}
    moved = sum(program.bytes_moved(name, Fill) for name in names)
    side = f", {cut.most_kinds} side by side" if cut.most_kinds > 1 else ""
    more = 100 * moved / (program.use.hbm_read_bytes - moved)
    tables = (
        f"pointers of {pointer_bytes(plan.hardware)} B, one for each element and corner{side}, and the four weights of "
        f"each; {SIZE.format(moved)} from HBM, {more:.3g} % more than without; worked out before the layer begins"
    )
    aspects = {"samples": _samples(work, program), "tables": tables}
    return replace(told, aspects={**told.aspects, "taps": taps, "memory": memory, **aspects})


def _samples(work: SampledConvolution, program: Program) -> str:
    """Sentence about the vector unit's work on a word of samples, and about how often samples are gathered."""
    plan = work.plan
    step = program.vectors[0]
    beat = step.beat(plan.word_fill, plan.hardware)
    gathered = sum(each.words for each in program.vectors)
    layer = work.cut.layer
    once = plan.shape.groups * plan.cut.folds * plan.cut.groups * prod((layer.out_height, layer.out_width))
    times = gathered / (once * work.samples.words)
    again = "once" if times < 1.01 else f"{times:.3g} times: not all column folds are done while they are on chip"
    return (
        f"a word takes {beat.period} cycles, for {step.reads} reads and {counted(len(step.operands) - 1, 'operation')} "
        f"an element: {plan.word_fill} x 4 elements, how near each is, and pointers; gathered {again}"
    )


DEFORMABLE = Lowering(
    "deformable",
    "deformable convolutions: the vector unit gathers samples by address tables, the array multiplies",
    ways,
    partial=True,
)
