"""The oracle: each op straight from its definition, in vectorised NumPy.

Shares no code with the lowering, the data path or the engines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpusim.network.ops import Op
from tpusim.reference import conv2d, gemm
from tpusim.reference.operands import Tensor, operands

__all__ = ["ORACLES", "Tensor", "compute", "operands"]

ORACLES: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {"conv2d": conv2d.compute, "gemm": gemm.compute}
"""By the name of the op in files."""


def compute(layer: Op, ifmap: Tensor, filter_: Tensor) -> Tensor:
    """The ofmap of a layer, [out_channel, row, col, image]."""
    return ORACLES[layer.op](layer, ifmap, filter_)
