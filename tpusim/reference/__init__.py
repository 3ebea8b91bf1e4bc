"""The oracle: each op straight from its definition, in vectorised NumPy.

Shares no code with the lowering, the data path or the engines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tpusim.network.ops import Op
from tpusim.reference import conv2d, gemm
from tpusim.reference.operands import Operand, Tensor, operands

__all__ = ["ORACLES", "Box", "Operand", "Tensor", "compute", "operands"]

Box: TypeAlias = tuple[range, range, range, range]
"""Neighbouring channels, rows, columns and images of an ofmap."""

ORACLES: dict[str, Callable[[Any, Operand, Operand, Box], Tensor]] = {"conv2d": conv2d.compute, "gemm": gemm.compute}
"""By the name of the op in files."""


def compute(layer: Op, ifmap: Operand, filter_: Operand, box: Box | None = None) -> Tensor:
    """The ofmap of a layer, [out_channel, row, col, image]; with `box`, only what lies in it."""
    channels, rows, cols, images = map(range, layer.tensors(ifmap.shape[-1]).ofmap)
    return ORACLES[layer.op](layer, ifmap, filter_, box or (channels, rows, cols, images))
