"""Pooling, sums and products of maps, activations: by the vector unit, word by word; nothing goes through the array.

A lane has a channel. Windows that reach into the padding have steps of their own, of the elements that there are: so
padding is nothing, whatever the op.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from math import prod
from typing import NamedTuple

from tpusim.base.errors import CapacityError, Problem
from tpusim.base.words import counted
from tpusim.machines.tpu.cut.geometry import InStrips, MapAxis, in_strips, padded
from tpusim.machines.tpu.cut.pace import Demand, delay_of
from tpusim.machines.tpu.cut.plan import (
    CHANNEL,
    COL,
    IMAGE,
    ROW,
    Block,
    Patch,
    blocks_of,
    map_part,
    patch_of,
    portions,
    walk_of,
)
from tpusim.machines.tpu.cut.tiling import Tiling, word_groups
from tpusim.machines.tpu.cut.traffic import Traffic
from tpusim.machines.tpu.cut.turned import Moved, PixelsInLanes, Turn, boxes_of, turn_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, one_draft
from tpusim.machines.tpu.lowering.vector_units import IGNORED, Portion, VectorCosts, VectorUnits, feed
from tpusim.machines.tpu.lowering.words import cut_up, given_of, memory_of, outputs_of, used_of
from tpusim.machines.tpu.program.addresses import Counter, Counters
from tpusim.machines.tpu.program.operations import Arity, work_of
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.steps import NO_SCALARS, Scalars
from tpusim.machines.tpu.program.tensor import Along, Part, Tensor
from tpusim.machines.tpu.schedule.units import Compute, Moves, Unit
from tpusim.machines.tpu.search.search import TOLERANCE
from tpusim.memory.layout import Box, whole_bursts
from tpusim.network.ops.moves import Move
from tpusim.network.ops.op import OFMAP, Shape
from tpusim.network.ops.vector_op import VectorOp, Window

# ---- the plan: which sources are maps, which scalars, and the blocks


COLUMNS_IN_LANES = Turn(lanes=COL, cols=CHANNEL)


@dataclass(frozen=True, slots=True)
class Maps(InStrips):
    """What windows move over."""

    images: int
    row: MapAxis
    col: MapAxis


class Source(NamedTuple):
    """A tensor that an op reads. Along axes of [channel, row, col, image] on which it is `spread`, one is for all."""

    tensor: Tensor
    spread: tuple[bool, ...]

    def patch(self, whole: Patch) -> Patch:
        """What it has of the grid points of a map."""
        rows = range(1) if self.spread[ROW] else whole.rows
        return Patch(rows, range(1) if self.spread[COL] else whole.cols, whole.groups)


class Rectangle(NamedTuple):
    """Outputs of a block whose windows are alike: their taps by rows and columns, and how many elements count."""

    rows: range
    cols: range
    taps: tuple[tuple[int, int], ...]
    counted: int


@dataclass(frozen=True)
class VectorOpPlan:
    """How an op is cut up."""

    layer: VectorOp
    batch: int
    hardware: Hardware

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of all tensors, by name: what goes into lanes, rows, columns, images."""
        return {name: self.turn.of(shape) for name, shape in self.layer.shapes(self.batch).items()}

    @cached_property
    def turn(self) -> Turn | PixelsInLanes:
        """Which axes of its maps are in lanes, rows, columns and words. What is moved lies where it fills them best;
        the columns of a map are in the lanes, its channels in words, where tiles are less padded so, and the machine's
        tensors lie in such (`mapping.layout`). Windows keep to channels, or stand along them, and then in lanes.
        """
        shapes = self.layer.shapes(self.batch)
        if isinstance(self.layer, Move):
            return turn_of(self.layer.taken(self.batch), self.hardware)
        if self.layer.along_channels:
            return PixelsInLanes(shapes[OFMAP][COL])
        channels, _, cols, _ = shapes[OFMAP]
        alike = not self.layer.spatial and len(set(shapes.values())) == 1
        least = self.hardware.mapping.layout == "least_padding"
        wide = self.hardware.hbm.channel_multiple
        wins = alike and least and channels * padded(cols, wide) < cols * padded(channels, wide)
        return COLUMNS_IN_LANES if wins else Turn()

    @cached_property
    def moved(self) -> Moved | None:
        """How the map is moved by an op that does nothing else."""
        if not isinstance(self.layer, Move) or not isinstance(self.turn, Turn):
            return None
        return Moved(self.layer.taken(self.batch), self.turn)

    @cached_property
    def outputs(self) -> Maps:
        """In strips where no window reaches beyond the map, and all maps are cut alike."""
        _, high, wide, images = self.shapes[OFMAP]
        row, col = (MapAxis(each.size, each.kernel, each.stride, each.ends, each.dilation) for each in self.layer.axes)
        if self.turn != Turn() or isinstance(self.layer, Move):
            one = MapAxis(high, 1, 1, (0, 0), 1)
            return Maps(images, row if self.layer.along_channels else one, replace(one, size=wide))
        apart = any(each.spread[ROW] or each.spread[COL] for each in self.maps)
        if apart or any(each.padding != (0, 0) for each in (row, col)):
            return Maps(images, row, col)
        return Maps(images, *in_strips(row, col, images, self.hardware))

    @cached_property
    def maps(self) -> tuple[Source, ...]:
        """Sources that are read word by word, the ifmap first."""
        return tuple(self._source(name) for name in self.layer.sources(self.batch) if not self._is_scalar(name))

    @cached_property
    def scalars(self) -> tuple[Source, ...]:
        """Sources of which a lane keeps one number."""
        return tuple(self._source(name) for name in self.layer.sources(self.batch) if self._is_scalar(name))

    @cached_property
    def ofmap(self) -> Tensor:
        """What is made."""
        return self._tensor(OFMAP)

    @cached_property
    def portions(self) -> list[range]:
        """The channels, one a lane."""
        return portions(self.shapes[OFMAP][0], self.hardware.lanes)

    def patch(self, block: Block) -> Patch:
        """The grid points of the ifmap that a block needs."""
        return patch_of(self.outputs, block)

    def rectangles(self, block: Block) -> list[Rectangle]:
        """The outputs of a block, those together whose windows are alike."""
        of_rows, of_cols = self._windows
        return [
            Rectangle(rows, cols, tuple((i, j) for i in high.taps for j in wide.taps), high.counted * wide.counted)
            for rows, high in _alike(block.rows, of_rows)
            for cols, wide in _alike(block.cols, of_cols)
        ]

    @property
    def operands(self) -> int:
        """Words of which an output is made at most."""
        taps = prod(axis.kernel for axis in self.layer.axes)
        return taps + len(self.maps) - 1 + self.layer.along_channels

    def steps(self, operands: int) -> list[tuple[str, range]]:
        """What each step does with which of the operands, ahead of which comes what those before have come to."""
        layer, last = self.layer, operands - self.layer.along_channels
        # As many as a lane has scalars, or one of each map.
        scalars = self.hardware.vector_unit.scalar_words * self.hardware.vector_memory.word_elements
        together = portions(last, max(scalars, len(self.maps)))
        if layer.along_channels:
            together.append(range(last, operands))
        names = [layer.joining, *[layer.joining_more] * (len(together) - 2), layer.operation]
        return [*zip(names[-len(together) :], together, strict=True)]

    @cached_property
    def _windows(self) -> tuple[Sequence[Window], Sequence[Window]]:
        """Outputs beyond the end of the last strip have windows, too; those of several strips are all alike, and those
        of one element.
        """
        shape, (rows, cols) = self.outputs, self.layer.windows
        if shape.strips == 1 and (self.layer.spatial or self.layer.along_channels):
            beyond = shape.row.extent - len(rows), shape.col.extent - len(cols)
            return rows + rows[-1:] * beyond[0], cols + cols[-1:] * beyond[1]
        return rows[:1] * shape.row.extent, cols[:1] * shape.col.extent

    def _is_scalar(self, name: str) -> bool:
        return name != "ifmap" and prod(self.shapes[name][1:]) == 1

    def _source(self, name: str) -> Source:
        every = self.shapes["ifmap"]
        spread = tuple(size == 1 < whole for size, whole in zip(self.shapes[name], every, strict=True))
        return Source(self._tensor(name), spread)

    def _tensor(self, name: str) -> Tensor:
        """Scalars are kept as they come."""
        shape = self.layer.shapes(self.batch)[name]
        if self._is_scalar(name) and name != OFMAP:
            return Tensor(name, shape)
        wide = COL if self.turn == COLUMNS_IN_LANES and self.moved is None else CHANNEL
        multiple = self.hardware.hbm.channel_multiple
        padding = tuple(padded(size, multiple) if axis == wide else size for axis, size in enumerate(shape))
        return Tensor(name, shape, converted=True, padded=padding)


def _alike(outputs: range, windows: Sequence[Window]) -> list[tuple[range, Window]]:
    """Neighbouring outputs whose windows are the same."""
    runs = groupby(outputs, key=lambda output: windows[output])
    return [(range((held := [*mine])[0], held[-1] + 1), window) for window, mine in runs]


@lru_cache(maxsize=1 << 12)
def tiling_of(plan: VectorOpPlan) -> Tiling[int]:
    """The blocks of the lowest estimate.

    Raises:
        CapacityError: when not even a block of one output word fits, or lanes cannot keep the scalars.
    """
    hardware, scalars = plan.hardware, len(plan.scalars)
    if scalars > hardware.vector_unit.scalar_words:
        says = f"a lane keeps {hardware.vector_unit.scalar_words} words of scalars, and the op has {scalars}"
        raise CapacityError(Problem(f"{says}; give it more", "vector_unit.scalar_words"))
    channels, steps = min(hardware.lanes, plan.shapes[OFMAP][0]), []
    for operation, together in plan.steps(plan.operands):
        counts = Arity(len(together) + (together.start > 0), scalars, 0)
        steps.append((counts.operands, sum(work_of(operation, counts, (), hardware.vector_unit))))
    into = tuple(1 if each.spread[CHANNEL] else channels for each in plan.maps)
    return _Costs(
        hardware=hardware, outputs=plan.outputs, portions=len(plan.portions), channels=channels, into=into,
        scalar_words=scalars, steps=tuple(steps), plan=plan,
    ).chosen()  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Costs(VectorCosts):
    """What blocks take, of maps that may be spread or moved."""

    plan: VectorOpPlan

    close = TOLERANCE

    def map_words(self, rows: int, cols: int, groups: int) -> list[int]:
        high, wide = self.outputs.row.most_stored(rows), self.outputs.col.most_stored(cols)
        return [
            (1 if each.spread[ROW] else high) * (1 if each.spread[COL] else wide) * groups for each in self.plan.maps
        ]

    def moved(self, tiling: Tiling[int]) -> tuple[float, float]:
        """Cycles of the bus; of an op that only moves, for the first block: runs are as long as both maps let them."""
        if self.plan.moved is None:
            return super().moved(tiling)
        plan, unit, bytes_per_cycle = self.plan, self.hardware.vector_unit, float(self.hardware.hbm_bytes_per_cycle)
        patch = Patch(range(tiling.rows), range(tiling.cols), range(tiling.groups))
        made = self.plan.moved.made(plan.outputs, plan.portions[0], patch, 0, self.word_groups[1])
        times = []
        for tensor, part, conversion in (
            (plan.maps[0].tensor, self.plan.moved.read(made), unit.unpack_cycles),
            (plan.ofmap, made, unit.pack_cycles),
        ):
            bus = self._traffic.of(boxes_of(part), tensor, (0, 0)).bytes / bytes_per_cycle
            times.append(Demand(bus=bus, converted=tiling.psum_words * float(conversion)).busiest)
        return times[0], times[1]

    @cached_property
    def _traffic(self) -> Traffic:
        return Traffic(self.outputs, self.hardware)

    def cycles(self, tiling: Tiling[int]) -> float:
        """The bus is never idle but at the ends, or the vector unit is not, or a block waits for what comes for it.

        Of two buffers of a kind one is filled while the other is worked on, and two transfers may be under way.
        """
        work, (filled, spilled) = self.work(tiling), self.moved(tiling)
        units, latency = tiling.blocks * self.portions, self.hardware.latency_cycles
        turn = max(work.busiest, filled + latency, (latency + work.cycles + filled + spilled) / 2)
        exposed = max(0.0, work.cycles + latency - spilled) if units > 1 else work.cycles
        bus = units * (filled + spilled) + exposed
        return float(max(bus, units * turn + filled + spilled) + 2 * latency)


# ---- as units


def ways(layer: VectorOp, batch: int, hardware: Hardware) -> list[Draft]:
    """A draft, the only one.

    Raises:
        CapacityError: when nothing fits the vector memories.
    """
    work = _PointByPoint(VectorOpPlan(layer, batch, hardware))
    return one_draft(lambda: work, lambda _: _explained(work))


class _PointByPoint(VectorUnits):
    """An op: a step for each part of a block whose windows are alike, or a few, where windows have many elements."""

    def __init__(self, plan: VectorOpPlan) -> None:
        self.plan, self.hardware, self.tiling, self.portions = plan, plan.hardware, tiling_of(plan), plan.portions
        self.traffic = Traffic(plan.outputs, plan.hardware)
        memory = plan.hardware.vector_memory.word_elements
        groups, self.word_fill = word_groups(plan.outputs.word_images, memory)
        self.blocks = blocks_of(plan.outputs, groups, (self.tiling.rows, self.tiling.cols, self.tiling.groups))
        self.sources, self.numbers = len(plan.maps), len(plan.scalars)
        self.tensors = *(each.tensor for each in (*plan.maps, *plan.scalars)), plan.ofmap

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

    def spill(self, unit: Unit, base: int) -> Moves:
        shape, (portion, block) = self.plan.outputs, unit.about
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
