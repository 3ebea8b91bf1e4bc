"""Channel-first implicit im2col (paper sections III-IV): a convolution layer becomes a `Program`.

Every tap of the filter is a 1x1 convolution; its passes read the ifmap where it lies, at shifted addresses.
The lowered matrix never exists.
"""

from __future__ import annotations

from functools import lru_cache

from tpusim.base.collector import at_rest
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.emitter import Emitter
from tpusim.machines.tpu.lowering.geometry import shape_of
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.search import choose
from tpusim.machines.tpu.lowering.tiling import MOST_PIECES
from tpusim.machines.tpu.lowering.words import explanation_of
from tpusim.machines.tpu.program.explanation import Lowered, Planned
from tpusim.network.ops import Op


def lower(layer: Op, batch: int, hardware: Hardware) -> Lowered:
    """Lower one layer for one machine.

    Raises:
        CapacityError: when no tiling fits the vector memories.
    """
    with at_rest():
        plan = _plan(layer, batch, hardware)
        return Emitter(plan).program(), explanation_of(plan, layer)


def planned(layer: Op, batch: int, hardware: Hardware) -> Planned:
    """How many steps `lower` would write down. Raises CapacityError as it does."""
    plan = _plan(layer, batch, hardware)
    outcomes = plan.tiling.blocks * len(plan.col_folds)
    transfers = outcomes + _ifmap_fills(plan) + _filter_fills(plan)
    return Planned(plan.shape.groups * outcomes * len(plan.passes), plan.shape.groups * transfers)


def _ifmap_fills(plan: Plan) -> int:
    """Those of a channel group: the loads, by the pieces for which there are folds or slots of the DMA queue."""
    tiling, chunks, columns = plan.tiling, len(plan.chunks), len(plan.col_folds)
    loads, folds = tiling.blocks * chunks, min(tiling.kept_folds, columns)
    if chunks == 1 and (tiling.loop_order == "block_major" or tiling.blocks == 1):
        folds = columns
    elif loads > tiling.ifmap_buffers:
        loads *= -(-columns // tiling.kept_folds)
    slots = (tiling.ifmap_buffers - 1) * folds * -(-len(plan.sections) // chunks)
    pieces = tiling.chunk_folds if tiling.chunk_folds > 1 else max(1, slots)
    return loads * min(MOST_PIECES, pieces)


def _filter_fills(plan: Plan) -> int:
    """Those of a channel group: its sections once, where they stay for all blocks, else for each."""
    tiling, columns = plan.tiling, len(plan.col_folds)
    together = columns if tiling.loop_order == "block_major" else min(tiling.kept_folds, columns)
    again = 1 if together * len(plan.sections) <= tiling.filter_buffers else tiling.blocks
    return again * columns * sum(min(MOST_PIECES, len(section.numbers)) for section in plan.sections)


def _plan(layer: Op, batch: int, hardware: Hardware) -> Plan:
    shape = shape_of(layer, batch, hardware.vector_memory.word_elements)
    return Plan(shape, hardware, _chosen(shape, hardware))


_chosen = lru_cache(maxsize=1 << 16)(choose)
"""A layer is asked how many steps it takes before it is lowered."""
