"""The plan of an op of the vector unit: which of its sources are maps, which scalars, and the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby
from math import prod
from typing import NamedTuple

from tpusim.base.errors import CapacityError, Problem
from tpusim.machines.tpu.definition.beat import beat_of, ready_delay
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import Block, Patch
from tpusim.machines.tpu.lowering.geometry import InStrips, MapAxis, in_strips, padded
from tpusim.machines.tpu.lowering.maps import CHANNEL, COL, IMAGE, ROW, portions
from tpusim.machines.tpu.lowering.search import TOLERANCE
from tpusim.machines.tpu.lowering.tiling import Tiling
from tpusim.machines.tpu.lowering.vector_search import VectorCosts
from tpusim.machines.tpu.program.operations import Arity, work_of
from tpusim.machines.tpu.program.tensor import Part, Tensor
from tpusim.memory.layout import Box
from tpusim.network.ops import VectorOp
from tpusim.network.ops.op import OFMAP, Shape
from tpusim.network.ops.vector_op import Window


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
        rows, cols = (
            range(1) if self.spread[axis] else points for axis, points in ((ROW, whole.rows), (COL, whole.cols))
        )
        return Patch(rows, cols, whole.groups)


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
        return {name: self.turned(shape) for name, shape in self.layer.shapes(self.batch).items()}

    @cached_property
    def columns_in_lanes(self) -> bool:
        """Whether the columns of a map are in the lanes, its channels in words: where tiles are less padded so, and the
        machine's tensors lie in such (`mapping.layout`). Windows keep to channels.
        """
        shapes = self.layer.shapes(self.batch)
        channels, _, cols, _ = shapes[OFMAP]
        alike = not self.layer.spatial and len(set(shapes.values())) == 1
        least = self.hardware.mapping.layout == "least_padding"
        wide = self.hardware.hbm.channel_multiple
        return alike and least and channels * padded(cols, wide) < cols * padded(channels, wide)

    def turned(self, shape: Shape) -> Shape:
        """From [channel, row, col, image] to what goes into lanes, rows, columns, images; or back."""
        channel, row, col, image = shape
        return (col, row, channel, image) if self.columns_in_lanes else shape

    def placed(self, part: Part) -> Part:
        """The same along the axes of the tensor."""
        axes = self.turned((CHANNEL, ROW, COL, IMAGE))
        lane, items = (
            tuple(each._replace(axis=axes[each.axis]) for each in counters) for counters in (part.lane, part.items)
        )
        return part._replace(lane=lane, items=items)

    def boxed(self, box: Box) -> Box:
        """The same of the tensor."""
        return Box(box.cols, box.rows, box.channels, box.images) if self.columns_in_lanes else box

    @cached_property
    def outputs(self) -> Maps:
        """In strips where no window reaches beyond the map, and all maps are cut alike."""
        images = self.shapes[OFMAP][3]
        row, col = (MapAxis(each.size, each.kernel, each.stride, each.ends, each.dilation) for each in self.layer.axes)
        if self.columns_in_lanes:
            return Maps(images, row, replace(col, size=self.shapes[OFMAP][COL]))
        apart = any(each.spread[ROW] or each.spread[COL] for each in self.maps)
        if apart or any(each.padding != (0, 0) for each in (row, col)):
            return Maps(images, row, col)
        return Maps(images, *in_strips(row, col, images, self.hardware))

    @cached_property
    def maps(self) -> tuple[Source, ...]:
        """Those sources that are read word by word, the ifmap first."""
        return tuple(self._source(name) for name in self.layer.sources(self.batch) if not self._is_scalar(name))

    @cached_property
    def scalars(self) -> tuple[Source, ...]:
        """Those of which a lane keeps one number."""
        return tuple(self._source(name) for name in self.layer.sources(self.batch) if self._is_scalar(name))

    @cached_property
    def ofmap(self) -> Tensor:
        """What is made."""
        return self._tensor(OFMAP)

    @cached_property
    def portions(self) -> list[range]:
        """The channels, one a lane."""
        return portions(self.shapes[OFMAP][0], self.hardware.lanes)

    @cached_property
    def most_operands(self) -> int:
        """That a step takes: as many as a lane has scalars, or one of each map."""
        scalars = self.hardware.vector_unit.scalar_words * self.hardware.vector_memory.word_elements
        return max(scalars, len(self.maps))

    def patch(self, block: Block) -> Patch:
        """The grid points of the ifmap that a block needs."""
        row, col = self.outputs.row, self.outputs.col
        rows, cols = row.stored(block.rows, range(row.kernel)), col.stored(block.cols, range(col.kernel))
        return Patch(rows, cols, block.groups)

    def rectangles(self, block: Block) -> list[Rectangle]:
        """The outputs of a block, those together whose windows are alike."""
        of_rows, of_cols = self._windows
        return [
            Rectangle(rows, cols, tuple((i, j) for i in high.taps for j in wide.taps), high.counted * wide.counted)
            for rows, high in _alike(block.rows, of_rows)
            for cols, wide in _alike(block.cols, of_cols)
        ]

    def taps_together(self, taps: int) -> list[range]:
        """The operands of each of the steps that so many taps, or sources, take."""
        return portions(taps, self.most_operands)

    @cached_property
    def _windows(self) -> tuple[Sequence[Window], Sequence[Window]]:
        """Outputs beyond the end of the last strip have windows, too; those of several strips are all alike."""
        shape, (rows, cols) = self.outputs, self.layer.windows
        if shape.strips == 1 and not self.columns_in_lanes:
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
        shape = self.shapes[name]
        if self._is_scalar(name) and name != OFMAP:
            return Tensor(name, self.turned(shape))
        lanes, rows, cols, images = shape
        padding = padded(lanes, self.hardware.hbm.channel_multiple), rows, cols, images
        return Tensor(name, self.turned(shape), converted=True, padded=self.turned(padding))


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
    unit = plan.hardware.vector_unit
    if len(plan.scalars) > unit.scalar_words:
        says = f"a lane keeps {unit.scalar_words} words of scalars, and the op has {len(plan.scalars)}"
        raise CapacityError(Problem(f"{says}; give it more", "vector_unit.scalar_words"))
    return _Costs(plan.hardware, plan).chosen()


@dataclass(frozen=True)
class _Costs(VectorCosts):
    """What blocks take of memory, and about how long."""

    close = TOLERANCE

    plan: VectorOpPlan

    @property
    def outputs(self) -> InStrips:
        return self.plan.outputs

    @property
    def portions(self) -> int:
        return len(self.plan.portions)

    def tiling(self, rows: int, cols: int, groups: int) -> Tiling[int]:
        """With two buffers of each kind, where there is a second use of them."""
        blocks, scalars = self.blocks(rows, cols, groups), len(self.plan.scalars)
        buffers = min(2, blocks * self.portions)
        return Tiling(
            rows=rows,
            cols=cols,
            groups=groups,
            span=0,
            blocks=blocks,
            loop_order="filter_major",
            kept_folds=1,
            chunk_taps=1,
            chunk_folds=1,
            section_passes=1,
            ifmap_buffers=buffers,
            filter_buffers=min(2, self.portions),
            psum_buffers=buffers,
            ifmap_words=sum(self._map_words(rows, cols, groups)),
            section_words=scalars,
            psum_words=rows * cols * groups,
            lag=1,
        )

    def worked(self, tiling: Tiling[int]) -> tuple[float, int]:
        layer, hardware = self.plan.layer, self.hardware
        taps = prod(axis.kernel for axis in layer.axes) + len(self.plan.maps) - 1
        cycles, read = float(delay_of(tiling.ifmap_words, hardware)), 0
        for together in self.plan.taps_together(taps):
            operands = len(together) + (together.start > 0)
            last = together.stop == taps
            operation = layer.operation if last else layer.joining
            counts = Arity(operands, len(self.plan.scalars), 0)
            operations = sum(work_of(operation, counts, (), hardware.vector_unit))
            beat = beat_of(operands, operations, self.word_groups[1], hardware)
            cycles += tiling.psum_words * beat.period + beat.result_delay
            read += tiling.psum_words * (operands + 1)
        return cycles, read

    def moved(self, tiling: Tiling[int]) -> tuple[float, float]:
        unit, channels = self.hardware.vector_unit, min(self.hardware.lanes, self.plan.shapes[OFMAP][0])
        spilled = self.map_cycles(tiling.psum_words, tiling.groups, channels, float(unit.pack_cycles))
        sizes, filled = self._map_words(tiling.rows, tiling.cols, tiling.groups), 0.0
        for source, words in zip(self.plan.maps, sizes, strict=True):
            into = 1 if source.spread[CHANNEL] else channels
            filled += self.map_cycles(words, tiling.groups, into, float(unit.unpack_cycles))
        return filled, spilled

    def cycles(self, tiling: Tiling[int]) -> float:
        """The bus is never idle but at the ends, or the vector unit is not, or a block waits for what comes for it.

        Of two buffers of a kind one is filled while the other is worked on, and two transfers may be under way.
        """
        (worked, read), (filled, spilled) = self.worked(tiling), self.moved(tiling)
        units, latency = tiling.blocks * self.portions, self.hardware.latency_cycles
        port = read + tiling.ifmap_words + tiling.psum_words
        turn = max(worked, port, filled + latency, (latency + worked + filled + spilled) / 2)
        exposed = max(0.0, worked + latency - spilled) if units > 1 else worked
        bus = units * (filled + spilled) + exposed
        return max(bus, units * turn + filled + spilled) + 2 * latency

    def _map_words(self, rows: int, cols: int, groups: int) -> list[int]:
        """What a block needs of each map at most."""
        row, col = self.outputs.row, self.outputs.col
        high, wide = row.most_stored(rows), col.most_stored(cols)
        return [
            (1 if each.spread[ROW] else high) * (1 if each.spread[COL] else wide) * groups for each in self.plan.maps
        ]


def delay_of(words: int, hardware: Hardware) -> int:
    """What comes before a block: its turn of the loop, and its words made ready."""
    return hardware.sequencer.block_cycles + ready_delay(words, hardware)
