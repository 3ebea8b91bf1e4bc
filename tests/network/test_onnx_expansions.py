"""Operators that are written out as others: integer products and convolutions, normalizations of groups, and what
exporters put in the place of several.

ONNX's own are held against its evaluator. Those of the domain com.microsoft are held against ONNX Runtime 1.32, whose
results lie in `onnx_runtime.npz`; with it installed, `python -m tests.network.test_onnx_expansions` writes them anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.covering import covering, few
from tests.network.evaluated import made_of, same_as_evaluator, through_layers, written
from tests.network.test_onnx_models import node
from tests.strategies import cases
from tpusim import Conv2d, Gemm, load_hardware, load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.network.formats import ModelOptions
from tpusim.network.formats.onnx_model.expansions import EXPANSIONS
from tpusim.network.workload_file import open_workload

PAPERS = load_hardware("tpu_v2", ["mapping.search=estimate"])
REDUCTIONS = "ReduceMax", "ReduceMin", "ReduceSum", "ReduceL2", "ReduceSumSquare"
WITNESS = Path(__file__).parent / "onnx_runtime.npz"


def drawn(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def reals(*shape: int) -> np.ndarray:
    return drawn(sum(shape)).standard_normal(shape, np.float32)


def words(*shape: int) -> np.ndarray:
    """Bytes from 0 to 255."""
    return drawn(sum(shape)).integers(0, 256, shape).astype(np.uint8)


def signed(*shape: int) -> np.ndarray:
    """Bytes from -128 to 127."""
    return drawn(sum(shape)).integers(-128, 128, shape).astype(np.int8)


# ---- bytes: sums are exact in both engines, in a run of any type


SUMS_OF_BYTES = (
    ("MatMulInteger", words(4, 16), {"w": signed(16, 8)}),
    ("ConvInteger", words(2, 3, 6, 5), {"w": words(4, 3, 3, 3), "a": np.uint8(100), "b": np.uint8(120)}),
    ("MatMulInteger", words(4, 300), {"w": signed(300, 8), "a": np.uint8(128), "b": np.int8(3)}),
    ("MatMulInteger", words(2, 4, 30), {"w": words(30, 8), "a": np.uint8(7), "b": words(8)}),
    ("ConvInteger", words(1, 3, 9), {"w": words(4, 3, 3), "a": np.uint8(9)}),
    ("MatMulInteger", signed(3, 5), {"w": signed(2, 5, 4)}),
)


@pytest.mark.parametrize(
    ("sums", "how"), covering(1, SUMS_OF_BYTES, [("event", "f32"), ("register", "bf16"), ("event", "int8")])
)
def test_sums_of_bytes_are_those_of_onnx(
    tmp_path: Path, sums: tuple[str, np.ndarray, dict[str, Any]], how: tuple[str, str]
) -> None:
    (op, x, constants), (engine, dtype) = sums, how
    said = {"pads": [1] * 2 * (x.ndim - 2)} if op == "ConvInteger" else {}
    model = made_of([helper.make_node(op, ["x", *constants], ["y"], **said)], {"x": x}, constants)
    work = same_as_evaluator(tmp_path, model, {"x": x}, near=0, engine=engine, dtype=dtype)
    assert [layer.unit for layer in work.layers] == ["array"]


def test_both_factors_may_be_given(tmp_path: Path) -> None:
    arrays = {"x": signed(2, 3, 4, 6), "w": signed(2, 3, 6, 5)}
    model = made_of([node("MatMulInteger", "x w zero")], arrays, {"zero": np.int8(-7)})
    assert same_as_evaluator(tmp_path, model, arrays, near=0).layers[0] == Gemm("matmulinteger_y", 4, 5, 6, 6)


def test_a_sum_of_bytes_may_be_larger_than_float32_holds_exactly(tmp_path: Path) -> None:
    x = np.full((1, 2000), 255, np.uint8)
    x[0, 0] = 254
    model = made_of([node("MatMulInteger", "x w")], {"x": x}, {"w": np.full((2000, 1), 127, np.int8)})
    same_as_evaluator(tmp_path, model, {"x": x}, near=0)


SCALES = {"s": np.float32(0.02), "z": np.uint8(100), "t": np.float32(0.01), "u": np.float32(0.3), "v": np.uint8(128)}


@pytest.mark.parametrize("columns", [1, 8])
def test_a_quantized_product_is_a_layer_of_bytes(tmp_path: Path, columns: int) -> None:
    constants = SCALES | {"w": signed(16, 8), "t": np.abs(reals(columns)) / 50, "o": np.zeros(columns, np.int8)}
    constants |= {"t": constants["t"].reshape(()), "o": np.int8(0)} if columns == 1 else {}
    model = made_of([node("QLinearMatMul", "x s z w t o u v")], {"x": words(4, 16)}, constants)
    work = same_as_evaluator(tmp_path, model, {"x": words(4, 16)}, near=0)
    assert work.layers[0].text == "4x16>8"


def test_a_quantized_convolution_is_a_layer_of_bytes(tmp_path: Path) -> None:
    bias = drawn().integers(-999, 999, 6).astype(np.int32)
    constants = SCALES | {"w": signed(6, 3, 3, 3), "t": np.abs(reals(6)) / 50, "o": np.zeros(6, np.int8), "b": bias}
    x = words(1, 3, 8, 8)
    model = made_of([node("QLinearConv", "x s z w t o u v b", pads=[1] * 4)], {"x": x}, constants)
    work, outputs = through_layers(written(tmp_path, model), {"x": x})
    assert isinstance(work.layers[0], Conv2d)
    # ONNX's evaluator adds the bias after it has scaled the sums, so that the two may round apart.
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert np.abs(outputs["y"].astype(int) - expected).max() <= 1


# ---- normalizations of groups


@pytest.mark.parametrize("opset", [11, 17, 22])
def test_each_channel_of_an_image_is_a_row_that_is_normalized(tmp_path: Path, opset: int) -> None:
    constants = {"g": reals(6), "b": reals(6) + 1}
    for x in (reals(2, 6, 4, 3), reals(2, 6, 7)):
        model = made_of([node("InstanceNormalization", "x g b", epsilon=1e-3)], {"x": x}, constants, opset)
        work = same_as_evaluator(tmp_path, model, {"x": x})
        assert [layer.op for layer in work.layers] == ["layer_norm", "mul", "add"]


@pytest.mark.parametrize(("opset", "numbers"), [(18, 3), (21, 6)])
def test_groups_of_channels_are_rows_that_are_normalized(tmp_path: Path, opset: int, numbers: int) -> None:
    x, constants = reals(2, 6, 4, 3), {"g": reals(numbers), "b": reals(numbers) + 1}
    model = made_of([node("GroupNormalization", "x g b", num_groups=3)], {"x": x}, constants, opset)
    work = same_as_evaluator(tmp_path, model, {"x": x})
    assert [layer.text for layer in work.layers[:1]] == ["6x24"]


# ---- reductions


@pytest.mark.parametrize(("op", "opset", "keepdims"), covering(2, REDUCTIONS, [12, 13, 18], [0, 1]))
def test_a_reduction_of_all_of_an_image_is_one_by_channels_first(
    tmp_path: Path, op: str, opset: int, keepdims: int
) -> None:
    """In one piece it would be a window of a single channel, larger than the memory of a lane."""
    arrays, axes = {"x": reals(2, 20, 10, 12)}, np.array([1, -2, -1])
    by_operand = opset >= (13 if op == "ReduceSum" else 18)
    said = {} if by_operand else {"axes": axes.tolist()}
    made = helper.make_node(op, ["x"] if said else ["x", "axes"], ["y"], keepdims=keepdims, **said)
    work = same_as_evaluator(
        tmp_path, made_of([made], arrays, {} if said else {"axes": axes}, opset), arrays, near=1e-4
    )
    # A root of one number for each image is of one axis, and no map.
    assert {*dict(work.not_timed)} == ({"Sqrt"} if op == "ReduceL2" and not keepdims else set())
    reduced = [layer.op for layer in work.layers if layer.op in ("pool2d", "channel_sum")]
    assert reduced == (["pool2d"] * 2 if op in ("ReduceMax", "ReduceMin") else ["channel_sum"] * 2)


@pytest.mark.parametrize(
    ("reduced", "layers"),
    few(2, [
        (node("GlobalMaxPool", "a"), 1), (node("GlobalAveragePool", "a"), 1),
        (helper.make_node("ReduceMax", ["a"], ["y"], axes=[2, 3]), 1),
        (helper.make_node("ReduceMean", ["a"], ["y"], axes=[1, 2, 3]), 1),
        (helper.make_node("ReduceMin", ["a"], ["y"], axes=[-1, -2], keepdims=0), 1),
        (helper.make_node("ReduceMean", ["a"], ["y"], axes=[2, 3]), 1),
    ]),
)  # fmt: skip
def test_what_one_lane_cannot_hold_is_a_layer(tmp_path: Path, reduced: NodeProto, layers: int) -> None:
    """A pool of all of a map of 112 x 112 needs 12,545 words of a lane, and the paper's machine has 8,192."""
    arrays = {"x": reals(1, 2, 112, 112)}
    model = made_of([node("Conv", "x w", "a"), reduced], arrays, {"w": reals(3, 2, 1, 1)})
    work = same_as_evaluator(tmp_path, model, arrays, near=1e-4)
    assert len(work.layers) == 1 + layers
    assert not work.not_timed
    assert simulate(work, PAPERS, check=False).total.cycles


def test_a_pool_that_a_lane_can_hold_is_one_layer(tmp_path: Path) -> None:
    small = {"x": reals(1, 2, 60, 60)}
    model = made_of([node("Conv", "x w", "a"), node("GlobalAveragePool", "a")], small, {"w": reals(3, 2, 1, 1)})
    work = same_as_evaluator(tmp_path, model, small, near=1e-4)
    assert len(work.layers) == 2
    assert simulate(work, PAPERS, check=False).total.cycles


@pytest.mark.parametrize("axes", [[1], [2, 3], [-1], [0, 1, 2, 3]])
def test_a_root_of_a_sum_of_squares_is_what_the_standard_says(tmp_path: Path, axes: list[int]) -> None:
    arrays = {"x": reals(2, 5, 4, 6)}
    nodes = [node("Relu", "x", "r"), helper.make_node("ReduceL2", ["r"], ["y"], axes=axes)]
    same_as_evaluator(tmp_path, made_of(nodes, arrays, {}), arrays)


def test_a_sum_of_squares_of_whole_numbers_takes_no_time(tmp_path: Path) -> None:
    arrays = {"x": np.arange(24, dtype=np.int64).reshape(2, 3, 4), "r": reals(2, 3)}
    nodes = [node("Relu", "r", "s"), helper.make_node("ReduceSumSquare", ["x"], ["y"], axes=[2])]
    work = same_as_evaluator(tmp_path, made_of(nodes, arrays, {}, outputs=["y", "s"]), arrays)
    assert work.not_timed == (("ReduceSumSquare", 1),)


# ---- sums over named axes, and operators that the standard itself defines as others


@settings(deadline=None, max_examples=cases(1 / 2), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_sums_over_named_axes_are_products(tmp_path: Path, data: st.DataObject) -> None:
    """Of axes that both operands have and the result too, that the result has not, and that one operand has."""
    outer, inner, rows, cols = (data.draw(st.integers(low, 2)) for low in (0, 1, 0, 0))
    names = [chr(ord("a") + at) for at in range(outer + inner + rows + cols)]
    both, summed = names[:outer], names[outer : outer + inner]
    own = names[outer + inner : outer + inner + rows], names[outer + inner + rows :]
    sizes = {name: data.draw(st.integers(1, 3)) for name in names}
    one, other, made = (
        data.draw(st.permutations(axes))
        for axes in (both + summed + own[0], both + summed + own[1], both + own[0] + own[1])
    )
    equation = f"{''.join(one)},{''.join(other)}->{''.join(made)}"
    arrays = {"x": reals(*(sizes[name] for name in one)), "k": reals(*(sizes[name] for name in other)) + 1}
    model = made_of([node("Einsum", "x k", equation=equation)], arrays, {})
    work = same_as_evaluator(tmp_path, model, arrays, near=1e-4)
    assert [layer.op for layer in work.layers].count("gemm") == 1


def test_other_sums_over_named_axes_take_no_time_and_say_so(tmp_path: Path) -> None:
    arrays = {"x": reals(3, 4), "k": reals(4, 4)}
    model = made_of([node("Einsum", "x k k", "s", equation="ij,jk,kl->il"), node("Relu", "s")], arrays, {})
    assert same_as_evaluator(tmp_path, model, arrays).not_timed == (("Einsum", 1),)
    notes = open_workload(tmp_path / "net.onnx", ModelOptions(arrays=arrays)).notes
    assert any("not timed: Einsum 1 (it is of other than two operands" in note for note in notes)


QKV = {"q": reals(2, 5, 8), "k": reals(2, 7, 8), "v": reals(2, 7, 8) + 1}
HEADS = {"q": reals(1, 4, 3, 8), "k": reals(1, 2, 3, 8), "v": reals(1, 2, 3, 8) + 1}
PAST = {"m": reals(3, 8), "p": reals(1, 2, 5, 8), "o": reals(1, 2, 5, 8) + 1}


@pytest.mark.parametrize(
    ("names", "arrays", "said"),
    [
        ("q k v", QKV, {"q_num_heads": 2, "kv_num_heads": 2}),
        ("q k v", HEADS, {"is_causal": 1}),
        ("q k v m p o", HEADS | PAST, {"scale": 0.5}),
    ],
    ids=["of two heads", "of grouped heads, each of those before it", "of a past"],
)
def test_attention_is_its_products(tmp_path: Path, names: str, arrays: dict[str, Any], said: dict[str, Any]) -> None:
    makes = "y keys values" if "p" in arrays else "y"
    model = made_of([node("Attention", names, makes, **said)], arrays, {}, 23)
    work = same_as_evaluator(tmp_path, model, arrays, 1, near=1e-4)
    assert [layer.op for layer in work.layers].count("gemm") == 2
    assert [layer.op for layer in work.layers].count("softmax") == 1


def test_rotary_embedding_is_what_the_standard_says(tmp_path: Path) -> None:
    arrays, tables = {"q": reals(1, 4, 5, 8)}, {"c": reals(1, 5, 4), "s": reals(1, 5, 4) + 1}
    same_as_evaluator(tmp_path, made_of([node("RotaryEmbedding", "q c s")], arrays, tables, 23), arrays)


def test_a_gate_with_its_silu_is_what_the_standard_says(tmp_path: Path) -> None:
    arrays = {"a": reals(2, 5, 4), "b": reals(2, 5, 4) + 1}
    work = same_as_evaluator(tmp_path, made_of([node("SwiGLU", "a b")], arrays, {}, 28), arrays)
    assert [layer.op for layer in work.layers] == ["silu", "mul"]


# ---- what no layer computes, and the reference does

BOXES = np.array(
    [[[0, 0, 2, 2], [0, 0, 2, 1.9], [3, 3, 5, 5], [3, 3, 5.1, 5], [9, 9, 10, 10], [0, 1, 2, 2]]], np.float32
)


@pytest.mark.parametrize(
    ("behind", "constants", "opset"),
    [
        (node("TopK", "p k", "y at"), {"k": np.array([2])}, 17),
        (node("ScatterElements", "p at new", axis=1), {"at": np.array([[1, 2], [0, 3]]), "new": reals(2, 2)}, 17),
        (node("ScatterND", "p at new"), {"at": np.array([[1]]), "new": reals(1, 6)}, 17),
        (node("ReverseSequence", "p long", time_axis=1, batch_axis=0), {"long": np.array([3, 6])}, 17),
        (node("Hardmax", "p"), {}, 17), (node("NonZero", "p"), {}, 17), (node("Tan", "p"), {}, 17),
        (node("OneHot", "at depth two"), {"at": np.array([1, 0]), "depth": np.array(3), "two": reals(2)}, 17),
    ],
    ids=lambda each: each.op_type if isinstance(each, NodeProto) else "",
)  # fmt: skip
def test_what_no_layer_computes_lets_a_model_run_to_its_end(
    tmp_path: Path, behind: NodeProto, constants: dict[str, Any], opset: int
) -> None:
    arrays = {"x": reals(2, 4)}
    nodes = [node("MatMul", "x w", "p"), behind]
    model = made_of(nodes, arrays, constants | {"w": reals(4, 6)}, opset, [*behind.output])
    work = same_as_evaluator(tmp_path, model, arrays, near=1e-4)
    assert [layer.op for layer in work.layers] == ["gemm"]
    if "p" in behind.input:
        assert work.not_timed == ((behind.op_type, 1),)


def test_a_detector_runs_to_the_boxes_that_are_left(tmp_path: Path) -> None:
    scores = np.abs(reals(1, 2, 6))
    nodes = [node("MatMul", "x same", "b"), node("NonMaxSuppression", "b s most over")]
    constants = {"same": np.eye(4, dtype=np.float32), "most": np.array([3]), "over": np.array([0.5], np.float32)}
    arrays = {"x": BOXES, "s": scores}
    assert same_as_evaluator(tmp_path, made_of(nodes, arrays, constants), arrays).not_timed[0][0] == "NonMaxSuppression"
    notes = open_workload(tmp_path / "net.onnx", ModelOptions(arrays=arrays)).notes
    assert any("NonMaxSuppression 1 (boxes are left out one after another" in note for note in notes)


# ---- operators of ONNX Runtime


class Contrib(NamedTuple):
    """A node of the domain com.microsoft, its inputs and constants, and the ops of its layers."""

    node: NodeProto
    inputs: Mapping[str, np.ndarray]
    constants: Mapping[str, Any]
    layers: Sequence[str]

    def model(self) -> Any:
        model = made_of([self.node], self.inputs, self.constants, 17, ["y"], domains=["com.microsoft"])
        makes_bytes = self.node.op_type.startswith("Q") and self.node.op_type != "QuickGelu"
        kind = TensorProto.UINT8 if makes_bytes else TensorProto.FLOAT
        model.graph.output[0].type.tensor_type.elem_type = kind
        return model


def contrib(op: str, reads: str, makes: str = "y", **said: Any) -> NodeProto:
    names = ["" if name == "_" else name for name in reads.split()]
    return helper.make_node(op, names, makes.replace("_", "").split(" "), domain="com.microsoft", **said)


BYTES = {"x": words(2, 3, 4, 4)}
MAPS = {"x": reals(3, 5, 4)}
ROWS = {"x": reals(2, 5, 16)}
MASK = {"m": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], np.int32)}
PLACES = np.array([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11]])
FACTORS = {"w": reals(16, 48) / 4, "b": reals(48)}
GROUPED = ["transpose", "transpose", "transpose", "transpose", "gemm", "mul", "add", "softmax", "gemm", "transpose"]
OF_ONE_TOKEN = ["transpose", "gemm", "mul", "softmax", "gemm"]
HEADS_AHEAD = {"p": reals(2, 4, 3, 4), "q": reals(2, 4, 3, 4) + 1}
SEVERAL_AHEAD = reals(3, 2, 4, 16) * (np.arange(4) < np.array([4, 1, 3])[:, None])[:, None, :, None]
ATTENTION = ["gemm", "add", "transpose", "transpose", "gemm", "mul", "softmax", "transpose", "gemm", "transpose"]
CASES = {
    "added": Contrib(contrib("QLinearAdd", "x s z k t o u v"), BYTES | {"k": words(2, 3, 4, 4)},
                     SCALES | {"o": np.uint8(120)}, ["add"]),
    "multiplied": Contrib(contrib("QLinearMul", "x s z k t o u v"), BYTES | {"k": words(2, 3, 4, 4)},
                          SCALES | {"o": np.uint8(120)}, ["mul"]),
    "sigmoid": Contrib(contrib("QLinearSigmoid", "x s z t v"), BYTES, SCALES, ["sigmoid"]),
    "leaky": Contrib(contrib("QLinearLeakyRelu", "x s z t v", alpha=0.1), BYTES, SCALES, ["leaky_relu"]),
    "mean": Contrib(contrib("QLinearGlobalAveragePool", "x s z t v"), BYTES, SCALES, ["pool2d"]),
    "pooled": Contrib(contrib("QLinearAveragePool", "x s z t v", kernel_shape=[2, 2]), BYTES, SCALES, ["pool2d"]),
    "softmax": Contrib(contrib("QLinearSoftmax", "x s z t v", axis=1, opset=13), BYTES, SCALES, ["softmax"]),
    "product": Contrib(contrib("QGemm", "x s z w t o b u v", transB=1, alpha=1.0), {"x": words(4, 16)},
                       SCALES | {"w": words(8, 16), "o": np.uint8(3), "b": np.arange(8, dtype=np.int32) * 9},
                       ["gemm", "mul"]),
    "to reals": Contrib(contrib("MatMulIntegerToFloat", "x w s t z o b"), {"x": words(4, 16)},
                        SCALES | {"w": words(16, 8), "o": np.uint8(3), "b": reals(8)}, ["gemm", "mul", "add"]),
    "dynamic": Contrib(contrib("DynamicQuantizeMatMul", "x w t o b"), {"x": reals(4, 16)},
                       SCALES | {"w": words(16, 8), "o": np.uint8(3), "b": reals(8)}, ["gemm", "mul", "add"]),
    "fused product": Contrib(contrib("FusedMatMul", "x k", transA=1, transB=1, alpha=0.5),
                             {"x": reals(2, 5, 4), "k": reals(2, 3, 5)}, {}, ["transpose", "transpose", "gemm", "mul"]),
    "fused convolution": Contrib(contrib("FusedConv", "x w b k", activation="Relu", pads=[1] * 4),
                                 {"x": reals(1, 3, 5, 4), "k": reals(1, 6, 5, 4)},
                                 {"w": reals(6, 3, 3, 3), "b": reals(6)}, ["conv2d", "add", "relu"]),
    "fused matrix product": Contrib(contrib("FusedGemm", "x w b", activation="LeakyRelu", activation_alpha=0.2),
                                    {"x": reals(4, 16)}, {"w": reals(16, 8), "b": reals(8)}, ["gemm", "leaky_relu"]),
    "gelu": Contrib(contrib("Gelu", "x"), MAPS, {}, ["gelu"]),
    "fast gelu": Contrib(contrib("FastGelu", "x b"), MAPS, {"b": reals(4)}, ["add", "gelu"]),
    "biased gelu": Contrib(contrib("BiasGelu", "x b"), MAPS, {"b": reals(4)}, ["add", "gelu"]),
    "quick gelu": Contrib(contrib("QuickGelu", "x"), MAPS, {}, ["mul", "sigmoid", "mul"]),
    "skipped": Contrib(contrib("SkipLayerNormalization", "x k g b c"), MAPS | {"k": reals(3, 5, 4) + 1},
                       {"g": reals(4), "b": reals(4), "c": reals(4)}, ["add", "add", "layer_norm"]),
    "skipped, by its root": Contrib(contrib("SkipSimplifiedLayerNormalization", "x k g"),
                                    MAPS | {"k": reals(3, 5, 4) + 1}, {"g": reals(4)}, ["add", "rms_norm"]),
    "by its root": Contrib(helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["y"], axis=-1), MAPS,
                           {"g": reals(4)}, ["rms_norm"]),
    "attention": Contrib(contrib("Attention", "x w b", num_heads=4), ROWS, FACTORS, ATTENTION),
    "masked attention": Contrib(contrib("Attention", "x w b m", num_heads=4, unidirectional=1), ROWS | MASK, FACTORS,
                                [*ATTENTION[:2], "rsub", "mul", *ATTENTION[2:6], "add", "add", *ATTENTION[6:]]),
    "attention of others": Contrib(contrib("MultiHeadAttention", "x k l b", num_heads=4),
                                   ROWS | {"k": reals(2, 7, 16), "l": reals(2, 7, 16) + 1}, {"b": reals(48)},
                                   ["add", "add", "add", *ATTENTION[2:]]),
    "attention of a past": Contrib(
        contrib("Attention", "x w b _ p", "y z", num_heads=4, unidirectional=1), ROWS | {"p": reals(2, 2, 4, 3, 4)},
        FACTORS, [*ATTENTION[:5], "transpose", "mul", "add", *ATTENTION[6:]]),
    "attention of others and a past": Contrib(
        contrib("MultiHeadAttention", "x k l b _ _ p q", "y z u", num_heads=4),
        ROWS | {"k": reals(2, 5, 16), "l": reals(2, 5, 16) + 1} | HEADS_AHEAD, {"b": reals(48)},
        ["add", "add", "add", "transpose", *ATTENTION[2:]]),
    "grouped attention": Contrib(
        contrib("GroupQueryAttention", "x k l _ _ n t", num_heads=4, kv_num_heads=2),
        {"x": reals(2, 5, 64), "k": reals(2, 5, 32), "l": reals(2, 5, 32) + 1},
        {"n": np.full(2, 4, np.int32), "t": np.int32(5)}, GROUPED),
    "grouped attention of a past": Contrib(
        contrib("GroupQueryAttention", "x _ _ p q n t c s", "y z u", num_heads=4, kv_num_heads=2, do_rotary=1,
                scale=0.2, local_window_size=3, softcap=0.9),
        {"x": reals(1, 2, 128), "p": reals(1, 2, 4, 16), "q": reals(1, 2, 4, 16) + 1},
        {"n": np.array([5], np.int32), "t": np.int32(6), "c": np.cos(reals(9, 8)), "s": np.sin(reals(9, 8))},
        [*["mul"] * 8, "sub", "sub", "add", "add", *GROUPED[:6], "mul", "tanh", "mul", *GROUPED[6:]]),
    "grouped attention of pasts of several lengths": Contrib(
        contrib("GroupQueryAttention", "x _ _ p q n t c s", "y z u", num_heads=4, kv_num_heads=2, do_rotary=1,
                local_window_size=3),
        {"x": reals(3, 1, 128), "p": SEVERAL_AHEAD, "q": 2 * SEVERAL_AHEAD,
         "n": np.array([4, 1, 3], np.int32)},
        {"t": np.int32(5), "c": np.cos(reals(9, 8)), "s": np.sin(reals(9, 8))},
        [*["mul"] * 8, "sub", "sub", "add", "add", *OF_ONE_TOKEN, "add"]),
    "grouped attention of pasts of one length": Contrib(
        contrib("GroupQueryAttention", "x k l p q n t", "y z u", num_heads=4, kv_num_heads=4),
        {"x": reals(3, 1, 64), "k": reals(3, 1, 64), "l": reals(3, 1, 64) + 1, "p": reals(3, 4, 4, 16),
         "q": reals(3, 4, 4, 16) + 1},
        {"n": np.array([4, 4, 4], np.int32), "t": np.int32(5)}, OF_ONE_TOKEN),
    "turned": Contrib(contrib("RotaryEmbedding", "x p c s"), ROWS | {"p": PLACES},
                      {"c": reals(12, 4), "s": reals(12, 4) + 1}, ["mul", "mul", "sub", "mul", "mul", "add"]),
    "turned heads": Contrib(contrib("RotaryEmbedding", "x p c s"), {"x": reals(2, 3, 5, 8), "p": PLACES},
                            {"c": reals(12, 4), "s": reals(12, 4) + 1}, ["mul", "mul", "sub", "mul", "mul", "add"]),
    "embedded": Contrib(contrib("EmbedLayerNormalization", "x k w p q g b", "y _"),
                        {"x": drawn().integers(0, 30, (2, 5)).astype(np.int32),
                         "k": drawn().integers(0, 2, (2, 5)).astype(np.int32)},
                        {"w": reals(30, 8), "p": reals(12, 8), "q": reals(2, 8), "g": reals(8), "b": reals(8)},
                        ["add", "add", "layer_norm"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators_of_onnx_runtime_are_the_layers_that_they_are_made_of(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    work, outputs = through_layers(written(tmp_path, case.model()), case.inputs)
    assert _ops_of(work.layers) == sorted(case.layers)
    with np.load(WITNESS) as witness:
        expected = witness[name]
    made = outputs["y"]
    assert made.shape == expected.shape
    if expected.dtype == np.uint8:
        # Half of a step may be rounded to either side.
        assert np.abs(made.astype(int) - expected).max() <= 1
        assert np.mean(made != expected) < 0.2
    else:
        np.testing.assert_allclose(made, expected, rtol=2e-3, atol=2e-3 if name == "dynamic" else 2e-5)


def _ops_of(layers: Sequence[Any]) -> list[str]:
    return sorted(layer.op for layer in layers)


@pytest.mark.parametrize(
    ("name", "heads"),
    [("attention", ("num_heads", 0)), ("attention of others", ("num_heads", -2)),
     ("grouped attention", ("kv_num_heads", 0))],
)  # fmt: skip
def test_an_attention_has_a_head(tmp_path: Path, name: str, heads: tuple[str, int]) -> None:
    model = CASES[name].model()
    (changed,) = (each for each in model.graph.node[0].attribute if each.name == heads[0])
    changed.i = heads[1]
    with pytest.raises(InputError, match=f"{heads[0]} is {heads[1]}; there must be a head"):
        load_workload(written(tmp_path, model))


def test_bytes_that_are_joined_are_of_one_scale(tmp_path: Path) -> None:
    """A concatenation is no layer, so a sigmoid stands behind it."""
    joined = contrib("QLinearConcat", "t o x s z k t o", "c", axis=1)
    inputs, constants = BYTES | {"k": words(2, 3, 4, 4)}, SCALES | {"o": np.uint8(120)}
    model = made_of([joined, contrib("QLinearSigmoid", "c t o t v")], inputs, constants, domains=["com.microsoft"])
    work, outputs = through_layers(written(tmp_path, model), inputs)
    assert work.layers[0].text == "4x4x6"
    parts = [(inputs["x"] - 100.0) * np.float32(0.02), (inputs["k"] - 120.0) * np.float32(0.01)]
    of_one = np.clip(np.rint(np.concatenate(parts, 1) / np.float32(0.01)) + 120, 0, 255)
    bytes_ = np.rint(1 / (1 + np.exp(-(of_one - 120) * np.float32(0.01))) / np.float32(0.01)) + 128
    assert np.abs(outputs["y"].astype(int) - np.clip(bytes_, 0, 255)).max() <= 1


RECURRENT = Contrib(
    helper.make_node("DynamicQuantizeLSTM", ["x", "w", "r", "b", "", "", "", "", "s", "z", "t", "o"], ["y"],
                     domain="com.microsoft", hidden_size=4, direction="bidirectional"),
    {"x": reals(3, 1, 5)},
    {"w": signed(2, 5, 16), "r": signed(2, 4, 16), "b": reals(2, 32), "s": np.abs(reals(2)) / 99,
     "z": np.zeros(2, np.int8), "t": np.abs(reals(2)) / 50, "o": np.zeros(2, np.int8)},
    (),
)  # fmt: skip


def test_a_recurrent_network_of_bytes_is_its_steps(tmp_path: Path) -> None:
    """Each step rounds the state before it to bytes; products of bytes are layers of bytes.

    It is of one image: of several, ONNX Runtime rounds the states together or apart, as its threads share them.
    """
    work, outputs = through_layers(written(tmp_path, RECURRENT.model()), RECURRENT.inputs, 1)
    assert [layer.op for layer in work.layers].count("gemm") == 2 * 3
    with np.load(WITNESS) as witness:
        np.testing.assert_allclose(outputs["y"], witness["recurrent"], rtol=1e-4, atol=1e-4)


def test_keys_and_values_of_all_tokens_are_those_of_the_past_and_what_is_made(tmp_path: Path) -> None:
    inputs = ROWS | {"k": reals(2, 5, 16), "l": reals(2, 5, 16) + 1} | HEADS_AHEAD
    nodes = [contrib("MultiHeadAttention", "x k l _ _ _ p q", "y keys values", num_heads=4)]
    model = made_of(nodes, inputs, {}, outputs=["y", "keys", "values"], domains=["com.microsoft"])
    _, outputs = through_layers(written(tmp_path, model), inputs)
    for name, past, made in (("keys", "p", "k"), ("values", "q", "l")):
        of_heads = inputs[made].reshape(2, 5, 4, 4).transpose(0, 2, 1, 3)
        np.testing.assert_array_equal(outputs[name], np.concatenate([inputs[past], of_heads], 2))
    model = made_of([contrib("Attention", "x w b", "y z", num_heads=4)], ROWS, FACTORS, outputs=["y", "z"],
                    domains=["com.microsoft"])  # fmt: skip
    _, outputs = through_layers(written(tmp_path, model), ROWS)
    made = (ROWS["x"] @ FACTORS["w"] + FACTORS["b"]).reshape(2, 5, 3, 4, 4).transpose(2, 0, 3, 1, 4)
    np.testing.assert_allclose(outputs["z"], made[1:], rtol=1e-5, atol=1e-5)


def test_what_cannot_be_written_out_says_why(tmp_path: Path) -> None:
    model = made_of([contrib("Attention", "x w b", num_heads=4, do_rotary=1)], ROWS, FACTORS, domains=["com.microsoft"])
    with pytest.raises(InputError, match=r"com.microsoft.Attention y: it has do_rotary"):
        load_workload(written(tmp_path, model), 2)
    longer = made_of([contrib("GroupQueryAttention", "x k l p q n t", num_heads=4, kv_num_heads=4)],
                     {name: each[:1] for name, each in (ROWS | {"k": ROWS["x"], "l": ROWS["x"]} | HEADS_AHEAD).items()},
                     {"n": np.array([5], np.int32), "t": np.int32(6)}, domains=["com.microsoft"])  # fmt: skip
    with pytest.raises(InputError, match="its keys are 6 in all, and not the 3 of the past and 5 of its own"):
        load_workload(written(tmp_path, longer), 1)
    convolution = made_of([contrib("FusedConv", "x w", activation="Mish")], {"x": reals(1, 3, 5, 4)},
                          {"w": reals(6, 3, 3, 3)}, domains=["com.microsoft"])  # fmt: skip
    with pytest.raises(InputError, match="its activation Mish is not known"):
        load_workload(written(tmp_path, convolution), 1)


def test_every_expansion_is_held_here() -> None:
    """Against ONNX's evaluator, or against ONNX Runtime."""
    held = {f"{case.node.domain}.{case.node.op_type}".strip(".") for case in CASES.values()}
    held |= {
        "com.microsoft.QLinearConcat",
        "Einsum",
        "GroupNormalization",
        "InstanceNormalization",
        "QLinearConv",
        "QLinearMatMul",
        "ReduceL2",
        "ReduceSumSquare",
    }
    assert EXPANSIONS.keys() - held == set()


if __name__ == "__main__":
    from onnxruntime import InferenceSession

    found = {name: InferenceSession(case.model().SerializeToString()).run(["y"], dict(case.inputs))[0]
             for name, case in (CASES | {"recurrent": RECURRENT}).items()}  # fmt: skip
    np.savez_compressed(WITNESS, **found)
