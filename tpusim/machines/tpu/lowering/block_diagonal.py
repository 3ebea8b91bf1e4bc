"""Grouped and depthwise convolutions with several channel groups in a pass, side by side in rows and columns.

A pass multiplies all of them; the weights that would join a group's rows to another's columns are zero, and come from
nowhere. What is cut is a convolution with bundles for groups, the way channel-first does it; where no two groups fit,
it is channel-first.
"""

from __future__ import annotations

from functools import lru_cache, partial

from tpusim.machines.tpu.cut.geometry import ConvShape
from tpusim.machines.tpu.cut.plan import even_extents
from tpusim.machines.tpu.cut.reduction import Cut
from tpusim.machines.tpu.cut.tiling import col_folds
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering import channel_first
from tpusim.machines.tpu.lowering.convolution import convolved
from tpusim.machines.tpu.lowering.drafts import LeftTo, Lowering
from tpusim.network.ops.array_op import ArrayOp


@lru_cache(maxsize=1 << 12)
def cut(shape: ConvShape, hardware: Hardware) -> Cut:
    """The cut of the bundles with the fewest passes for all groups; of several, the largest."""
    array = hardware.array
    room = max(1, min(array.rows // shape.channels, array.cols // shape.out_channels))
    sizes = (size for size in reversed(even_extents(shape.groups)) if size <= room)

    def passes(bundles: Cut) -> int:
        columns = len(col_folds(bundles.shape.out_channels, hardware))
        return bundles.shape.groups * columns * bundles.groups * bundles.folds

    return min((channel_first.cut(shape.bundled(size), hardware) for size in sizes), key=passes)


def _has_one_group(layer: ArrayOp, batch: int) -> bool:
    return layer.convolution(batch)[0].groups == 1


BLOCK_DIAGONAL = Lowering(
    "block_diagonal",
    "channel_first with several channel groups in a pass, side by side: grouped and depthwise layers",
    partial(convolved, cut),
    banks=True,
    left=LeftTo(channel_first.CHANNEL_FIRST, _has_one_group),
    ignores=channel_first.CHANNEL_FIRST.ignores,
)
