"""The matrix product, straight from its definition."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np

from tpusim.network.ops.array_op import Gemm
from tpusim.reference.operands import Operands, Tensor, number_of

_Box: TypeAlias = tuple[range, range, range, range]

MOST_ELEMENTS = 1 << 22
"""Factors of about this many elements are multiplied at a time, so that long sums take no more memory."""


def compute(layer: Gemm, operands: Operands, box: _Box) -> Tensor:
    """The part [n, 1, 1, m] in `box` of the product of the ifmap [k, 1, 1, m] and the filter [n, 1, 1, k]."""
    return np.asarray(shares(layer, operands, box, 1)[0])


def shares(layer: Gemm, operands: Operands, box: _Box, count: int) -> Tensor:
    """The same sums in `count` shares [share, n, 1, 1, m], of as many products each but for one; there are as many."""
    ifmap, filter_ = operands["ifmap"], operands["filter"]
    cols, _, _, rows = box
    first, second = filter_[cols.start : cols.stop, 0, 0], ifmap[:, 0, 0, rows.start : rows.stop]
    products = np.zeros((count, len(cols), len(rows)), number_of(ifmap, filter_))
    ends = [number * layer.k // count for number in range(count + 1)]
    step = max(1, MOST_ELEMENTS // (len(cols) + len(rows)))
    for product, (start, stop) in zip(products, pairwise(ends), strict=True):
        for at in range(start, stop, step):
            mine = slice(at, min(at + step, stop))
            factors = (each.astype(product.dtype, copy=False) for each in (first[:, mine], second[mine]))
            product += np.matmul(*factors)
    return products[:, :, None, None, :]
