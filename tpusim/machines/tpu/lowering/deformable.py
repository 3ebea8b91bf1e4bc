"""Deformable convolutions: the vector unit gathers samples into words of their own, which the array multiplies.

The images of a word have offsets of their own, so that its elements come from as many words, four each: the elements
around a sample. Their addresses, and how near they are, are worked out beforehand, as the pointers of `indirect` are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np

from tpusim.base.errors import UnsuitableError
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.cut.plan import CHANNEL, Block
from tpusim.machines.tpu.cut.reduction import Chunk
from tpusim.machines.tpu.definition import ready_delay
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import Convolution, Load
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, one_draft
from tpusim.machines.tpu.lowering.sampling import (
    CORNERS,
    OPERATION,
    POINTERS,
    Sampling,
    TableKey,
    kinds_of,
    most_kinds,
    sampling_of,
)
from tpusim.machines.tpu.lowering.vector_units import feed, in_turn
from tpusim.machines.tpu.lowering.words import explanation_of
from tpusim.machines.tpu.program.addresses import Feed, LaneGroup, Picked
from tpusim.machines.tpu.program.program import Constant, Explanation, Program
from tpusim.machines.tpu.program.tensor import Along, Part, Tensor
from tpusim.machines.tpu.program.transfers import Fill
from tpusim.machines.tpu.schedule.units import Area, Compute, Moves, Need, Piece, Policy, when_free, when_needed
from tpusim.memory.layout import Box, whole_bursts
from tpusim.memory.stored import Stored
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.ops.deform_conv2d import DeformConv2d

GATHERED_LAST = 1 << 30
"""Behind the bands and tables that a chunk is gathered by."""


class Sampled(Convolution):
    """A chunk is gathered right before the passes that stream it; what the next one needs comes meanwhile."""

    def __init__(self, sampling: Sampling) -> None:
        super().__init__(sampling.plan)
        self.sampling = sampling
        folds = [chunk.passes[0].runs[0].channels.start for chunk in self.plan.chunks]
        self._first = {fold: folds.index(fold) for fold in folds}
        """By row fold, the first chunk that has it: all of them read the same band."""
        self._folds = folds
        self._chunks: dict[TableKey, int] = {}
        """A chunk that reads by each table, the first that does."""
        for stage in self.plan.stages:
            chunk = self.plan.sections[stage.section].chunk
            self._chunks.setdefault(sampling.table_key(stage.group, stage.block, chunk), chunk)

    @cached_property
    def areas(self) -> tuple[Area, ...]:
        """Beside those of the product, bands of the ifmap, pointers to the elements in them, and blends."""
        sampling, (ifmap, *others) = self.sampling, super().areas
        lanes, copies = max(each.rows for each in self.plan.passes), sampling.copies
        bands = sampling.band_words, copies, lanes
        pointers, blends = (sampling.tables_a_chunk * words for words in sampling.table_words)
        return (
            replace(ifmap, gaps=when_needed, ready=None),
            *others,
            Area("bands", "ifmap", *bands, self._band, self._band_ready, gaps=when_free),
            Area("pointers", POINTERS, pointers, copies, 1, self._pointers, gaps=when_free),
            Area("blends", sampling.blend.name, blends, copies, lanes, self._blends, gaps=when_free),
        )

    @cached_property
    def policy(self) -> Policy:
        """Whatever is gathered from comes ahead of the gathering."""
        return super().policy._replace(order=("weights", "ifmap", "bands", "pointers", "blends"))

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.sampling.ifmap, self.plan.filter, self.plan.ofmap, self._pointed, self.sampling.blend

    def counted(self) -> None:
        return None

    @cached_property
    def more(self) -> Mapping[str, Any]:
        """Pointers and blends, worked out before the layer begins."""
        samples, numbers = self.sampling.samples, np.concatenate([each.ravel() for each, _ in self._numbers.values()])
        pointers = Constant(POINTERS, numbers.astype(np.int32).tobytes())
        blend = Constant(self.sampling.blend.name, samples.blend().astype(np.int32).tobytes(), samples.parts)
        return {**super().more, "constants": (pointers, blend)}

    # ---- what chunks are gathered from

    @cached_property
    def _numbers(self) -> dict[tuple[TableKey, int], tuple[np.ndarray, int]]:
        """The pointers of each table and kind of place, and how many stand before them."""
        found: dict[tuple[TableKey, int], tuple[np.ndarray, int]] = {}
        first = 0
        for key, chunk in self._chunks.items():
            for kind, lanes in enumerate(key.lanes):
                numbers = self.sampling.pointer_numbers(key, lanes, self.patch(key.block, chunk))
                found[key, kind] = numbers, first
                first += numbers.size
        return found

    @cached_property
    def _pointed(self) -> Tensor:
        size = sum(numbers.size for numbers, _ in self._numbers.values())
        return Tensor(POINTERS, (1, size), number_bytes=self.sampling.pointer_bytes)

    def _band_of(self, key: Load) -> tuple[Block, Chunk]:
        _, block, fold = key
        return self.plan.blocks[block], self.plan.chunks[self._first[fold]]

    def _band_ready(self, key: Load) -> int:
        """Cycles in which what has come is made ready for the vector unit."""
        block, chunk = self._band_of(key)
        return ready_delay(self.sampling.band_size(block) * len(chunk.places), self.plan.hardware)

    def _band(self, key: Load, gaps: int, grows: bool) -> list[Piece]:
        """Whole rows, for each place."""
        plan, sampling, (block, chunk) = self.plan, self.sampling, self._band_of(key)
        rows, cols = sampling.band(block), range(sampling.cut.layer.in_width)
        items, apart = plan.map_items(rows, cols, block.groups, (0, 0)), (0, 0)

        def moves(base: int) -> Iterator[Moves]:
            parts, boxes = [], []
            for place in chunk.places:
                lanes = tuple(key[0] * plan.shape.channels + channel for channel in place.channels)
                parts.append(Part(base, (0,), (Along(CHANNEL, lanes),), items, plan.word_fill))
                boxes.append(Box(range(min(lanes), max(lanes) + 1), rows, cols, plan.images(block.groups)))
                base += parts[-1].words
            yield Moves(sampling.ifmap, tuple(parts), *self.traffic.of(boxes, sampling.ifmap, apart))

        return [Piece(0, (0,), moves)]

    def _pointers(self, key: TableKey, gaps: int, grows: bool) -> list[Piece]:
        """To lane 0, kind by kind."""
        return [Piece(kind, (kind,), partial(self._pointers_of, key, kind)) for kind in range(len(key.lanes))]

    def _pointers_of(self, key: TableKey, kind: int, base: int) -> Iterator[Moves]:
        (numbers, first), sampling = self._numbers[key, kind], self.sampling
        table = sampling.table(key.lanes[kind], self.patch(key.block, self._chunks[key]), base, kind)
        items = (Along(1, range(first, first + numbers.size)),)
        part = Part(table.base, (0,), (Along(0, range(1)),), items, table.per_word)
        moved = whole_bursts(numbers.size * sampling.pointer_bytes, self.plan.hardware.hbm.burst_bytes)
        yield Moves(self._pointed, (part,), moved)

    def _blends(self, key: TableKey, gaps: int, grows: bool) -> list[Piece]:
        """To all lanes, kind by kind."""
        return [Piece(kind, (kind,), partial(self._blends_of, key, kind)) for kind in range(len(key.lanes))]

    def _blends_of(self, key: TableKey, kind: int, base: int) -> Iterator[Moves]:
        """Each lane gets those of its offset group and tap; HBM hands out what differs."""
        blend, width, fill = self.sampling.blend, self.sampling.cut.layer.kernel[1], self.plan.word_fill
        lanes, patch = key.lanes[kind], self.patch(key.block, self._chunks[key])
        own = (each.kind for each in lanes for _ in range(each.lanes))
        kinds = [(group, row * width + col) for group, (row, col) in own]
        axes = patch.rows, patch.cols, patch.groups, range(len(CORNERS)), range(fill)
        items = tuple(Along(axis, each) for axis, each in enumerate(axes, 2))
        lane = tuple(Along(axis, every) for axis, every in enumerate(zip(*kinds, strict=True)))
        regions = tuple((range(og, og + 1), range(tap, tap + 1), *axes) for og, tap in dict.fromkeys(kinds))
        part = Part(base + kind * self.sampling.table_words[1], (0,), lane, items, fill)
        # Blends lie as their axes follow one another.
        order, burst = tuple(range(len(blend.shape))), self.plan.hardware.hbm.burst_bytes
        element_bytes = self.plan.hardware.vector_memory.element_bytes
        stored = Stored(0, blend.shape, blend.shape, order, order, element_bytes, burst)
        moved = sum(runs.moved(burst) for runs in map(stored.runs, regions) if runs)
        yield Moves(blend, (part,), moved, regions)

    # ---- gathering

    def cut_ifmap(self, load: Load, gaps: int, grows: bool) -> list[Piece]:
        """The words of a place in each piece."""
        group, block, chunk = load
        table = self.sampling.table_key(group, block, chunk)
        band = Need("bands", (group, block, self._folds[chunk]))
        needs = band, Need("pointers", table), Need("blends", table)
        places = range(len(self.plan.chunks[chunk].places))
        return [Piece(GATHERED_LAST, (at,), partial(self._gathered, load, table, at), needs) for at in places]

    def _gathered(
        self, load: Load, key: TableKey, place: int, into: int, band: int, pointers: int, blends: int
    ) -> Iterator[Compute]:
        """Corner by corner the elements, and how near they are."""
        (group, block, chunk), sampling = load, self.sampling
        patch, lanes = self.patch(block, chunk), sampling.cut.lanes_of(self.plan.chunks[chunk], place, group)
        kind, count = key.lanes.index(lanes), sum(each.lanes for each in lanes)
        table, kinds, operands = sampling.table(lanes, patch, pointers, kind), kinds_of(lanes), []
        base, near = band + place * sampling.band_size(self.plan.blocks[block]), blends + kind * sampling.table_words[1]
        numbers, _ = self._numbers[key, kind]
        own = numbers[:, : table.pointers].reshape(patch.words, table.operands, table.elements, table.together)
        stored = np.count_nonzero(own % 2 == 0, axis=(0, 2)).tolist()
        for corner in range(len(CORNERS)):
            groups = []
            for first, some, each in lanes:
                at = kinds.index(each)
                groups.append(LaneGroup(first, some, Picked(table, corner, at, base, stored[corner][at])))
            walk = in_turn(near + corner, patch.words, len(CORNERS))
            operands += [Feed(tuple(groups)), feed(count, walk)]
        writes = in_turn(into + place * patch.words, patch.words)
        yield Compute(OPERATION, tuple(operands), feed(count, writes), patch.words)


def ways(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """A draft, the only one.

    Raises:
        UnsuitableError: when it is no deformable convolution.
        CapacityError: when no tiling fits the vector memories, or a word holds no pointer.
    """
    if not isinstance(layer, DeformConv2d):
        says = f"this lowering is for deform_conv2d, not for {layer.op}"
        raise UnsuitableError(f"{says}; name it as the own lowering: of such layers")
    sampling = sampling_of(layer, batch, hardware)
    told = partial(_explained, explanation_of(sampling.plan, layer), sampling)
    return one_draft(partial(Sampled, sampling), told)


# ---- in words


def _explained(told: Explanation, sampling: Sampling, program: Program) -> Explanation:
    """The words of its product, and two aspects more."""
    plan, cut = sampling.plan, sampling.cut
    (rows, cols), groups = cut.layer.kernel, plan.shape.groups
    taps = f"{rows} x {cols} = {rows * cols}, each sampled by itself, over {counted(plan.shape.channels, 'channel')}"
    taps += f" in each of {groups} groups" if groups > 1 else ""
    taps += f"; {cut.stacked}" if cut.stacked else ""
    words = SIZE.format(sampling.words * sampling.plan.hardware.word_bytes)
    memory = f"{told.aspects['memory']}; beside them {words} of bands of the ifmap and tables"
    aspects = {"samples": _samples(sampling, program), "tables": _tables(sampling, program)}
    return replace(told, aspects={**told.aspects, "taps": taps, "memory": memory, **aspects})


def _samples(sampling: Sampling, program: Program) -> str:
    """What a word of samples takes of the vector unit, and how often they are gathered."""
    plan = sampling.plan
    step = program.vectors[0]
    beat = step.beat(plan.word_fill, plan.hardware)
    gathered = sum(each.words for each in program.vectors)
    layer = sampling.cut.layer
    once = plan.shape.groups * plan.cut.folds * plan.cut.groups * prod((layer.out_height, layer.out_width))
    times = gathered / (once * sampling.samples.words)
    again = "once" if times < 1.01 else f"{times:.3g} times: not all column folds are done while they are on chip"
    return (
        f"a word takes {beat.period} cycles, for {step.reads} reads and {counted(len(step.operands) - 1, 'operation')} "
        f"an element: {plan.word_fill} x 4 elements, how near each is, and pointers; gathered {again}"
    )


def _tables(sampling: Sampling, program: Program) -> str:
    """What the tables take of HBM."""
    names = {each.tensor for each in program.constants}
    moved = sum(step.hbm_bytes for step in program.steps if isinstance(step, Fill) and step.tensor.name in names)
    size, kinds = sampling.pointer_bytes, most_kinds(sampling.cut)
    beside = f", {kinds} side by side" if kinds > 1 else ""
    more = 100 * moved / (program.use.hbm_read_bytes - moved)
    return (
        f"pointers of {size} B, one for each element and corner{beside}, and the four weights of each; "
        f"{SIZE.format(moved)} from HBM, {more:.3g} % more than without; worked out before the layer begins"
    )


DEFORMABLE = Lowering(
    "deformable",
    "deformable convolutions: the vector unit gathers samples by address tables, the array multiplies",
    ways,
    partial=True,
)
