"""Softmax, layer normalization, means: by the vector unit, which goes through the channels of rows stage by stage.

A lane has some rows, an element of each in a word: what is summed up, or compared, never leaves its lane.
"""

from __future__ import annotations

from tpusim.base.collector import at_rest
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.vector_rows_plan import RowPlan
from tpusim.machines.tpu.lowering.vector_rows_units import RowUnits
from tpusim.machines.tpu.program.explanation import Explanation, Lowered, Planned
from tpusim.machines.tpu.schedule.scheduler import planned as units_planned
from tpusim.network.ops import RowOp
from tpusim.result.records import Blocking


def lower(layer: RowOp, batch: int, hardware: Hardware) -> Lowered:
    """Lower one layer for one machine.

    Raises:
        CapacityError: when nothing fits the vector memories.
    """
    with at_rest():
        plan = RowPlan(layer, batch, hardware)
        return RowUnits(plan).program(), _explained(plan)


def planned(layer: RowOp, batch: int, hardware: Hardware) -> Planned:
    """How many steps `lower` would write down, those of the vector unit among the transfers. Raises CapacityError."""
    plan = RowPlan(layer, batch, hardware)
    return units_planned(RowUnits(plan), plan.shares * plan.rows * len(plan.stages) if plan.shares > 1 else 0)


# ---- in words


def _explained(plan: RowPlan) -> Explanation:
    blocking = Blocking(
        rows=1,
        cols=1,
        images=min(plan.spread.lanes * plan.fill, plan.rows),
        blocks=len(plan.units),
        row_folds=1,
        col_folds=1,
        loop_order="block_major",
        word_fill=plan.fill,
        strips=1,
    )
    word = plan.hardware.vector_memory.word_elements
    passed = plan.stages[plan.given :]
    stages = ", ".join(each.operation for each in passed)
    rows, pieces = counted(blocking.images, "row"), counted(len(plan.parts), "piece")
    again = "kept from stage to stage" if plan.pieces.kept else "read from HBM for each stage"
    aspects = {
        "folds": _folds(plan),
        "passes": f"none: the vector unit goes through rows in {counted(len(passed), 'stage')}: {stages}",
        "block": f"{rows}; {counted(blocking.blocks, 'block')} for all {plan.rows:,}",
        "order": f"block by block, in each stage by stage; rows come in {pieces}, {again}",
        "words": f"{plan.fill} of {counted(word, 'element')} used: rows side by side",
        "memory": _memory(plan),
    }
    return Explanation(1, blocking, {"loop_order": "block_major", **plan.pieces._asdict()}, aspects)


def _folds(plan: RowPlan) -> str:
    if plan.shares == 1:
        return "none: a lane has all channels of its rows"
    return f"rows in {plan.shares} shares of {counted(plan.channels, 'channel')}, which meet by way of HBM"


def _memory(plan: RowPlan) -> str:
    rows, shared, on_the_way, *_, results, end = plan.areas(plan.pieces)
    areas = {"rows": shared - rows, "what rows share": on_the_way - shared, "sums": results - on_the_way,
             "results": end - results}  # fmt: skip
    word = plan.hardware.word_bytes
    held = ", ".join(f"{SIZE.format(words * word)} of {name}" for name, words in areas.items() if words)
    return f"{SIZE.format(end * word)} of {SIZE.format(plan.hardware.vector_memory.capacity_bytes)} a lane: {held}"
