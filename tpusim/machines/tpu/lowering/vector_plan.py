"""The plan of a depthwise convolution on the vector unit: blocks, portions of the channels, and which are on chip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from tpusim.machines.tpu.definition.beat import beat_of, ready_delay
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.block import Block, Patch
from tpusim.machines.tpu.lowering.geometry import ConvShape, InStrips
from tpusim.machines.tpu.lowering.maps import portions
from tpusim.machines.tpu.lowering.pace import Sizes
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.reduction import Tap
from tpusim.machines.tpu.lowering.tap_groups import TapGroups
from tpusim.machines.tpu.lowering.tiling import Tiling
from tpusim.machines.tpu.lowering.vector_search import VectorCosts
from tpusim.machines.tpu.lowering.window import taps_of
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity
from tpusim.machines.tpu.program.tensor import Coordinates


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
    costs = _Costs(hardware, shape)
    return VectorPlan(Plan(shape, hardware, costs.chosen(), costs.cut))


@dataclass(frozen=True)
class _Costs(VectorCosts):
    """What blocks take of memory, and about how long."""

    shape: ConvShape

    @property
    def outputs(self) -> InStrips:
        return self.shape

    @cached_property
    def cut(self) -> TapGroups:
        """What a Plan wants; there are no passes."""
        return TapGroups(self.shape, self.hardware)

    @property
    def portions(self) -> int:
        return len(lane_portions(self.shape, self.hardware))

    @property
    def chunks(self) -> tuple[int, int]:
        return self.cut.groups, self.cut.folds

    def map_words(self, rows: int, cols: int, groups: int) -> int:
        return self.shape.row.most_stored(rows) * self.shape.col.most_stored(cols) * groups

    @property
    def scalar_words(self) -> int:
        return -(-self.shape.taps // self.hardware.vector_memory.word_elements)

    def worked(self, tiling: Tiling[int]) -> tuple[float, int]:
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

    def moved(self, tiling: Tiling[int]) -> tuple[float, float]:
        unit, shape = self.hardware.vector_unit, self.shape
        channels = min(self.hardware.lanes, shape.groups * shape.out_channels)
        into = -(-channels // shape.out_channels)
        filled = self.map_cycles(tiling.ifmap_words, tiling.groups, into, float(unit.unpack_cycles))
        return filled, self.map_cycles(tiling.psum_words, tiling.groups, channels, float(unit.pack_cycles))


def delay_of(shape: ConvShape, sizes: Sizes, hardware: Hardware) -> int:
    """What comes before a block: its turn of the loop, and its words made ready, padding too."""
    rows, cols, groups = sizes
    words = shape.row.reach(rows, range(shape.row.kernel)) * shape.col.reach(cols, range(shape.col.kernel)) * groups
    return hardware.sequencer.block_cycles + ready_delay(words, hardware)
