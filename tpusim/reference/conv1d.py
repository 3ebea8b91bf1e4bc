"""The 1-D convolution, straight from its definition."""

from __future__ import annotations

import numpy as np

from tpusim.network.ops.conv1d import Conv1d
from tpusim.reference.operands import Operands, Tensor, number_of


def compute(layer: Conv1d, operands: Operands, box: tuple[range, range, range, range]) -> Tensor:
    """out[o, 0, x, n] = sum over c, j of filter[o, 0, j, c] * ifmap[c, 0, x*s+j*d-p, n], group by group, in `box`."""
    ifmap, filter_ = operands["ifmap"], operands["filter"]
    channels, _, positions, images = box
    sums = np.zeros((len(channels), len(positions), len(images)), number_of(ifmap, filter_))
    into, out = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    for group in range(channels.start // out, (channels.stop - 1) // out + 1):
        own = range(max(channels.start, group * out), min(channels.stop, (group + 1) * out))
        place = sums[own.start - channels.start : own.stop - channels.start]
        sequence = ifmap[group * into : (group + 1) * into, 0, :, images.start : images.stop]
        for tap in range(layer.kernel):
            at = np.array(positions) * layer.stride + tap * layer.dilation - layer.axis.ends[0]
            real = np.flatnonzero((at >= 0) & (at < layer.in_length))
            weights = filter_[own.start : own.stop, 0, tap].astype(sums.dtype)
            place[:, real] += np.tensordot(weights, sequence[:, at[real]].astype(sums.dtype), 1)
    return sums[:, None]
