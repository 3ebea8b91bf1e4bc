"""How often the results of a machine in float32 are rounded, and the magnitudes of the rounded numbers, op by op.

With these, outputs are looked at in float32 first: near enough to the true ones to tell that what is right is right. It
halves what the oracle costs; what it does not settle is worked out in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tpusim.network.ops.fused import Fused
from tpusim.network.ops.moves import Move
from tpusim.network.ops.op import OFMAP, Op
from tpusim.reference import Box, Operands, Oracle, Tensor, batch_of, channels, compute, pointwise, products, rows

_SAMPLING = 4
"""Roundings of an interpolation between four elements, before the array multiplies it."""
SHARES = 3
"""The number of shares of a sum. Their sizes add up to less than the magnitudes only if all shares cancel at once,
which hardly any sum does.
"""
_BY_SHARES: dict[str, Callable[[Any, Operands, Box, int], Tensor]] = {
    "conv2d": products.shares_of_conv2d,
    "conv1d": products.shares_of_conv1d,
    "gemm": products.shares_of_gemm,
}


def roundings(layer: Op, batch: int) -> int:
    """Return how often an output is rounded at most, in whatever order it is summed up; 0: it is exact."""
    if layer.op in pointwise.ROUNDINGS:
        return pointwise.ROUNDINGS[layer.op]
    if _only_moves(layer):
        return 0
    if isinstance(layer, Fused):
        ops = *layer.ahead, *layer.ahead_filter, *layer.finish, *layer.behind
        every = sum(pointwise.ROUNDINGS[each.op] for each in ops)
        return roundings(layer.core, batch) + layer.adds + layer.bias + every
    if layer.whole_channels:
        return channels.roundings(layer, batch)
    if layer.whole_rows or layer.op == "lrn":
        return rows.roundings(layer, batch)
    return layer.terms(batch) + (_SAMPLING if layer.sample_parts > 1 else 0)


def _only_moves(layer: Op) -> bool:
    """Return whether outputs are elements of the ifmap, or numbers of such."""
    return isinstance(layer, Move) or layer.op == "pool2d_choice" or (layer.op == "pool2d" and layer.selects)  # type: ignore[attr-defined]


def magnitudes(layer: Op, operands: Operands, box: Box, true: Tensor) -> Tensor:
    """Return the size of outputs if nothing cancelled, for operands that are magnitudes; times `gamma` it bounds the
    error.

    Functions are worked out with no more than they lose in float64, so that of them it is a share of the `true` ones.
    """
    if layer.op in pointwise.REAL_FUNCTIONS or layer.op == "lrn":
        return abs(true)
    if layer.whole_channels:
        return channels.magnitudes(layer, operands, box, true)
    if layer.op in pointwise.FUNCTIONS:
        return pointwise.magnitudes(layer, operands, box)
    if isinstance(layer, Fused):
        sources = pointwise.prepared(layer, operands, pointwise.magnitudes)
        sums = pointwise.summed(partial(magnitudes, true=true), layer, sources, box)
        return pointwise.left(layer, operands, box, sums, pointwise.magnitudes)
    return compute(layer, operands, box)


def _tally_roundings(layer: Fused, batch: int) -> int:
    """Return how often a tally is rounded at most: the result, twice where it is squared, and the product; and a sum of
    all results of a channel.
    """
    return 2 * roundings(layer, batch) + 1 + prod(layer.shapes(batch)[OFMAP][1:])


def _tally_magnitudes(layer: Fused, operands: Operands, box: Box, true: Tensor) -> Tensor:
    return pointwise.tallied(layer, operands, box, partial(magnitudes, true=true), abs)


TALLIES = Oracle(
    pointwise.tallies, lambda _, index: (("channel", "tally"), index[:2]), _tally_roundings, _tally_magnitudes
)
"""Sums over the results of a channel of a fused layer."""


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
    """Return the outputs of a layer in `box`; None where float32 would settle nothing. Operands are float32."""
    batch = batch_of(layer, operands)
    if layer.op in _BY_SHARES:
        return _of_shares(layer, operands, box, layer.terms(batch))
    if _only_moves(layer) or (layer.op in pointwise.FUNCTIONS and layer.op not in pointwise.REAL_FUNCTIONS):
        return Screen(compute(layer, operands, box), roundings(layer, batch))
    return None


def _of_shares(layer: Op, operands: Operands, box: Box, terms: int) -> Screen | None:
    """Compute the screen from shares: each product is rounded once, and each sum once less than it has products."""
    own = -(-terms // SHARES) + SHARES - 1
    if own >= terms:
        return None
    shares = _BY_SHARES[layer.op](layer, operands, box, SHARES)
    values = shares[0] + shares[1]
    for share in shares[2:]:
        values += share
    least, *others = np.abs(shares, out=shares)
    for share in others:
        least += share
    return Screen(values, own, least)
