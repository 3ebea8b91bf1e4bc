"""Models as people have them: no axis of images, weights that are elsewhere, shapes that the file alone tells, pools
and transposed convolutions as other tools write them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from typer.testing import CliRunner

from tests.covering import covering
from tests.network.evaluated import made_of, same_as_evaluator, through_layers, written
from tests.network.test_onnx_models import node
from tests.strategies import cases
from tpusim import Conv1d, Gemm, load_hardware, load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.cli import app as cli
from tpusim.flow.numbers import numbers_of
from tpusim.flow.values import Journey, checked
from tpusim.network.formats import ModelOptions, read_graph
from tpusim.network.workload_file import open_workload

WITHOUT_WAITING = settings(
    deadline=None,
    max_examples=cases(2 / 3),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def reals(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


# ---- inputs without an axis of images

UNSQUEEZED = [node("Unsqueeze", "x axes", "u"), node("Conv", "u w")]
STATE_FIRST = [node("Conv", "x w", "c"), node("Flatten", "c", "f"), node("MatMul", "f v", "p"), node("Add", "p s")]


@pytest.mark.parametrize("batch", [1, None])
@pytest.mark.parametrize(
    ("nodes", "inputs", "constants"),
    [
        (UNSQUEEZED, {"x": (3, 8, 8)}, {"axes": np.array([0]), "w": reals(4, 3, 3, 3)}),
        (UNSQUEEZED, {"x": (8, 12)}, {"axes": np.array([0]), "w": reals(4, 8, 3)}),
        (UNSQUEEZED, {"x": (30,)}, {"axes": np.array([0, 1]), "w": reals(4, 1, 3)}),
        ([node("MatMul", "x w")], {"x": (8, 12)}, {"w": reals(12, 5)}),
        (STATE_FIRST, {"s": (2, 1, 8), "x": (1, 3, 6, 6)}, {"w": reals(2, 3, 3, 3), "v": reals(32, 8)}),
        ([node("MatMul", "x w", "p"), node("Add", "p s")], {"s": (2, 1, 8), "x": (1, 6)}, {"w": reals(6, 8)}),
    ],
    ids=["an image", "a spectrogram", "a wave", "a product of rows", "a state ahead of a map", "a state and a row"],
)
def test_a_model_without_an_axis_of_images_runs_at_batch_1(
    tmp_path: Path, nodes: list[NodeProto], inputs: dict[str, Any], constants: dict[str, Any], batch: int | None
) -> None:
    arrays = {name: reals(*shape) for name, shape in inputs.items()}
    same_as_evaluator(tmp_path, made_of(nodes, arrays, constants), arrays, batch)


def test_rows_of_no_image_are_rows_of_one_run(tmp_path: Path) -> None:
    path = written(tmp_path, made_of([node("MatMul", "x w")], {"x": reals(80, 30)}, {"w": reals(30, 7)}))
    assert load_workload(path, 1).layers == load_workload(path, 80).layers == (Gemm("matmul_y", 80, 7, 30),)
    with pytest.raises(InputError, match="is for 80 images at once"):
        load_workload(path, 2)
    images = written(tmp_path, made_of([node("Conv", "x w")], {"x": reals(8, 3, 6, 6)}, {"w": reals(4, 3, 3, 3)}))
    with pytest.raises(InputError, match="is for 8 images at once"):
        load_workload(images, 1)


# ---- conditions of fewer elements than the map


@pytest.mark.parametrize(
    ("shape", "constant", "kind"),
    [
        ((2, 3, 4, 5), False, "each"), ((2, 1, 1, 5), False, "pixel"), ((2, 1, 4, 5), False, "pixel"),
        ((1, 1, 4, 5), True, "map"), ((4, 5), True, "map"), ((5,), True, "channel"), ((2, 3, 1, 1), False, "image"),
        ((3, 1, 1), True, "channel"), ((), True, "number"),
    ],
)  # fmt: skip
def test_a_choice_reads_no_more_of_its_condition_than_there_is(
    tmp_path: Path, shape: tuple[int, ...], constant: bool, kind: str
) -> None:
    where, arrays = np.asarray(reals(*shape) > 0), {"x": reals(2, 3, 4, 5)}
    nodes = [node("Relu", "x", "r"), node("Where", "c r least")]
    constants = {"least": np.float32(-1e9), **({"c": where} if constant else {})}
    arrays |= {} if constant else {"c": where}
    work = same_as_evaluator(tmp_path, made_of(nodes, arrays, constants), arrays)
    (chosen,) = (layer for layer in work.layers if layer.op == "where")
    assert chosen.condition == kind
    condition = chosen.shapes(work.batch)["condition"]
    assert np.prod(condition) == (np.prod(shape) if shape else 1)


# ---- results of a layer beside the first


@pytest.mark.parametrize(
    ("nodes", "outputs", "alone"),
    [
        ([node("MaxPool", "x", "p i", kernel_shape=[2, 2], strides=[2, 2]), node("Conv", "p w", "c"),
          node("MaxUnpool", "c i", "y", kernel_shape=[2, 2], strides=[2, 2])], ["y"], {"MaxPool": 1, "MaxUnpool": 1}),
        ([node("MaxPool", "x", "p i", kernel_shape=[3, 2], strides=[1, 2])], ["p", "i"], {"MaxPool": 1}),
        ([node("MaxPool", "x", "p i", kernel_shape=[2, 2])], ["p"], {}),
        ([node("LayerNormalization", "x s", "l m d"), node("Mul", "l d", "y")], ["y", "m"], {"LayerNormalization": 1}),
    ],
    ids=["places to unpool by", "places", "places that nobody reads", "means and deviations"],
)  # fmt: skip
def test_further_results_of_a_layer_are_worked_out_by_the_reference(
    tmp_path: Path, nodes: list[NodeProto], outputs: list[str], alone: dict[str, int]
) -> None:
    arrays = {"x": reals(2, 3, 6, 6)}
    model = made_of(nodes, arrays, {"w": reals(3, 3, 1, 1), "s": reals(6)}, outputs=outputs)
    same_as_evaluator(tmp_path, model, arrays)
    asked = ModelOptions(arrays=arrays)
    work, graph = load_workload(tmp_path / "net.onnx", 2), read_graph(tmp_path / "net.onnx", asked, 2)
    assert Journey(graph, work, checked(graph, arrays, 2), numbers_of("f32", "any")).reference_only == alone


# ---- pools that round the number of windows up


@pytest.mark.parametrize(("op", "opset"), covering(1, ["MaxPool", "AveragePool"], [10, 11, 17, 19, 22]))
def test_windows_behind_the_map_are_left_out_in_every_opset(tmp_path: Path, op: str, opset: int) -> None:
    """As the second of two pools, of a kernel of one as well; what stands behind has the right size."""
    nodes = [
        node(op, "x", "a", kernel_shape=[3, 3], strides=[3, 3], pads=[1] * 4, ceil_mode=1),
        node(op, "a", "b", kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1), node("Conv", "b w"),
    ]  # fmt: skip
    arrays = {"x": reals(1, 2, 11, 11)}
    work = same_as_evaluator(tmp_path, made_of(nodes, arrays, {"w": reals(3, 2, 1, 1)}, opset), arrays)
    assert [layer.op for layer in work.layers] == ["pool2d", "pool2d", "conv2d"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning:numpy")
@WITHOUT_WAITING
@given(st.data())
def test_pools_of_any_sizes_are_as_large_as_the_evaluator_says(tmp_path: Path, data: st.DataObject) -> None:
    op, opset = data.draw(st.sampled_from(["MaxPool", "AveragePool"])), data.draw(st.sampled_from([10, 12, 19, 22]))
    kernel, strides = (data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=2)) for _ in range(2))
    said: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "ceil_mode": data.draw(st.sampled_from([0, 1]))}
    said["pads"] = [data.draw(st.integers(0, kernel[at % 2] - 1)) for at in range(4)]
    if op == "MaxPool" or opset >= 19:
        said["dilations"] = data.draw(st.lists(st.integers(1, 2), min_size=2, max_size=2))
    x = reals(1, 2, *(data.draw(st.integers(7, 10)) for _ in range(2)))
    model = made_of([node(op, "x", "p", **said), node("Relu", "p")], {"x": x}, {}, opset)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    for layer in load_workload(written(tmp_path, model), 1).layers:
        assert layer.shapes(1)["ofmap"] == (*expected.shape[1:], 1)


# ---- transposed convolutions that are cut at one end


@WITHOUT_WAITING
@given(st.data())
def test_transposed_convolutions_cut_at_either_end_by_any_number(tmp_path: Path, data: st.DataObject) -> None:
    axes = data.draw(st.sampled_from([1, 2]))
    sides, kernel, strides, dilations = (
        data.draw(st.lists(st.integers(*ends), min_size=axes, max_size=axes))
        for ends in ((2, 4), (1, 5), (1, 4), (1, 2))
    )
    spread = [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in zip(sides, kernel, strides, dilations, strict=True)]
    more = [data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True)]
    before = [data.draw(st.integers(0, whole - 1)) for whole in spread]
    after = [data.draw(st.integers(0, whole - 1 - cut)) for whole, cut in zip(spread, before, strict=True)]
    said = {"strides": strides, "dilations": dilations, "pads": [*before, *after], "output_padding": more}
    x, weights = reals(1, 3, *sides), reals(3, 2, *kernel)
    path = written(tmp_path, made_of([node("ConvTranspose", "x w", **said)], {"x": x}, {"w": weights}))
    _, outputs = through_layers(path, {"x": x}, 1)
    np.testing.assert_allclose(outputs["y"], transposed(x, weights, **said), rtol=1e-4, atol=1e-4)


def transposed(x: np.ndarray, weights: np.ndarray, *, strides: Any, dilations: Any, pads: Any, output_padding: Any):  # type: ignore[no-untyped-def]
    """Each element times each tap, added where it falls; then the ends are cut off."""
    axes, (_, outputs, *kernel) = len(strides), weights.shape
    at = range(axes)
    size = [(x.shape[2 + a] - 1) * strides[a] + dilations[a] * (kernel[a] - 1) + 1 + output_padding[a] for a in at]
    made = np.zeros((1, outputs, *size), np.float64)
    for place in np.ndindex(*x.shape[2:]):
        for tap in np.ndindex(*kernel):
            to = tuple(place[a] * strides[a] + tap[a] * dilations[a] for a in at)
            made[(0, slice(None), *to)] += x[(0, slice(None), *place)] @ weights[(slice(None), slice(None), *tap)]
    return made[(slice(None), slice(None), *(slice(pads[a], size[a] - pads[axes + a]) for a in at))]


def test_a_cropped_transposed_convolution_is_the_same_in_both_engines(tmp_path: Path) -> None:
    x = reals(1, 6, 5)
    model = made_of([node("ConvTranspose", "x w", strides=[4], pads=[0, 4])], {"x": x}, {"w": reals(6, 4, 8)})
    same_as_evaluator(tmp_path, model, {"x": x}, 1, engine="both", near=1e-4)


# ---- shapes that the file alone tells


@pytest.mark.parametrize("rows", [4, "N"])
def test_shapes_behind_an_op_of_another_domain_are_those_of_the_file(tmp_path: Path, rows: Any) -> None:
    nodes = [helper.make_node("Scale", ["x"], ["s"], domain="my.ops"), node("MatMul", "s w", "p"), node("Relu", "p")]
    tells = helper.make_tensor_value_info("s", TensorProto.FLOAT, [rows, 8])
    model = made_of(nodes, {"x": reals(4, 8)}, {"w": reals(8, 3)}, declared=[tells], domains=["my.ops"])
    if rows == "N":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    path = written(tmp_path, model)
    product, relu = load_workload(path, 4, skip_unknown=True).layers
    assert product == Gemm("matmul_p", 4, 3, 8)
    assert relu.shapes(4)["ofmap"] == (3, 1, 1, 4)
    with pytest.raises(InputError, match=r"1 op not known here: my.ops.Scale 1"):
        load_workload(path, 4)


# ---- recurrent networks that say how long their sequences are

OF = {"GRU": 3, "LSTM": 4}


@pytest.mark.parametrize(("op", "direction"), covering(1, ["GRU", "LSTM"], ["forward", "bidirectional"]))
def test_sequences_that_are_all_of_full_length(tmp_path: Path, op: str, direction: str) -> None:
    ways, gates = 1 + (direction == "bidirectional"), OF[op] * 4
    said: dict[str, Any] = {"hidden_size": 4, "direction": direction}
    cell = helper.make_node(op, ["x", "w", "r", "b", "lengths"], ["y", "last"], **said)
    constants = {"w": reals(ways, gates, 3), "r": reals(ways, gates, 4), "b": reals(ways, 2 * gates)}
    full = {"lengths": np.array([3, 3], np.int32)}
    x = {"x": reals(3, 2, 3)}
    same = (made_of([cell], x, constants | full), made_of([cell], x | full, constants))
    plain = helper.make_node(op, ["x", "w", "r", "b"], ["y", "last"], **said)
    _, expected = through_layers(written(tmp_path, made_of([plain], x, constants)), x, 2)
    for model, arrays in zip(same, (x, x | full), strict=True):
        _, outputs = through_layers(written(tmp_path, model), arrays, 2)
        for name in ("y", "last"):
            np.testing.assert_array_equal(outputs[name], expected[name])
    short = made_of([cell], x, constants | {"lengths": np.array([3, 2], np.int32)})
    with pytest.raises(InputError, match="its sequences are not all of 3 steps"):
        load_workload(written(tmp_path, short), 3)
    with pytest.raises(InputError, match="is not known; an array lengths in --input may tell it"):
        load_workload(written(tmp_path, same[1]), 3)


# ---- timing alone


def test_sizes_and_branches_follow_from_arrays_where_nothing_is_computed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("MatMul", ["x", f"w{name}"], [f"o{name}"])], name, [],
            [helper.make_tensor_value_info(f"o{name}", TensorProto.FLOAT, None)],
        )
        for name in ("then", "else")
    }  # fmt: skip
    nodes = [node("Equal", "rate sixteen", "c"), helper.make_node("If", ["c"], ["y"], **branches)]
    inputs = {"x": reals(1, 8), "rate": np.array(16000)}
    constants = {"sixteen": np.array(16000), "wthen": reals(8, 3), "welse": reals(8, 5)}
    model = made_of(nodes, inputs, constants)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "frames"
    path = written(tmp_path, model)
    for rate, columns in ((16000, 3), (8000, 5)):
        np.savez("step.npz", x=reals(7, 8), rate=np.array(rate))
        asked = ["run", str(path), "--input", "step.npz", "--no-check"]
        run = CliRunner().invoke(cli.app, asked)
        assert run.exit_code == 0, run.output
        assert f"7x8>{columns}" in run.stdout
        assert "Outputs not checked (--no-check)" in run.stdout
    run = CliRunner().invoke(cli.app, [*asked, "--save-outputs", "made.npz"])
    assert run.exit_code == 2
    assert "--no-check: nothing is computed; leave it out, with --save-outputs" in run.stderr
    assert not Path("made.npz").exists()


def test_weights_that_are_not_there_have_a_shape_and_so_a_time(tmp_path: Path) -> None:
    model = made_of([node("Conv", "x w")], {"x": reals(1, 3, 8, 8)}, {"w": reals(8, 3, 3, 3)})
    whole = load_workload(written(tmp_path, model), 1)
    (weights,) = model.graph.initializer
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="w.bin")
    path = written(tmp_path, model)
    assert load_workload(path, 1).layers == whole.layers
    run = CliRunner().invoke(cli.app, ["run", str(path), "--no-check"])
    assert run.exit_code == 0
    assert "files of weights are missing: w.bin (1 tensor); layers are timed by their shapes" in run.stderr
    with pytest.raises(InputError, match=r"files of weights are missing: w.bin \(1 tensor\); put them beside"):
        through_layers(path, {"x": reals(1, 3, 8, 8)})


def test_a_map_may_be_longer_than_two_bytes_count(tmp_path: Path) -> None:
    model = made_of([node("Conv", "x w", strides=[50])], {"x": reals(1, 1, 80_000)}, {"w": reals(2, 1, 100)})
    work = load_workload(written(tmp_path, model), 1)
    assert work.layers == (Conv1d("conv_y", 1, 80_000, 2, 100, 50),)
    assert simulate(work, load_hardware("tpu_v2", ["mapping.search=estimate"])).correct


# ---- layers of the vector unit


@pytest.mark.parametrize(("shape", "op"), covering(2, [(3, 1, 1), (1,), (2, 3, 4, 4), (4,)], ["Max", "Min", "PRelu"]))
def test_the_larger_the_smaller_and_slopes_are_layers(tmp_path: Path, op: str, shape: tuple[int, ...]) -> None:
    arrays = {"x": reals(2, 3, 4, 4)}
    work = same_as_evaluator(tmp_path, made_of([node(op, "x c")], arrays, {"c": reals(*shape)}), arrays)
    assert [layer.op for layer in work.layers] == [{"Max": "maximum", "Min": "minimum", "PRelu": "prelu"}[op]]


@pytest.mark.parametrize(("op", "layer"), [("Max", "maximum"), ("Min", "minimum"), ("Sum", "add")])
def test_more_than_two_operands_are_taken_two_by_two(tmp_path: Path, op: str, layer: str) -> None:
    arrays = {"x": reals(2, 3, 4), "k": reals(2, 3, 4) + 1}
    work = same_as_evaluator(tmp_path, made_of([node(op, "x k c k")], arrays, {"c": reals(2, 3, 4) - 1}), arrays)
    assert [each.op for each in work.layers] == [layer] * 3


@pytest.mark.parametrize(
    ("mask", "engine"), covering(1, [(2, 3, 4, 4), (2, 1, 1, 4), (1, 1, 4, 4)], ["event", "register"])
)
def test_choices_between_maps_are_layers(tmp_path: Path, mask: tuple[int, ...], engine: str) -> None:
    arrays = {"x": reals(2, 3, 4, 4), "m": reals(*mask) > 0}
    for reads in ("m low x", "m x low"):
        model = made_of([node("Where", reads)], arrays, {"low": np.float32(-np.inf)})
        work = same_as_evaluator(tmp_path, model, arrays, engine=engine)
        assert [layer.op for layer in work.layers] == ["where"]


def test_a_choice_names_what_it_reads_in_its_own_order(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "a"), node("Tanh", "x", "b"), node("Greater", "a b", "m"), node("Where", "m a b")]
    path = written(tmp_path, made_of(nodes, {"x": reals(1, 3, 4, 4)}, {}))
    layers = {each["name"]: each for each in open_workload(path, ModelOptions()).data["layers"]}
    assert layers["where_y"]["inputs"][:2] == ["relu_a", "tanh_b"]


@pytest.mark.parametrize(
    ("op", "axes", "kept"),
    covering(2, ["ReduceMax", "ReduceMean", "ReduceSum"], [[1], [2], [3], [1, 2], [2, 3], [-1, 1]], [0, 1]),
)
def test_reductions_are_layers(tmp_path: Path, op: str, axes: list[int], kept: int) -> None:
    arrays, opset = {"x": reals(2, 3, 4, 5)}, 18 if op == "ReduceMax" else 17
    by_operand = op == "ReduceSum" or opset >= 18
    said = {"keepdims": kept} | ({} if by_operand else {"axes": axes})
    nodes = [node("Relu", "x", "r"), node(op, "r a" if by_operand else "r", **said)]
    model = made_of(nodes, arrays, {"a": np.array(axes)}, opset)
    work = same_as_evaluator(tmp_path, model, arrays)
    assert len(work.layers) == 2


def test_reductions_over_the_images_take_no_time_and_say_so(tmp_path: Path) -> None:
    model = made_of([node("Relu", "x", "r"), node("ReduceMax", "r", axes=[0])], {"x": reals(2, 3)}, {})
    assert same_as_evaluator(tmp_path, model, {"x": reals(2, 3)}).not_timed == (("ReduceMax", 1),)
    notes = open_workload(tmp_path / "net.onnx", ModelOptions()).notes
    assert any("ReduceMax 1 (it is along the first axis, or along all of them)" in note for note in notes)


@pytest.mark.parametrize("opset", [11, 17, 24])
def test_an_element_times_its_own_gate_is_one_layer(tmp_path: Path, opset: int) -> None:
    arrays = {"x": reals(1, 3, 4, 4)}
    gated = [node("Conv", "x w", "c"), node("Sigmoid", "c", "s"), node("Mul", "s c")]
    work = same_as_evaluator(tmp_path, made_of(gated, arrays, {"w": reals(4, 3, 1, 1)}, opset), arrays)
    assert [layer.op for layer in work.layers] == ["conv2d", "silu"]
    hard = [node("HardSigmoid", "x", "s", alpha=1 / 6), node("Mul", "x s")]
    assert [each.op for each in same_as_evaluator(tmp_path, made_of(hard, arrays, {}, opset), arrays).layers] == [
        "hard_swish"
    ]
    wanted = made_of([node("Sigmoid", "x", "s"), node("Mul", "x s")], arrays, {}, opset, ["y", "s"])
    assert [each.op for each in same_as_evaluator(tmp_path, wanted, arrays).layers] == ["sigmoid", "mul"]


@pytest.mark.parametrize("slope", [1, "steep", [0.5, 0.5]])
def test_a_gate_whose_slope_is_no_number_is_no_layer_and_says_why(tmp_path: Path, slope: Any) -> None:
    model = made_of([node("HardSigmoid", "x", "s", alpha=slope), node("Mul", "x s")], {"x": reals(1, 3, 4, 4)}, {})
    notes = open_workload(written(tmp_path, model), ModelOptions()).notes
    assert "not timed: HardSigmoid 1 (alpha is of a kind that ONNX does not have there)" in notes


def test_an_attribute_of_a_function_is_refused_outside_of_functions(tmp_path: Path) -> None:
    model = made_of([node("Relu", "x", "r"), node("Sigmoid", "r", "s"), node("Mul", "r s")], {"x": reals(2, 3)}, {})
    model.graph.node[1].attribute.add(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="slope")
    with pytest.raises(InputError, match=r"Sigmoid .*: alpha is an attribute of a function, and the node is in none"):
        open_workload(written(tmp_path, model), ModelOptions())


@pytest.mark.parametrize("shape", [(1, 4, 1), (4, 1)])
@pytest.mark.parametrize("held", [True, False])
def test_a_bias_of_a_sequence_is_one_of_its_channels(tmp_path: Path, shape: tuple[int, ...], held: bool) -> None:
    arrays = {"x": reals(2, 3, 9)} | ({} if held else {"b": reals(*shape)})
    constants = {"w": reals(4, 3, 3)} | ({"b": reals(*shape)} if held else {})
    work = same_as_evaluator(
        tmp_path, made_of([node("Conv", "x w", "c"), node("Add", "c b")], arrays, constants), arrays
    )
    assert work.layers[-1].text == "1x7x4 channel"


@pytest.mark.parametrize("mask", [(2, 1, 1, 5), (2, 1, 5, 5), (1, 1, 5, 5), (2, 3, 1, 5)])
def test_masks_of_scores_are_added_by_a_layer(tmp_path: Path, mask: tuple[int, ...]) -> None:
    nodes = [node("MatMul", "q k", "s"), node("Add", "s m", "a"), node("Softmax", "a", axis=-1)]
    arrays = {"q": reals(2, 3, 5, 4), "k": reals(2, 3, 4, 5), "m": reals(*mask)}
    work = same_as_evaluator(tmp_path, made_of(nodes, arrays, {}), arrays)
    assert [layer.op for layer in work.layers] == ["gemm", "add", "softmax"]


# ---- infinities

SPREAD = np.array([-np.inf, 0.5, np.inf, -2, 3, -np.inf, 1, 0], np.float32).reshape(1, 2, 2, 2)


INFINITE: tuple[tuple[list[NodeProto], dict[str, Any]], ...] = (
    ([node("Relu", "x")], {}), ([node("Sigmoid", "x")], {}), ([node("Tanh", "x")], {}), ([node("Exp", "x")], {}),
    ([node("LeakyRelu", "x")], {}), ([node("Transpose", "x", perm=[0, 2, 3, 1])], {}),
    ([node("MaxPool", "x", kernel_shape=[2, 2])], {}), ([node("Add", "x c")], {"c": reals(2, 1, 1)}),
    ([node("Clip", "x low high")], {"low": np.float32(-np.inf), "high": np.float32(1)}),
    ([node("Less", "x c", "l"), node("Where", "l n x", "w"), node("Relu", "w")],
     {"c": np.float32(0), "n": np.float32(-np.inf)}),
    ([node("Pad", "x ends n", "p"), node("MaxPool", "p", kernel_shape=[2, 2], strides=[2, 2])],
     {"ends": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "n": np.float32(-np.inf)}),
    ([node("Div", "x c")], {"c": np.zeros((2, 1, 1), np.float32)}),
)  # fmt: skip


@pytest.mark.filterwarnings("error::RuntimeWarning:tpusim")
@pytest.mark.parametrize(("made", "engine"), covering(1, INFINITE, ["event", "register"]))
def test_infinities_go_where_onnx_has_them(
    tmp_path: Path, made: tuple[list[NodeProto], dict[str, Any]], engine: str
) -> None:
    nodes, constants = made
    x = SPREAD if nodes[-1].op_type not in ("Clip", "Div") else reals(1, 2, 2, 2)
    same_as_evaluator(tmp_path, made_of(nodes, {"x": x}, constants), {"x": x}, engine=engine)


@pytest.mark.parametrize(("op", "unit"), [("Gelu", "vector"), ("Conv", "array")])
def test_infinities_that_leave_nothing_to_compare_are_told(tmp_path: Path, op: str, unit: str) -> None:
    reads = "x w" if op == "Conv" else "x"
    path = written(tmp_path, made_of([node(op, reads)], {"x": SPREAD}, {"w": reals(2, 2, 1, 1)}, 20))
    says = {"vector": "of the infinities in ifmap it makes nan, 2 times", "array": "3 of the 8 numbers of 'ifmap' are"}
    with pytest.raises(InputError, match=says[unit]):
        through_layers(path, {"x": SPREAD})


@pytest.mark.parametrize("made", ["ConstantOfShape", "Expand"])
def test_what_is_told_not_to_be_a_number_is_kept_off_the_layers(tmp_path: Path, made: str) -> None:
    """No check can tell nan from what was never written: what chooses it takes no time, and says why."""
    arrays = {"x": np.arange(12, dtype=np.float32).reshape(1, 3, 4), "mask": np.arange(12).reshape(1, 3, 4) % 3 > 0}
    none, shape = np.array([np.nan], np.float32), np.array([1, 3, 4])
    filled = (
        helper.make_node(made, ["shape"], ["none"], value=numpy_helper.from_array(none))
        if made == "ConstantOfShape"
        else node("Expand", "nan shape", "none")
    )
    nodes = [filled, node("Relu", "x", "r"), node("Where", "mask r none")]
    work = same_as_evaluator(tmp_path, made_of(nodes, arrays, {"shape": shape, "nan": none}), arrays)
    assert work.not_timed == (("Where", 1),)


@pytest.mark.parametrize(
    ("op", "said"), [("Scaler", {"offset": [0.5, -1.0, 2.0], "scale": [2.0, 0.5, 1.0]}), ("Normalizer", {"norm": "L2"})]
)
def test_what_stands_ahead_of_a_network_of_another_library_is_computed(tmp_path: Path, op: str, said: Any) -> None:
    """Of ONNX's own domain for it; products behind it have their shape from it."""
    arrays, weights = {"x": np.arange(12, dtype=np.float32).reshape(4, 3) - 5}, {"w": np.eye(3, 5, dtype=np.float32)}
    nodes = [helper.make_node(op, ["x"], ["s"], domain="ai.onnx.ml", **said), node("MatMul", "s w")]
    work = same_as_evaluator(tmp_path, made_of(nodes, arrays, weights, domains=["ai.onnx.ml"]), arrays, 1)
    assert work.layers == (Gemm("matmul_y", 4, 5, 3),)
    assert work.not_timed == ((f"ai.onnx.ml.{op}", 1),)
