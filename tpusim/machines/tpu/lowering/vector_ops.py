"""Pooling, sums and products of maps, activations: by the vector unit, word by word; nothing goes through the array.

A lane has a channel. Windows that reach into the padding have steps of their own, of the elements that there are: so
padding is nothing, whatever the op.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod

from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import CHANNEL, IMAGE, Block, Patch, blocks_of, map_part, walk_of
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, one_draft
from tpusim.machines.tpu.lowering.pace import delay_of
from tpusim.machines.tpu.lowering.tiling import word_groups
from tpusim.machines.tpu.lowering.traffic import Traffic
from tpusim.machines.tpu.lowering.turned import boxes_of
from tpusim.machines.tpu.lowering.vector_ops_plan import COLUMNS_IN_LANES, Rectangle, Source, VectorOpPlan, tiling_of
from tpusim.machines.tpu.lowering.vector_units import IGNORED, Portion, VectorUnits, feed
from tpusim.machines.tpu.lowering.words import cut_up, given_of, memory_of, outputs_of, used_of
from tpusim.machines.tpu.program.addresses import Counter, Counters
from tpusim.machines.tpu.program.explanation import Explanation
from tpusim.machines.tpu.program.tensor import Along, Part, Tensor
from tpusim.machines.tpu.program.vector import NO_SCALARS, Scalars
from tpusim.machines.tpu.schedule.units import Compute, Moves
from tpusim.memory.layout import Box, whole_bursts
from tpusim.network.ops import VectorOp
from tpusim.network.ops.op import OFMAP


def ways(layer: VectorOp, batch: int, hardware: Hardware) -> list[Draft]:
    """A draft, the only one.

    Raises:
        CapacityError: when nothing fits the vector memories.
    """
    work = _PointByPoint(VectorOpPlan(layer, batch, hardware))
    return one_draft(lambda: work, lambda program: (program, _explained(work)))


class _PointByPoint(VectorUnits):
    """An op: a step for each part of a block whose windows are alike, or a few, where windows have many elements."""

    def __init__(self, plan: VectorOpPlan) -> None:
        self.plan, self.hardware, self.tiling, self.portions = plan, plan.hardware, tiling_of(plan), plan.portions
        self.traffic = Traffic(plan.outputs, plan.hardware)
        memory = plan.hardware.vector_memory.word_elements
        groups, self.word_fill = word_groups(plan.outputs.word_images, memory)
        self.blocks = blocks_of(plan.outputs, groups, (self.tiling.rows, self.tiling.cols, self.tiling.groups))
        self.sources, self.numbers = len(plan.maps), len(plan.scalars)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Maps and scalars, and what is made of them."""
        return *(each.tensor for each in (*self.plan.maps, *self.plan.scalars)), self.plan.ofmap

    def scalars(self, channels: range, base: int) -> Iterator[Moves]:
        """A word each, with one number."""
        for word, source in enumerate(self.plan.scalars, base):
            part = Part(word, (0,), (_lanes(source, channels),), (Along(IMAGE, range(1)),), 1)
            moved = self.hardware.vector_memory.element_bytes * (1 if source.spread[CHANNEL] else len(channels))
            moved = whole_bursts(moved, self.hardware.hbm.burst_bytes)
            yield Moves(source.tensor, (self.plan.turn.placed(part),), moved)

    def maps(self, of: Portion, base: int) -> Iterator[Moves]:
        whole = self.plan.patch(of.block)
        for source in self.plan.maps:
            patch = source.patch(whole)
            if patch.words:
                yield self._map(source, of.channels, patch, base)
            base += patch.words

    def _map(self, source: Source, portion: range, patch: Patch, base: int) -> Moves:
        if self.plan.moved is not None:
            made = self.plan.moved.made(self.plan.outputs, portion, patch, base, self.word_fill)
            part = self.plan.moved.read(made)
            return Moves(source.tensor, (part,), *self.traffic.of(boxes_of(part), source.tensor, (0, 0)))
        shape = self.plan.outputs
        apart = shape.row.extent * shape.row.stride, shape.col.extent * shape.col.stride
        rows, cols = shape.row.coordinates(patch.rows), shape.col.coordinates(patch.cols)
        points = Patch(rows, cols, patch.groups)
        part, box = map_part(shape, self.word_fill, portion, points, apart, base)
        part = part._replace(lane=(_lanes(source, portion),))
        if source.spread[CHANNEL]:
            box = box._replace(channels=range(1))
        if source.spread[IMAGE]:
            part = part._replace(items=tuple(_still(each) if each.axis == IMAGE else each for each in part.items))
            box = box._replace(images=range(1))
        return self._load(source.tensor, part, box, apart)

    def _load(self, tensor: Tensor, part: Part, box: Box, apart: tuple[int, int]) -> Moves:
        placed = self.plan.turn.placed(part)
        return Moves(tensor, (placed,), *self.traffic.of(self.plan.turn.boxes(placed, box), tensor, apart))

    def delay(self, block: Block) -> int:
        return delay_of(sum(source.patch(self.plan.patch(block)).words for source in self.plan.maps), self.hardware)

    def steps(self, block: Block) -> int:
        return len(self.plan.rectangles(block)) * len(self.plan.steps(self.plan.operands))

    def work(self, of: Portion, bases: Sequence[int]) -> list[Compute]:
        return [step for each in self.plan.rectangles(of.block) for step in self._steps(of, each, bases)]

    def _steps(self, of: Portion, rectangle: Rectangle, bases: Sequence[int]) -> Iterator[Compute]:
        """The first operands are joined to one, with which the operation takes what is left."""
        layer, lanes = self.plan.layer, len(of.channels)
        walks = self._walks(of.block, rectangle, bases[0])
        groups, cols = len(of.block.groups), len(of.block.cols)
        first_row, first_col = rectangle.rows.start - of.block.rows.start, rectangle.cols.start - of.block.cols.start
        down = Counter(len(rectangle.rows), first_row, 1, len(of.block.rows), cols * groups)
        across = Counter(len(rectangle.cols), first_col, 1, cols, groups)
        writes = feed(lanes, Counters(bases[2], (down, across, Counter(groups, 0, 1, groups, 1))))
        kept, word = len(self.plan.scalars), self.hardware.vector_memory.word_elements
        # A number in each word.
        scalars = Scalars(bases[1], kept, (kept - 1) * word + 1) if kept else NO_SCALARS
        words = len(rectangle.rows) * len(rectangle.cols) * groups
        for operation, together in self.plan.steps(len(walks)):
            # What is joined so far comes first: sums of floats are then in the order of the operands.
            operands = [writes] if together.start else []
            operands += [feed(lanes, walk) for walk in walks[together.start : together.stop]]
            if together.stop < len(walks):
                yield Compute(operation, tuple(operands), writes, words)
            else:
                yield Compute(operation, tuple(operands), writes, words, scalars, layer.coefficients(rectangle.counted))

    def _walks(self, block: Block, rectangle: Rectangle, base: int) -> list[Counters]:
        """The words under the taps of the ifmap, then those of the other maps."""
        whole, part = self.plan.patch(block), Block(rectangle.rows, rectangle.cols, block.groups)
        walks: list[Counters] = []
        for number, source in enumerate(self.plan.maps):
            patch = source.patch(whole)
            taps = rectangle.taps if number == 0 else ((0, 0),)
            walks += [self._walk(source, tap, part, patch, base) for tap in taps]
            base += patch.words
        if self.plan.layer.along_channels:
            middle = self.plan.layer.axes[0].ends[0], 0
            walks.append(self._walk(self.plan.maps[0], middle, part, whole, base - whole.words))
        return walks

    def _walk(self, source: Source, tap: tuple[int, int], part: Block, patch: Patch, base: int) -> Counters:
        """Where it has one row, or column, for all, the walk stands still."""
        walk = walk_of(self.plan.outputs, tap, part, patch, by_tap=False)
        counters = [
            Counter(each.length, 0, 1, each.length, 0) if still else each
            for each, still in zip(walk.counters, (*source.spread[1:3], False), strict=True)
        ]
        return walk._replace(base=base + walk.base, counters=tuple(counters))

    def results(self, of: Portion, base: int) -> Moves:
        shape, (portion, block) = self.plan.outputs, of
        apart = shape.row.extent, shape.col.extent
        return self._load(self.plan.ofmap, *map_part(shape, self.word_fill, portion, block, apart, base), apart)


def _lanes(source: Source, portion: range) -> Along:
    """The channel of each lane."""
    lanes = Along(CHANNEL, portion)
    return _still(lanes) if source.spread[CHANNEL] else lanes


def _still(counter: Along) -> Along:
    """A counter that stays at the only element."""
    return counter._replace(coordinates=(0,) * len(counter.coordinates))


# ---- in words


def _explained(work: _PointByPoint) -> Explanation:
    plan, shape, hardware, ofmap = work.plan, work.plan.outputs, work.plan.hardware, work.plan.shapes[OFMAP]
    blocking = cut_up(work.tiling, shape, ofmap, work.word_fill, 1, len(plan.portions))
    taps = prod(axis.kernel for axis in plan.layer.axes)
    sources = ", ".join(each.tensor.name for each in (*plan.maps, *plan.scalars))
    lanes = plan.turn.in_lanes + (", in which tiles are less padded" if plan.turn == COLUMNS_IN_LANES else "")
    areas = zip(("maps", "scalars", "results"), work.tiling.buffers, strict=True)
    aspects = {
        **({"taps": f"{taps}, fewer where a window reaches over an edge"} if plan.layer.spatial else {}),
        "folds": f"{counted(len(plan.portions), 'portion')} of at most {hardware.lanes} {lanes}, one a lane",
        "passes": f"none: the vector unit makes each output of {sources}",
        "block": outputs_of(blocking, ofmap) + given_of(hardware),
        "order": "portion by portion, in each all blocks",
        "words": used_of(work.word_fill, shape, plan.layer, hardware),
        "memory": memory_of(areas, hardware),
    }
    return Explanation(1, blocking, dict(vars(work.tiling)), aspects)


VECTOR_OPS = Lowering(
    "vector_ops",
    "pooling, sums and products of maps, activations: each output word by word, by the vector unit",
    ways,
    unit="vector",
    partial=True,
    banks=True,
    ignores=IGNORED - {"layout"} | {"block_n", "block.out_channels"},
)
