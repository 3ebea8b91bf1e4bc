"""Two-dimensional pooling, straight from its definition: element by element of a window."""

from __future__ import annotations

import numpy as np

from tpusim.network.ops import Pool2d
from tpusim.reference.operands import Operands, Tensor, number_of


def compute(layer: Pool2d, operands: Operands, box: tuple[range, range, range, range]) -> Tensor:
    """out[c, y, x, n] = the largest of ifmap[c, y*s+i*d-p, x*s+j*d-p, n], or their sum times one by their count."""
    ifmap, (channels, rows, cols, images) = operands["ifmap"], box
    largest = layer.kind == "max"
    outputs = np.full([len(part) for part in box], -np.inf if largest else 0, number_of(ifmap))
    counts = np.zeros((len(rows), len(cols)), np.float32)
    part = ifmap[channels.start : channels.stop, :, :, images.start : images.stop]
    for i, j in np.ndindex(*layer.kernel):
        down, across = _stands(layer, 0, i, rows), _stands(layer, 1, j, cols)
        (high, wide), (_, height, width, _) = _padded(layer), ifmap.shape
        real = np.ix_((down >= 0) & (down < height), (across >= 0) & (across < width))
        near = np.ix_((down >= high[0]) & (down < high[1]), (across >= wide[0]) & (across < wide[1]))
        counts[near if layer.count_include_pad else real] += 1
        to_rows, to_cols = (each.ravel() for each in real)
        if not to_rows.size or not to_cols.size:
            continue
        elements = part[:, down[to_rows][:, None], across[to_cols]].astype(outputs.dtype)
        place = np.ix_(range(len(channels)), to_rows, to_cols, range(len(images)))
        outputs[place] = np.maximum(outputs[place], elements) if largest else outputs[place] + elements
    return outputs if largest else outputs * (1 / counts.astype(float)).astype(np.float32)[:, :, None]


def _stands(layer: Pool2d, axis: int, tap: int, outputs: range) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Which row, or column, a tap of some outputs stands on."""
    first = layer.axes[axis].ends[0]
    return np.array(outputs) * layer.stride[axis] + tap * layer.dilation[axis] - first


def _padded(layer: Pool2d) -> list[tuple[int, int]]:
    """The first padded row and the one after the last, then those of columns; as the padding is written."""
    sizes = layer.in_height, layer.in_width
    if isinstance(layer.padding, str):
        return [(-axis.ends[0], size + axis.ends[1]) for axis, size in zip(layer.axes, sizes, strict=True)]
    top, left, bottom, right = layer.padding if len(layer.padding) == 4 else (*layer.padding, *layer.padding)
    return [(-top, layer.in_height + bottom), (-left, layer.in_width + right)]
