"""The plan of a depthwise convolution on the vector unit: blocks, portions of the channels, and which are on chip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering import pace
from tpusim.machines.tpu.lowering.block import Block, Patch
from tpusim.machines.tpu.lowering.geometry import ConvShape, InStrips
from tpusim.machines.tpu.lowering.maps import portions
from tpusim.machines.tpu.lowering.pace import Sizes
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.reduction import Tap, TapGroups
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
    cut, chunks = TapGroups(shape, hardware), tap_chunks(shape, hardware)
    lanes = min(hardware.lanes, shape.groups * shape.out_channels)
    counts = [Arity(len(taps) + (number > 0), len(taps), 0) for number, taps in enumerate(chunks)]
    costs = _Costs(
        hardware=hardware,
        outputs=shape,
        portions=len(lane_portions(shape, hardware)),
        channels=lanes,
        into=(-(-lanes // shape.out_channels),),
        scalar_words=-(-shape.taps // hardware.vector_memory.word_elements),
        steps=tuple((each.operands, OPERATIONS["multiply_add"].alu(each, ())) for each in counts),
        # What a Plan wants; there are no passes.
        chunks=(cut.groups, cut.folds),
    )
    return VectorPlan(Plan(shape, hardware, costs.chosen(), cut))


class _Costs(VectorCosts):
    """What blocks take, of whose ifmap padding is made ready, too."""

    def readied(self, tiling: Tiling[int]) -> int:
        return _reached(self.outputs, (tiling.rows, tiling.cols, tiling.groups))


def delay_of(shape: ConvShape, sizes: Sizes, hardware: Hardware) -> int:
    """Cycles before a block of such sizes, padding too."""
    return pace.delay_of(_reached(shape, sizes), hardware)


def _reached(shape: InStrips, sizes: Sizes) -> int:
    rows, cols, groups = sizes
    return shape.row.reach(rows, range(shape.row.kernel)) * shape.col.reach(cols, range(shape.col.kernel)) * groups
