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
from tpusim.machines.tpu.lowering.words import explanation_of
from tpusim.machines.tpu.program.explanation import Lowered
from tpusim.network.ops import Op


def lower(layer: Op, batch: int, hardware: Hardware) -> Lowered:
    """Lower one layer for one machine.

    Raises:
        CapacityError: when no tiling fits the vector memories.
    """
    with at_rest():
        plan = _plan(layer, batch, hardware)
        return Emitter(plan).program(), explanation_of(plan, layer)


def passes(layer: Op, batch: int, hardware: Hardware) -> int:
    """How many passes `lower` would write down. Raises CapacityError as it does."""
    plan = _plan(layer, batch, hardware)
    return plan.shape.groups * plan.tiling.blocks * len(plan.col_folds) * len(plan.passes)


def _plan(layer: Op, batch: int, hardware: Hardware) -> Plan:
    shape = shape_of(layer, batch, hardware.vector_memory.word_elements)
    return Plan(shape, hardware, _chosen(shape, hardware))


_chosen = lru_cache(maxsize=1 << 16)(choose)
"""A layer is asked how many passes it takes before it is lowered."""
