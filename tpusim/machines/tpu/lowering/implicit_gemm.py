"""Implicit GEMM in blocks: M, K and N are cut without regard to taps, channels and rows of the map.

The shape of the loops is that of Wave's convolution template; on a systolic array `block_k` is at most its rows, and a
block and column fold takes ceil(H_F W_F C_I / block_k) passes. Nothing but the ifmap is there more than once.
"""

from __future__ import annotations

from functools import partial

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import convolved
from tpusim.machines.tpu.lowering.dense import IGNORED, Dense
from tpusim.machines.tpu.lowering.drafts import Lowering
from tpusim.machines.tpu.lowering.geometry import ConvShape


def _cut(shape: ConvShape, hardware: Hardware) -> Dense:
    return Dense(shape, hardware, hardware.mapping.k_order)


IMPLICIT_GEMM = Lowering(
    "implicit_gemm",
    "implicit im2col cut into passes of one length, wherever a tap of the filter ends",
    partial(convolved, _cut),
    banks=True,
    ignores=IGNORED,
)
