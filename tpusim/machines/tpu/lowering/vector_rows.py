"""Softmax, layer normalization, means: by the vector unit, which goes through the channels of rows stage by stage.

A lane has some rows, an element of each in a word: what is summed up, or compared, never leaves its lane.
"""

from __future__ import annotations

from functools import partial

from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, one_draft
from tpusim.machines.tpu.lowering.vector_rows_plan import RowPlan, RowUnits
from tpusim.machines.tpu.lowering.vector_units import IGNORED
from tpusim.machines.tpu.program.program import Explanation
from tpusim.network.ops import RowOp
from tpusim.result.records import Blocking


def ways(layer: RowOp, batch: int, hardware: Hardware) -> list[Draft]:
    """A draft, the only one.

    Raises:
        CapacityError: when nothing fits the vector memories.
    """
    plan = RowPlan(layer, batch, hardware)
    return one_draft(partial(RowUnits, plan), lambda program: (program, _explained(plan)))


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
    folds = "none: a lane has all channels of its rows"
    if plan.shares > 1:
        folds = f"rows in {plan.shares} shares of {counted(plan.channels, 'channel')}, which meet by way of HBM"
    first, shared, on_the_way, *_, results, end = plan.areas(plan.pieces)
    areas = {"rows": shared - first, "what rows share": on_the_way - shared, "sums": results - on_the_way,
             "results": end - results}  # fmt: skip
    size = plan.hardware.word_bytes
    held = ", ".join(f"{SIZE.format(words * size)} of {name}" for name, words in areas.items() if words)
    capacity = SIZE.format(plan.hardware.vector_memory.capacity_bytes)
    rows, pieces = counted(blocking.images, "row"), counted(len(plan.parts), "piece")
    again = "kept from stage to stage" if plan.pieces.kept else "read from HBM for each stage"
    aspects = {
        "folds": folds,
        "passes": f"none: the vector unit goes through rows in {counted(len(passed), 'stage')}: {stages}",
        "block": f"{rows}; {counted(blocking.blocks, 'block')} for all {plan.rows:,}",
        "order": f"block by block, in each stage by stage; rows come in {pieces}, {again}",
        "words": f"{plan.fill} of {counted(word, 'element')} used: rows side by side",
        "memory": f"{SIZE.format(end * size)} of {capacity} a lane: {held}",
    }
    return Explanation(1, blocking, {"loop_order": "block_major", **plan.pieces._asdict()}, aspects)


VECTOR_ROWS = Lowering(
    "vector_rows",
    "softmax, layer normalization, means of rows: by the vector unit, whole rows in a lane",
    ways,
    unit="vector",
    whole_rows=True,
    partial=True,
    banks=True,
    ignores=IGNORED | {"block.rows", "block.cols", "block.images", "block.out_channels", "block_n", "strips"},
)
