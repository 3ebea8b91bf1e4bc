"""Channel-first implicit im2col (paper sections III-IV): a convolution layer becomes a `Program`.

Every tap of the filter is a 1x1 convolution; its passes read the ifmap where it lies, at shifted addresses.
The lowered matrix never exists.
"""

from __future__ import annotations

from tpusim.hardware import Hardware
from tpusim.lowering.emitter import Emitter
from tpusim.lowering.geometry import shape_of
from tpusim.lowering.plan import Plan
from tpusim.lowering.tiling import choose
from tpusim.program import Program
from tpusim.workload import Conv2d, Gemm


def lower(layer: Conv2d | Gemm, batch: int, hardware: Hardware) -> tuple[Plan, Program]:
    """Lower one layer for one machine; the plan says how it was cut up.

    Raises:
        CapacityError: when no tiling fits the vector memories.
    """
    shape = shape_of(layer, batch, hardware.vector_memory.word_elements)
    plan = Plan(shape, hardware, choose(shape, hardware))
    return plan, Emitter(plan).program()
