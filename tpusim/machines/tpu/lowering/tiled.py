"""A convolution lowered in blocks, passes and chunks, whichever way its reduction is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TypeAlias, TypeVar

from tpusim.base.collector import at_rest
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import Convolution
from tpusim.machines.tpu.lowering.geometry import ConvShape, shape_of
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.reduction import Cut
from tpusim.machines.tpu.lowering.search import Ranked, tilings_of
from tpusim.machines.tpu.lowering.tiling import MOST_PIECES
from tpusim.machines.tpu.lowering.words import explanation_of
from tpusim.machines.tpu.program.explanation import Lowered, Planned, Way
from tpusim.network.ops import ArrayOp

Made = TypeVar("Made")
PlanOf = TypeVar("PlanOf", bound=Plan)
Cutting: TypeAlias = Callable[[ConvShape, Hardware], Cut]
"""How a lowering cuts the reduction of a convolution for a machine."""


def lowered_by(cutting: Cutting, layer: ArrayOp, batch: int, hardware: Hardware) -> Lowered:
    """Lower one layer for one machine.

    Raises:
        CapacityError: when no tiling fits the vector memories.
    """
    return ways_by(cutting, layer, batch, hardware)[0].lower()


def ways_by(cutting: Cutting, layer: ArrayOp, batch: int, hardware: Hardware) -> list[Way]:
    """What a simulation should choose from. Raises CapacityError as `lowered_by`, which takes the first."""
    return ways_of(plans_of(cutting, layer, batch, hardware), partial(written, layer))


def written(layer: ArrayOp, plan: Plan) -> Lowered:
    """The steps of a plan, and what is told of it."""
    return Convolution(plan).program(), explanation_of(plan, layer)


def ways_of(plans: Sequence[tuple[Made, Ranked]], lower: Callable[[Made], Lowered]) -> list[Way]:
    """One for each plan, in that order."""

    def at_once(plan: Made) -> Lowered:
        with at_rest():
            return lower(plan)

    return [Way(partial(at_once, plan), rank.least, rank.estimate) for plan, rank in plans]


def planned_by(cutting: Cutting, layer: ArrayOp, batch: int, hardware: Hardware) -> Planned:
    """How many steps the longest of `ways_by` has. Raises CapacityError as they do."""
    return steps_of(longest(plans_of(cutting, layer, batch, hardware)))


def longest(plans: Sequence[tuple[PlanOf, Ranked]]) -> PlanOf:
    """The plan of the most blocks."""
    return max((plan for plan, _ in plans), key=lambda plan: plan.tiling.blocks)


def steps_of(plan: Plan) -> Planned:
    """How many steps a plan is written down as, by a formula: to list the units of a huge plan takes the memory."""
    blocks, folds = plan.tiling.blocks, len(plan.col_folds)
    transfers = blocks * len(plan.columns) + _ifmap_fills(plan) + _filter_fills(plan)
    return Planned(plan.shape.groups * blocks * folds * len(plan.passes), plan.shape.groups * transfers)


def plan_of(cutting: Cutting, layer: ArrayOp, batch: int, hardware: Hardware) -> Plan:
    """The plan of a layer by the estimate. Raises CapacityError."""
    return plans_of(cutting, layer, batch, hardware)[0][0]


def plans_of(cutting: Cutting, layer: ArrayOp, batch: int, hardware: Hardware) -> list[tuple[Plan, Ranked]]:
    """That, and others that a simulation should choose from, with their tilings' ranks. Raises CapacityError."""
    shape = shape_of(layer, batch, hardware)
    cut = cutting(shape, hardware)
    return [(Plan(cut.shape, hardware, rank.tiling, cut), rank) for rank in found(cutting, shape, hardware)]


def _ifmap_fills(plan: Plan) -> int:
    """Those of a channel group: the loads, by the pieces for which there are folds or slots of the DMA queue."""
    tiling, chunks, columns = plan.tiling, len(plan.chunks), len(plan.columns)
    loads, folds = tiling.blocks * chunks, min(tiling.kept_folds, columns)
    if chunks == 1 and (tiling.loop_order == "block_major" or tiling.blocks == 1):
        folds = columns
    elif loads > tiling.ifmap_buffers:
        loads *= -(-columns // tiling.kept_folds)
    outcomes = len(plan.columns) // len(plan.col_folds)
    slots = (tiling.ifmap_buffers - 1) * folds * -(-len(plan.sections) // (chunks * outcomes))
    places = max((len(chunk.places) for chunk in plan.chunks if chunk.one_by_one), default=1)
    pieces = places if places > 1 else max(1, slots)
    return loads * min(MOST_PIECES, pieces)


def _filter_fills(plan: Plan) -> int:
    """Those of a channel group: its sections once, where they stay for all blocks, else for each."""
    tiling, columns, folds = plan.tiling, len(plan.columns), len(plan.col_folds)
    together = columns if tiling.loop_order == "block_major" else min(tiling.kept_folds, columns)
    again = 1 if together * len(plan.sections) * folds <= tiling.filter_buffers * columns else tiling.blocks
    return again * folds * sum(min(MOST_PIECES, len(section.numbers)) for section in plan.sections)


@lru_cache(maxsize=1 << 16)
def found(cutting: Cutting, shape: ConvShape, hardware: Hardware) -> tuple[Ranked, ...]:
    """The tilings of a shape to choose from. A layer is asked how many steps it takes before it is lowered."""
    cut = cutting(shape, hardware)
    return tilings_of(cut.shape, hardware, cut)
