"""The matrix product, straight from its definition."""

from __future__ import annotations

from tpusim.network.ops import Gemm
from tpusim.reference.operands import Tensor


def compute(layer: Gemm, ifmap: Tensor, filter_: Tensor) -> Tensor:
    """The product [n, 1, 1, m] of the ifmap [k, 1, 1, m] and the filter [n, 1, 1, k]."""
    return (filter_[:, 0, 0, :] @ ifmap[:, 0, 0, :])[:, None, None, :]
