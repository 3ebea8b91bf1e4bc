"""How often what a machine makes in float32 is rounded, and the magnitudes of what is rounded, op by op."""

from __future__ import annotations

from functools import partial

from tpusim.network.ops.fused import Fused
from tpusim.network.ops.moves import Move
from tpusim.network.ops.op import Op
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.ops.rows import Lrn, RowOp
from tpusim.reference import Box, compute, functions, fused, lrn, pointwise, rows
from tpusim.reference.operands import Operands, Tensor

_SAMPLING = 4
"""Of what is interpolated between four elements, before the array multiplies it."""


def roundings(layer: Op, batch: int) -> int:
    """How often an output is rounded at most, one after another, in whatever order it is summed up; 0: it is exact."""
    if layer.op in pointwise.ROUNDINGS:
        return pointwise.ROUNDINGS[layer.op]
    if isinstance(layer, Move) or (isinstance(layer, Pool2d) and layer.kind == "max"):
        return 0
    if isinstance(layer, Fused):
        after = sum(pointwise.ROUNDINGS[each.op] for each in layer.finish)
        return roundings(layer.core, batch) + layer.adds + layer.bias + after
    if isinstance(layer, RowOp):
        return rows.roundings(layer)
    if isinstance(layer, Lrn):
        return lrn.roundings(layer)
    return layer.terms(batch) + (_SAMPLING if layer.sample_parts > 1 else 0)


def magnitudes(layer: Op, operands: Operands, box: Box, true: Tensor) -> Tensor:
    """What outputs would be if nothing cancelled, of operands that are magnitudes: `gamma` of it is the error.

    Functions are worked out with no more than they lose in float64, so that of them it is a share of the `true` ones.
    """
    if layer.op in functions.FUNCTIONS or isinstance(layer, Lrn):
        return abs(true)
    if layer.op in pointwise.FUNCTIONS:
        return pointwise.magnitudes(layer, operands, box)
    if isinstance(layer, Fused):
        return fused.summed(partial(magnitudes, true=true), layer, operands, box)
    return compute(layer, operands, box)
