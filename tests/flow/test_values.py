"""Values from end to end: what comes out of a network is what ONNX's own evaluator makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tests.checks import ESTIMATE
from tests.covering import covering
from tests.flow.journeys import ENGINE, go
from tests.invoked import tpusim
from tests.network.test_onnx_models import LIGHT, node, saved
from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import CheckFailed, InputError
from tpusim.flow.jobs import resolve
from tpusim.flow.numbers import numbers_of
from tpusim.flow.values import Journey, checked, drawn
from tpusim.network.formats import NOTHING, ModelOptions, read_graph
from tpusim.network.ops.op import Op
from tpusim.network.workload_file import open_workload
from tpusim.result.records import Result as Run

FLOAT = TensorProto.FLOAT
SEED = 3
Arrays = dict[str, np.ndarray]


def model(
    nodes: Sequence[NodeProto], inputs: Mapping[str, Sequence[Any]], weights: Mapping[str, Any], opset: int = 17
) -> ModelProto:
    """Of results `y`, and `z` where a node makes it; weights are arrays, or shapes of random ones."""
    random = np.random.default_rng(SEED)

    def array(value: Any) -> np.ndarray:
        return value if isinstance(value, np.ndarray) else random.standard_normal(value, np.float32) / 2

    made = [name for name in ("y", "z") if any(name in each.output for each in nodes)]
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in made],
        [numpy_helper.from_array(array(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


CNN = model(
    [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1], strides=[2, 1]), node("BatchNormalization", "c g h m v", "n"),
        node("Relu", "n", "r"), node("MaxPool", "r", "p", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        node("Conv", "p u", "d", group=2, auto_pad="SAME_UPPER"), node("Add", "d p", "s"),
        node("Concat", "s p", "t", axis=1), node("GlobalAveragePool", "t", "a"), node("Flatten", "a", "f"),
        node("Gemm", "f k l", "e", transB=1, alpha=0.5, beta=2.0), node("Softmax", "e", "y", axis=1),
    ],
    {"x": ["N", 3, 9, 8]},
    {"w": (4, 3, 3, 3), "b": (4,), "g": (4,), "h": (4,), "m": (4,), "v": np.ones(4, np.float32), "u": (4, 2, 3, 3),
     "k": (5, 8), "l": (5,)},
)  # fmt: skip
ATTENTION = model(
    [
        node("MatMul", "x q", "a"), node("MatMul", "x k", "b"), node("Transpose", "b", "t", perm=[0, 2, 1]),
        node("MatMul", "a t", "s"), node("Softmax", "s", "p", axis=-1), node("MatMul", "p x", "o"),
        node("LayerNormalization", "o g h", "n"), node("Gelu", "n", "e"), node("MatMul", "f e", "u"),
        node("ReduceMean", "u", "r", axes=[1], keepdims=0), node("MatMul", "r i", "z"), node("Add", "u n", "y"),
    ],
    {"x": ["N", 5, 6]},
    {"q": (6, 4), "k": (6, 4), "g": (6,), "h": (6,), "f": (5, 5), "i": (6,)},
    20,
)  # fmt: skip
TURNED = model(
    [
        node("ConvTranspose", "x w b", "a", strides=[2, 3], pads=[1, 0, 0, 2]),
        node("ConvTranspose", "a u", "c", group=4, strides=[2, 2], auto_pad="SAME_LOWER"),
        node("Reshape", "c shape", "d"), node("ConvTranspose", "d v", "e", strides=[2], pads=[0, 1]),
        node("Conv", "e o", "y", dilations=[2], pads=[2, 1]),
    ],
    {"x": [1, 3, 4, 3]},
    {"w": (3, 4, 3, 2), "b": (4,), "u": (4, 1, 2, 3), "v": (4, 2, 3), "o": (2, 2, 3), "shape": numbers(1, 4, -1)},
)  # fmt: skip
MOVES = model(
    [
        node("Split", "x", "a b", axis=1, num_outputs=2), node("Mul", "a b", "c"),
        node("Pad", "c pads", "d", mode="reflect"),
        node("Slice", "d starts ends axes steps", "e"), node("Conv", "e w", "f"), node("Shape", "f", "s"),
        node("Gather", "s at", "n"), node("Concat", "n rest", "to", axis=0), node("Reshape", "f to", "g"),
        node("Resize", "g none scales", "h", mode="nearest"), node("MatMul", "h q", "y"),
    ],
    {"x": ["N", 4, 6, 5]},
    {"pads": numbers(0, 0, 1, 1, 0, 0, 1, 1), "starts": numbers(-1), "ends": numbers(-100), "axes": numbers(2),
     "steps": numbers(-2), "w": (3, 2, 2, 2), "at": numbers(0), "rest": numbers(3, 3, -1),
     "none": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 1], np.float32), "q": (6, 7)},
    18,
)  # fmt: skip
NORMALIZED = model(
    [
        node("Conv", "x w", "a"), node("LRN", "a", "b", size=3, alpha=0.5, bias=2.0), node("Relu", "b", "c"),
        node("LRN", "c", "y", size=2, beta=0.5), node("LRN", "b", "z", size=4, beta=0.6),
    ],
    {"x": ["N", 2, 4, 3]},
    {"w": (6, 2, 1, 1)},
)  # fmt: skip
SHUFFLED = model(
    [
        node("Conv", "x w", "a", group=2), node("Reshape", "a groups", "b"),
        node("Transpose", "b", "c", perm=[0, 2, 1, 3, 4]), node("Reshape", "c maps", "d"),
        node("Pad", "d pads number", "e"), node("Resize", "e none scales", "f", mode="nearest"),
        node("Transpose", "f", "g", perm=[0, 3, 1, 2]), node("MatMul", "g k", "y"),
        node("Transpose", "y", "h", perm=[1, 3, 0, 2]), node("Relu", "h", "z"),
    ],
    {"x": [1, 4, 3, 3]},
    {"w": (6, 2, 1, 1), "groups": numbers(0, 2, 3, 3, 3), "maps": numbers(0, 6, 3, 3),
     "pads": numbers(0, 0, 1, 0, 0, 0, 2, 0), "number": np.zeros((), np.float32), "none": np.zeros(0, np.float32),
     "scales": np.array([1, 1, 2, 3], np.float32), "k": (12, 5)},
    18,
)  # fmt: skip
VECTORS = model(
    [
        node("Conv", "x w", "a"), node("LeakyRelu", "a", "b", alpha=0.2), node("BatchNormalization", "b g h m v", "c"),
        node("Mul", "c k", "d"), node("Sub", "d c", "e"), node("Clip", "e low high", "f"), node("HardSwish", "f", "i"),
        node("HardSigmoid", "i", "j"), node("Add", "number j", "o"), node("GlobalMaxPool", "o", "p"),
        node("Mul", "p o", "q"), node("Sum", "q i", "r"), node("Sub", "r k", "s"),
        node("AveragePool", "s", "t", kernel_shape=[3, 2], pads=[1, 1, 1, 0], strides=[2, 1], count_include_pad=1),
        node("Transpose", "t", "u", perm=[0, 2, 3, 1]), node("MatMul", "u n", "z"), node("Add", "z bias", "y"),
    ],
    {"x": ["N", 2, 7, 6]},
    {"w": (3, 2, 2, 2), "g": (3,), "h": (3,), "m": (3,), "v": np.ones(3, np.float32), "k": (1, 3, 1, 1),
     "low": np.float32([-1]).reshape(()), "high": np.float32([1]).reshape(()), "number": np.float32([0.25]),
     "n": (3, 5), "bias": (5,)},
)  # fmt: skip
ROWS = model(
    [
        node("Conv", "x w", "a"), node("Sigmoid", "a", "b"), node("Mul", "a b", "c"), node("Tanh", "c", "d"),
        node("Reshape", "d flat", "e"), node("MatMul", "e n", "f"), node("Div", "f k", "g"), node("Softmax", "g", "h"),
        node("LayerNormalization", "h scale shift", "i", epsilon=1e-3), node("Gelu", "i", "j"),
        node("ReduceMean", "j last", "m"), node("Sub", "j m", "o"), node("LayerNormalization", "o scale", "p"),
        node("ReduceMean", "d map", "q", keepdims=0), node("Exp", "q", "z"), node("MatMul", "z v", "r"),
        node("Erf", "r", "s"), node("ReduceMean", "p last", "t", keepdims=0), node("Concat", "s t", "y", axis=1),
    ],
    {"x": ["N", 2, 5, 6]},
    {"w": (3, 2, 2, 2), "flat": numbers(0, 3, -1), "n": (20, 7), "k": np.float32([3.5]), "scale": (7,), "shift": (7,),
     "last": numbers(-1), "map": numbers(2, 3), "v": (3, 4)},
    20,
)  # fmt: skip
MORE_VECTORS = model(
    [
        node("Conv", "x w", "a"), node("Sub", "k a", "b"), node("Pow", "b two", "c"), node("Add", "c number", "d"),
        node("Sqrt", "d", "e"), node("Div", "number e", "f"), node("Softmax", "f", "g", axis=1),
        node("Slice", "g one end axis two_", "h"), node("Pow", "h three", "i"), node("Softmax", "i", "z", axis=2),
        node("Reshape", "f flat", "j"), node("MatMul", "j n", "l"), node("Sub", "m l", "o"), node("Div", "m o", "y"),
    ],
    {"x": ["N", 2, 6, 5]},
    {"w": (3, 2, 2, 2), "k": (3, 1, 1), "number": np.float32([0.5]), "two": np.array(2, np.float32),
     "three": np.array(3, np.float32),
     "one": numbers(1), "end": numbers(9), "axis": numbers(3), "two_": numbers(2), "flat": numbers(0, -1), "n": (60, 4),
     "m": np.float32([9, 8, 7, 6])},
)  # fmt: skip
PAIRS = model(
    [
        node("Transpose", "x", "t", perm=[0, 2, 1, 3]), node("MatMul", "t w", "a"), node("MatMul", "t a", "y"),
        node("ReduceSum", "y last", "r", keepdims=0), node("MatMul", "v a", "z"),
    ],
    {"x": [2, 4, 3, 4]},
    {"w": (4, 4), "v": (1, 4, 4), "last": numbers(3)},
)  # fmt: skip


class BatchNormalization(OpRun):
    """As networks are used. The evaluator takes those of old opsets for what they are in training."""

    op_domain = ""

    def _run(self, x, scale, bias, mean, var, epsilon=1e-5, **_):  # type: ignore[no-untyped-def]
        gain, bias, mean = (
            (each.reshape(-1, 1, 1)) for each in (scale / np.sqrt(var + np.float32(epsilon)), bias, mean)
        )
        return (((x - mean) * gain + bias).astype(x.dtype),)


def travelled(path: Path, batch: int, dtype: str = "f32", engine: str = "event", machine: str = "tiny_4x4",
              changes: Sequence[str] = ()) -> tuple[Run, Arrays, Arrays]:  # fmt: skip
    """The run, its random inputs, and its outputs."""
    # Blocks that simulation chooses take most of the time, and have no say in values.
    hardware, graph = load_hardware(machine, ["mapping.search=estimate", *changes]), read_graph(path, NOTHING, batch)
    work, given = resolve(load_workload(path, batch), hardware).work, drawn(graph, batch, SEED)
    journey = Journey(graph, work, given, numbers_of(dtype, "any"))
    result = simulate(work, hardware, dtype=dtype, engine=engine, journey=journey)
    return result, given, journey.outputs()


def carried(path: Path, batch: int, engine: str = ENGINE) -> tuple[Arrays, Arrays]:
    """Random inputs, and outputs, of values that go through layers, whatever computes these."""
    graph, work = read_graph(path, NOTHING, batch), load_workload(path, batch)
    given = drawn(graph, batch, SEED)
    journey = Journey(graph, work, given, numbers_of("f32", "any"))
    go(journey, work, engine)
    return given, journey.outputs()


def test_attributes_that_mean_nothing(tmp_path: Path) -> None:
    """The ends of a Pad are an operand since opset 11, the shape of a Reshape since opset 5."""
    conv = node("Conv", "x w", "m", kernel_shape=[1, 1])
    pad = node("Pad", "m ends", "p", pads=[0] * 8)
    reshape = node("Reshape", "p shape", "y", shape=[7, 7])
    weights = {"w": [2, 2, 1, 1], "ends": numbers(0, 0, 1, 1, 0, 0, 1, 1), "shape": numbers(1, -1)}
    path = saved(tmp_path, model([conv, pad, reshape], {"x": [1, 2, 3, 3]}, weights, 13))
    _, outputs = carried(path, 1)
    assert outputs["y"].shape == (1, 50)


class LRN(OpRun):
    """As the operator is defined. That of onnx 1.23.2 goes through as many channels as there are images."""

    op_domain = ""

    def _run(self, x, alpha=1e-4, beta=0.75, bias=1.0, size=None):  # type: ignore[no-untyped-def]
        before, behind = (size - 1) // 2, size // 2
        square = np.pad(x**2, ((0, 0), (before, behind), (0, 0), (0, 0)))
        window = np.lib.stride_tricks.sliding_window_view(square, size, axis=1).sum(axis=-1)
        return ((x / (bias + alpha / size * window) ** beta).astype(x.dtype),)


def witnessed(path: Path, given: Arrays, batch: int) -> Arrays:
    """What ONNX's evaluator makes of the same, of as many images at once as the model is for."""
    evaluator = ReferenceEvaluator(str(path), new_ops=[BatchNormalization, LRN])
    parts = batch // read_graph(path, NOTHING, batch).images
    split = {name: np.split(each, parts) for name, each in given.items()}
    each = [evaluator.run(None, {name: arrays[part] for name, arrays in split.items()}) for part in range(parts)]
    return {
        name: np.concatenate(made) for name, made in zip(evaluator.output_names, zip(*each, strict=True), strict=True)
    }


@pytest.mark.parametrize(
    ("network", "batch"),
    [
        pytest.param(CNN, 1, marks=pytest.mark.long, id="cnn"),
        pytest.param(CNN, 3, id="cnn of 3"),
        pytest.param(PAIRS, 2, marks=pytest.mark.long, id="pairs"),
        pytest.param(PAIRS, 4, id="pairs, two by two"),
        *(
            pytest.param(network, images, marks=pytest.mark.long, id=f"{what} of {images}")
            for network, images, what in (
                (ATTENTION, 2, "attention"), (TURNED, 1, "turned"), (MOVES, 2, "moves"), (SHUFFLED, 1, "shuffled"),
                (NORMALIZED, 3, "normalized"), (VECTORS, 1, "vectors"), (ROWS, 1, "rows"),
                (MORE_VECTORS, 1, "more vectors"),
            )
        ),
    ],
)  # fmt: skip
def test_a_machine_gives_what_the_evaluator_gives(tmp_path: Path, network: ModelProto, batch: int) -> None:
    path = saved(tmp_path, network)
    result, given, outputs = travelled(path, batch)
    assert result.correct
    assert all(layer.outputs_checked == layer.outputs > 0 for layer in result.layers)
    are_the_evaluators(path, batch, given, outputs)


@pytest.mark.parametrize(
    ("network", "batch"),
    [(ATTENTION, 2), (TURNED, 3), (MOVES, 2), (SHUFFLED, 1), (NORMALIZED, 3), (VECTORS, 3), (ROWS, 3),
     (MORE_VECTORS, 3)],
    ids=["attention", "turned, one by one", "moves", "shuffled", "normalized", "vectors", "rows", "more vectors"],
)  # fmt: skip
def test_layers_give_what_the_evaluator_gives(tmp_path: Path, network: ModelProto, batch: int) -> None:
    gives_what_the_evaluator_gives(saved(tmp_path, network), batch)


def gives_what_the_evaluator_gives(path: Path, batch: int) -> None:
    are_the_evaluators(path, batch, *carried(path, batch))


def are_the_evaluators(path: Path, batch: int, given: Arrays, outputs: Arrays) -> None:
    expected = witnessed(path, given, batch)
    assert {*outputs} == {*expected}
    for name, each in outputs.items():
        assert each.dtype == expected[name].dtype
        np.testing.assert_allclose(each, expected[name], rtol=1e-4, atol=1e-5)


FUSED = model(
    [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]), node("BatchNormalization", "c g h m v", "n"),
        node("Identity", "n", "i"), node("Relu", "i", "r"), node("Conv", "r u", "d", pads=[1, 1, 1, 1]),
        node("Mul", "x two", "t"), node("Conv", "t s", "e"), node("Add", "e d", "f"), node("LeakyRelu", "f", "k"),
        node("Flatten", "k", "l"), node("MatMul", "l p", "a"), node("Add", "a q", "ab"), node("Relu", "ab", "o"),
        node("Gemm", "o y_w y_b", "j", transB=1, alpha=0.5, beta=2.0), node("Clip", "j low high", "y"),
    ],
    {"x": ["N", 3, 5, 4]},
    {"w": (4, 3, 3, 3), "b": (4,), "g": (4,), "h": (4,), "m": (4,), "v": np.ones(4, np.float32), "u": (4, 4, 3, 3),
     "two": np.float32([2]).reshape(()), "s": (4, 3, 1, 1), "p": (80, 6), "q": (1, 6), "y_w": (5, 6), "y_b": (1, 5),
     "low": np.float32([-1]).reshape(()), "high": np.float32([1]).reshape(())},
)  # fmt: skip
"""With everything that rides: biases of three kinds, a map that is worked out behind who adds it, activations."""
ON_RESULTS = "sequencer.fusion=results", "vector_unit.alus=32"


@pytest.mark.parametrize(("batch", "engine"), covering(1, [1, 3], ["event", "register"]))
def test_a_layer_with_others_on_its_results_gives_what_the_last_of_them_does(
    tmp_path: Path, batch: int, engine: str
) -> None:
    path = saved(tmp_path, FUSED)
    result, given, outputs = travelled(path, batch, engine=engine, changes=ON_RESULTS)
    assert [len(each.riders) for each in result.layers] == [1, 0, 0, 2, 2, 1]
    assert result.correct
    assert result.reference_only == {"Flatten": 1}
    for name, expected in witnessed(path, given, batch).items():
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "near"), [("bf16", 0.05), ("int8", 0.1)])
def test_what_rides_is_near_the_network_in_every_type(tmp_path: Path, dtype: str, near: float) -> None:
    """What is added to sums is as wide as they are: of bytes a whole number of 32 bits."""
    network = onnx.ModelProto()
    network.CopyFrom(FUSED)
    network.graph.node.pop().ClearField("output")
    network.graph.node[-1].output[:] = ["y"]
    path = saved(tmp_path, network)
    result, given, outputs = travelled(path, 2, dtype, changes=ON_RESULTS)
    assert (result.correct, sum(len(each.riders) for each in result.layers)) == (True, 5)
    expected = witnessed(path, given, 2)["y"]
    error = np.abs(outputs["y"] - expected).max() / np.abs(expected).max()
    assert near / 1000 < error < near


def test_a_bias_of_32_bits_is_not_rounded_to_bytes(tmp_path: Path) -> None:
    """So large a bias that products are lost in its byte."""
    nodes = [node("Conv", "x w b", "a"), node("Relu", "a", "y")]
    path = saved(tmp_path, model(nodes, {"x": ["N", 3, 4, 4]}, {"w": (2, 3, 1, 1), "b": np.float32([1000, 2000])}))
    result, given, outputs = travelled(path, 1, "int8", changes=ON_RESULTS)
    assert result.correct
    np.testing.assert_allclose(outputs["y"], witnessed(path, given, 1)["y"], atol=0.05)


LONELY: dict[str, tuple[list[NodeProto], dict[str, Any], str, str]] = {
    "an output between": (
        [node("Conv", "x w", "z"), node("Relu", "z", "y")], {"w": (4, 3, 1, 1)}, "f32",
        "between conv_z and relu_y, which rides on it, is what others read as well",
    ),
    "more than a bias": (
        [node("Flatten", "x", "f"), node("Gemm", "f g c", "a"), node("Relu", "a", "y")], {"g": (12, 4), "c": (2, 4)},
        "f32", "Gemm gemm_a: its values cannot be computed: what it adds is added outside the machine",
    ),
    "clipped bytes": (
        [node("Conv", "x w", "a"), node("Clip", "a low", "y")], {"w": (4, 3, 1, 1), "low": np.float32([1]).reshape(())},
        "int8", "layer conv_a: clips sums of bytes",
    ),
    "a large bias": (
        [node("Conv", "x w b", "y")], {"w": (1, 3, 1, 1), "b": np.float32([1e6])}, "int8",
        "what is added to its sums of bytes is so large",
    ),
    "a bias and a map that are large together": (
        [node("Conv", "x w b", "a"), node("Add", "a x", "y")],
        {"w": np.full((3, 3, 1, 1), 0.00107, np.float32), "b": np.full(3, 2.5, np.float32)}, "int8",
        "what is added to its sums of bytes is so large",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", LONELY)
def test_what_rides_where_values_cannot_is_told(tmp_path: Path, why: str) -> None:
    nodes, weights, dtype, says = LONELY[why]
    path = saved(tmp_path, model(nodes, {"x": [2, 3, 2, 2]}, weights))
    with pytest.raises(InputError) as refused:
        travelled(path, 2, dtype, changes=ON_RESULTS)
    assert says in str(refused.value)
    assert "leave sequencer.fusion out" in str(refused.value)


def test_weights_may_be_constants_of_the_graph(tmp_path: Path) -> None:
    """As PaddlePaddle and PyTorch write them."""
    weights = numpy_helper.from_array(np.random.default_rng(1).standard_normal((3, 2, 2, 2)).astype(np.float32))
    nodes = [node("Constant", "", "w", value=weights), node("Constant", "", "two", value_float=2.0),
             node("Conv", "x w", "c"), node("Mul", "c two", "y")]  # fmt: skip
    path = saved(tmp_path, model(nodes, {"x": [1, 2, 3, 3]}, {}))
    given, outputs = carried(path, 1)
    np.testing.assert_allclose(outputs["y"], witnessed(path, given, 1)["y"], rtol=1e-5)


def test_outputs_have_the_types_of_the_model(tmp_path: Path) -> None:
    """What float16 cannot hold is infinite there, as it is in the model."""
    half = model([node("Conv", "x w", "c"), node("Relu", "c")], {"x": [1, 2, 3, 3]}, {"w": (3, 2, 2, 2)})
    for value in (*half.graph.input, *half.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    half.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full((3, 2, 2, 2), 2, np.float16), "w"))
    path = saved(tmp_path, half)
    given, outputs = carried(path, 1)
    assert outputs["y"].dtype == np.float16 == given["x"].dtype
    np.testing.assert_allclose(outputs["y"], witnessed(path, given, 1)["y"], rtol=0.01, atol=0.01)


def test_groups_of_a_transposed_convolution(tmp_path: Path) -> None:
    """The evaluator knows groups of one channel alone, so that it is given each group by itself."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 2, 3)).astype(np.float32)
    grouped = model([node("ConvTranspose", "x w", group=2)], {"x": [1, 4, 3, 3]}, {"w": weights})
    apart = [node("Split", "x", "a b", axis=1), node("ConvTranspose", "a u", "c"), node("ConvTranspose", "b v", "d")]
    alone = [*apart, node("Concat", "c d", "y", axis=1)]
    split = model(alone, {"x": [1, 4, 3, 3]}, {"u": weights[:2], "v": weights[2:]})
    given, outputs = carried(saved(tmp_path, grouped), 1)
    expected = witnessed(saved(tmp_path, split, "split.onnx"), given, 1)
    np.testing.assert_allclose(outputs["y"], expected["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 3])
def test_the_factor_that_images_share_is_the_filter(tmp_path: Path, batch: int) -> None:
    """Where either could be, by the sizes of the layer."""
    nodes = [node("Reshape", "x flat", "a"), node("MatMul", "k a", "b"), node("Reshape", "b one", "y")]
    weights = {"k": (3, 3), "flat": numbers(3, 3), "one": numbers(1, 3, 3)}
    path = saved(tmp_path, model(nodes, {"x": [1, 3, 3]}, weights))
    given, outputs = carried(path, batch)
    np.testing.assert_allclose(outputs["y"], witnessed(path, given, batch)["y"], rtol=1e-5)


@pytest.mark.parametrize("scale", [(4,), (3, 4), (1, 4), (1, 1, 4)])
@pytest.mark.parametrize("norm", ["LayerNormalization", "RMSNormalization"])
def test_rows_of_several_axes_are_scaled_along_fewer(tmp_path: Path, scale: tuple[int, ...], norm: str) -> None:
    shift = {"shift": (3, 1)} if norm == "LayerNormalization" else {}
    nodes = [node(norm, " ".join(("x scale", *shift)), "y", axis=1)]
    path = saved(tmp_path, model(nodes, {"x": ["N", 3, 4]}, {"scale": scale, **shift}, opset=23))
    given, outputs = carried(path, 2)
    np.testing.assert_allclose(outputs["y"], witnessed(path, given, 2)["y"], rtol=1e-4, atol=1e-6)


def test_without_layers_of_the_vector_unit_the_reference_takes_their_place(tmp_path: Path) -> None:
    path = saved(tmp_path, CNN)
    alone = ModelOptions(ops="array")
    work, graph = load_workload(path, 2, ops="array"), read_graph(path, alone, 2)
    journey = Journey(graph, work, drawn(graph, 2, SEED), numbers_of("f32", "any"))
    result = simulate(work, load_hardware("tiny_4x4", ESTIMATE), dtype="f32", journey=journey)
    assert [layer.op for layer in result.layers] == ["conv2d", "conv2d", "gemm"]
    assert sum(result.reference_only.values()) == 8
    np.testing.assert_allclose(journey.outputs()["y"], carried(path, 2)[1]["y"], rtol=1e-5)


@pytest.mark.parametrize(("dtype", "near"), [("f32", 1e-5), ("bf16", 0.02), ("int8", 0.04)])
def test_every_type_comes_near_the_network(tmp_path: Path, dtype: str, near: float) -> None:
    """Of bytes, every layer's operands are parts of their largest."""
    path = saved(tmp_path, CNN)
    result, given, outputs = travelled(path, 2, dtype)
    assert (result.correct, result.dtype) == (True, dtype)
    error = np.abs(outputs["y"] - witnessed(path, given, 2)["y"]).max()
    assert near / 1000 < error < near or dtype == "f32"
    assert error < near


def test_the_register_engine_takes_the_same_way(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Relu", "a", "b"), node("Conv", "b u c", "y")]
    path = saved(tmp_path, model(nodes, {"x": ["N", 2, 4, 3]}, {"w": (3, 2, 2, 2), "u": (2, 3, 1, 1), "c": (2,)}))
    one, other = (travelled(path, 2, engine=engine)[2]["y"] for engine in ("event", "both"))
    np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_wrong_layer_makes_wrong_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is handed on is what the machine made, not what the reference has."""
    path = saved(tmp_path, CNN)
    sound = travelled(path, 1)[2]["y"]
    take = Journey.take
    monkeypatch.setattr(Journey, "take", lambda self, ofmap: take(self, np.flip(ofmap, 0)))
    assert not np.allclose(travelled(path, 1)[2]["y"], sound, rtol=1e-2)


def test_a_layer_waits_for_what_it_reads(tmp_path: Path) -> None:
    """On whatever thread it is: while the layer before is checked, not while it is computed."""
    path = saved(tmp_path, CNN)
    work, graph = load_workload(path, 1), read_graph(path, NOTHING, 1)
    journey = Journey(graph, work, drawn(graph, 1, SEED), numbers_of("f32", "any"))
    first, second, *_ = work.layers
    journey.operands(first)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(journey.operands, second)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        made = np.ones(first.shapes(1)["ofmap"], np.float32)
        journey.take(made)
        assert waiting.result(30)["ifmap"].size == made.size


@pytest.mark.parametrize("fails", ["conv_c", "relu_r"])
def test_nobody_waits_for_a_layer_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """What is told is why, not what came of it behind."""
    operands = Journey.operands

    def broken(self: Journey, layer: Op) -> Any:
        given = operands(self, layer)
        if layer.name == fails:
            raise CheckFailed("no such word")
        return given

    monkeypatch.setattr(Journey, "operands", broken)
    with pytest.raises(CheckFailed, match="no such word"):
        travelled(saved(tmp_path, CNN), 1)


def test_the_result_tells_where_values_came_from(tmp_path: Path) -> None:
    result = travelled(saved(tmp_path, CNN), 1)[0]
    assert {layer.name: layer.inputs for layer in result.layers} == {
        "conv_c": ("x",), "relu_r": ("conv_c",), "maxpool_p": ("relu_r",), "conv_d": ("maxpool_p",),
        "add_s": ("conv_d", "maxpool_p"), "globalaveragepool_a": ("add_s", "maxpool_p"),
        "gemm_e": ("globalaveragepool_a",), "softmax_y": ("gemm_e",),
    }  # fmt: skip
    assert result.reference_only == {"BatchNormalization": 1, "Concat": 1, "Flatten": 1}


def test_what_weights_alone_make_is_not_told(tmp_path: Path) -> None:
    """Nor worked out before somebody reads it."""
    nodes = [node("ConstantOfShape", "shape", "w"), node("Neg", "w", "m"), node("Conv", "x m", "y"),
             node("Exp", "w", "unread")]  # fmt: skip
    network = model(nodes, {"x": ["N", 2, 3, 3]}, {"shape": numbers(3, 2, 1, 1)})
    result, _, outputs = travelled(saved(tmp_path, network), 1)
    assert result.reference_only == {}
    assert result.layers[0].inputs == ("x",)
    assert not outputs["y"].any()


# ---- what cannot be done


def run(path: Path, batch: int, inputs: Arrays | None) -> None:
    work, graph = load_workload(path, batch), read_graph(path, NOTHING, batch)
    given = drawn(graph, batch, 0) if inputs is None else checked(graph, inputs, batch)
    journey = Journey(graph, work, given, numbers_of("f32", "any"))
    simulate(work, load_hardware("tiny_4x4", ESTIMATE), dtype="f32", journey=journey)
    journey.outputs()


def refused(path: Path, batch: int = 1, inputs: Arrays | None = None) -> str:
    with pytest.raises(InputError) as caught:
        run(path, batch, inputs)
    return str(caught.value)


def test_inputs_that_do_not_fit_are_told_together(tmp_path: Path) -> None:
    path = saved(tmp_path, CNN)
    said = refused(path, 2, {"x": np.zeros((1, 3, 9, 8)), "other": np.zeros(2)})
    assert said.splitlines() == [
        "'x' is float64[1, 3, 9, 8]; the model takes float32[2, 3, 9, 8]",
        "the model takes no 'other'; it takes x",
    ]
    assert "no array 'x', which the model takes as float32[2, 3, 9, 8]" in refused(path, 2, {})
    assert "'x' is complex128[2, 3, 9, 8]" in refused(path, 2, {"x": np.zeros((2, 3, 9, 8), complex)})


@pytest.mark.parametrize("number", [np.nan, -1e39, 1e39])
def test_inputs_beyond_float32_are_told(tmp_path: Path, number: float) -> None:
    said = refused(saved(tmp_path, CNN), 1, {"x": np.full((1, 3, 9, 8), number)})
    assert said.startswith("216 of the 216 numbers of 'x' are infinite or nan; give inputs, and a model, whose values")


def test_a_layer_that_reads_numbers_beyond_float32_is_named(tmp_path: Path) -> None:
    """What the machine makes of them says nothing, whatever it is."""
    nodes = [node("Log", "x", "a"), node("Conv", "a w", "y")]
    path = saved(tmp_path, model(nodes, {"x": ["N", 2, 3, 3]}, {"w": (2, 2, 1, 1)}))
    said = refused(path, 1, {"x": np.arange(18.0).reshape(1, 2, 3, 3)})
    assert said.startswith("layer conv_y: ")
    assert "1 of the 18 numbers of 'ifmap' are infinite or nan" in said


def masked(held: bool, row: Sequence[float], behind: str = "Softmax") -> ModelProto:
    """Products of which a mask, of the model's or given, leaves out all where `row`, the first of three, has -inf."""
    mask = np.zeros((3, len(row)), np.float32)
    mask[0] = row
    nodes = [node("MatMul", "x q", "a"), node("Add", "a mask", "b"), node(behind, "b", "c"), node("MatMul", "c v", "y")]
    weights = {"q": (5, len(row)), "v": (len(row), 2)} | ({"mask": mask} if held else {})
    return model(nodes, {"x": [1, 3, 5]} | ({} if held else {"mask": mask.shape}), weights)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("held", "engine", "dtype", "left"),
    [(True, "both", "f32", 20), (True, "event", "bf16", 1), (True, "event", "int8", 5), (False, "event", "f32", 5)],
)
def test_masks_of_minus_infinity_leave_elements_out(
    tmp_path: Path, held: bool, engine: str, dtype: str, left: int
) -> None:
    """They were refused as numbers beyond float32."""
    row = [-np.inf] * left + [0.0] * 4
    path, mask = saved(tmp_path, masked(held, row)), np.zeros((3, len(row)), np.float32)
    mask[0] = row
    hardware, graph = load_hardware("tiny_4x4", ESTIMATE), read_graph(path, NOTHING, 1)
    given = {"x": drawn(graph, 1, SEED)["x"]} | ({} if held else {"mask": mask})
    work = load_workload(path, 1)
    journey = Journey(graph, work, checked(graph, given, 1), numbers_of(dtype, "any"))
    result = simulate(work, hardware, dtype=dtype, engine=engine, journey=journey)
    assert result.correct
    near = {"f32": 1e-5, "bf16": 0.05, "int8": 0.1}[dtype]
    np.testing.assert_allclose(journey.outputs()["y"], witnessed(path, given, 1)["y"], rtol=near, atol=near)


@pytest.mark.parametrize(
    ("behind", "says"),
    [
        ("Softmax", "a row of 'ifmap' is -inf throughout, and its softmax nan"),
        ("LogSoftmax", "7 of the 21 numbers of 'ifmap' are infinite or nan"),
    ],
)
def test_what_a_mask_leaves_nothing_of_is_refused(tmp_path: Path, behind: str, says: str) -> None:
    """A row without an element, and a product of infinities."""
    assert says in refused(saved(tmp_path, masked(True, [-np.inf] * 7, behind)))


def test_vectors_are_as_many_images_as_they_are_of_the_size_of_the_model(tmp_path: Path) -> None:
    """A product of two of three elements, which onnx tests its backends with, was taken for one of eight images."""
    path = saved(tmp_path, model([node("MatMul", "a b", "y")], {"a": [3], "b": [3]}, {}))
    for images in (1, 4):
        given = dict.fromkeys("ab", np.ones(3 * images, np.float32))
        assert open_workload(path, ModelOptions(arrays=given)).images == images


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["f32", "int8"])
def test_sums_beyond_float32_are_told_without_warnings_of_numpy(tmp_path: Path, dtype: str) -> None:
    nodes = [node("Conv", f"{x} w", f"{y}") for x, y in ("xa", "ab", "by")]
    path = saved(tmp_path, model(nodes, {"x": ["N", 4, 3, 3]}, {"w": np.full((4, 4, 1, 1), 1e19, np.float32)}))
    with pytest.raises(InputError, match=r"layer conv_y: .* numbers of 'ifmap' are infinite or nan"):
        travelled(path, 2, dtype)


def test_images_that_do_not_divide_among_those_of_the_model(tmp_path: Path) -> None:
    said = refused(saved(tmp_path, PAIRS), 3)
    assert said.endswith("the model is for 2 images at once, as its inputs are; give 2 or a multiple, or leave it out")


@pytest.mark.parametrize(
    ("op", "reads", "more"),
    [
        *(("MatMul", reads, {}) for reads in ("k a", "b a", "v a", "b u", "v u", "c a", "b d", "d u", "v d")),
        ("Gemm", "b a", {}), ("Gemm", "b e", {"transB": 1}), ("Gemm", "a f", {"transA": 1}), ("Gemm", "k a", {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("runs", [3, pytest.param(1, marks=pytest.mark.long)])
def test_factors_that_differ_from_run_to_run(tmp_path: Path, op: str, reads: str, more: Any, runs: int) -> None:
    """Of a model of fixed sizes, whose product has no axis of images: several runs have as many second factors."""
    shapes = {
        "a": (2, 3), "b": (4, 2), "c": (3, 4, 2), "d": (3, 2, 2), "e": (5, 2), "f": (2, 4), "u": (2,), "v": (2,),
    }  # fmt: skip
    inputs = {name: shapes[name] for name in reads.split() if name in shapes}
    path = saved(tmp_path, model([node(op, reads, "y", **more)], inputs, {"k": (4, 2)} if "k" in reads else {}))
    images = next((shape[0] for shape in inputs.values() if len(shape) > 1), 1)
    if reads == "v u":
        # A number has no axis along which those of several runs could stand.
        assert [layer.groups for layer in load_workload(path, runs).layers] == [runs]
    else:
        gives_what_the_evaluator_gives(path, images * runs)


@pytest.mark.parametrize("behind", ["ReduceMean", "Identity"])
def test_what_one_number_is_spread_to_is_held_against_the_memory(behind: str, tmp_path: Path) -> None:
    """It takes none by itself: the mean of it, or what writes it, went on without end."""
    nodes = [node("Conv", "x w", "a"), node("Expand", "a many", "b"), node(behind, "b", "y")]
    weights = {"w": (2, 2, 1, 1), "many": np.array([1, 2, 10**6, 10**6])}
    said = refused(saved(tmp_path, model(nodes, {"x": [1, 2, 1, 1]}, weights)), 1)
    assert said.startswith("Expand expand_b: its values cannot be computed: they need about 8,000.0 GB of memory, and ")


_CAST = node("Cast", "a", "b", to=TensorProto.BFLOAT16)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([node("Resize", "a none scales", "y", mode="cubic")], "Resize resize_y: ...Resize by cubic"),
        ([node("Resize", "a none scales", "y", mode="linear", antialias=1)], "Resize by linear with antialias"),
        (
            [node("Resize", "a none scales", "y", nearest_mode="odd")],
            "Resize to the nearest by odd, which",
        ),
        ([node("Resize", "a none scales", "y", coordinate_transformation_mode="tf_crop_and_resize")], "tf_crop_and_re"),
        ([node("Upsample", "a scales", "y", mode="cubic")], "Upsample upsample_y: ...Resize by cubic"),
        ([_CAST, node("Cast", "b", "y", to=1)], "Cast cast_b: ...a Cast to ONNX's type 16, which NumPy has not"),
        ([node("BatchNormalization", "a s s s s", "y m v", training_mode=1)], "as it is in training"),
        ([_CAST, node("Cast", "b", "c", to=1), node("Resize", "c none scales", "y", mode="cubic")], "Cast|Resize"),
    ],
)
def test_what_an_attribute_forbids_is_refused_before_the_first_layer(
    ends: list[NodeProto], said: str, tmp_path: Path
) -> None:
    """All of it at once; nobody waits for the layers."""
    weights = {"w": (2, 2, 1, 1), "none": np.zeros(0, np.float32), "s": (2,),
               "scales": np.array([1, 1, 2, 2], np.float32)}  # fmt: skip
    path = saved(tmp_path, model([node("Conv", "x w", "a"), *ends], {"x": ["N", 2, 3, 3]}, weights))
    work, graph = load_workload(path, 1), read_graph(path, NOTHING, 1)
    with pytest.raises(InputError) as caught:
        Journey(graph, work, drawn(graph, 1, 0), numbers_of("f32", "any"))
    lines = str(caught.value).splitlines()
    assert len(lines) == len(said.split("|"))
    for line, parts in zip(lines, said.split("|"), strict=True):
        assert all(part in line for part in parts.split("..."))
        assert line.endswith("leave --input and --save-outputs out to time the layers alone")


def test_what_nobody_reads_refuses_nothing(tmp_path: Path) -> None:
    """A node of constants alone is not computed then."""
    weights = {"w": (2, 2, 1, 1), "none": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}
    nodes = [node("Resize", "w none scales", "unread", mode="cubic"), node("Conv", "x w", "y")]
    run(saved(tmp_path, model(nodes, {"x": ["N", 2, 3, 3]}, weights)), 1, None)


def test_operands_that_a_node_cannot_have_are_told(tmp_path: Path) -> None:
    """What indices there are is not known before."""
    nodes = [node("Conv", "x w", "a"), node("Identity", "at", "i"), node("Gather", "a i", "y")]
    path = saved(tmp_path, model(nodes, {"x": ["N", 2, 3, 3]}, {"w": (2, 2, 1, 1), "at": numbers(9)}))
    said = "Gather gather_y: its values cannot be computed: index 9 is out of bounds for axis 0 with size 1"
    assert refused(path) == said


# ---- on the command line


TINY = ("--hardware", "tiny_4x4", "--set", "mapping.search=estimate", "--batch", "2")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path, CNN)
    return tmp_path


def test_outputs_are_saved_by_name(here: Path) -> None:
    given = np.random.default_rng(0).standard_normal((2, 3, 9, 8)).astype(np.float32)
    np.savez("in.npz", x=given)
    done = tpusim("run", "net.onnx", *TINY, "--input", "in.npz", "--save-outputs", "out.npz", "--json", "run.json")
    assert done.exit_code == 0, done.output
    assert "The reference alone computes values of 3 ops, and biases: " in done.stdout
    assert "elements are within the proven bound of sums in float64, 0 wrong. The largest error" in done.stdout
    with np.load("out.npz") as held:
        outputs = {**held}
    np.testing.assert_allclose(outputs["y"], witnessed(Path("net.onnx"), {"x": given}, 2)["y"], atol=1e-6)
    layer = next(each for each in json.loads(Path("run.json").read_text())["layers"] if each["name"] == "conv_d")
    assert {key: layer[key] for key in ("op", "name", "inputs", "outputs_mismatched")} == {
        "op": "conv2d", "name": "conv_d", "inputs": ["maxpool_p"], "outputs_mismatched": 0,
    }  # fmt: skip
    assert layer["outputs_checked"] == layer["outputs"] > 0
    assert tpusim("compare", "run.json", "run.json").exit_code == 0


def test_arrays_settle_the_batch_and_all_open_sizes(here: Path) -> None:
    """Of a model for any number of images, and of one for a single image, of which they hold several."""
    nodes = [node("Conv", "x w", "c"), node("Relu", "c")]
    for name, shape in (("any.onnx", ["N", 2, "H", None]), ("one.onnx", [1, 2, 5, 4])):
        saved(here, model(nodes, {"x": shape}, {"w": (3, 2, 2, 2)}), name)
    given = np.random.default_rng(0).standard_normal((3, 2, 5, 4)).astype(np.float32)
    np.savez("in.npz", x=given)
    for name in ("any.onnx", "one.onnx"):
        asked = "run", name, *TINY[:-2], "--input", "in.npz", "--save-outputs", "out.npz", "--json", "-"
        done = tpusim(*asked)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["batch"] == 3
        with np.load("out.npz") as held:
            np.testing.assert_allclose(held["y"], witnessed(Path("one.onnx"), {"x": given}, 3)["y"], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--batch", "2"), "--batch 2: the arrays of --input hold 3 images; leave --batch out, or give as many"),
        (("--dim", "H=4"), "dimension 2 of the array 'x' is 5, where --dim H=4 makes H 4; leave --dim out"),
        (
            ("--input", "wrong.npz"),
            "--dim H=N; or arrays in --input that say them: x of 4 dimensions, where it has y of 1",
        ),
        (("--dim", "N=2"), "dimension 0 of the array 'x' is 3, where --dim N=2 makes N 2; leave --dim out"),
    ],
)
def test_sizes_that_contradict_the_arrays_are_told(here: Path, arguments: tuple[str, ...], says: str) -> None:
    saved(here, model([node("Conv", "x w")], {"x": ["N", 2, "H", 4]}, {"w": (3, 2, 2, 2)}), "any.onnx")
    np.savez("in.npz", x=np.zeros((3, 2, 5, 4), np.float32))
    np.savez("wrong.npz", y=np.zeros(3))
    done = tpusim("run", "any.onnx", "--hardware", "tiny_4x4", "--input", "in.npz", *arguments)
    assert done.exit_code == 2
    assert says in done.stderr


def test_outputs_of_layers_with_others_on_their_results_are_the_same(here: Path) -> None:
    for name, changes in (("apart", ()), ("together", ("--set", "sequencer.fusion=results"))):
        done = tpusim("run", "net.onnx", *TINY, "--save-outputs", f"{name}.npz", *changes)
        assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert "2 layers ride on the results of 2 (+ in their shapes). The sums of 2 layers begin at biases." in told
    assert "The reference alone computes values of 2 ops: Concat 1, Flatten 1." in told
    with np.load("apart.npz") as apart, np.load("together.npz") as together:
        np.testing.assert_allclose(together["y"], apart["y"], rtol=1e-5)


def test_without_inputs_they_are_random_and_said_to_be(here: Path) -> None:
    done = tpusim("run", "net.onnx", *TINY, "--save-outputs", "out.npz", "--seed", "4")
    assert done.exit_code == 0, done.output
    assert "Note: x float32[2, 3, 9, 8]: random, as no --input FILE.npz gives it" in done.stderr
    with np.load("out.npz") as held:
        assert held["y"].shape == (2, 5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("net.onnx", "--save-outputs", "nowhere/out.npz"), "nowhere/out.npz: cannot be written"),
        (("net.onnx", "--save-outputs", "net.onnx"), "net.onnx: arrays are written as .npz, not as .onnx"),
        (("net.onnx", "--input", "none.npz"), "none.npz: no such file"),
        (("net.onnx", "--input", "short.npz"), "short.npz: 'x' is float64[1, 3]; the model takes float32[2, 3, 9, 8]"),
        (("net.onnx", "--save-outputs", "out.npz", "--no-check"), "--no-check: nothing is computed"),
        (("net.onnx", "--save-outputs", "out.npz", "--dtype", "integers"), "--dtype integers: they are made for each"),
        (("net.onnx", "--save-outputs", "out.npz", "--layers", "conv_c"), "layer relu_r is left out"),
        (("tiny", "--save-outputs", "out.npz"), "tiny: holds no weights, so no values go from layer to layer"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(here: Path, arguments: tuple[str, ...], says: str) -> None:
    np.savez("short.npz", x=np.zeros((1, 3)))
    before = {*here.iterdir()}
    done = tpusim("run", *arguments, *TINY)
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert {*here.iterdir()} == before


# ---- networks that people know


def randomized(path: Path) -> ModelProto:
    """A light model with random weights: one number for all of a layer would hide where each of them is."""
    network, random = onnx.load(path), np.random.default_rng(SEED)
    graph = network.graph
    shapes = {each.name: numpy_helper.to_array(each).tolist() for each in graph.initializer}
    variances = {each.input[4] for each in graph.node if each.op_type == "BatchNormalization"}
    for each in [each for each in graph.node if each.op_type == "ConstantOfShape" and each.input[0] in shapes]:
        shape = shapes[each.input[0]]
        spread = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.1
        weights = (random.standard_normal(shape) * spread).astype(np.float32)
        weights = abs(weights) + np.float32(0.5) if each.output[0] in variances else weights
        graph.initializer.append(numpy_helper.from_array(weights, each.output[0]))
        graph.node.remove(each)
    for each in graph.node:
        # The evaluator takes the default of new opsets for that of old ones.
        if each.op_type == "Softmax" and not each.attribute:
            each.attribute.append(helper.make_attribute("axis", 1))
    return network


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
        "zfnet512",
    ],
)  # fmt: skip
def test_light_models(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, randomized(LIGHT / f"light_{name}.onnx"))
    result, given, outputs = travelled(path, 1, machine="tpu_v2")
    assert result.correct
    for output, expected in witnessed(path, given, 1).items():
        np.testing.assert_allclose(outputs[output], expected, rtol=1e-3, atol=1e-6)
