"""A convolution lowered in blocks, passes and chunks, whichever way its reduction is cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from tpusim.base.collector import at_rest
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.emitter import Emitter
from tpusim.machines.tpu.lowering.geometry import ConvShape, shape_of
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.reduction import Cut
from tpusim.machines.tpu.lowering.search import choose
from tpusim.machines.tpu.lowering.tiling import MOST_PIECES, Tiling
from tpusim.machines.tpu.lowering.words import explanation_of
from tpusim.machines.tpu.program.explanation import Lowered, Planned
from tpusim.network.ops import Op

Cutting: TypeAlias = Callable[[ConvShape, Hardware], Cut]
"""How a lowering cuts the reduction of a convolution for a machine."""


def lowered_by(cutting: Cutting, layer: Op, batch: int, hardware: Hardware) -> Lowered:
    """Lower one layer for one machine.

    Raises:
        CapacityError: when no tiling fits the vector memories.
    """
    with at_rest():
        plan = plan_of(cutting, layer, batch, hardware)
        return Emitter(plan).program(), explanation_of(plan, layer)


def planned_by(cutting: Cutting, layer: Op, batch: int, hardware: Hardware) -> Planned:
    """How many steps `lowered_by` would write down. Raises CapacityError as it does."""
    return steps_of(plan_of(cutting, layer, batch, hardware))


def steps_of(plan: Plan) -> Planned:
    """How many steps a plan is written down as."""
    outcomes = plan.tiling.blocks * len(plan.col_folds)
    transfers = outcomes + _ifmap_fills(plan) + _filter_fills(plan)
    return Planned(plan.shape.groups * outcomes * len(plan.passes), plan.shape.groups * transfers)


def plan_of(cutting: Cutting, layer: Op, batch: int, hardware: Hardware) -> Plan:
    """The plan of a layer. Raises CapacityError."""
    shape = shape_of(layer, batch, hardware)
    return Plan(shape, hardware, chosen(cutting, shape, hardware), cutting(shape, hardware))


def _ifmap_fills(plan: Plan) -> int:
    """Those of a channel group: the loads, by the pieces for which there are folds or slots of the DMA queue."""
    tiling, chunks, columns = plan.tiling, len(plan.chunks), len(plan.col_folds)
    loads, folds = tiling.blocks * chunks, min(tiling.kept_folds, columns)
    if chunks == 1 and (tiling.loop_order == "block_major" or tiling.blocks == 1):
        folds = columns
    elif loads > tiling.ifmap_buffers:
        loads *= -(-columns // tiling.kept_folds)
    slots = (tiling.ifmap_buffers - 1) * folds * -(-len(plan.sections) // chunks)
    places = max((len(chunk.places) for chunk in plan.chunks if chunk.one_by_one), default=1)
    pieces = places if places > 1 else max(1, slots)
    return loads * min(MOST_PIECES, pieces)


def _filter_fills(plan: Plan) -> int:
    """Those of a channel group: its sections once, where they stay for all blocks, else for each."""
    tiling, columns = plan.tiling, len(plan.col_folds)
    together = columns if tiling.loop_order == "block_major" else min(tiling.kept_folds, columns)
    again = 1 if together * len(plan.sections) <= tiling.filter_buffers else tiling.blocks
    return again * columns * sum(min(MOST_PIECES, len(section.numbers)) for section in plan.sections)


@lru_cache(maxsize=1 << 16)
def chosen(cutting: Cutting, shape: ConvShape, hardware: Hardware) -> Tiling[int]:
    """The tiling of a shape. A layer is asked how many steps it takes before it is lowered."""
    return choose(shape, hardware, cutting(shape, hardware))
