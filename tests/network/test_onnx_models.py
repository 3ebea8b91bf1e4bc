"""Models in ONNX: the layers of a graph against what its shapes say, and what of it is told or refused."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from tests.covering import few
from tpusim import Conv1d, Conv2d, ConvTranspose2d, DeformConv2d, Gemm, Workload, load_workload
from tpusim.base.errors import InputError
from tpusim.network.formats import NOTHING, ModelOptions, read_graph
from tpusim.network.formats.onnx_model.array_nodes import ARRAY_OPS
from tpusim.network.formats.onnx_model.facts import NOT_TIMED, STAYING
from tpusim.network.formats.onnx_model.file import operator
from tpusim.network.formats.onnx_model.vector_nodes import VECTOR_OPS
from tpusim.network.ops.elementwise import (
    Add,
    Clip,
    Div,
    Erf,
    Exp,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Mul,
    Power,
    Rdiv,
    Relu,
    Rsub,
    ScaleShift,
    Sigmoid,
    Silu,
    Sqrt,
    Sub,
    Tanh,
)
from tpusim.network.ops.moves import ChannelShuffle, Pad, Slice, Transpose, Upsample
from tpusim.network.ops.op import Op
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.ops.rows import LayerNorm, ReduceMean, RmsNorm, Softmax
from tpusim.network.workload_file import open_workload, workload_of, yaml_of
from tpusim.result.vocabulary import runs

FLOAT, LOWER = TensorProto.FLOAT, "same_lower"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
QUICK = "inception_v1", "resnet50"
MODELS = [pytest.param(path, marks=[pytest.mark.long] * (path.stem.removeprefix("light_") not in QUICK), id=path.stem)
          for path in sorted(LIGHT.glob("*.onnx"))]  # fmt: skip
Weights = dict[str, Sequence[int]]


def model_of(
    nodes: list[NodeProto], inputs: dict[str, Sequence[Any]], weights: Weights, opset: int = 17, **more: Any
) -> ModelProto:
    """A model of one result, `y`; what `inputs` has a text for is open."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **more)


def node(op: str, reads: str, makes: str = "y", **attributes: Any) -> NodeProto:
    return helper.make_node(op, reads.split(), makes.split(), name=f"{op.lower()}_{makes}", **attributes)


def saved(folder: Path, model: ModelProto | bytes, name: str = "net.onnx") -> Path:
    path = folder / name
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def layers_of(folder: Path, model: ModelProto, batch: int = 1, **asked: Any) -> tuple[Any, ...]:
    return load_workload(saved(folder, model), batch, **asked).layers


def one(op: str, x: Sequence[Any], w: Sequence[int], **attributes: Any) -> ModelProto:
    return model_of([node(op, "x w", **attributes)], {"x": x}, {"w": w})


def deformed(more: str = "", **attributes: Any) -> ModelProto:
    """3 x 3 taps of stride 2 over 9 x 8 elements."""
    operands = {"x": ["N", 4, 9, 8], "offset": ["N", 36, 4, 3], "mask": ["N", 18, 4, 3]}
    return model_of(
        [node("DeformConv", f"x w offset{more}", **attributes)], operands, {"w": [6, 2, 3, 3], "b": [6]}, opset=19
    )


# ---- a node, a layer


def test_names_of_operators_are_not_longer_than_a_line() -> None:
    assert operator(NodeProto(op_type="A" * 99)) == "A" * 60
    assert operator(NodeProto(op_type="Fft", domain="mine")) == "mine.Fft"
    assert operator(NodeProto()) == "an op without a name"


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (one("Conv", [1, 3, 9, 8], [4, 3, 3, 2]), Conv2d("conv_y", 3, 9, 8, 4, (3, 2))),
        (
            one("Conv", ["N", 4, 9, 8], [6, 2, 3, 3], group=2, strides=[2, 1], pads=[1, 2, 0, 3], dilations=[1, 2]),
            Conv2d("conv_y", 4, 9, 8, 6, (3, 3), (2, 1), (1, 2, 0, 3), (1, 2), 2),
        ),
        (
            one("Conv", ["N", 4, 9, 8], [4, 4, 2, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
            Conv2d("conv_y", 4, 9, 8, 4, (2, 2), (2, 2), "same"),
        ),
        (one("Conv", [1, 4, 9, 8], [4, 4, 2, 2], auto_pad="SAME_LOWER"), Conv2d("conv_y", 4, 9, 8, 4, 2, 1, LOWER)),
        # A dimension of zero is as open as one of a name.
        (one("Conv", [0, 4, 9, 8], [4, 4, 2, 2]), Conv2d("conv_y", 4, 9, 8, 4, (2, 2))),
        (one("Conv", [1, 4, 9, 8], [4, 4, 2, 2], auto_pad="VALID"), Conv2d("conv_y", 4, 9, 8, 4, (2, 2))),
        (
            one("Conv", [1, 4, 90], [8, 1, 5], group=4, strides=[2], pads=[3, 1], dilations=[3]),
            Conv1d("conv_y", 4, 90, 8, 5, 2, (3, 1), 3, 4),
        ),
        (
            deformed(strides=[2, 2], group=2, offset_group=2),
            DeformConv2d("deformconv_y", 4, 9, 8, 6, (3, 3), (2, 2), groups=2, offset_groups=2),
        ),
        (
            model_of([node("DeformConv", "x w o")], {"x": [1, 4, 9, 8], "o": [1, 18, 7, 6]}, {"w": [6, 4, 3, 3]}, 19),
            DeformConv2d("deformconv_y", 4, 9, 8, 6, (3, 3)),
        ),
        (
            deformed(" b mask", strides=[2, 2], pads=[1, 0, 1, 0], dilations=[2, 1], group=2, offset_group=2),
            DeformConv2d("deformconv_y", 4, 9, 8, 6, (3, 3), (2, 2), (1, 0), (2, 1), 2, 2, True),
        ),
        (
            one("ConvTranspose", [1, 4, 9, 8], [4, 3, 4, 4], strides=[2, 2], pads=[1, 1, 1, 1], group=2),
            ConvTranspose2d("convtranspose_y", 4, 9, 8, 6, (4, 4), (2, 2), (1, 1), groups=2),
        ),
        (
            one("ConvTranspose", [1, 4, 9], [4, 3, 4], strides=[3], output_padding=[2]),
            ConvTranspose2d("convtranspose_y", 4, 1, 9, 3, (1, 4), (1, 3), (0, 0), (0, 2)),
        ),
        (one("Gemm", [1, 64], [64, 10]), Gemm("gemm_y", 3, 10, 64)),
        (one("Gemm", ["N", 64], [10, 64], transB=1), Gemm("gemm_y", 3, 10, 64)),
        (one("Gemm", [64, "N"], [10, 64], transA=1, transB=1), Gemm("gemm_y", 3, 10, 64)),
        # Any number but zero turns a factor; two ended in an IndexError.
        (one("Gemm", [64, "N"], [10, 64], transA=2, transB=-1), Gemm("gemm_y", 3, 10, 64)),
        (one("MatMul", ["N", 197, 64], [64, 10]), Gemm("matmul_y", 3 * 197, 10, 64)),
        # As many rows of an image as columns: the transposed product would be as large.
        (one("MatMul", ["N", 10, 64], [64, 10]), Gemm("matmul_y", 3 * 10, 10, 64)),
        (one("MatMul", ["N", 5, 7, 64], [1, 1, 64, 10]), Gemm("matmul_y", 3 * 35, 10, 64)),
        (model_of([node("MatMul", "w x")], {"x": ["N", 64, 9]}, {"w": [10, 64]}), Gemm("matmul_y", 3 * 9, 10, 64)),
    ],
)  # fmt: skip
def test_a_node_becomes_a_layer(tmp_path: Path, model: ModelProto, layer: Any) -> None:
    assert layers_of(tmp_path, model, batch=3) == (layer,)


def test_biases_of_a_model_are_told(tmp_path: Path) -> None:
    """Numbers for each output channel, and what is left of batch normalizations; not what is added element by element,
    or worked out by the model.
    """
    nodes = [
        node("Conv", "x w b", "a"), node("Conv", "a u", "c"), node("BatchNormalization", "c b b b b", "d"),
        node("Conv", "d u", "e"), node("Flatten", "e", "f"), node("Gemm", "f g h", "i"), node("Gemm", "f g j", "k"),
        node("Gemm", "f g i", "y"),
    ]  # fmt: skip
    weights: Weights = {"w": (4, 3, 1, 1), "b": (4,), "u": (4, 4, 1, 1), "g": (4, 5), "h": (1, 5), "j": (2, 5)}
    path = saved(tmp_path, model_of(nodes, {"x": [2, 3, 1, 1]}, weights))
    assert load_workload(path).biases == ("conv_a", "conv_c", "gemm_i")


@pytest.mark.parametrize("first", ["N", 1])
def test_products_of_what_the_model_computes_stand_side_by_side(tmp_path: Path, first: Any) -> None:
    model = model_of([node("MatMul", "q k", "y")], {"q": [first, 4, 9, 64], "k": [first, 4, 64, 9]}, {})
    layers = layers_of(tmp_path, model, batch=3)
    assert layers == (Gemm("matmul_y", 9, 9, 64, groups=12),)


def test_a_first_dimension_that_is_called_a_length_counts_no_images(tmp_path: Path) -> None:
    model = one("Conv", ["frames", 3, 8, 8], [4, 3, 3, 3])
    with pytest.raises(InputError, match=r"leave sizes open: frames \(dimension 0 of x\); .* --dim frames=N"):
        layers_of(tmp_path, model, batch=2)
    assert len(layers_of(tmp_path, model, batch=2, dims={"frames": 5})) == 5


@pytest.mark.parametrize("name", ["N", "batch", "pictures"])
def test_a_batch_that_is_given_by_name_is_that_of_the_run(tmp_path: Path, name: str) -> None:
    """Of a dimension that only its place makes the batch, nobody knows what it is in a run of another batch."""
    path = saved(tmp_path, one("Conv", [name, 3, 8, 8], [4, 3, 3, 3]))
    work = load_workload(path, dims={name: 5})
    assert (work.batch, work.layers) == (5, load_workload(path, 5).layers)
    if name == "pictures":
        assert len(load_workload(path, 1, dims={name: 5}).layers) == 5
        for other in (2, 10):
            with pytest.raises(
                InputError, match=f"is 5 as given, and the batch {other}; give batch 5 if that dimension"
            ):
                load_workload(path, other, dims={name: 5})
    else:
        assert load_workload(path, 10, dims={name: 5}).layers == work.layers
        with pytest.raises(InputError, match="the model is for 5 images at once, as the sizes given are; give 5 or a"):
            load_workload(path, 2, dims={name: 5})


def test_more_images_than_the_batch_are_as_many_layers(tmp_path: Path) -> None:
    shape = numpy_helper.from_array(np.array([-1, 3, 8, 8]), "shape")
    model = model_of(
        [node("Reshape", "x shape", "a"), node("Conv", "a w")], {"x": ["N", 5, 3, 8, 8]}, {"w": [4, 3, 3, 3]}
    )
    model.graph.initializer.append(shape)
    assert layers_of(tmp_path, model, batch=2) == tuple(Conv2d(f"conv_y_{i}", 3, 8, 8, 4, (3, 3)) for i in range(1, 6))
    told = "1 op of several maps an image (conv_y, ...): a layer for each map"
    assert told in open_workload(tmp_path / "net.onnx").notes


SIDES = st.integers(1, 9)


@st.composite
def convolutions(draw: st.DrawFn) -> ModelProto:
    """Of one or two axes, of any kind that ONNX has, transposed or not."""
    axes, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    kernel, x = [draw(st.integers(1, 4)) for _ in range(axes)], [draw(st.integers(4, 12)) for _ in range(axes)]
    into, out = groups * draw(st.integers(1, 3)), draw(st.integers(1, 3))
    strides = [draw(st.integers(1, 3)) for _ in range(axes)]
    attributes: dict[str, Any] = {"group": groups, "strides": strides}
    attributes["dilations"] = [draw(st.integers(1, 3)) for _ in range(axes)]
    auto = draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    attributes |= (
        {"pads": [draw(st.integers(0, 2)) for _ in range(2 * axes)]} if auto == "NOTSET" else {"auto_pad": auto}
    )
    if draw(st.booleans()):
        return one("Conv", ["N", into, *x], [groups * out, into // groups, *kernel], **attributes)
    if auto == "NOTSET":
        attributes["output_padding"] = [draw(st.integers(0, most - 1)) for most in strides]
    return one("ConvTranspose", ["N", into, *x], [into, out, *kernel], **attributes)


@cache
def light(path: Path) -> tuple[Workload, ModelProto, dict[str, list[int]]]:
    """A light model at batch 1, as ONNX has it, and its shapes; several tests look at each."""
    model = onnx.load(path, load_external_data=False)
    return load_workload(path, 1), model, inferred(model)


def inferred(model: ModelProto) -> dict[str, list[int]]:
    found = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    values = [*found.input, *found.value_info, *found.output]
    shapes = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in values}
    return shapes | {each.name: list(each.dims) for each in found.initializer}


@settings(deadline=None, max_examples=30)
@given(convolutions())
def test_outputs_and_macs_are_those_of_the_inferred_shapes(tmp_path_factory, model: ModelProto) -> None:
    """Where a kernel has no position, or too much is cut off at one end, that is told; onnx has shapes of that, too."""
    try:
        (layer,) = layers_of(tmp_path_factory.getbasetemp(), model, batch=2)
    except InputError as error:
        event(why := re.findall("the kernel spans|cuts? off|do not fit|is not known|is not below", str(error))[0])
        assume(why is None)
    shapes = inferred(model)
    weights = shapes["w"]
    out, maps = shapes["y"][1:], layer.tensors(2)
    assert [maps.ofmap[0], *maps.ofmap[3 - len(out) + 1 : 3]] == out
    per_output = prod(weights[1:])
    over = prod(shapes["x"][1:]) if model.graph.node[0].op_type == "ConvTranspose" else prod(out)
    assert layer.macs(2) == 2 * over * per_output


# ---- ops of the vector unit


@pytest.mark.parametrize(
    ("nodes", "layers"),
    [
        ([node("MaxPool", "x", kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])],
         [Pool2d("maxpool_y", "max", 4, 9, 8, (3, 2), (2, 1), (1, 0, 1, 1))]),
        ([node("AveragePool", "x", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, count_include_pad=1)],
         [Pool2d("averagepool_y", "average", 4, 9, 8, 3, 2, ceil_mode=True, count_include_pad=True)]),
        ([node("AveragePool", "x", kernel_shape=[2, 2], auto_pad="SAME_UPPER")],
         [Pool2d("averagepool_y", "average", 4, 9, 8, 2, padding="same")]),
        ([node("GlobalAveragePool", "x")], [Pool2d("globalaveragepool_y", "average", 4, 9, 8, (9, 8))]),
        ([node("MaxPool", "l", kernel_shape=[3], pads=[1, 1])],
         [Pool2d("maxpool_y", "max", 4, 1, 7, (1, 3), padding=(0, 1))]),
        ([node("Add", "x c")], [Add("add_y", 4, 9, 8, other="channel")]),
        ([node("Sum", "x m")], [Add("sum_y", 4, 9, 8, other="map")]),
        ([node("GlobalMaxPool", "x", "g"), node("Mul", "x g")],
         [Pool2d("globalmaxpool_g", "max", 4, 9, 8, (9, 8)), Mul("mul_y", 4, 9, 8, other="image")]),
        ([node("Relu", "x", "a"), node("Sub", "a x")], [Relu("relu_a", 4, 9, 8), Sub("sub_y", 4, 9, 8)]),
        ([node("Sub", "x n")], [Sub("sub_y", 4, 9, 8, other="number")]),
        ([node("MatMul", "t w", "a"), node("Add", "a b")],
         [Gemm("matmul_a", 15, 6, 4), Add("add_y", 6, 5, 1, other="channel")]),
        ([node("MatMul", "t w", "a"), node("Relu", "a", "d"), node("Add", "d p")],
         [Gemm("matmul_a", 15, 6, 4), Relu("relu_d", 6, 5), Add("add_y", 6, 5, 1, other="map")]),
        ([node("Clip", "x n k")], [Clip("clip_y", 4, 9, 8, min=1, max=1)]),
        ([node("Clip", "x k")], [Clip("clip_y", 4, 9, 8, min=1)]),
        ([node("LeakyRelu", "x", alpha=0.125)], [LeakyRelu("leakyrelu_y", 4, 9, 8, slope=0.125)]),
        ([node("HardSigmoid", "x")], [HardSigmoid("hardsigmoid_y", 4, 9, 8)]),
        ([node("HardSwish", "x")], [HardSwish("hardswish_y", 4, 9, 8)]),
        ([node("Sigmoid", "x", "a"), node("Div", "a n")],
         [Sigmoid("sigmoid_a", 4, 9, 8), Div("div_y", 4, 9, 8, other="number")]),
        ([node("Tanh", "t", "a"), node("Gelu", "a", approximate="tanh")],
         [Tanh("tanh_a", 4, 5), Gelu("gelu_y", 4, 5, approximate="tanh")]),
        ([node("Erf", "x", "a"), node("Exp", "a", "d"), node("Swish", "d")],
         [Erf("erf_a", 4, 9, 8), Exp("exp_d", 4, 9, 8), Silu("swish_y", 4, 9, 8)]),
        # What is reduced, as an operand.
        ([node("ReduceMean", "t last", "e"), node("Swish", "x")],
         [ReduceMean("reducemean_e", 4, 15), Silu("swish_y", 4, 9, 8)]),
        ([node("Softmax", "t", "a"), node("LayerNormalization", "a h h")],
         [Softmax("softmax_a", 4, 15), LayerNorm("layernormalization_y", 4, 15)]),
        ([node("RMSNormalization", "t h", epsilon=0.25)], [RmsNorm("rmsnormalization_y", 4, 15, epsilon=0.25)]),
        ([node("Softmax", "x", axis=-1), node("ReduceMean", "t", "e", axes=[-1])],
         [Softmax("softmax_y", 8, 108), ReduceMean("reducemean_e", 4, 15)]),
        ([node("Relu", "x", "a"), node("ReduceMean", "a", axes=[2, 3], keepdims=0)],
         [Relu("relu_a", 4, 9, 8), Pool2d("reducemean_y", "average", 4, 9, 8, (9, 8))]),
        ([node("Sub", "c x", "a"), node("Div", "n a")],
         [Rsub("sub_a", 4, 9, 8, other="channel"), Rdiv("div_y", 4, 9, 8, other="number")]),
        ([node("Pow", "x two", "a"), node("Pow", "a half", "d"), node("Sqrt", "d")],
         [Power("pow_a", 4, 9, 8), Sqrt("pow_d", 4, 9, 8), Sqrt("sqrt_y", 4, 9, 8)]),
        ([node("Softmax", "x", axis=1)], [Softmax("softmax_y", 4, 216)]),
        ([node("BatchNormalization", "x s s s s")], [ScaleShift("batchnormalization_y", 4, 9, 8)]),
        ([node("Conv", "x f", "a"), node("BatchNormalization", "a s s s s")], [Conv2d("conv_a", 4, 9, 8, 4, 1)]),
    ],
)  # fmt: skip
def test_a_node_becomes_a_layer_of_the_vector_unit(tmp_path: Path, nodes: list[NodeProto], layers: list[Any]) -> None:
    weights = {
        "c": [4, 1, 1], "m": [1, 4, 9, 8], "w": [4, 6], "b": [6], "p": [1, 5, 6], "s": [4], "h": [4], "f": [4, 4, 1, 1],
    }  # fmt: skip
    opset = 24 if {"Gelu", "Swish", "RMSNormalization"} & {each.op_type for each in nodes} else 17
    model = model_of(nodes, {"x": ["N", 4, 9, 8], "l": ["N", 4, 7], "t": ["N", 5, 4]}, weights, opset)
    for name, number in {"n": 1, "k": 1, "two": 2, "half": 0.5}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(number, np.float32), name))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "last"))
    assert [*layers_of(tmp_path, model, batch=3)] == layers


@pytest.mark.parametrize(
    "nodes",
    [
        [node("MaxPool", "v", kernel_shape=[2, 2, 2])],
        [node("Pow", "x r")],
        [node("ReduceMean", "x", axes=[0])],
        [node("Clip", "x a"), node("ReduceMax", "x", "a", keepdims=0)][::-1],
        [node("LeakyRelu", "x", alpha=2.0)],
    ],
)
def test_what_is_no_layer_takes_no_time_and_is_named(tmp_path: Path, nodes: list[NodeProto]) -> None:
    inputs = {"x": ["N", 4, 9, 8], "v": ["N", 4, 9, 8, 7], "r": [8]}
    model = model_of([*nodes, node("Conv", "x f", "z")], inputs, {"c": [1, 1, 1, 1], "f": [4, 4, 1, 1]})
    work = load_workload(saved(tmp_path, model), 2)
    assert [layer.op for layer in work.layers] == ["conv2d"]
    assert nodes[-1].op_type in dict(work.not_timed)


@pytest.mark.parametrize(("to", "told"), [(TensorProto.INT32, True), (TensorProto.BOOL, True), (FLOAT, False)])
def test_a_cast_to_whole_numbers_says_why_it_takes_no_time(tmp_path: Path, to: int, told: bool) -> None:
    """A cast to reals is read where its operand lies, in any type, and needs no note."""
    model = model_of([node("Conv", "x f", "c"), node("Cast", "c", to=to)], {"x": [2, 4, 9, 8]}, {"f": [4, 4, 1, 1]})
    model.graph.output[0].type.tensor_type.elem_type = to
    notes = " ".join(open_workload(saved(tmp_path, model), NOTHING).notes)
    assert ("not timed: Cast 1 (it rounds, and no unit here rounds)" in notes) == told


# ---- whole models


def by_hand(path: Path) -> tuple[Counter[str], int]:
    """Convolutions and products of a model, and its MACs, from nothing but the shapes that onnx infers."""
    _, model, shapes = light(path)
    kinds: Counter[str] = Counter()
    macs = 0
    for each in model.graph.node:
        if each.op_type in ("Conv", "Gemm"):
            kinds[each.op_type] += 1
            weights, out = shapes[each.input[1]], shapes[each.output[0]]
            macs += prod(out) * (prod(weights[1:]) if each.op_type == "Conv" else prod(shapes[each.input[0]]))
    return kinds, macs


@pytest.mark.parametrize("path", MODELS)
def test_light_models_have_the_layers_that_their_shapes_say(path: Path) -> None:
    document = open_workload(path, ModelOptions(ops="array"))
    kinds, macs = by_hand(path)
    for batch in (1, 3):
        work = workload_of(document, batch)
        found = Counter("Gemm" if layer.op == "gemm" else "Conv" for layer in work.layers)
        assert (found, sum(layer.macs(batch) for layer in work.layers)) == (kinds, batch * macs)
    nodes = Counter(each.op_type for each in light(path)[1].graph.node)
    assert not work.not_known
    assert all(count <= nodes[op] for op, count in work.not_timed)
    folded = nodes.total() - kinds.total() - sum(count for _, count in work.not_timed)
    assert f"{folded:,} ops of weights and shapes alone" in document.notes[1]


@pytest.mark.parametrize("path", MODELS)
def test_light_models_have_the_maps_of_the_vector_unit_that_their_shapes_say(path: Path) -> None:
    """Every op that is known and not folded is a layer, with as many outputs as onnx infers; the array's stay so."""
    work, model, shapes = light(path)
    assert work.with_ops("array").layers == load_workload(path, 1, ops="array").layers
    nodes, counted = model.graph.node, Counter[int]()
    convolved = {each.output[0] for each in nodes if each.op_type == "Conv"}
    for each in nodes:
        folded = each.op_type == "BatchNormalization" and each.input[0] in convolved
        if each.op_type in VECTOR_OPS and not folded:
            counted[prod(shapes[each.output[0]])] += 1
    assert Counter(layer.outputs(1) for layer in work.layers if layer.unit == "vector") == counted
    assert not {op for op, _ in work.not_timed} & VECTOR_OPS.keys() - {"BatchNormalization"}


@pytest.mark.parametrize("path", MODELS)
def test_layers_of_light_models_read_what_their_graphs_say(path: Path) -> None:
    """By hand: the layers before a node, through all that is none; the result of a convolution may be normalized."""
    work, model, _ = light(path)
    graph = model.graph
    known, left = {"": set[str]()}, [layer.name for layer in work.layers]
    held = {each.name for each in graph.initializer}
    known |= {each.name: set() if each.name in held else {each.name} for each in graph.input}
    found: dict[str, set[str]] = {}
    convolved = {each.output[0] for each in graph.node if each.op_type == "Conv"}
    for each in graph.node:
        read = set[str]().union(*(known.get(name, set()) for name in each.input))
        folded = each.op_type == "BatchNormalization" and each.input[0] in convolved
        if read and each.op_type in ("Conv", "Gemm", *VECTOR_OPS) and not folded:
            found[left[0]] = read
            read = {left.pop(0)}
        known |= dict.fromkeys(each.output, read)
    assert {name: {*read} for name, read in work.inputs().items()} == found
    assert not left


def test_what_only_joins_or_flattens_is_read_where_it_lies() -> None:
    sources = load_workload(LIGHT / "light_squeezenet.onnx").sources()
    joined = [source for each in sources.values() for source in each if len(source.names) > 1]
    assert len(joined) == 8
    assert all(source.direct for each in sources.values() for source in each)
    shuffled = load_workload(LIGHT / "light_shufflenet.onnx")
    assert sum(layer.op == "channel_shuffle" for layer in shuffled.layers) == 16
    assert all(source.direct for each in shuffled.sources().values() for source in each)


def test_there_are_nine_of_them() -> None:
    assert len(MODELS) == 9


def test_resnet50_has_the_shapes_of_the_shipped_workload() -> None:
    shipped, read = load_workload("resnet50"), load_workload(LIGHT / "light_resnet50.onnx", ops="array")
    assert Counter(each.shape_key for each in read.layers) == Counter(each.shape_key for each in shipped.layers)
    assert dict(read.not_timed)["Relu"] == 49


@pytest.mark.parametrize("name", few(1, ["squeezenet", "inception_v1", "shufflenet"]))
def test_what_is_written_reads_back_the_same(tmp_path: Path, name: str) -> None:
    """With turns and joined maps between layers."""
    document = open_workload(LIGHT / f"light_{name}.onnx")
    path = tmp_path / "net.yaml"
    path.write_text(yaml_of(document))
    assert load_workload(path, batch=2) == workload_of(document, 2)


@pytest.mark.parametrize(
    ("nodes", "shape", "layer"),
    [
        ([node("Transpose", "x", perm=[0, 2, 3, 1])], ["N", 3, 8, 6],
         Transpose("transpose_y", 3, 8, 6, order=("height", "width", "channels", "images"))),
        ([node("Transpose", "x")], [4, 6],
         Transpose("transpose_y", 6, order=("images", "height", "width", "channels"))),
        ([node("Transpose", "x", perm=[0, 2, 1])], ["N", 5, 4],
         Transpose("transpose_y", 4, 5, order=("height", "channels", "width", "images"))),
        ([node("Transpose", "x", perm=[0, 3, 4, 1, 2])], ["N", 3, 5, 2, 4],
         Transpose("transpose_y", 15, 8, order=("height", "channels", "width", "images"))),
        ([node("Transpose", "x", perm=[0, 2, 1, 3, 4])], ["N", 3, 5, 2, 4],
         ChannelShuffle("transpose_y", 15, 2, 4, groups=3)),
        ([node("Pad", "x pads")], ["N", 3, 8, 6], Pad("pad_y", 3, 8, 6, padding=(1, 0, 2, 3))),
        ([node("Pad", "x pads zero")], ["N", 3, 8, 6], Pad("pad_y", 3, 8, 6, padding=(1, 0, 2, 3))),
        ([node("Resize", "x none scales", mode="nearest")], ["N", 3, 8, 6],
         Upsample("resize_y", 3, 8, 6, scale=(2, 3))),
        ([node("Slice", "x one_ end two_ two_")], ["N", 3, 9, 6],
         Slice("slice_y", 3, 9, 6, axis="height", start=1, stop=8, step=2)),
    ],
)  # fmt: skip
def test_what_moves_elements_is_a_layer(tmp_path: Path, nodes: list[NodeProto], shape: list[Any], layer: Op) -> None:
    work = load_workload(saved(tmp_path, moving(nodes, shape)), batch=2 if shape[0] == "N" else shape[0])
    assert work.layers == (layer,)
    assert not work.not_timed


@pytest.mark.parametrize(
    "moved",
    [
        node("Transpose", "x", perm=[0, 1, 3, 2, 4]), node("Pad", "x pads one"), node("Pad", "x pads", mode="reflect"),
        node("Pad", "x more"), node("Resize", "x none scales", mode="linear"), node("Resize", "x none part"),
        node("Resize", "x none scales", coordinate_transformation_mode="align_corners"),
        node("Slice", "x one_ two_ two_"),
    ],
)  # fmt: skip
def test_what_moves_elements_in_other_ways_takes_no_time(tmp_path: Path, moved: NodeProto) -> None:
    shape = ["N", 3, 8, 1, 6] if moved.op_type == "Transpose" else ["N", 3, 8, 6]
    moved.output[0] = "m"
    work = load_workload(saved(tmp_path, moving([moved, node("Relu", "m")], shape)), batch=2)
    assert [layer.op for layer in work.layers] == ["relu"]
    assert dict(work.not_timed) == {moved.op_type: 1}


def test_a_map_of_no_rows_does_not_grow(tmp_path: Path) -> None:
    """By no factor is nothing made more; the model is read."""
    cut = node("Slice", "x two_ two_ two_", "e")
    nodes = [cut, node("Resize", "e none scales", "m", mode="nearest"), node("Relu", "x")]
    work = load_workload(saved(tmp_path, moving(nodes, ["N", 3, 8, 6])), batch=2)
    assert [layer.op for layer in work.layers] == ["relu"]
    assert dict(work.not_timed) == {"Slice": 1, "Resize": 1}


@pytest.mark.parametrize("changed", [node("Transpose", "i", "t", perm=[0, 2, 1, 3]), node("Div", "i i", "t")])
def test_whole_numbers_are_no_layer(tmp_path: Path, changed: NodeProto) -> None:
    """Their quotients are whole, too."""
    nodes = [node("Cast", "x", "i", to=7), changed, node("Cast", "t", "f", to=1), node("Relu", "f")]
    work = load_workload(saved(tmp_path, moving(nodes, ["N", 3, 8, 6])), batch=2)
    assert [layer.op for layer in work.layers] == ["relu"]


def moving(nodes: list[NodeProto], shape: list[Any]) -> ModelProto:
    model = model_of(nodes, {"x": shape}, {}, 18)
    arrays = {
        "one_": np.array([1]), "two_": np.array([2]), "end": np.array([100]),
        "pads": np.array([0, 0, 1, 0, 0, 0, 2, 3]), "more": np.array([0, 1, 0, 0, 0, 0, 0, 0]), "zero": np.float32(0),
        "one": np.float32(1), "none": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 3], np.float32),
        "part": np.array([1, 1, 1.5, 1], np.float32),
    }  # fmt: skip
    for name, array in arrays.items():
        if any(name in each.input for each in nodes):
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def encoder(tokens: Any, opset: int = 17) -> ModelProto:
    """A layer of attention as tools export it: its shapes are worked out by the model itself."""
    unsqueeze = [
        node("Unsqueeze", f"{name}0 axis", name) if opset > 12 else node("Unsqueeze", f"{name}0", name, axes=[0])
        for name in ("batch", "tokens")
    ]
    four = ["batch", "tokens", "heads", "size"]
    nodes = [
        node("MatMul", "x w", "q"), node("Shape", "x", "s"), node("Gather", "s zero", "batch0"),
        node("Gather", "s one", "tokens0"), *unsqueeze, node("Concat", " ".join(four), "split", axis=0),
        node("Div", "split ones", "by"), node("Reshape", "q by", "r"),
        node("Transpose", "r", "heads_q", perm=[0, 2, 1, 3]), node("Transpose", "r", "heads_k", perm=[0, 2, 3, 1]),
        node("MatMul", "heads_q heads_k", "scores"), node("Softmax", "scores", "p", axis=-1), node("Relu", "p"),
    ]  # fmt: skip
    model = model_of(nodes, {"x": ["batch_size", tokens, 32]}, {"w": [32, 32]}, opset)
    for name, value in {"zero": 0, "one": 1, "axis": [0], "heads": [4], "size": [8], "ones": [1, 1, 1, 1]}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    return model


@pytest.mark.parametrize(("tokens", "dims", "opset"), [(9, {}, 17), ("seq", {"seq": 9}, 17), (9, {}, 11)])
def test_shapes_that_a_model_works_out_are_found(tmp_path: Path, tokens: Any, dims: dict[str, int], opset: int) -> None:
    path = saved(tmp_path, encoder(tokens, opset))
    work = load_workload(path, batch=2, dims=dims)
    heads = (
        Transpose("transpose_heads_q", 9, 4, 8, order=("height", "channels", "width", "images")),
        Transpose("transpose_heads_k", 9, 4, 8, order=("height", "width", "channels", "images")),
    )
    scores = Gemm("matmul_scores", 9, 9, 8, groups=8)
    rest = Softmax("softmax_p", 9, 72), Relu("relu_y", 9, 9, 1, images=8)
    assert work.layers == (Gemm("matmul_q", 18, 32, 32), *heads, scores, *rest)
    assert dict(work.not_timed) == {"Reshape": 1}
    notes = open_workload(path, ModelOptions(dims)).notes
    assert notes[0] == "the model leaves its batch open (batch_size); layers are for the batch of a run"
    assert ("sizes given: seq=9" in notes) == bool(dims)


def test_weights_are_no_inputs_however_large_they_are(tmp_path: Path) -> None:
    path = saved(tmp_path, one("Conv", ["N", 48, 8, 8], [64, 48, 5, 5]))
    assert open_workload(path, ModelOptions()).data["inputs"] == ["x"]


def test_a_function_of_the_model_is_what_is_in_it(tmp_path: Path) -> None:
    body = helper.make_function(
        "mine", "Block", ["a", "b"], ["c"], [node("MatMul", "a b", "c")], [helper.make_opsetid("", 17)]
    )
    model = model_of([helper.make_node("Block", ["x", "w"], ["y"], domain="mine")], {"x": ["N", 64]}, {"w": [64, 10]})
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    (layer,) = layers_of(tmp_path, model, batch=4)
    assert (layer.m, layer.n, layer.k) == (4, 10, 64)


def test_weights_beside_the_file_are_not_read_for_timing(tmp_path: Path) -> None:
    """Simulators ship networks without them: their shapes are in the model."""
    model = one("Gemm", ["N", 64], [64, 100])
    (weights,) = model.graph.initializer
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="w.bin")
    path = saved(tmp_path, model)
    says = (
        "files of weights are missing: w.bin (1 tensor); layers are timed by their shapes, and checked with random ones"
    )
    assert says in open_workload(path, ModelOptions()).notes
    assert load_workload(path, 2).layers == (Gemm("gemm_y", 2, 100, 64),)
    with pytest.raises(InputError, match=r"w.bin \(1 tensor\); put them beside the model, or leave --input and"):
        read_graph(path, ModelOptions(), 2)
    (tmp_path / "w.bin").write_bytes(b"")
    assert load_workload(path, 2).layers == (Gemm("gemm_y", 2, 100, 64),)
    assert not any("missing" in note for note in open_workload(path, ModelOptions()).notes)
    for place in ("../w.bin", "/etc/passwd", "", "a\nb"):
        weights.external_data[0].value = place
        with pytest.raises(
            InputError, match=r"the weights of w are said to be in .*; they must stand in the model's own"
        ):
            load_workload(saved(tmp_path, model))


@pytest.mark.parametrize("size", [10, 3000])
@pytest.mark.parametrize("op", ["Gemm", "Conv"])
def test_weights_that_were_taken_out_leave_their_shapes(op: str, size: int, tmp_path: Path) -> None:
    """Small ones too, whose values nobody needs to know the sizes of layers."""
    filled = one(op, ["N", 4, 8, 8] if op == "Conv" else ["N", 4], [size, 4, 1, 1] if op == "Conv" else [4, size])
    whole = load_workload(saved(tmp_path, filled), 2).layers
    for each in filled.graph.initializer:
        for name in ("raw_data", "float_data"):
            each.ClearField(name)
    path = saved(tmp_path, filled)
    assert load_workload(path, 2).layers == whole
    assert "1 tensor of weights without values; layers" in open_workload(path, ModelOptions()).notes[0]
    with pytest.raises(InputError, match="1 tensor of weights without values; put them beside the model"):
        read_graph(path, ModelOptions(), 2)


@pytest.mark.parametrize("inside", ["graph", "attribute", "branch", "sparse", "function"])
def test_weights_outside_of_the_models_folder_are_refused_wherever_they_are(tmp_path: Path, inside: str) -> None:
    """By a link, too, whether or not values are read."""
    (folder := tmp_path / "model").mkdir()
    (tmp_path / "other").mkdir()
    for at in ("other/w.bin", "model/own.bin"):
        (tmp_path / at).write_bytes(bytes(4 * 6400))
    (folder / "linked.bin").symlink_to(tmp_path / "other" / "w.bin")
    (folder / "sub").symlink_to(tmp_path / "other")
    (folder / "round.bin").symlink_to("round.bin")
    (folder / "again.bin").symlink_to("own.bin")
    for place, sound in (
        ("linked.bin", False), ("sub/w.bin", False), ("../other/w.bin", False), ("round.bin", False),
        ("own.bin", True), ("again.bin", True),
    ):  # fmt: skip
        path = saved(folder, with_weights_in(place, inside))
        if sound:
            assert load_workload(path, 2, skip_unknown=True).layers
        else:
            with pytest.raises(InputError, match=r"the weights of far are said .*; they must stand in the model's own"):
                load_workload(path, 2, skip_unknown=True)


def with_weights_in(place: str, inside: str) -> ModelProto:
    """A product, and a tensor `far` in a file: in some part of the model."""
    model = one("Gemm", ["N", 64], [64, 100])
    tensor = TensorProto(name="far", data_type=FLOAT, dims=[64, 100], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=place)
    constant = helper.make_node("Constant", [], ["c"], value=TensorProto(name="far", data_type=FLOAT, dims=[1]))
    constant.attribute[0].t.CopyFrom(tensor)
    if inside == "graph":
        model.graph.initializer.append(tensor)
    elif inside == "attribute":
        model.graph.node.insert(0, constant)
    elif inside == "branch":
        branch = helper.make_graph([node("Identity", "far", "o")], "b", [], [], [tensor])
        model.graph.node.append(helper.make_node("Mystery", ["x"], ["z"], body=branch))
    elif inside == "sparse":
        model.graph.sparse_initializer.add().values.CopyFrom(tensor)
    else:
        model.functions.append(helper.make_function("mine", "F", ["a"], ["c"], [constant], model.opset_import))
    return model


# ---- what is not known


STRANGE = [
    node("Conv", "x w", "a"), node("LSTM", "a r r", "b"), helper.make_node("Fused", ["b"], ["c"], domain="com.mine"),
    node("Multinomial", "c", "d"), node("Multinomial", "c", "e"), node("Relu", "a", "y"),
]  # fmt: skip


def strange() -> ModelProto:
    model = model_of(STRANGE, {"x": ["N", 3, 8, 8]}, {"w": [4, 3, 3, 3], "r": [1, 1, 1]})
    model.graph.node[1].op_type = "Cell"
    model.opset_import.append(helper.make_opsetid("com.mine", 1))
    return model


def test_ops_that_are_not_known_are_named_at_once(tmp_path: Path) -> None:
    path = saved(tmp_path, strange())
    with pytest.raises(InputError) as error:
        load_workload(path)
    assert str(error.value) == (
        f"{path}: 4 ops not known here: Cell 1, com.mine.Fused 1, Multinomial 2; tpusim run or import leaves them out "
        "with --skip-unknown, and says so"
    )
    work = load_workload(path, skip_unknown=True)
    assert work.not_known == (("Multinomial", 2), ("Cell", 1), ("com.mine.Fused", 1))
    assert [layer.name for layer in work.layers] == ["conv_a", "relu_y"]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (one("Conv", [1, 3, 8, 8, 8], [4, 3, 3, 3, 3]), "Conv 1 (Conv conv_y: it has 3 axes; 1 and 2 are known)"),
        (one("Conv", [1, 3, 8, 8], [4, 3, 9, 3]), "Conv 1 (Conv conv_y: kernel: the kernel spans 9 in height"),
        (one("ConvTranspose", [1, 4, 6, 6], [4, 3, 3, 3], strides=[2, 2], output_shape=[3, 3]),
         "ConvTranspose 1 (ConvTranspose convtranspose_y: onnx infers no map of its result)"),
        (one("Conv", [1, 3, 5_000_000], [4, 3, 9]), "Conv 1 (Conv conv_y: in_length: 5000000 is out of range"),
        (
            model_of([node("Mystery", "x", "a"), node("Conv", "a w")], {"x": ["N", 3, 8, 8]}, {"w": [4, 3, 3, 3]}),
            "Mystery 1, Conv 1 (Conv conv_y: the shape of a is not known)",
        ),
        (
            model_of([node("Transpose", "x", "a", perm=[1, 0, 2, 3]), node("Conv", "a w")],
                     {"x": ["N", 3, 8, 8]}, {"w": [4, 1, 3, 3]}),
            "Conv conv_y: its weights 4x1x3x3 are for 1 channels, and its input 3x2x8x8 has 2: the ONNX standard "
            "forbids that; export the model again; for one image they do: give --dim N=1",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_a_layer_says_why(tmp_path: Path, model: ModelProto, says: str) -> None:
    with pytest.raises(InputError) as error:
        layers_of(tmp_path, model, batch=1 + ("--dim N=1" in says))
    assert says in str(error.value)


def behind(op: str, reads: str, weights: Weights, opset: int = 18, **attributes: Any) -> ModelProto:
    """An op that reads `a`, a map of 4 channels and 6 x 6 elements."""
    nodes = [node("Conv", "x f", "a"), node(op, reads, **attributes)]
    return model_of(nodes, {"x": ["N", 3, 8, 8]}, {"f": [4, 3, 3, 3], **weights}, opset)


def sampled(operand: int, *shape: Any) -> ModelProto:
    """A deformable convolution of which one operand is of another shape."""
    model = deformed(" b mask", strides=[2, 2], group=2, offset_group=2)
    name = ("x", "w", "offset", "b", "mask")[operand]
    value = next(each for each in model.graph.input if each.name == name)
    value.CopyFrom(helper.make_tensor_value_info(name, FLOAT, shape))
    return model


def biased(op: str, x: Sequence[Any], w: Sequence[int], b: Sequence[int], **more: Any) -> ModelProto:
    return model_of([node(op, "x w b")], {"x": x}, {"w": w, "b": b}, **more)


def quantized(*scales: int, opset: int = 18, **said: Any) -> ModelProto:
    """A map that becomes bytes, and real numbers again."""
    made = [node("Conv", "x f", "a"), node("QuantizeLinear", "a s", "q", **said), node("DequantizeLinear", "q t")]
    return model_of(made, {"x": ["N", 3, 8, 8]}, {"f": [4, 3, 3, 3], "s": scales, "t": []}, opset)


def dequantized(*shapes: Sequence[int], axis: int = 0) -> ModelProto:
    """Bytes, by their scales and zero points, whose real numbers are multiplied."""
    made = [node("DequantizeLinear", "q s z", "w", axis=axis), node("MatMul", "x w")]
    model = model_of(made, {"x": ["N", shapes[0][0]]}, {"s": shapes[1]})
    zeros = {"q": shapes[0], "z": shapes[2]}
    model.graph.initializer.extend(numpy_helper.from_array(np.zeros(zeros[name], np.int8), name) for name in zeros)
    return model


def grouped(groups: int, numbers: int, opset: int = 21) -> ModelProto:
    return behind("GroupNormalization", "a s s", {"s": [numbers]}, opset, num_groups=groups)


def gathered(op: str, *indices: int, apart: bool = False) -> ModelProto:
    """Of the 4 channels of `a`, by indices of which a node is made, where they stand `apart`."""
    model = behind(op, "a i", {}, axis=1)
    if apart:
        model.graph.node.insert(0, helper.make_node("Constant", [], ["i"], value_ints=indices))
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.array(indices).reshape(1, -1, 1, 1), "i"))
    return model


def recurrent(op: str, hidden: int, sizes: Sequence[Sequence[int]], direction: str = "forward") -> ModelProto:
    """Of 2 steps, 3 images and 4 elements."""
    weights = dict(zip("wrb", sizes, strict=False))
    reads = " ".join(["x", *weights])
    return model_of([node(op, reads, hidden_size=hidden, direction=direction)], {"x": [2, "N", 4]}, weights)


def declared(*shape: Any, name: str = "y") -> ModelProto:
    """A convolution to 4 x 6 x 6 elements an image, of which the file says another output."""
    model = one("Conv", ["N", 3, 8, 8], [4, 3, 3, 3])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(name, FLOAT, shape))
    return model


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (one("Conv", ["N", 5, 8, 8], [4, 3, 3, 3]), "Conv conv_y: its weights 4x3x3x3 are for 3 channels, and its "
         "input 1x5x8x8 has 5: the ONNX standard forbids that; export the model again"),
        (one("Conv", [1, 5, 8], [4, 3, 3]), "Conv conv_y: its weights 4x3x3 are for 3 channels, and its input 1x5x8"),
        (one("Conv", [1, 3, 8, 8], [4, 3, 3, 3], group=2), "Conv conv_y: its weights 4x3x3x3 are for 6 channels in 2"),
        (one("Conv", [1, 6, 8, 8], [5, 3, 3, 3], group=2), "its 2 groups do not divide its 6 channels and 5 outputs"),
        (one("Conv", [1, 3, 8, 8], [4, 3, 3, 3], kernel_shape=[5, 5]), "kernel_shape says 5x5, and its weights are 4x"),
        (one("Conv", [1, 3, 8, 8], [4, 3, 3, 3], auto_pad="SAME_UPPER", pads=[0, 0, 0, 0]),
         "Conv conv_y: by its attributes it makes 4 x 8 x 8 of an image, and onnx infers 4 x 6 x 6"),
        (biased("Conv", [1, 3, 8, 8], [4, 3, 3, 3], [5]), "Conv conv_y: its biases are 5, for 4 outputs"),
        (one("ConvTranspose", [1, 5, 8, 8], [4, 3, 3, 3]), "ConvTranspose convtranspose_y: its weights 4x3x3x3 are"),
        (biased("ConvTranspose", [1, 4, 8, 8], [4, 3, 3, 3], [4]), "its biases are 4, for 3 outputs"),
        (sampled(0, "N", 5, 9, 8), "DeformConv deformconv_y: its weights 6x2x3x3 are for 4 channels in 2 groups, and"),
        (sampled(2, "N", 34, 4, 3), "its offsets are 1x34x4x3, and 1x36x4x3 are read"),
        (sampled(4, "N", 18, 4, 4), "its masks are 1x18x4x4, and 1x18x4x3 are read"),
        (biased("Gemm", [1, 5], [5, 3], [4]), "Gemm gemm_y: its operand 4 cannot be broadcast to 1x3"),
        (biased("Gemm", [1, 5], [5, 3], [2, 3]), "Gemm gemm_y: its operand 2x3 cannot be broadcast to 1x3"),
        (behind("LayerNormalization", "a s", {"s": [4]}), "its operand 4 cannot be broadcast to 6"),
        (behind("PRelu", "a s", {"s": [5, 1, 1]}), "PRelu prelu_y: its operand 5x1x1 cannot be broadcast to 1x4x6x6"),
        (behind("InstanceNormalization", "a s t", {"s": [5], "t": [4]}), "its operand 1 is 5, no number for each of 4"),
        (behind("DepthToSpace", "a", {}, blocksize=4), "DepthToSpace depthtospace_y: its result 1x0x24x24 does not ho"),
        (behind("Transpose", "a", {}, perm=[0, 1, 2]), "Transpose transpose_y: its result 1x4x6 does not hold what"),
        (behind("MaxPool", "a", {}, kernel_shape=[9, 9]), "MaxPool maxpool_y: its result would be 1x4x-2x-2, less tha"),
        (behind("MaxPool", "a", {}, kernel_shape=[7, 7]), "maxpool_y: its result would be 1x4x0x0: its window is lar"),
        (behind("LayerNormalization", "a s", {"s": [6]}, axis=4), "LayerNormalization layernormalization_y: its axis 4 "
         "is none of the 4 of its operand 1x4x6x6"),
        (behind("LpNormalization", "a", {}, axis=-5), "LpNormalization lpnormalization_y: its axis -5 is none of"),
        (recurrent("LSTM", 7, [[1, 20, 4], [1, 20, 5]]), "LSTM lstm_y: its operand 1 is 1x20x4, and states of 7 "
         "elements need 1x28x4"),
        (recurrent("GRU", 5, [[1, 15, 3], [1, 15, 5]]), "GRU gru_y: its operand 1 is 1x15x3, and states of 5 eleme"),
        (recurrent("RNN", 5, [[2, 5, 4], [2, 5, 5], [2, 5]], "bidirectional"), "RNN rnn_y: its operand 3 is 2x5, and"),
        (gathered("Gather", 1, 4), "Gather gather_y: its index 4 is beyond the 4 elements of that axis"),
        (gathered("Gather", 9, apart=True), "Gather gather_y: its index 9 is beyond the 4 elements of that axis"),
        (gathered("GatherElements", -5), "GatherElements gatherelements_y: its index -5 is beyond the 4 elements"),
        (biased("Gemm", [2, 3], [3, 3], [1, 1, 3]), "Gemm gemm_y: its operand 1x1x3 cannot be broadcast to 2x3"),
        (declared("N", 4, 7, 7), "(op_type:Conv, node name: conv_y): [ShapeInferenceError] Inferred shape and existing "
         "shape differ in dimension 2: (6) vs (7)"),
        (declared("N", 4, 36), "node name: conv_y): [ShapeInferenceError] Inferred shape and existing shape differ"),
        (declared("N", 4, 6, 6, name="lost"), "nothing makes its output lost; export the model again"),
        (one("Conv", [1, 3, 8, 8], [4, 3, 3, 3], stride=[2, 2]), "Conv conv_y: ONNX has no attribute stride there, but "
         "auto_pad, dilations, group, kernel_shape, pads, strides: the ONNX standard forbids that"),
        (one("Conv", [1, 3, 8, 8], [4, 3, 3, 3], auto_pad="SAME_UPPER", pads=[1, 1, 1, 1]), "Conv conv_y: auto_pad "
         "SAME_UPPER and pads 1x1x1x1 both say what is added"),
        (behind("MaxPool", "a", {}, kernel_shape=[3, 3], auto_pad="VALID", pads=[0, 1, 0, 1]), "MaxPool maxpool_y: au"),
        (grouped(3, 4), "GroupNormalization groupnormalization_y: its 3 groups do not divide its 4 channels"),
        (grouped(2, 2), "its operand 1 is 2, no number for each of 4 channels"),
        (behind("GroupNormalization", "a s", {"s": [4]}, 21, num_groups=2), "groupnormalization_y: it has 2 operands, "
         "and reads 3: a map, scales and shifts"),
        (grouped(2, 4, opset=18), "its operand 1 is 4, no number for each of 2 groups"),
        (behind("LRN", "a", {}, size=0), "LRN lrn_y: its size is 0, and a window has a channel or more"),
        (behind("LRN", "a", {}, size=-3), "LRN lrn_y: its size is -3, and"),
        (behind("LRN", "a", {}), "LRN lrn_y: it has no size, and a window has a channel or more"),
        (quantized(5), "QuantizeLinear quantizelinear_q: its scales are 5, and 1x4x6x6 along axis 1 needs 4"),
        (quantized(4, axis=4), "its axis 4 is none of the 4 of its operand 1x4x6x6"),
        (quantized(1, 4, 6, axis=2), "its scales are 1x4x6, and 1x4x6x6 along axis 2 needs 6"),
        (quantized(1, 4, 2, 6, opset=21, axis=-2, block_size=2), "its scales are 1x4x2x6, and 1x4x6x6 along axis -2 "
         "needs 1x4x3x6"),
        (dequantized([4, 3], [4], [3]), "DequantizeLinear dequantizelinear_w: its zero points are 3, and its scales 4"),
        (dequantized([4, 3], [4], [4], axis=1), "its scales are 4, and 4x3 along axis 1 needs 3"),
    ],
)  # fmt: skip
def test_what_the_standard_forbids_is_refused_with_its_node(tmp_path: Path, model: ModelProto, says: str) -> None:
    """Whether or not what is not known is left out."""
    for skipped in (False, True):
        with pytest.raises(InputError) as error:
            layers_of(tmp_path, model, skip_unknown=skipped)
        assert says in str(error.value)
    with pytest.raises(InputError, match=re.escape(says)):
        read_graph(tmp_path / "net.onnx", NOTHING, 1)


def test_numbers_that_onnx_follows_as_lists_are_no_contradiction(tmp_path: Path) -> None:
    """How far 3 rows are from 4 columns, as a mask of a window has it: onnx found no size of 3 and of 4 at once."""
    nodes = [
        node("Range", "zero three one", "r"), node("Range", "zero four one", "c"), node("Unsqueeze", "r ones", "s"),
        node("Unsqueeze", "c zeros", "t"), node("Add", "s zeros", "u"), node("Sub", "u t", "d"),
        node("Cast", "d", "e", to=FLOAT), node("Add", "x e"),
    ]  # fmt: skip
    model = model_of(nodes, {"x": ["N", 3, 4]}, {})
    held = {"zero": 0, "one": 1, "three": 3, "four": 4, "ones": [1], "zeros": [0]}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(each), name) for name, each in held.items())
    assert layers_of(tmp_path, model) == (Add("add_y", 4, 3, other="map"),)


@pytest.mark.parametrize(
    ("reads", "op", "attributes"),
    [("a s s", "GroupNormalization", {"num_groups": 2}), ("a", "MeanVarianceNormalization", {})],
)
def test_layers_behind_a_normalization_that_onnx_infers_nothing_of(
    tmp_path: Path, reads: str, op: str, attributes: dict[str, Any]
) -> None:
    nodes = [node("Conv", "x w", "a"), node(op, reads, "b", **attributes), node("Relu", "b", "c"), node("Conv", "c v")]
    weights: Weights = {"w": [4, 3, 3, 3], "s": [4], "v": [5, 4, 3, 3]}
    layers = layers_of(tmp_path, model_of(nodes, {"x": ["N", 3, 8, 8]}, weights, opset=21))
    assert layers[0] == Conv2d("conv_a", 3, 8, 8, 4, 3)
    assert layers[-2:] == (Relu("relu_c", 4, 6, 6), Conv2d("conv_y", 4, 6, 6, 5, 3))
    assert [layer.op for layer in layers[1:-2]] == (["layer_norm", "mul", "add"] if "s" in reads else [])


def test_an_input_that_is_a_sequence_is_no_tensor(tmp_path: Path) -> None:
    """A model that takes one ended with a KeyError; what reads it is told."""
    model = one("Conv", ["N", 3, 8, 8], [4, 3, 3, 3])
    model.graph.input.append(helper.make_tensor_sequence_value_info("parts", FLOAT, None))
    model.graph.node.append(node("SequenceLength", "parts", "many"))
    with pytest.raises(InputError, match="1 op not known here: SequenceLength"):
        layers_of(tmp_path, model)


@pytest.mark.parametrize(
    "model",
    [
        biased("Gemm", ["N", 5], [5, 3], [1, 3]),
        behind("PRelu", "a s", {"s": [4, 1, 1]}),
        behind("LayerNormalization", "a s t", {"s": [6, 6], "t": [6]}, axis=2),
        behind("Transpose", "a", {}),
        one("Conv", ["N", 3, 8, 8], [4, 3, 3, 3], auto_pad="VALID", pads=[0, 0, 0, 0]),
        behind("LayerNormalization", "a s", {"s": [1, 6]}, axis=-4),
        recurrent("LSTM", 5, [[2, 20, 4], [2, 20, 5], [2, 40]], "bidirectional"),
        gathered("Gather", 3, -4),
        grouped(2, 4),
        grouped(2, 2, opset=18),
        quantized(),
        quantized(1),
        quantized(4),
        quantized(6, axis=-1),
        quantized(1, 4, 3, 6, opset=21, axis=2, block_size=2),
        dequantized([4, 3], [4], [4]),
        dequantized([4, 3], [1], [], axis=9),
        # Of an output whose size follows the batch, a file may have that of one image.
        declared(1, 4, 6, 6),
        declared("M", 4, None, 6),
    ],
)
def test_what_the_standard_allows_is_read(tmp_path: Path, model: ModelProto) -> None:
    assert layers_of(tmp_path, model)


def test_onnx_tells_a_node_without_a_name_by_what_it_makes(tmp_path: Path) -> None:
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["N", 64]}, {"w": [63, 10]})
    with pytest.raises(InputError, match=r"op_type:MatMul, node name: y\)"):
        layers_of(tmp_path, model)


def test_graphs_inside_are_looked_into(tmp_path: Path) -> None:
    inner = model_of([node("MatMul", "x w"), node("Relu", "y", "inner")], {}, {}).graph
    branch = [helper.make_attribute(key, inner) for key in ("then_branch", "else_branch")]
    choose = node("If", "c")
    choose.attribute.extend(branch)
    model = model_of([choose, node("MatMul", "x w", "z")], {"x": [1, 64], "c": [1]}, {"w": [64, 10]})
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.BOOL
    with pytest.raises(
        InputError, match=r"1 op not known here: If 1 \(If if_y: c decides it; .*; If if_y has inside MatMul 2"
    ):
        layers_of(tmp_path, model)


def test_every_op_is_either_of_the_array_or_of_the_vector_unit() -> None:
    assert STAYING == runs._IN_PLACE
    assert not NOT_TIMED & ARRAY_OPS.keys()
    known = {f"{each.domain}.{each.name}".strip(".") for each in onnx.defs.get_all_schemas()}
    assert known >= NOT_TIMED - {"Swish", "RMSNormalization"}


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"strides": [2]}, "strides has 1 number instead of 2"),
        ({"dilations": 2}, "dilations is of a kind that ONNX does not have there"),
        ({"auto_pad": "SOME"}, "auto_pad is none of NOTSET, SAME_UPPER, SAME_LOWER, VALID"),
    ],
)
def test_attributes_that_onnx_does_not_have(tmp_path: Path, attributes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=f"(Conv conv_y: {says})|do not fit together"):
        layers_of(tmp_path, one("Conv", ["N", 3, 8, 8], [4, 3, 3, 3], **attributes))


def test_a_deformable_convolution_adds_as_much_on_opposite_sides(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"DeformConv deformconv_y: other numbers are added ahead of its axes"):
        layers_of(tmp_path, deformed(strides=[2, 2], pads=[0, 0, 1, 0], group=2, offset_group=2))


# ---- open dimensions


@pytest.mark.parametrize(
    ("x", "dims", "says"),
    [
        (["N", 3, "H", "W"], {}, "the inputs leave sizes open: H (dimension 2 of x), W (dimension 3 of x); give them "
         "to tpusim run or import: --dim H=N --dim W=N"),
        (["N", 3, None, 8], {}, "x.2 (dimension 2 of x); give them to tpusim run or import: --dim x.2=N"),
        (["?", 3, "?", 8], {}, "x.2 (dimension 2 of x); give them to tpusim run or import: --dim x.2=N"),
        (["N", 3, "2 * H", 8], {}, "run or import: --dim '2 * H'=N; or run with --input FILE.npz, which has an"),
        (["N", 3, "H", 8], {"h": 8}, "--dim h: no dimension of that name is open; did you mean H? open are H, N"),
        ([1, 3, 8, 8], {"h": 8}, "--dim h: no dimension of that name is open; the model leaves none open"),
        (["N", 3, 8, 8], {"N": 4}, None),
        (["images", 3, "H", 8], {"H": 8}, None),
        ([None, 3, 8, 8], {}, None),
    ],
)  # fmt: skip
def test_dimensions_that_are_open(tmp_path: Path, x: Any, dims: dict[str, int], says: str | None) -> None:
    model = one("Conv", x, [4, 3, 3, 3])
    if says is None:
        assert layers_of(tmp_path, model, batch=4, dims=dims) == (Conv2d("conv_y", 3, 8, 8, 4, (3, 3)),)
        return
    with pytest.raises(InputError) as error:
        layers_of(tmp_path, model, dims=dims)
    assert says in str(error.value)


def test_a_model_that_is_open_but_for_one_image_alone(tmp_path: Path) -> None:
    nodes = [node("Reshape", "x shape", "a"), node("Gemm", "a w")]
    model = model_of(nodes, {"x": ["N", 4, 16]}, {"w": [64, 10]})
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, -1]), "shape"))
    with pytest.raises(InputError, match=r"do not fit together; .*; for one image they do: give --dim N=1$"):
        layers_of(tmp_path, model, batch=3)
    assert layers_of(tmp_path, model) == (Gemm("gemm_y", 1, 10, 64),)
    assert layers_of(tmp_path, model, batch=3, dims={"N": 1}) == (Gemm("gemm_y", 3, 10, 64),)


# ---- files that are broken


def chained(*order: int) -> ModelProto:
    nodes = [node("Relu", "x", "a"), node("Relu", "a", "b"), node("Gemm", "b w")]
    return model_of([nodes[each] for each in order], {"x": [1, 64]}, {"w": [64, 10]})


def in_a_circle() -> ModelProto:
    nodes = [node("Add", "x b", "a"), node("Relu", "a", "b"), node("Gemm", "b w")]
    return model_of(nodes, {"x": [1, 64]}, {"w": [64, 10]})


def without(field: str) -> ModelProto:
    model = chained(0, 1, 2)
    model.ClearField(field)
    return model


WHOLE = chained(0, 1, 2).SerializeToString()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not ONNX: it has no version and no graph"),
        (b"name: net\nlayers: []\n", "is not ONNX"),
        (b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtin", "is not ONNX"),
        (WHOLE[:40], "is not ONNX, or is cut off"),
        (WHOLE[:-3], "is not ONNX, or is cut off"),
        (without("graph"), "is not ONNX: it has no version and no graph"),
        (without("opset_import"), "says nothing of its opset, or is cut off"),
        (model_of([], {"x": [1]}, {}), "the graph has no nodes; export the model itself"),
        (model_of([node("Relu", "x")], {"x": [1]}, {}), "no op that could be run as a layer"),
        (model_of([node("Relu", "x")], {"x": [1]}, {}, opset=99), "opset 99; onnx "),
        (in_a_circle(), "the graph goes round in a circle: "),
        (chained(1, 0, 2), "Relu relu_b stands before what it reads, and ONNX wants nodes in order"),
        (chained(0, 2), "Gemm gemm_y reads b, which nothing makes; the file is damaged"),
        (one("MatMul", [1, 64], [63, 10]), "the shapes of the model do not fit together; onnx says: "),
        (model_of([node("Conv", "x")], {"x": [1, 3, 8, 8]}, {}), "the shapes of the model do not fit together"),
    ],
    ids=range(15),
)
def test_a_broken_model_gets_one_message(tmp_path: Path, content: ModelProto | bytes, says: str) -> None:
    path = saved(tmp_path, content)
    with pytest.raises(InputError) as error:
        load_workload(path)
    (problem,) = error.value.problems
    assert str(problem).startswith(f"{path}: ")
    assert says in str(problem)
    assert "\n" not in str(problem)


def test_every_cut_of_a_model_is_refused(tmp_path: Path) -> None:
    """One that ends where a field does is whole to a reader of Protocol Buffers, but says nothing of its opset."""
    for end in range(0, len(WHOLE), 7):
        with pytest.raises(InputError):
            load_workload(saved(tmp_path, WHOLE[:end]))


def test_changed_bytes_are_read_or_refused(tmp_path: Path) -> None:
    """With nothing but an InputError, of one line a problem."""
    draw = Random(0)
    path = tmp_path / "net.onnx"
    for content in [each.SerializeToString() for each in (strange(), encoder("seq"), chained(0, 1, 2))] * 40:
        changed = bytearray(content)
        for _ in range(draw.choice([1, 2, 6])):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            load_workload(path, skip_unknown=True)
        except InputError as error:
            said = [str(each) for each in error.problems]
        else:
            said = []
        assert not any("\n" in each for each in said)


def test_a_file_of_two_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(2**31 + 2**20)
    with pytest.raises(
        InputError, match=r"2\.0 GiB, and an ONNX file holds less than 2; save its weights as external data"
    ):
        load_workload(path)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(InputError, match=r"folder.onnx: is a directory; give a file"):
        load_workload(tmp_path / "folder.onnx")
    with pytest.raises(InputError, match=r"none.onnx: no such file"):
        load_workload(tmp_path / "none.onnx")


def test_a_model_without_work_for_the_array_says_how_to_run_it(tmp_path: Path) -> None:
    path = saved(tmp_path, model_of([node("Relu", "x", "y")], {"x": ["N", 3]}, {}))
    with pytest.raises(InputError, match="is in the model; ops all also takes those of the vector unit"):
        load_workload(path, ops="array")
    assert load_workload(path).inputs() == {"relu_y": ("x",)}


def test_names_from_a_file_stay_in_their_line(tmp_path: Path) -> None:
    model = model_of([node("Gemm", "x w", "y"), node("Gemm", "x w", "z")], {"x": [1, 64]}, {"w": [64, 10]})
    for each in model.graph.node:
        each.name = "fc\nname: evil"
    model.producer_name = "me\n- {"
    document = open_workload(saved(tmp_path, model))
    path = tmp_path / "net.yaml"
    path.write_text(yaml_of(document))
    assert [layer.name for layer in load_workload(path).layers] == ["fc?name: evil", "fc?name: evil_2"]


def test_without_the_library_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, chained(0, 1, 2))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(
        InputError, match=r"an ONNX model needs onnx, which cannot be imported \(.*\): .* -m pip install onnx"
    ):
        load_workload(path)
