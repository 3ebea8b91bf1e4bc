"""The ops that layers of a network may be; a new one is a module here, a line below, and its oracle in reference/."""

from __future__ import annotations

from tpusim.network.ops.array_op import ArrayOp, Tensors
from tpusim.network.ops.conv1d import Conv1d
from tpusim.network.ops.conv2d import Conv2d
from tpusim.network.ops.conv_transpose2d import ConvTranspose2d
from tpusim.network.ops.deform_conv2d import DeformConv2d
from tpusim.network.ops.gemm import Gemm
from tpusim.network.ops.op import Index, Op

__all__ = ["OPS", "ArrayOp", "Conv1d", "Conv2d", "ConvTranspose2d", "DeformConv2d", "Gemm", "Index", "Op", "Tensors"]

OPS: dict[str, type[Op]] = {kind.op: kind for kind in (Conv2d, Conv1d, ConvTranspose2d, DeformConv2d, Gemm)}
"""By their names in files."""
