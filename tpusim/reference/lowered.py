"""The lowered matrix of a convolution, straight from its definition: what the kernel sees of the padded ifmap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from tpusim.network.ops.array_op import ArrayOp, Conv2d
from tpusim.reference.conv2d import receptive_fields
from tpusim.reference.operands import Operand, Operands, Tensor, number_of

_Box: TypeAlias = tuple[range, range, range, range]
_Index: TypeAlias = tuple[int, ...]


def compute(layer: ArrayOp, operands: Operands, box: _Box) -> Tensor:
    """The part in `box` of the lowered matrix [k, row, col, image], k = (tap_row * kernel width + tap_col) * channels
    of a group + channel, group after group.
    """
    ifmap = operands["ifmap"]
    conv, _ = layer.convolution(ifmap.shape[-1])
    lowered = np.empty([len(part) for part in box], number_of(ifmap))
    for ks in _of_a_group(conv, box[0]):
        lowered[ks.start - box[0].start : ks.stop - box[0].start] = _group(conv, ifmap, (ks, *box[1:]))
    return lowered


def element_name(layer: ArrayOp, index: _Index) -> tuple[tuple[str, ...], _Index]:
    """Axes and index by which an element is known: whose copy it is, and for which output."""
    k, row, col, image = index
    conv, _ = layer.convolution(1)
    size, (height, width) = conv.in_channels // conv.groups, conv.kernel
    group, rest = divmod(k, height * width * size)
    tap, channel = divmod(rest, size)
    axes = ("channel", "tap_row", "tap_col", "row", "col", "image")
    return axes, (group * size + channel, *divmod(tap, width), row, col, image)


def _of_a_group(layer: Conv2d, ks: range) -> Iterator[range]:
    """`ks`, group by group."""
    size = layer.in_channels // layer.groups * layer.kernel[0] * layer.kernel[1]
    for group in range(ks.start // size, (ks.stop - 1) // size + 1):
        yield range(max(ks.start, group * size), min(ks.stop, (group + 1) * size))


def _group(layer: Conv2d, ifmap: Operand, box: _Box) -> Tensor:
    """The same, of one group."""
    size, (height, width) = layer.in_channels // layer.groups, layer.kernel
    group, first = divmod(box[0].start, height * width * size)
    ks = range(first, first + len(box[0]))
    taps = range(first // size, (ks.stop - 1) // size + 1)
    channels = range(first % size, (ks.stop - 1) % size + 1) if len(taps) == 1 else range(size)
    mine = ifmap[group * size + channels.start : group * size + channels.stop]
    fields = receptive_fields(layer, mine, box, number_of(ifmap))
    first -= taps.start * size + channels.start
    return np.concatenate([fields[divmod(tap, width)] for tap in taps])[first : first + len(ks)]
