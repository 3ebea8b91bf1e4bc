"""The plan of a depthwise convolution on the vector unit: blocks, portions of the channels, and which are on chip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import ceil, prod

from tpusim.machines.tpu.definition.beat import beat_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import Block, Patch
from tpusim.machines.tpu.lowering.geometry import ConvShape
from tpusim.machines.tpu.lowering.given import Given, given_block
from tpusim.machines.tpu.lowering.plan import Plan, portions
from tpusim.machines.tpu.lowering.preparation import Sizes
from tpusim.machines.tpu.lowering.reduction import Tap
from tpusim.machines.tpu.lowering.schedule import halves
from tpusim.machines.tpu.lowering.search import too_small
from tpusim.machines.tpu.lowering.tap_groups import TapGroups
from tpusim.machines.tpu.lowering.tiling import Tiling, word_groups
from tpusim.machines.tpu.lowering.window import taps_of
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity
from tpusim.machines.tpu.program.tensor import Coordinates
from tpusim.memory.layout import whole_bursts


@dataclass(frozen=True)
class VectorPlan:
    """How a depthwise layer is cut up; `plan` tells how its maps lie, and where the buffers are."""

    plan: Plan

    @cached_property
    def portions(self) -> list[range]:
        """Output channels, one a lane, of all groups."""
        return lane_portions(self.plan.shape, self.plan.hardware)

    @cached_property
    def tap_chunks(self) -> list[range]:
        """The taps, by number, whose weights a lane keeps at a time."""
        return tap_chunks(self.plan.shape, self.plan.hardware)

    @cached_property
    def taps(self) -> tuple[Tap, ...]:
        """In the order of the filter."""
        return taps_of(self.plan.shape)

    def patch(self, block: Block) -> Patch:
        """What is filled of the ifmap for a block."""
        row, col = self.plan.shape.row, self.plan.shape.col
        rows, cols = row.stored(block.rows, range(row.kernel)), col.stored(block.cols, range(col.kernel))
        return Patch(rows, cols, block.groups)

    def inputs(self, portion: range) -> Coordinates:
        """The ifmap channel of each lane."""
        each = self.plan.shape.out_channels
        return portion if each == 1 else tuple(channel // each for channel in portion)


def lane_portions(shape: ConvShape, hardware: Hardware) -> list[range]:
    """The output channels of all groups, as many at a time as there are lanes."""
    return portions(shape.groups * shape.out_channels, hardware.lanes)


def tap_chunks(shape: ConvShape, hardware: Hardware) -> list[range]:
    """As many taps as a lane keeps the weights of."""
    return portions(shape.taps, hardware.vector_unit.scalar_words * hardware.vector_memory.word_elements)


@lru_cache(maxsize=1 << 12)
def plan_of(shape: ConvShape, hardware: Hardware) -> VectorPlan:
    """The cheapest that fits, by its estimate.

    Raises:
        CapacityError: when not even a block of one output word fits; says how much memory would do.
    """
    costs = _Costs(shape, hardware)
    every = [costs.tiling(*block) for block in _blocks(shape, hardware, costs.given)]
    fitting = [each for each in every if each.words <= hardware.capacity_words]
    if not fitting:
        raise too_small(min(each.words for each in every), hardware)
    return VectorPlan(Plan(shape, hardware, min(fitting, key=costs.cycles), costs.cut))


def _blocks(shape: ConvShape, hardware: Hardware, given: Given) -> Iterator[tuple[int, int, int]]:
    """Extents of blocks to try: rows, columns, word groups."""
    groups, _ = word_groups(shape.word_images, hardware.vector_memory.word_elements)
    extents = (given.rows, shape.row.extent), (given.cols, shape.col.extent), (given.groups, groups)
    yield from product(*([wanted] if wanted else halves(extent) for wanted, extent in extents))


@dataclass(frozen=True)
class _Costs:
    """What blocks take of memory, and about how long."""

    shape: ConvShape
    hardware: Hardware

    @cached_property
    def cut(self) -> TapGroups:
        """What a Plan wants; there are no passes."""
        return TapGroups(self.shape, self.hardware)

    @cached_property
    def given(self) -> Given:
        """What the machine's policy says of blocks."""
        return given_block(self.shape, self.hardware, self.cut)

    @cached_property
    def portions(self) -> int:
        """Portions of the channels."""
        return len(lane_portions(self.shape, self.hardware))

    @cached_property
    def word_groups(self) -> tuple[int, int]:
        """Words of a pixel, and elements used of each."""
        return word_groups(self.shape.word_images, self.hardware.vector_memory.word_elements)

    def tiling(self, rows: int, cols: int, groups: int) -> Tiling[int]:
        """With two buffers of each kind, where there is a second use of them."""
        shape, cut = self.shape, self.cut
        extents = zip((shape.row.extent, shape.col.extent, self.word_groups[0]), (rows, cols, groups), strict=True)
        blocks = prod(-(-extent // size) for extent, size in extents)
        buffers = min(2, blocks * self.portions)
        return Tiling(
            rows=rows,
            cols=cols,
            groups=groups,
            span=0,
            blocks=blocks,
            loop_order="filter_major",
            kept_folds=1,
            chunk_taps=cut.groups,
            chunk_folds=cut.folds,
            section_passes=cut.groups * cut.folds,
            ifmap_buffers=buffers,
            filter_buffers=min(2, self.portions),
            psum_buffers=buffers,
            ifmap_words=shape.row.most_stored(rows) * shape.col.most_stored(cols) * groups,
            section_words=-(-shape.taps // self.hardware.vector_memory.word_elements),
            psum_words=rows * cols * groups,
            lag=1,
        )

    def cycles(self, tiling: Tiling[int]) -> float:
        """Block after block the longest of vector unit, bus and port; what comes first and goes last, nothing hides."""
        worked, read = self._worked(tiling)
        moved = self._moved(tiling, "in") + self._moved(tiling, "out")
        port = read + tiling.ifmap_words + tiling.psum_words
        units = tiling.blocks * self.portions
        return units * max(worked, moved, port) + moved + 2 * self.hardware.latency_cycles

    def _worked(self, tiling: Tiling[int]) -> tuple[float, int]:
        """Cycles of the vector unit for a block and portion, and those of the port that are its own."""
        hardware = self.hardware
        cycles = delay_of(self.shape, (tiling.rows, tiling.cols, tiling.groups), hardware)
        read = 0
        for number, taps in enumerate(tap_chunks(self.shape, hardware)):
            operands = len(taps) + (number > 0)
            operations = OPERATIONS["multiply_add"].alu(Arity(operands, len(taps), 0), ())
            beat = beat_of(operands, operations, self.word_groups[1], hardware)
            cycles += tiling.psum_words * beat.period + beat.result_delay
            read += tiling.psum_words * (operands + 1)
        return cycles, read

    def _moved(self, tiling: Tiling[int], way: str) -> float:
        """Cycles of the bus for a block and portion, one way or the other."""
        hardware, unit, (groups, fill) = self.hardware, self.hardware.vector_unit, self.word_groups
        words, a_word = (
            (tiling.ifmap_words, unit.unpack_cycles) if way == "in" else (tiling.psum_words, unit.pack_cycles)
        )
        channels = min(hardware.lanes, self.shape.groups * self.shape.out_channels)
        channels = -(-channels // self.shape.out_channels) if way == "in" else channels
        # Images of a channel lie side by side; where a block has all of them, so do its channels.
        run = tiling.groups * fill * hardware.vector_memory.element_bytes
        runs = words // tiling.groups * channels
        if tiling.groups == groups:
            run, runs = run * channels, words // groups
        size = runs * whole_bursts(run, hardware.hbm.burst_bytes)
        return max(size / float(hardware.hbm_bytes_per_cycle), words * float(a_word))


def delay_of(shape: ConvShape, sizes: Sizes, hardware: Hardware) -> int:
    """What comes before a block: its turn of the loop, and its words made ready, padding too."""
    rows, cols, groups = sizes
    words = shape.row.reach(rows, range(shape.row.kernel)) * shape.col.reach(cols, range(shape.col.kernel)) * groups
    return hardware.sequencer.block_cycles + ceil(words * hardware.vector_unit.ready_cycles)
