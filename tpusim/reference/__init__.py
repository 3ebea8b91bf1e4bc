"""The oracle: each op straight from its definition, in vectorised NumPy.

Shares no code with the lowering, the data path or the engines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from tpusim.network.ops.op import OFMAP, Index, Op
from tpusim.reference import (
    conv1d,
    conv2d,
    conv_transpose2d,
    deform_conv2d,
    fused,
    gemm,
    lowered,
    lrn,
    moves,
    pointwise,
    pool2d,
    rows,
)
from tpusim.reference.operands import Operand, Operands, Tensor, operands

__all__ = ["ORACLES", "STRIDED", "TENSORS", "Box", "Operand", "Operands", "Oracle", "Tensor", "compute", "operands"]

Box: TypeAlias = tuple[range, range, range, range]
"""Neighbouring channels, rows, columns and images of an ofmap; of some ops every so many rows and columns."""

ORACLES: dict[str, Callable[[Any, Operands, Box], Tensor]] = {
    "conv2d": conv2d.compute,
    "conv1d": conv1d.compute,
    "conv_transpose2d": conv_transpose2d.compute,
    "deform_conv2d": deform_conv2d.compute,
    "gemm": gemm.compute,
    "fused": lambda *asked: fused.compute(compute, *asked),
    "pool2d": pool2d.compute,
    "lrn": lrn.compute,
    **dict.fromkeys(pointwise.FUNCTIONS, pointwise.compute),
    **dict.fromkeys(rows.OPS, rows.compute),
    **dict.fromkeys(moves.OPS, moves.compute),
}
"""By the name of the op in files."""
STRIDED = frozenset({"conv_transpose2d"})
"""The ops whose boxes may be strided by rows and columns."""


def compute(layer: Op, operands: Operands, box: Box | None = None) -> Tensor:
    """The ofmap of a layer, [out_channel, row, col, image]; with `box`, only what lies in it."""
    channels, rows, cols, images = map(range, layer.shapes(operands["ifmap"].shape[-1])[OFMAP])
    return ORACLES[layer.op](layer, operands, box or (channels, rows, cols, images))


class Oracle(NamedTuple):
    """What a tensor that a Program writes must hold.

    Attributes:
        compute: from a layer, what it reads by name, and a box of the tensor.
        element_name: from a layer and the index of an element, the axes and the index by which people know it.
    """

    compute: Callable[[Any, Operands, Box], Tensor]
    element_name: Callable[[Any, Index], tuple[tuple[str, ...], Index]]


TENSORS: dict[str, Oracle] = {
    OFMAP: Oracle(lambda *asked: compute(*asked), lambda layer, index: layer.element_name(index)),
    "lowered": Oracle(lowered.compute, lowered.element_name),
}
"""By the name of the tensor in a Program."""
