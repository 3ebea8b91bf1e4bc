"""The 2-D convolution, straight from its definition."""

from __future__ import annotations

import numpy as np

from tpusim.network.ops import Conv2d
from tpusim.reference.operands import Tensor

CHUNK_ELEMENTS = 1 << 19
"""The receptive fields of about this many elements are gathered at a time, to stay within the cache."""


def compute(layer: Conv2d, ifmap: Tensor, filter_: Tensor) -> Tensor:
    """out[o, y, x, n] = sum over c, i, j of filter[o, i, j, c] * ifmap[c, y*s+i*d-p, ...], group by group."""
    (ph, pw), (sh, sw), (dh, dw) = layer.padding, layer.stride, layer.dilation
    if ph or pw:
        ifmap = np.pad(ifmap, ((0, 0), (ph, ph), (pw, pw), (0, 0)))
    reach = [(taps - 1) * step + 1 for taps, step in zip(layer.kernel, layer.dilation, strict=True)]
    fields = np.lib.stride_tricks.sliding_window_view(ifmap, reach, axis=(1, 2))
    fields = fields[:, ::sh, ::sw, :, ::dh, ::dw].transpose(4, 5, 0, 1, 2, 3)
    outputs = np.empty((len(filter_), *fields.shape[3:]), dtype=np.float32)
    channels = np.split(fields, layer.groups, axis=2)
    for group in zip(channels, np.split(filter_, layer.groups), np.split(outputs, layer.groups), strict=True):
        _convolve_group(*group)
    return outputs


def _convolve_group(fields: Tensor, filter_: Tensor, outputs: Tensor) -> None:
    """fields [kh, kw, c, h, w, n], a view; a few output rows at a time."""
    taps = int(np.prod(fields.shape[:3]))
    weights = filter_.reshape(filter_.shape[0], taps)
    row = int(np.prod(fields.shape[4:]))
    height = max(1, CHUNK_ELEMENTS // (taps * row))
    flat = outputs.reshape(len(outputs), -1)
    for top in range(0, fields.shape[3], height):
        part = fields[:, :, :, top : top + height].reshape(taps, -1)
        np.matmul(weights, part, out=flat[:, top * row : top * row + part.shape[1]])
