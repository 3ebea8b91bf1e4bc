"""Implicit GEMM in blocks: M, K and N are cut without regard to taps, channels and rows of the map.

The shape of the loops is that of Wave's convolution template; on a systolic array `block_k` is at most its rows, and a
block and column fold takes ceil(H_F W_F C_I / block_k) passes. Nothing but the ifmap is there more than once.
"""

from __future__ import annotations

from functools import partial

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.banked import lowered_by, planned_by, ways_by
from tpusim.machines.tpu.lowering.dense import Dense, dense
from tpusim.machines.tpu.lowering.geometry import ConvShape


def _cut(shape: ConvShape, hardware: Hardware) -> Dense:
    return dense(shape, hardware, hardware.mapping.k_order)


lower = partial(lowered_by, _cut)
planned = partial(planned_by, _cut)
ways = partial(ways_by, _cut)
