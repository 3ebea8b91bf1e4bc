"""Ops that sum up each channel over pixels and images, from their definitions; and how far float32 may be off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tpusim.reference import Box, Operands, Tensor, compute, number_of

if TYPE_CHECKING:
    from tpusim.network.ops.channels import ChannelMaskedSums, ChannelMean, ChannelProducts, ChannelSum
    from tpusim.network.ops.op import Op

ROUNDINGS = {
    "channel_sum": 0,
    "channel_mean": 1,
    "channel_variance": 3,
    "channel_products": 1,
    "channel_masked_sums": 1,
}
"""Roundings beyond those of the sum: of the mean's factor, of a difference that is squared, or of one in a product."""


def roundings(layer: Op, batch: int) -> int:
    """Return how often an output is rounded at most, in whatever order elements are summed up."""
    return layer.terms(batch) + ROUNDINGS[layer.op]


def magnitudes(layer: Op, operands: Operands, box: Box, true: Tensor) -> Tensor:
    """Return the size of these numbers if nothing cancelled, for operands that are magnitudes.

    A sum of squares is a share of itself, as all are of one sign and what is squared is off by a share of itself.
    """
    if layer.op == "channel_variance":
        return abs(true)
    # With a line of one everywhere all elements count; a difference is a sum.
    factors = {"about": (-1, 0), "scale": (0, 0), "shift": (0, 1)}
    given = dict(operands)
    for name in factors.keys() & operands.keys():
        by, plus = factors[name]
        given[name] = operands[name] * by + plus
    return compute(layer, given, box)


def _of(operands: Operands, name: str, box: Box) -> Tensor:
    """Return the channels in `box` of an operand, whole."""
    operand = operands[name][box[0].start : box[0].stop]
    return operand.astype(number_of(*operands.values()), copy=False)


def _summed(elements: Tensor) -> Tensor:
    return np.asarray(elements.sum(axis=(1, 2, 3), keepdims=True))


def channel_sum(_: ChannelSum, operands: Operands, box: Box) -> Tensor:
    return _summed(_of(operands, "ifmap", box))


def channel_mean(layer: ChannelMean, operands: Operands, box: Box) -> Tensor:
    """Compute the sum times one by the count."""
    return channel_sum(layer, operands, box) * np.float32(1 / operands["ifmap"][0].size)


def channel_variance(_: ChannelMean, operands: Operands, box: Box) -> Tensor:
    ifmap, about = (_of(operands, name, box).astype(np.float64) for name in ("ifmap", "about"))
    return np.asarray(np.square(ifmap - about).mean(axis=(1, 2, 3), keepdims=True))


def channel_products(layer: ChannelProducts, operands: Operands, box: Box) -> Tensor:
    """Compute the sum of ifmap times other, less the channel's number where it is centred."""
    other = _of(operands, "other", box)
    return _summed(_of(operands, "ifmap", box) * (other - _of(operands, "about", box) if layer.centred else other))


def channel_masked_sums(_: ChannelMaskedSums, operands: Operands, box: Box) -> Tensor:
    """Compute the sums of the ifmap, and of ifmap times other, where a line of other is above zero."""
    gradient, other = (_of(operands, name, box) for name in ("ifmap", "other"))
    # In float32, as the machine rounds a line, so that both find the same sign.
    line, by, plus = (_of(operands, name, box).astype(np.float32) for name in ("other", "scale", "shift"))
    kept = gradient * (line * by + plus > 0)
    return np.concatenate([_summed(kept), _summed(kept * other)], axis=1)[:, box[1].start : box[1].stop]
