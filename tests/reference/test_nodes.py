"""Functions of nodes against ONNX's own: its evaluator, and the cases that its backends are tested with."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tpusim.base.errors import InputError
from tpusim.network.formats.onnx_model.facts import NOT_TIMED
from tpusim.reference.nodes import NODES, Call, compute

OPSET = 20
LATER = {"GroupNormalization": 21, "RMSNormalization": 23, "Swish": 24}
"""What ONNX has, or has as it is now, since."""
RANDOM = np.random.default_rng(0)
MAPS = RANDOM.standard_normal((2, 4, 6, 5)).astype(np.float32)
INTS = np.array([1, 0, 3, 2], np.int64)

CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    *((op, [MAPS], {}) for op in (
        "Abs", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity",
        "LeakyRelu", "LogSoftmax", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin",
        "Softmax", "Softplus", "Softsign", "Tanh", "ThresholdedRelu", "GlobalAveragePool", "GlobalMaxPool", "IsNaN",
    )),
    *((op, [MAPS, np.array([1, -1])], {}) for op in (
        "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
        "ReduceSumSquare",
    )),
    *((op, [MAPS, MAPS[:1, :, :1]], {}) for op in ("Add", "Div", "Mul", "Sub", "Less", "Greater", "Max", "Min", "Sum")),
    ("Sqrt", [abs(MAPS)], {}), ("Log", [abs(MAPS)], {}), ("Pow", [abs(MAPS), MAPS[0]], {}),
    ("Gelu", [MAPS], {"approximate": "tanh"}), ("Clip", [MAPS, np.float32(-0.5), np.float32(0.25)], {}),
    ("Div", [np.array([7, -7, 8]), np.array([2, 2, -3])], {}), ("Mod", [np.array([7, -7]), np.array([3, 3])], {}),
    ("PRelu", [MAPS, MAPS[0, :, :1, :1]], {}), ("Where", [MAPS > 0, MAPS, -2 * MAPS], {}),
    ("ArgMax", [MAPS], {"axis": 2, "select_last_index": 1}), ("CumSum", [MAPS, np.int64(1)], {"reverse": 1}),
    ("InstanceNormalization", [MAPS, MAPS[0, :, 0, 0], MAPS[0, :, 1, 1]], {}),
    # The evaluator goes through as many channels as there are images.
    ("LRN", [MAPS[:, :2]], {"size": 3, "alpha": 0.5}),
    ("LayerNormalization", [MAPS, MAPS[0, 0], MAPS[1, 0]], {"axis": 2}), ("LpNormalization", [MAPS], {"p": 2}),
    ("MaxPool", [MAPS], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": 1}),
    ("MaxPool", [MAPS], {"kernel_shape": [2, 2], "strides": [2, 1], "auto_pad": "SAME_UPPER"}),
    ("AveragePool", [MAPS], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 1]}),
    ("AveragePool", [MAPS], {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0], "count_include_pad": 1}),
    # A tap further on, what a window reaches is another row or column, at the edges and in how many windows there are.
    ("MaxPool", [MAPS], {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 1, 0, 1]}),
    ("MaxPool", [MAPS], {"kernel_shape": [2, 2], "dilations": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    ("AveragePool", [MAPS], {"kernel_shape": [2, 3], "dilations": [3, 2]}),
    ("LpPool", [MAPS], {"kernel_shape": [3, 2], "strides": [1, 2], "p": 3}),
    ("Swish", [MAPS], {"alpha": 0.5}), ("Swish", [MAPS], {}),
    ("Gemm", [MAPS[0, 0], MAPS[0, 1], MAPS[0, 2, 0, 0]], {"transB": 1}),
    ("Gemm", [MAPS[0, 0], MAPS[0, 1], MAPS[0, 2, :5, 0]], {"transA": 1, "alpha": 0.5, "beta": 2.0}),
    ("GroupNormalization", [MAPS, MAPS[0, :, 0, 0], MAPS[0, :, 1, 1]], {"num_groups": 2}),
    ("Transpose", [MAPS], {"perm": [2, 0, 3, 1]}), ("Transpose", [MAPS[0]], {}), ("Flatten", [MAPS], {"axis": -2}),
    ("Squeeze", [MAPS[:1, :, :1], np.array([0, 2])], {}), ("Unsqueeze", [MAPS, np.array([0, -1])], {}),
    ("Reshape", [MAPS, np.array([0, -1, 10])], {}), ("Expand", [MAPS[:, :1], np.array([2, 3, 6, 1])], {}),
    ("Tile", [MAPS, np.array([1, 2, 1, 3])], {}), ("Concat", [MAPS, 2 * MAPS], {"axis": -2}),
    ("Slice", [MAPS, np.array([-1, 1]), np.array([-9, 4]), np.array([3, 1]), np.array([-2, 2])], {}),
    ("Pad", [MAPS, np.array([0, 1, 0, 2, 0, 0, 2, 1]), np.float32(7)], {}),
    ("Pad", [MAPS, np.array([2, 1, 1, 2]), None, np.array([2, 3])], {"mode": "edge"}),
    ("Gather", [MAPS, INTS[:2]], {"axis": 1}), ("GatherElements", [MAPS[0, 0, :, :4], INTS[None] - 2], {"axis": 0}),
    ("GatherND", [MAPS, np.array([[0, 1], [1, 3]])], {}), ("Trilu", [MAPS, np.int64(1)], {"upper": 0}),
    ("DepthToSpace", [MAPS], {"blocksize": 2, "mode": "CRD"}), ("SpaceToDepth", [MAPS[:, :, :, :4]], {"blocksize": 2}),
    ("Range", [np.float32(1), np.float32(-2), np.float32(-0.4)], {}), ("Cast", [MAPS], {"to": TensorProto.INT32}),
    ("Shape", [MAPS], {"start": 1, "end": -1}), ("Size", [MAPS], {}), ("ConstantOfShape", [np.array([2, 3])], {}),
    ("Resize", [MAPS, None, np.float32([1, 1, 1.5, 2])], {"mode": "linear"}),
    ("Resize", [MAPS, None, None, np.array([2, 4, 9, 3])], {"coordinate_transformation_mode": "align_corners"}),
    ("QuantizeLinear", [MAPS, np.float32(0.1), np.uint8(100)], {}),
    ("DequantizeLinear", [np.int8([[3], [-4]]), np.float32([0.5, 2]), np.int8([1, 0])], {"axis": 0}),
    # Numbers along an axis that is counted from the end, and the type of bytes where nothing tells it.
    ("QuantizeLinear", [MAPS, abs(MAPS[0, 0, :, 0]), np.int8([1, 0, -9, 5, 2, 3])], {"axis": -2}),
    ("QuantizeLinear", [MAPS, np.float32(0.01)], {}),
    ("DequantizeLinear", [INTS.astype(np.uint8), np.float32(0.5), np.uint8(2)], {}),
    *(("IsInf", [np.float32([-np.inf, 1, np.inf, np.nan])], {"detect_positive": up, "detect_negative": down})
      for up in (0, 1) for down in (0, 1)),
    ("Mod", [np.float32([7, -7, 5.5]), np.float32([3, 3, -2])], {"fmod": 1}), ("Mean", [MAPS, MAPS[:1], MAPS[1:]], {}),
    ("Elu", [MAPS], {"alpha": 0.5}), ("Celu", [MAPS], {"alpha": 0.5}), ("Selu", [MAPS], {"alpha": 1.5, "gamma": 2.0}),
    ("HardSigmoid", [MAPS], {"alpha": 0.5, "beta": 0.25}), ("LeakyRelu", [MAPS], {"alpha": 0.5}),
    ("ThresholdedRelu", [np.float32([0.5, 0.75, 1])], {"alpha": 0.75}), ("Clip", [MAPS, None, np.float32(0.5)], {}),
    ("Clip", [MAPS, np.float32(0.5)], {}), ("Clip", [MAPS], {}), ("Relu", [np.int8([-3, 0, 4])], {}),
    *((op, [np.float32([-1, 0, 2])], {}) for op in ("LeakyRelu", "Elu", "Celu", "Selu", "ThresholdedRelu", "Mish")),
    ("PRelu", [np.float32([-2, 0, 2]), np.float32([-0.5])], {}),
    *((op, [MAPS > 0, MAPS > 1], {}) for op in ("And", "Or", "Xor")), ("Not", [MAPS > 0], {}),
    *((op, [MAPS.round(), MAPS[::-1].round()], {}) for op in ("Equal", "LessOrEqual", "GreaterOrEqual")),
    *(("Cast", [np.float32([0, 1, 2.75])], {"to": to}) for to in (*range(1, 8), *range(9, 14))),
    ("CastLike", [MAPS, INTS], {}), ("Range", [np.int64(5), np.int64(1), np.int64(2)], {}),
    ("Range", [np.int32(1), np.int32(8), np.int32(3)], {}), ("Shape", [MAPS], {}),
    ("Reshape", [MAPS, np.array([0, 0, -1])], {}), ("Squeeze", [MAPS[:1, :, :1]], {}), ("Flatten", [MAPS], {}),
    ("Reshape", [MAPS[:0], np.array([3, 0])], {"allowzero": 1}), ("Flatten", [MAPS], {"axis": 0}),
    ("Slice", [MAPS, np.array([4, 3]), np.array([-9, 0]), np.array([2, 3]), np.array([-3, -1])], {}),
    ("Slice", [MAPS, np.array([0, 1]), np.array([1, 3])], {}), ("Gather", [MAPS, INTS[:1]], {}),
    ("Slice", [MAPS, np.array([4]), np.array([-6]), np.array([2]), np.array([-1])], {}),
    ("Pad", [MAPS, np.array([1, 2]), None, np.array([-1])], {"mode": "reflect"}),
    ("DepthToSpace", [MAPS], {"blocksize": 2}), ("Trilu", [MAPS], {}), ("Trilu", [MAPS, np.int64(-1)], {}),
    ("GatherND", [MAPS, INTS[:2, None]], {"batch_dims": 1}), ("Split", [MAPS[:, :3]], {"num_outputs": 1}),
    *((op, [MAPS], {}) for op in ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare")),
    *((op, [MAPS, np.array([1])], {"keepdims": 0}) for op in ("ReduceLogSumExp", "ReduceSum", "ReduceL2")),
    ("ReduceLogSum", [abs(MAPS), np.array([2])], {}), ("ReduceSum", [MAPS], {"noop_with_empty_axes": 1}),
    *((op, [np.float32([[1, 3, 3], [0, 0, -1]])], {"axis": 1, "select_last_index": last, "keepdims": 1 - last})
      for op in ("ArgMax", "ArgMin") for last in (0, 1)),
    ("ArgMin", [MAPS], {}), ("CumSum", [MAPS, np.int64(-1)], {"exclusive": 1}),
    ("CumSum", [MAPS, np.int64(2)], {"exclusive": 1, "reverse": 1}), ("Softmax", [MAPS], {"axis": 1}),
    ("MeanVarianceNormalization", [MAPS], {}), ("MeanVarianceNormalization", [MAPS], {"axes": [1, 3]}),
    ("BatchNormalization", [MAPS, *abs(MAPS[:, :, :2, 0].reshape(4, 4))], {"epsilon": 0.25}),
    ("BatchNormalization", [MAPS, *abs(MAPS[:, :, :2, 0].reshape(4, 4))], {}),
    ("InstanceNormalization", [MAPS, MAPS[0, :, 0, 0], MAPS[0, :, 1, 1]], {"epsilon": 0.25}),
    ("LayerNormalization", [MAPS, MAPS[0, 0, 0]], {"epsilon": 0.25}),
    ("LpNormalization", [abs(MAPS)], {"p": 1, "axis": 1}), ("LpNormalization", [0 * MAPS], {}),
    *(("LRN", [MAPS.reshape(4, 4, 3, 5)], {"size": size, "beta": 2.0, "bias": 0.5, "alpha": 2.0})
      for size in (2, 3, 5)),
    ("LRN", [9 * MAPS[:, :2]], {"size": 3}),
    ("MaxPool", [MAPS], {"kernel_shape": [2, 2], "auto_pad": "VALID"}),
    ("MaxPool", [MAPS[:, :, 0]], {"kernel_shape": [2], "strides": [3], "pads": [1, 1], "ceil_mode": 1}),
    ("AveragePool", [MAPS], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 0], "ceil_mode": 1,
                             "count_include_pad": 1}),
    ("LpPool", [MAPS], {"kernel_shape": [2, 2]}),
    ("Gemm", [MAPS[0, 0], MAPS[0, 1].T], {"alpha": 0.5}), ("Gemm", [MAPS[0, 0], MAPS[0, 1].T, MAPS[0, 0, :1, 0]], {}),
    ("MatMul", [MAPS, MAPS[:1].swapaxes(2, 3)], {}), ("RMSNormalization", [MAPS, MAPS[0, 0]], {"axis": 2}),
    ("RMSNormalization", [MAPS, MAPS[0, 0, 0]], {"epsilon": 0.25}),
    # Elements of the same number as before, but from other places, as scales say; and all ways to place them.
    ("Resize", [MAPS, None, np.float32([1, 1, 1.1, 0.9])], {"mode": "linear"}),
    *(("Resize", [MAPS, None, None, np.array([2, 4, to, 12])], {"mode": mode, "coordinate_transformation_mode": by})
      for mode in ("linear", "nearest") for to in (1, 4)
      for by in ("asymmetric", "align_corners", "half_pixel", "pytorch_half_pixel")),
    *(("Resize", [MAPS[0, 0], None, np.float32([1.5, 2.5])], {"nearest_mode": each})
      for each in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")),
    ("Resize", [MAPS[0, 0], None, None, np.array([3, 11])], {"axes": [1, 0], "mode": "linear"}),
]  # fmt: skip


def ours(node: NodeProto, operands: list[Any], opset: int) -> tuple[np.ndarray, ...]:
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    plain = {
        name: value.decode() if isinstance(value, bytes) else
        numpy_helper.to_array(value) if isinstance(value, TensorProto) else value
        for name, value in attributes.items()
    }  # fmt: skip
    return compute(node.op_type, Call(plain, len(node.output), opset), operands)


def by_evaluator(node: NodeProto, operands: Sequence[Any], opset: int) -> np.ndarray:
    given = {name: np.asarray(each) for name, each in zip(node.input, operands, strict=True) if each is not None}
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
              for name, each in given.items()]  # fmt: skip
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    (expected,) = ReferenceEvaluator(model).run(None, given)
    return expected


@pytest.mark.parametrize(
    ("op", "operands", "attributes"), CASES, ids=[f"{op}-{i}" for i, (op, _, _) in enumerate(CASES)]
)
def test_a_node_is_what_the_evaluator_makes_of_it(op: str, operands: list[Any], attributes: dict[str, Any]) -> None:
    opset = LATER.get(op, OPSET)
    node = helper.make_node(op, [f"x{at}" if each is not None else "" for at, each in enumerate(operands)], ["y"],
                            **attributes)  # fmt: skip
    expected = by_evaluator(node, operands, opset)
    (made,) = ours(node, [None if each is None else np.asarray(each) for each in operands], opset)
    assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(made, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4", "INT8", "UINT16"])
@pytest.mark.parametrize("along", ["all", "axis", "blocks", "no zero point"])
def test_numbers_of_few_bits_are_what_onnx_makes_of_them(kind: str, along: str) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, kind))
    scales = {"axis": MAPS[0, :, 0, 0], "blocks": MAPS[:, :, ::3]}.get(along, np.array(-0.3, np.float32))
    scale, said = np.abs(scales) + np.float32(0.2), {"axis": 2, "block_size": 3} if along == "blocks" else {}
    zero = [] if along == "no zero point" else [np.zeros(scale.shape, dtype)]
    held = np.abs(2 * MAPS).astype(dtype)
    each = np.repeat(scale, 3, 2) if along == "blocks" else scale.reshape(-1, 1, 1)
    (real,) = compute("DequantizeLinear", Call(said, 1, 21), [held, scale, *zero])
    np.testing.assert_allclose(real, held.astype(np.float32) * each, rtol=1e-6)
    said |= {} if zero else {"output_dtype": getattr(TensorProto, kind)}
    operands = [np.abs(MAPS), scale, *zero]
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"][: len(operands)], ["y"], **said)
    expected, (made,) = by_evaluator(node, operands, 21), compute("QuantizeLinear", Call(said, 1, 21), operands)
    assert made.dtype == expected.dtype == dtype
    np.testing.assert_array_equal(made.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_a_norm_over_whole_maps_keeps_their_axes(p: int) -> None:
    (made,) = compute("GlobalLpPool", Call({"p": p} if p != 2 else {}), [MAPS])
    expected = [[[[np.linalg.norm(each.ravel(), p)]] for each in image] for image in MAPS]
    np.testing.assert_allclose(made, expected, rtol=1e-5)
    assert made.shape == (2, 4, 1, 1)
    (made,) = compute("LpNormalization", Call({"p": p}), [MAPS])
    np.testing.assert_allclose(made * np.linalg.norm(MAPS, p, axis=-1, keepdims=True), MAPS, rtol=1e-5)


BYTES = np.arange(6, dtype=np.int8).reshape(1, 1, 2, 3)
BY_HAND: list[tuple[str, Call, list[Any], list[Any]]] = [
    # Bytes of a range that always has the zero in it, 255 steps wide.
    ("DynamicQuantizeLinear", Call(), [np.float32([-1, 0, 1.55])], [[0, 100, 255], 0.01, 100]),
    ("DynamicQuantizeLinear", Call(), [np.float32([1, 2, 5.1])], [[50, 100, 255], 0.02, 0]),
    ("DynamicQuantizeLinear", Call(), [np.float32([-1, -2, -5.1])], [[205, 155, 0], 0.02, 255]),
    ("DynamicQuantizeLinear", Call(), [np.float32([0, 0])], [[0, 0], 0, 0]),
    # Bytes have no infinity to stand beside the map.
    ("MaxPool", Call({"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}), [BYTES + np.int8(-128)],
     [[[[[-128, -127, -126], [-125, -124, -123]]]]]),
    # Of an odd number of columns that a map lacks, one more before it, or behind it.
    ("MaxPool", Call({"kernel_shape": [1, 2], "auto_pad": "SAME_LOWER"}), [BYTES], [[[[[0, 1, 2], [3, 4, 5]]]]]),
    ("MaxPool", Call({"kernel_shape": [1, 2], "auto_pad": "SAME_UPPER"}), [BYTES], [[[[[1, 2, 2], [4, 5, 5]]]]]),
    ("MaxPool", Call({"kernel_shape": [2, 2], "auto_pad": "VALID"}), [BYTES], [[[[[4, 5]]]]]),
    ("Dropout", Call(results=2), [np.float32([1, 2])], [[1, 2], [True, True]]),
    ("Dropout", Call(), [np.float32([1, 2]), np.float32(0.5), np.bool_(False)], [[1, 2]]),
    ("Split", Call({"axis": -1}, results=2), [BYTES], [[[[[0, 1], [3, 4]]]], [[[[2], [5]]]]]),
    ("Split", Call({"axis": 3}, results=2), [BYTES, np.array([1, 2])], [[[[[0], [3]]]], [[[[1, 2], [4, 5]]]]]),
    ("Constant", Call({"value_ints": [1, 2]}), [], [[1, 2]]), ("Constant", Call({"value_float": 0.5}), [], [0.5]),
    ("ConstantOfShape", Call({"value": np.int64([7])}), [np.array([2])], [[7, 7]]),
    ("Upsample", Call(opset=9), [BYTES, np.float32([1, 1, 2, 1])], [[[[[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]]]]]),
    # Before opset 11 scales are the second operand; before 13 axes from one on are one; before 21 scales go by group.
    ("Resize", Call(opset=10), [BYTES, np.float32([1, 1, 1, 0.67])], [[[[[0, 1], [3, 4]]]]]),
    ("Softmax", Call(opset=12), [np.log(np.float32([[[1, 2], [3, 4]]]))], [[[[0.1, 0.2], [0.3, 0.4]]]]),
    ("Softmax", Call({"axis": 2}, opset=12), [np.log(np.float32([[[1, 3], [1, 1]]]))], [[[[0.25, 0.75], [0.5, 0.5]]]]),
    ("GroupNormalization", Call({"num_groups": 1}, opset=18), [np.float32([[1, 3]]), np.float32([2]), np.float32([5])],
     [[[3, 7]]]),
    ("ReduceSum", Call({"axes": [1], "keepdims": 0}), [BYTES[0, 0]], [[3, 12]]),
    ("ReduceSum", Call({"keepdims": 0}), [BYTES[0, 0]], [15]),
    # The first of equal places, none of them in the padding; column by column, or an image and a channel further on.
    ("MaxPool", Call({"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}, 2), [0 * BYTES + np.int8(-128)],
     [[[[[-128] * 3] * 2]], [[[[0, 0, 1], [0, 0, 1]]]]]),
    ("MaxPool", Call({"kernel_shape": [2, 2], "storage_order": 1}, 2), [BYTES], [[[[[4, 5]]]], [[[[3, 5]]]]]),
    ("MaxPool", Call({"kernel_shape": [2], "strides": [2]}, 2), [BYTES.reshape(1, 3, 2)],
     [[[[1], [3], [5]]], [[[1], [3], [5]]]]),
    ("LayerNormalization", Call({"epsilon": 0.0}, 3), [np.float32([[1, 3], [2, 10]]), np.float32([2, 4])],
     [[[-2, 4], [-2, 4]], [[2], [6]], [[1], [0.25]]]),
    # A place from the end; places beyond either end are nowhere, and limits are numbers, or lists of one.
    ("OneHot", Call({"axis": 0}), [np.array([1, -1, 3, -4]), np.array([3]), np.float32([-1, 5])],
     [[[-1, -1, -1, -1], [5, -1, -1, -1], [-1, 5, -1, -1]]]),
    ("NonMaxSuppression", Call(), [np.float32([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]]]),
     np.float32([[[3, 2, 1]]]), np.array(3), np.float32(0.5)], [[[0, 0, 0], [0, 0, 2]]]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "call", "operands", "expected"), BY_HAND, ids=[f"{op}-{i}" for i, (op, *_) in enumerate(BY_HAND)]
)
def test_a_node_by_hand(op: str, call: Call, operands: list[Any], expected: list[Any]) -> None:
    made = compute(op, call, operands)
    assert [each.shape for each in made] == [np.shape(each) for each in expected]
    for one, wanted in zip(made, expected, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-5)


GRID = np.random.default_rng(1).uniform(-2.2, 2.2, (2, 5, 4, 2)).astype(np.float32)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_map_is_sampled_as_one_with_its_padding_written_out(mode: str, padding: str, aligned: int) -> None:
    """So that even the outermost places, and those that a cubic reads around them, are elements of a map."""
    more, (height, width) = 12, MAPS.shape[2:]
    ways = {"zeros": "constant", "border": "edge", "reflection": "reflect" if aligned else "symmetric"}
    around = np.pad(MAPS, [(0, 0), (0, 0), (more, more), (more, more)], ways[padding])  # type: ignore[call-overload]
    sizes = np.array([width, height]) - aligned
    larger = (GRID * sizes / (sizes + 2 * more)).astype(np.float32)
    said = {"mode": mode, "align_corners": aligned}
    (made,) = compute("GridSample", Call({**said, "padding_mode": padding}), [MAPS, GRID])
    (expected,) = compute("GridSample", Call(said), [around, larger])
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
    if (mode, padding) != ("cubic", "border"):
        # The evaluator moves places to the border before it looks around them; others look around the place itself.
        node = helper.make_node("GridSample", ["x", "g"], ["y"], **said, padding_mode=padding)
        np.testing.assert_allclose(made, by_evaluator(node, [MAPS, GRID], 20), rtol=1e-4, atol=1e-5)
    (former,) = compute("GridSample", Call({**said, "mode": f"bi{mode}", "padding_mode": padding}), [MAPS, GRID])
    np.testing.assert_array_equal(former, made)


def test_results_that_are_not_known_are_refused() -> None:
    with pytest.raises(InputError, match="it has 2 results, of which 1 are known here"):
        compute("Relu", Call(results=2), [MAPS])


PRODUCTS = {"ConvInteger", "Gemm", "MatMul", "MatMulInteger"}


def test_every_op_that_takes_no_time_has_a_function() -> None:
    """So have recurrent networks: no layer is one, but values go through them where --skip-unknown leaves them out."""
    assert {each for each in NODES if not each.startswith("lax.")} == NOT_TIMED | PRODUCTS | {"GRU", "LSTM"}


SEQUENCE = RANDOM.standard_normal((5, 2, 3)).astype(np.float32)


def both_ways(gates: int, *last: int) -> np.ndarray:
    """Operands of two directions and four outputs."""
    return RANDOM.standard_normal((2, 4 * gates, *last)).astype(np.float32)


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_a_recurrent_network_of_two_directions_is_one_of_each(op: str) -> None:
    """The other goes through the sequence from its end; each step's outputs stand at its place."""
    gates = 4 if op == "LSTM" else 3
    weights = both_ways(gates, 3), both_ways(gates, 4), both_ways(2 * gates)
    every, last = compute(op, Call({"direction": "bidirectional"}), [SEQUENCE, *weights])[:2]
    one, end = compute(op, Call(), [SEQUENCE, *(each[:1] for each in weights)])[:2]
    other, start = compute(op, Call(), [SEQUENCE[::-1], *(each[1:] for each in weights)])[:2]
    np.testing.assert_allclose(every, np.concatenate([one, other[::-1]], 1), rtol=1e-6)
    np.testing.assert_allclose(last, np.concatenate([end, start]), rtol=1e-6)
    turned = compute(op, Call({"layout": 1}), [SEQUENCE.swapaxes(0, 1), *(each[:1] for each in weights)])[0]
    np.testing.assert_allclose(turned.transpose(1, 2, 0, 3), one, rtol=1e-6)
    given = [SEQUENCE, *(each[:1] for each in weights)]
    names = [f"x{at}" for at in range(4)]
    node = helper.make_node(op, names, ["", "y"], hidden_size=4)
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, each.shape)
        for name, each in zip(names, given, strict=True)
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    (expected,) = ReferenceEvaluator(helper.make_model(graph)).run(None, dict(zip(names, given, strict=True)))
    np.testing.assert_allclose(end, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Resize", [MAPS, None, np.float32([1, 1, 2, 2])], {"mode": "cubic"}),
        ("Cast", [MAPS], {"to": TensorProto.BFLOAT16}),
        ("BatchNormalization", [MAPS, *[MAPS[0, :, 0, 0]] * 4], {"training_mode": 1}),
        ("Dropout", [MAPS, np.float32(0.5), np.bool_(True)], {}),
        ("LSTM", [MAPS[0], MAPS[:1, 0], MAPS[:1, 0], None, np.array([4, 3])], {}),
        ("GRU", [MAPS[0], MAPS[:1, 0], MAPS[:1, 0]], {"activations": ["Relu", "Tanh"]}),
    ],
)
def test_what_is_not_known_is_refused(op: str, operands: list[Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        compute(op, Call(attributes), operands)


def test_negative_padding_cuts_off() -> None:
    (made,) = compute("Pad", Call(), [MAPS[0, 0], np.array([-1, 2, 1, -3]), np.float32(9)])
    expected = np.full((6, 4), 9, np.float32)
    expected[:5, 2:] = MAPS[0, 0, 1:, :2]
    np.testing.assert_array_equal(made, expected)


ELSEWHERE = (
    # Of types that NumPy has not.
    "FLOAT8", "INT4", "INT2", "FLOAT4", "BFLOAT16", "E8M0", "e4m3", "e5m2", "int4", "int2", "float4", "blocked",
    # Refused.
    "cubic", "antialias", "tf_crop", "half_pixel_symmetric", "not_larger", "not_smaller", "argmax_2d_precomputed",
    "training",
    # Of nothing, the largest and the smallest are not told.
    "max_empty_set", "min_empty_set",
    # Layers alone compute it.
    "convinteger",
    # Few digits of the expected numbers.
    "roialign", "ceil_last_window_starts_on_pad",
)  # fmt: skip


def _named(made: Sequence[np.ndarray], node: NodeProto) -> list[np.ndarray]:
    """Results that somebody asks for."""
    return [each for each, name in zip(made, node.output, strict=False) if name]


@pytest.mark.long
def test_the_cases_that_backends_are_tested_with() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        every = collect_testcases(None)
    done: Counter[str] = Counter()
    for case in every:
        (node, *others), opset = case.model.graph.node, case.model.opset_import[0]
        known = not others and not node.domain and not opset.domain and node.op_type in NODES
        if not known or any(word in case.name for word in ELSEWHERE):
            continue
        for inputs, outputs in case.data_sets:
            if any(isinstance(each, TensorProto) for each in (*inputs, *outputs)):
                continue
            given = dict(zip((each.name for each in case.model.graph.input), inputs, strict=True))
            made = ours(node, [np.asarray(given[name]) if name else None for name in node.input], opset.version)
            for one, expected in zip(_named(made, node), map(np.asarray, outputs), strict=False):
                assert (one.shape, one.dtype) == (expected.shape, expected.dtype), case.name
                near = 1e-2 if one.dtype == np.float16 else 1e-4
                np.testing.assert_allclose(one, expected, rtol=near, atol=1e-5, err_msg=case.name)
        done[node.op_type] += 1
    assert sum(done.values()) > 600
    assert len(done) > 100


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8])
def test_whole_numbers_are_divided_towards_zero_up_to_the_least_of_their_type(dtype: Any) -> None:
    ends = np.iinfo(dtype)
    one = np.array([ends.min, ends.max, 7, ends.max // 2], dtype)
    other = np.array([3, 5, ends.max, 2], dtype)
    (made,) = ours(helper.make_node("Div", ["a", "b"], ["y"]), [one, other], OPSET)
    assert made.dtype == dtype
    exact = (abs(int(a)) // int(b) * (1 if a >= 0 else -1) for a, b in zip(one, other, strict=True))
    assert made.tolist() == [*exact]
