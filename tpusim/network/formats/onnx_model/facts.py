"""What is known of operators, and of a model's values beyond shapes: small constants, the axis of the channels,
folding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tpusim.network.formats.onnx_model.file import holds_values, opset_of

# ---- operators

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
_BY_VALUES = (
    "Acos Acosh AffineGrid Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow "
    "CenterCropPad Col2Im Compress Cosh CumProd DFT Det Einsum EyeLike GridSample HammingWindow HannWindow Hardmax "
    "MaxUnpool MelWeightMatrix NonMaxSuppression NonZero OneHot ReverseSequence RoiAlign STFT Scatter ScatterElements "
    "ScatterND Shrink Sinh Tan TensorScatter TopK Unique"
)
_OF_ML = "ai.onnx.ml.Normalizer ai.onnx.ml.Scaler"
_EVERY = _POOLING, _ACTIVATIONS, _NORMALIZATIONS, _ARITHMETIC, _REDUCTIONS, _MOVES, _BY_VALUES, _OF_ML

NOT_TIMED = frozenset(" ".join(_EVERY).split())
"""Operators that take no time, unless the vector unit computes them as layers (`vector_nodes`)."""

STAYING = frozenset({
    "Cast", "CastLike", "Concat", "Constant", "Dropout", "Expand", "Flatten", "Identity", "Reshape", "Shape", "Size",
    "Slice", "Split", "Squeeze", "Unsqueeze",
})  # fmt: skip
"""Operators whose results are read where their operands lie."""

_CHANNELS_FIRST = frozenset({
    "Conv", "ConvInteger", "ConvTranspose", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool",
    "BatchNormalization",
})  # fmt: skip
_FIXED = ("Constant", "Shape", "Size")
"""Operators whose values are known once shapes are."""
_WITH_WEIGHTS = frozenset({"Conv", "ConvTranspose", "Gemm"})
"""Operators whose weights take in a batch normalization behind them."""
_CHANNELS_LAST = frozenset({"Gemm", "MatMul", "MatMulInteger"})
_TURNS = frozenset({
    "DepthToSpace", "Expand", "Flatten", "Gather", "Reshape", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operators behind which any axis may be the channels."""
_NUMBERS = {"value_float": "f4", "value_floats": "f4", "value_int": "i8", "value_ints": "i8"}
"""Attributes of a Constant that are no tensors, and the type of their numbers."""
_MOST_AXES = 8
"""Most elements of a list of axes."""


# ---- a model


class Facts(NamedTuple):
    """The facts about a model beyond shapes.

    Attributes:
        constants: values that follow from weights and shapes alone.
        numbers: constants of one element, by name.
        lists: constants of a few whole numbers along one axis, or of one, which may be axes or sizes, by name.
        first: by value that comes of a convolution or product, whether its channels are axis 1, and not the last.
        merged: the results of batch normalizations that become part of the weights before them.
        opset: the version of its operators.
        nans: constants that hold what is no number, as far as they are small, or filled with it.
    """

    constants: frozenset[str]
    numbers: Mapping[str, float]
    lists: Mapping[str, tuple[int, ...]]
    first: Mapping[str, bool]
    merged: frozenset[str]
    opset: int
    nans: frozenset[str]

    @classmethod
    def of(cls, model: ModelProto, weights: frozenset[str]) -> Facts:
        """Collect the facts about the nodes of a model; `weights` are the names of all its weights."""
        graph, known = model.graph, _constants(model.graph)
        single = {name: each for name, each in known.items() if each.size == 1 and each.dtype.kind in "fiu"}
        lists, nans = lists_of(graph), {name for name, each in known.items() if _has_nan(each)}
        makers = {name: node.op_type for node in graph.node for name in node.output}
        uses = Counter([name for node in graph.node for name in node.input] + [each.name for each in graph.output])
        # Another reader would need the values before the normalization, which merged weights no longer give.
        alone = (each for each in graph.node if each.op_type == "BatchNormalization" and uses[each.input[0]] == 1)
        constants = {*weights}
        for node in graph.node:
            if node.op_type in _FIXED or (node.input and all(name in constants or not name for name in node.input)):
                constants.update(node.output)
                if any(name in nans for name in node.input) or any(_has_nan(each) for each in _filling(node)):
                    nans.update(node.output)
        return cls(
            frozenset(constants),
            {name: float(each.reshape(-1)[0]) for name, each in single.items()},
            lists,
            _channels_first(graph, lists),
            frozenset(each.output[0] for each in alone if makers.get(each.input[0]) in _WITH_WEIGHTS),
            opset_of(model),
            frozenset(nans),
        )


def _constants(graph: GraphProto) -> dict[str, NDArray[Any]]:
    """Return constants of few elements, by name."""
    few = {name: each for name, each in tensors_of(graph).items() if prod(each.dims) <= _MOST_AXES}
    return {name: numpy_helper.to_array(each) for name, each in few.items()}


def _has_nan(values: NDArray[Any]) -> bool:
    return values.dtype.kind == "f" and bool(np.isnan(values).any())


def _filling(node: NodeProto) -> Iterator[NDArray[Any]]:
    """Yield the number that a ConstantOfShape repeats."""
    if node.op_type == "ConstantOfShape":
        yield from (numpy_helper.to_array(each.t) for each in node.attribute if each.name == "value")


def lists_of(graph: GraphProto) -> dict[str, tuple[int, ...]]:
    """Return constants of a few whole numbers along one axis, or of one number, by name."""
    known = _constants(graph).items()
    return {name: tuple(map(int, np.ravel(each))) for name, each in known if each.ndim < 2 and each.dtype.kind in "iu"}


def tensors_of(graph: GraphProto) -> dict[str, TensorProto]:
    """Return the constants of a graph that stand in its file, by name."""
    tensors = {each.name: each for each in graph.initializer}
    for node in (node for node in graph.node if node.op_type == "Constant"):
        for each in node.attribute:
            if each.name == "value":
                tensors[node.output[0]] = each.t
            elif kind := _NUMBERS.get(each.name):
                numbers = np.array(helper.get_attribute_value(each), kind)
                tensors[node.output[0]] = numpy_helper.from_array(numbers)
    return {name: each for name, each in tensors.items() if holds_values(each)}


def _channels_first(graph: GraphProto, lists: Mapping[str, tuple[int, ...]]) -> dict[str, bool]:
    first: dict[str, bool] = {}
    for node in graph.node:
        known = [first[name] for name in node.input if name in first]
        if node.op_type in _CHANNELS_FIRST | _CHANNELS_LAST:
            first.update(dict.fromkeys(node.output, node.op_type in _CHANNELS_FIRST))
        elif known and (node.op_type not in _TURNS or (known[0] and _behind_channels(node, lists))):
            first.update(dict.fromkeys(node.output, known[0]))
    return first


def _behind_channels(node: NodeProto, lists: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether a node only adds or takes away axes of one element behind the channels, which come first."""
    axes = [axis for each in node.attribute if each.name == "axes" for axis in each.ints]
    axes += [int(axis) for name in node.input[1:] for axis in lists.get(name, ())]
    return node.op_type in ("Squeeze", "Unsqueeze") and len(axes) > 0 and min(axes) > 1
