"""Operators of ONNX that are known not to be the array's: the vector unit's, or what only moves values."""

from __future__ import annotations

_POOLING = "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool"
_ACTIVATIONS = (
    "Celu Clip Elu Erf Gelu HardSigmoid HardSwish LeakyRelu LogSoftmax Mish PRelu Relu Selu Sigmoid Softmax Softplus "
    "Softsign Swish Tanh ThresholdedRelu"
)
_NORMALIZATIONS = (
    "BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization "
    "MeanVarianceNormalization RMSNormalization"
)
_ARITHMETIC = (
    "Abs Add And Ceil Cos Div Equal Exp Floor Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Log Max Mean Min Mod "
    "Mul Neg Not Or Pow Reciprocal Round Sign Sin Sqrt Sub Sum Where Xor"
)
_REDUCTIONS = (
    "ArgMax ArgMin CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
)
_MOVES = (
    "Cast CastLike Concat Constant ConstantOfShape DepthToSpace DequantizeLinear Dropout DynamicQuantizeLinear Expand "
    "Flatten Gather GatherElements GatherND Identity Pad QuantizeLinear Range Reshape Resize Shape Size Slice "
    "SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Upsample"
)

NOT_TIMED = frozenset(" ".join((_POOLING, _ACTIVATIONS, _NORMALIZATIONS, _ARITHMETIC, _REDUCTIONS, _MOVES)).split())
"""They take no time, but for those of them that the vector unit computes as layers (vector_nodes.py)."""
