"""A first look at outputs, in float32: near enough to the true ones to tell that what is right is right.

It halves what the oracle costs. What it does not settle is worked out in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tpusim.network.ops.moves import Move
from tpusim.network.ops.op import Op
from tpusim.network.ops.pool2d import Pool2d
from tpusim.reference import Box, compute, conv2d, functions, gemm, pointwise
from tpusim.reference.operands import Operands, Tensor
from tpusim.reference.rounding import roundings

SHARES = 3
"""Sums are worked out in so many shares, whose sizes add up to magnitudes that hardly any sum has less of: all of them
would have to cancel at once.
"""
_BY_SHARES: dict[str, Callable[[Any, Operands, Box, int], Tensor]] = {"conv2d": conv2d.shares, "gemm": gemm.shares}


class Screen(NamedTuple):
    """Outputs in float32.

    Attributes:
        values: [out_channel, row, col, image].
        roundings: how often each has been rounded at most, one after another.
        least: what the magnitudes of an output's products sum up to at least, rounded as often; None: nothing is known.
    """

    values: Tensor
    roundings: int
    least: Tensor | None = None


def screen(layer: Op, operands: Operands, box: Box) -> Screen | None:
    """The outputs of a layer in `box`; None where float32 would settle nothing. Operands are float32."""
    if layer.op in _BY_SHARES:
        return _of_shares(layer, operands, box)
    moved = isinstance(layer, Move) or (isinstance(layer, Pool2d) and layer.kind == "max")
    if moved or (layer.op in pointwise.FUNCTIONS and layer.op not in functions.FUNCTIONS):
        return Screen(compute(layer, operands, box), roundings(layer, operands["ifmap"].shape[-1]))
    return None


def _of_shares(layer: Op, operands: Operands, box: Box) -> Screen | None:
    """A share's products are rounded once, and its sums once less than it has products."""
    products = layer.terms(operands["ifmap"].shape[-1])
    own = -(-products // SHARES) + SHARES - 1
    if own >= products:
        return None
    shares = _BY_SHARES[layer.op](layer, operands, box, SHARES)
    values = shares[0].copy()
    for share in shares[1:]:
        values += share
    least, *others = np.abs(shares, out=shares)
    for share in others:
        least += share
    return Screen(values, own, least)
