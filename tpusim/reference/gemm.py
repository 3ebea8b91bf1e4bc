"""The matrix product, straight from its definition."""

from __future__ import annotations

import numpy as np

from tpusim.network.ops import Gemm
from tpusim.reference.operands import Operands, Tensor, number_of

MOST_ELEMENTS = 1 << 22
"""Factors of about this many elements are multiplied at a time, so that long sums take no more memory."""


def compute(layer: Gemm, operands: Operands, box: tuple[range, range, range, range]) -> Tensor:
    """The part [n, 1, 1, m] in `box` of the product of the ifmap [k, 1, 1, m] and the filter [n, 1, 1, k]."""
    ifmap, filter_ = operands["ifmap"], operands["filter"]
    cols, _, _, rows = box
    first, second = filter_[cols.start : cols.stop, 0, 0], ifmap[:, 0, 0, rows.start : rows.stop]
    product = np.zeros((len(cols), len(rows)), number_of(ifmap))
    step = max(1, MOST_ELEMENTS // (len(cols) + len(rows)))
    for at in range(0, layer.k, step):
        product += first[:, at : at + step].astype(product.dtype) @ second[at : at + step].astype(product.dtype)
    return product[:, None, None, :]
