"""Channel-first implicit im2col (paper sections III-IV): a convolution layer becomes a `Program`.

Every tap of the filter is a 1x1 convolution; its passes read the ifmap where it lies, at shifted addresses.
The lowered matrix never exists.
"""

from __future__ import annotations

from functools import partial

from tpusim.machines.tpu.cut.geometry import ConvShape
from tpusim.machines.tpu.cut.reduction import Cut, TapGroups
from tpusim.machines.tpu.cut.stored import packed
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import convolved
from tpusim.machines.tpu.lowering.dense import DENSE, DenseTaps, Transposed
from tpusim.machines.tpu.lowering.drafts import Lowering


def cut(shape: ConvShape, hardware: Hardware) -> Cut:
    """What the policy says of a layer's taps; where there is nothing to stack, groups of one tap."""
    mapping = hardware.mapping
    if packed(shape, hardware):
        return Transposed(shape, hardware)
    if shape.taps > 1 and shape.channels % hardware.array.rows and mapping.multi_tile in DENSE:
        return DenseTaps(shape, hardware)
    return TapGroups(shape, hardware)


CHANNEL_FIRST = Lowering(
    "channel_first",
    "implicit im2col, tap by tap: a pass multiplies all pixels by one tap of the filter, or by a few",
    partial(convolved, cut),
    banks=True,
    instead={"conv_transpose2d": "stride_phases", "deform_conv2d": "deformable"},
    ignores=frozenset({"transformation", "k_order"}),
)
