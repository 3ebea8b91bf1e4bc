"""The ops that layers of a network may be; a new one is a module here, a line below, and its oracle in reference/."""

from __future__ import annotations

from tpusim.network.ops.activations import Clip, Copy, HardSigmoid, HardSwish, LeakyRelu, Power, Relu
from tpusim.network.ops.arithmetic import Add, Div, Mul, Rdiv, Rsub, Sub
from tpusim.network.ops.array_op import ArrayOp, Tensors
from tpusim.network.ops.conv1d import Conv1d
from tpusim.network.ops.conv2d import Conv2d
from tpusim.network.ops.conv_transpose2d import ConvTranspose2d
from tpusim.network.ops.deform_conv2d import DeformConv2d
from tpusim.network.ops.functions import Erf, Exp, Gelu, Sigmoid, Silu, Sqrt, Tanh
from tpusim.network.ops.fused import Fused
from tpusim.network.ops.gemm import Gemm
from tpusim.network.ops.lrn import Lrn
from tpusim.network.ops.moves import ChannelShuffle, Move, Pad, Slice, Transpose, Upsample
from tpusim.network.ops.op import Index, Op
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.ops.row_op import RowOp
from tpusim.network.ops.rows import LayerNorm, ReduceMean, Softmax, SumExp, SumSquares
from tpusim.network.ops.scale_shift import ScaleShift
from tpusim.network.ops.vector_op import VectorOp

__all__ = [
    "OPS", "Add", "ArrayOp", "ChannelShuffle", "Clip", "Conv1d", "Conv2d", "ConvTranspose2d", "Copy", "DeformConv2d",
    "Div", "Erf", "Exp", "Fused", "Gelu", "Gemm", "HardSigmoid", "HardSwish", "Index", "LayerNorm", "LeakyRelu", "Lrn",
    "Move", "Mul", "Op", "Pad", "Pool2d", "Power", "Rdiv", "ReduceMean", "Relu", "RowOp", "Rsub", "ScaleShift",
    "Sigmoid", "Silu", "Slice", "Softmax", "Sqrt", "Sub", "SumExp", "SumSquares", "Tanh", "Tensors",
    "Transpose", "Upsample", "VectorOp",
]  # fmt: skip

OPS: dict[str, type[Op]] = {
    kind.op: kind
    for kind in (
        *(Conv2d, Conv1d, ConvTranspose2d, DeformConv2d, Gemm),
        *(Pool2d, Add, Sub, Rsub, Mul, Div, Rdiv, ScaleShift, Relu, LeakyRelu, Clip, Power, HardSigmoid, HardSwish),
        *(Exp, Sqrt, Tanh, Erf, Sigmoid, Silu, Gelu),
        *(Softmax, LayerNorm, ReduceMean, SumExp, SumSquares, Lrn, Copy),
        *(Transpose, ChannelShuffle, Slice, Pad, Upsample),
    )
}
"""By their names in files."""
