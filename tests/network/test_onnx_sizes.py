"""Sizes of ONNX models: those that the model itself has at the batch of the run, whichever way the batch is given."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, helper, numpy_helper

from tests.flow.journeys import ENGINE, go
from tests.network.onnx_graphs import RandomGraph, random_graphs
from tests.network.test_onnx_models import model_of, node, saved
from tests.strategies import cases
from tpusim import Gemm
from tpusim.base.errors import InputError
from tpusim.flow.numbers import numbers_of
from tpusim.flow.values import Journey, checked
from tpusim.network.formats import ModelOptions, read_graph
from tpusim.network.formats.onnx_model.vector_nodes import VECTOR_OPS
from tpusim.network.workload import Workload
from tpusim.network.workload_file import load_workload, open_workload, run_batch, workload_of, yaml_of

MANY = int(os.environ.get("TPUSIM_CASES", "1000"))


def model(nodes: list[NodeProto], shape: Sequence[Any], arrays: dict[str, Any], **inputs: Sequence[Any]) -> ModelProto:
    """A model of an input `x`, perhaps others, and of constants."""
    made = model_of(nodes, {"x": shape, **inputs}, {})
    held = ((name, np.asarray(each)) for name, each in arrays.items())
    made.graph.initializer.extend(
        numpy_helper.from_array(each.astype(np.float32) if each.dtype.kind == "f" else each, name)
        for name, each in held
    )
    return made


# ---- which dimension is the batch

PRODUCT = [node("MatMul", "x w")]
WEIGHTS = {"w": np.ones((3, 64))}


@pytest.mark.parametrize(
    ("shape", "batch", "asked"),
    [
        (["B", "N", 3], "B", "N"), (["N", "B", 3], "B", "N"), (["batch", "n", 3], "batch", "n"),
        (["N", "T", 3], "N", "T"), (["T", "N", 3], "N", "T"), (["seq", "batch_size", 3], "batch_size", "seq"),
        (["bs", "batch_beams", 3], "bs", "batch_beams"), (["batch", "2 * batch", 3], "batch", "2 * batch"),
        (["points", "queries", 3], "points", "queries"), ([None, None, 3], "x.0", "x.1"),
        (["batch", "batch_of_words", 3], "batch", "batch_of_words"),
        ([None, "N", 3], "x.0", "N"), (["unk__6", "n", 3], "unk__6", "n"),
    ],
)  # fmt: skip
def test_what_may_be_no_batch_is_asked_for_by_name(tmp_path: Path, shape: list[Any], batch: str, asked: str) -> None:
    path = saved(tmp_path, model(PRODUCT, shape, WEIGHTS))
    with pytest.raises(InputError) as error:
        load_workload(path, 8)
    for says in (f"leave sizes open: {asked} (", f"={'N'}; or run", f"({batch} is the batch)"):
        assert says in str(error.value)
    sized = RandomGraph(path_model(path), batch, 8, {asked: 100}, np.ones([8, 100, 3], np.float32))
    if shape[0] == asked:
        sized = sized._replace(x=np.ones([100, 8, 3], np.float32))
    for work in in_every_way(path, sized):
        assert isinstance(work, Workload)
        assert work.layers == (Gemm("matmul_y", 800, 64, 3),)


def path_model(path: Path) -> ModelProto:
    return ModelProto.FromString(path.read_bytes())


def test_two_inputs_may_be_of_two_batches(tmp_path: Path) -> None:
    """Texts and pictures that are compared, each with each; without names, both are the batch."""
    nodes = [node("Transpose", "z", "t", perm=[1, 0]), node("MatMul", "x t")]
    path = saved(tmp_path, model(nodes, ["text_batch", 16], {}, z=["image_batch", 16]))
    with pytest.raises(InputError, match=r"leave sizes open: image_batch \(dimension 0 of z\)"):
        load_workload(path, 8)
    assert load_workload(path, 8, dims={"image_batch": 5}).layers[-1] == Gemm("matmul_y", 8, 5, 16)
    path = saved(tmp_path, model(nodes, [None, 16], {}, z=[None, 16]))
    assert load_workload(path, 8).layers[-1] == Gemm("matmul_y", 8, 8, 16)


@pytest.mark.parametrize(("x", "z"), [(["points", 16], ["queries", 16]), (["points", 16], [None, 16])])
def test_first_dimensions_of_other_names_are_asked_for(tmp_path: Path, x: list[Any], z: list[Any]) -> None:
    path = saved(tmp_path, model([node("MatMul", "x w", "a"), node("Relu", "z")], x, {"w": np.ones((16, 4))}, z=z))
    with pytest.raises(InputError, match=r"\(dimension 0 of z\); .* \(points is the batch"):
        load_workload(path, 8)


def test_a_picture_without_an_axis_of_images_tells_how_it_runs(tmp_path: Path) -> None:
    """A spectrogram whose first dimension has a name that says nothing."""
    nodes = [node("Unsqueeze", "x two", "u"), node("Conv", "u f")]
    path = saved(tmp_path, model(nodes, ["bins", 80], {"two": [0, 1], "f": np.ones((4, 1, 3, 3))}))
    with pytest.raises(InputError, match="no number of images, give --dim bins=N and batch 1; tpusim run or import"):
        load_workload(path, 8)
    (layer,) = load_workload(path, 1, dims={"bins": 30}).layers
    assert (layer.in_height, layer.in_width) == (30, 80)


# ---- sizes that are no line of the batch

PAIRS = [
    node("Unsqueeze", "x zero", "p"), node("Unsqueeze", "x one", "q"), node("Sub", "p q", "d"), node("MatMul", "d w"),
]  # fmt: skip
EVERY_SECOND = [node("Slice", "x zero end zero two", "s"), node("MatMul", "s w")]
FIRST_FOUR = [node("Slice", "x zero four zero one", "s"), node("MatMul", "s w")]
AMONG_ALL = [node("Transpose", "x", "t", perm=[1, 0]), node("MatMul", "t x")]
CONSTANTS = {
    "zero": [0], "one": [1], "two": [2], "four": [4], "end": [2**31], "w": np.ones((16, 32)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "images", "layer"),
    [
        (PAIRS, 8, Gemm("matmul_y", 64, 32, 16)), (PAIRS, 3, Gemm("matmul_y", 9, 32, 16)),
        (EVERY_SECOND, 8, Gemm("matmul_y", 4, 32, 16)), (EVERY_SECOND, 5, Gemm("matmul_y", 3, 32, 16)),
        (FIRST_FOUR, 2, Gemm("matmul_y", 2, 32, 16)), (FIRST_FOUR, 9, Gemm("matmul_y", 4, 32, 16)),
        (AMONG_ALL, 7, Gemm("matmul_y", 16, 16, 7)),
    ],
)  # fmt: skip
def test_sizes_that_are_no_line_of_the_batch(tmp_path: Path, nodes: list[NodeProto], images: int, layer: Gemm) -> None:
    """They are those at the batch of a run; a file for every batch is refused, and one for that batch written."""
    used = {name for each in nodes for name in each.input}
    arrays = {name: each for name, each in CONSTANTS.items() if name in used}
    path = saved(tmp_path, model(nodes, ["batch", 16], arrays))
    for work in in_every_way(path, RandomGraph(path_model(path), "batch", images, {}, np.ones((images, 16), "f4"))):
        assert isinstance(work, Workload)
        assert work.layers[-1] == layer
    if nodes is not AMONG_ALL:
        said = r"is no line of the batch, .*; give it: --dim batch=N; tpusim run takes the model itself, at any batch"
        with pytest.raises(InputError, match=said):
            open_workload(path)
    written = tmp_path / "net.yaml"
    document = open_workload(path, ModelOptions({"batch": images}))
    written.write_text(yaml_of(document))
    assert load_workload(written, images).layers == load_workload(path, images).layers


def test_a_file_for_every_batch_has_the_sizes_of_each(tmp_path: Path) -> None:
    """Of steps first, of several maps an image, and of rows that are a line with an addend."""
    nodes = [
        node("MatMul", "x w", "a"), node("Add", "a b", "c"), node("Relu", "c", "d"),
        node("Concat", "d k", "e", axis=1), node("MatMul", "e w"),
    ]  # fmt: skip
    arrays = {"w": np.ones((64, 64)), "b": np.ones(64), "k": np.ones((16, 3, 64))}
    path = saved(tmp_path, model(nodes, [16, "batch", 64], arrays))
    document = open_workload(path)
    assert [entry["m"] for entry in document.data["layers"] if entry["op"] == "gemm"] == ["batch*16", "batch*16+48"]
    written = tmp_path / "net.yaml"
    written.write_text(yaml_of(document))
    for images in (1, 2, 7, 8, 64):
        assert load_workload(written, images).layers == load_workload(path, images).layers
        # Of one image, elements stand where they do in whatever order its axis is read.
        assert images == 1 or load_workload(written, images).edges == load_workload(path, images).edges


# ---- models of fixed sizes


@pytest.mark.parametrize(
    ("shape", "nodes", "own"),
    [
        ([4, 3, 8, 8], [node("Conv", "x f")], 4),
        ([3, 8, 8], [node("Unsqueeze", "x zero", "u"), node("Conv", "u f")], 1),
        ([2, 4, 3, 8, 8], [node("Reshape", "x maps", "u"), node("Conv", "u f")], 2),
        ([6, 16], [node("MatMul", "x w")], 6),
        (
            [5, 2, 3, 8, 8],
            [node("Transpose", "x", "u", perm=[1, 0, 2, 3, 4]), node("Reshape", "u seven", "v"), node("Conv", "v g")],
            2,
        ),
    ],
)
def test_a_model_of_fixed_sizes_runs_for_multiples_of_its_images(
    tmp_path: Path, shape: list[int], nodes: list[NodeProto], own: int
) -> None:
    """Those are of its convolutions, if it has any; without `--batch`, the usual number, or its own."""
    arrays = {
        "seven": [2, 15, 8, 8],
        "g": np.ones((4, 15, 3, 3)),
        "zero": [0],
        "maps": [-1, 3, 8, 8],
        "f": np.ones((4, 3, 3, 3)),
        "w": np.ones((16, 32)),
    }
    used = {name for each in nodes for name in each.input}
    path = saved(tmp_path, model(nodes, shape, {name: each for name, each in arrays.items() if name in used}))
    assert load_workload(path).batch == (8 if 8 % own == 0 else own)
    one = load_workload(path, own)
    for runs in (2, 3):
        work = load_workload(path, own * runs)
        assert sum(layer.macs(work.batch) for layer in work.layers) == runs * sum(each.macs(own) for each in one.layers)
    document = open_workload(path)
    assert workload_of(document, own * 2).layers == load_workload(path, own * 2).layers
    if own > 1:
        with pytest.raises(InputError, match=f"is for {own} images at once; give {own} or a multiple"):
            workload_of(document, own + 1)
        with pytest.raises(InputError, match=f"batch {own + 1}: the model is for {own} images at once, as its inputs"):
            load_workload(path, own + 1)


def test_images_that_are_pooled_into_one_row_are_a_row_of_each_run(tmp_path: Path) -> None:
    """One row of eight images was one row of sixteen, too."""
    nodes = [node("ReduceMax", "x", "r", axes=[0], keepdims=1), node("MatMul", "r w")]
    path = saved(tmp_path, model(nodes, [8, 16], {"w": np.ones((16, 32))}))
    assert [load_workload(path, images).layers[-1].m for images in (8, 16, 24)] == [1, 2, 3]


def test_weights_that_a_model_computes_are_those_of_one_run(tmp_path: Path) -> None:
    """As trackers have them: they compare a map with the kernel that another picture made."""
    path = saved(tmp_path, model([node("Conv", "x k")], [1, 4, 9, 9], {}, k=[2, 4, 3, 3]))
    assert load_workload(path, 1).layers[0].out_channels == 2
    with pytest.raises(InputError, match="Conv conv_y: its weights differ from one run of the model to the next"):
        load_workload(path, 2)


# ---- what is timed, and why others are not


def layers_at(path: Path, images: int, **asked: Any) -> list[tuple[str, ...]]:
    return [(layer.op, layer.text) for layer in load_workload(path, images, **asked).layers]


@pytest.mark.parametrize(
    ("shape", "other", "kind"),
    [
        # Steps first: [steps, batch, channels].
        ([16, "batch", 64], (64,), "channel"), ([16, "batch", 64], (16, 1, 64), "map"),
        # A bias behind a Squeeze, as one-dimensional convolutions of TensorFlow have it.
        (["batch", 6, 50], (1, 6, 1), "channel"), (["batch", 6, 50], (6, 1), "channel"),
        (["batch", 6, 8, 9], (9,), "channel"), (["batch", 6, 8, 9], (1, 1, 8, 1), "channel"),
        (["batch", 6, 8, 9], (6, 1, 9), "map"), (["batch", 6, 8, 9], (1, 1, 1), "number"),
        (["batch", 2, 3, 4, 5], (3, 1, 1), "channel"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_constants_along_any_axes_are_added(
    tmp_path: Path, op: str, shape: list[Any], other: tuple[int, ...], kind: str
) -> None:
    """Each is read once, whatever the axes of its own elements."""
    path = saved(tmp_path, model([node(op, "x b")], shape, {"b": np.ones(other)}))
    for images in (1, 8):
        (layer,) = load_workload(path, images).layers
        assert (layer.other, prod(layer.sources(images)["other"])) == (kind, prod(other))
        assert layer.outputs(images) == prod(images if each == "batch" else each for each in shape)


def test_a_bias_behind_a_squeeze_is_one_of_the_channels_that_come_first(tmp_path: Path) -> None:
    nodes = [
        node("Unsqueeze", "x two", "u"), node("Conv", "u f", "c"), node("Squeeze", "c two", "s"),
        node("Add", "s b", "d"), node("Relu", "d"),
    ]  # fmt: skip
    arrays = {"two": [2], "f": np.ones((6, 3, 1, 5)), "b": np.ones((1, 6, 1))}
    assert layers_at(saved(tmp_path, model(nodes, ["batch", 3, 20], arrays)), 8)[1:] == [
        ("add", "1x16x6 channel"), ("relu", "1x16x6"),
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 1, 7), ("batch", 1, 1, 7), ("batch", 1, 7, 7), ("batch", 5, 1, 1), (1, 1, 7, 1)])
@pytest.mark.parametrize("images", [1, 3])
def test_masks_of_scores_are_added(tmp_path: Path, shape: tuple[Any, ...], images: int) -> None:
    """Of scores [batch, heads, words, words]: along the words of each sentence, or of each pair of words."""
    nodes = [node("Mul", "m far", "n"), node("Add", "x n", "a"), node("Softmax", "a", "y", axis=-1)]
    path = saved(tmp_path, model(nodes, ["batch", 5, 7, 7], {"far": np.float64(-4)}, m=shape))
    work = load_workload(path, images)
    assert [layer.op for layer in work.layers][-2:] == ["add", "softmax"]
    assert work.layers[-2].outputs(images) == images * 5 * 7 * 7
    own = prod(images if each == "batch" else each for each in shape)
    assert prod(work.layers[-2].sources(images)["other"]) == own


REASONS = [
    ([node("Mul", "x w")], [3, 2], {"w": np.ones((3, 2))}, "Mul 1 (its constant has numbers of its own for each im"),
    ([node("LpPool", "x", kernel_shape=[2, 2])], ["N", 3, 8, 8], {}, "LpPool 1 (pools take the largest element or the"),
    ([node("MaxPool", "x", kernel_shape=[2, 2, 2])], ["N", 3, 8, 8, 8], {}, "MaxPool 1 (it has 3 axes; 1 and 2 are"),
    ([node("MaxPool", "x", kernel_shape=[2, 2], pads=[3, 3, 3, 3])], ["N", 3, 8, 8], {}, "MaxPool 1 (padding: "),
    ([node("MaxPool", "x", kernel_shape=[2])], ["N", 3, 5_000_000], {}, "MaxPool 1 (in_width: 5000000 is out of range"),
    ([node("ReduceProd", "x")], ["N", 3], {}, "ReduceProd 1 (no layer here computes it)"),
    ([node("Floor", "x")], ["N", 3], {}, "Floor 1 (it rounds, and no unit here rounds)"),
    ([node("CumSum", "x a")], ["N", 3], {"a": np.int64(1)}, "CumSum 1 (each result follows on the one before)"),
    ([node("ReduceMax", "x")], ["N", 3], {}, "ReduceMax 1 (it is along the first axis, or along all of them)"),
    ([node("Reshape", "x s")], ["N", 6], {"s": [-1, 2]}, "Reshape 1 (its result is read where its operand lies)"),
    ([node("Relu", "x")], ["N"], {}, "Relu 1 (it works on values of 1 axes; maps have two or more)"),
    ([node("Sum", "x")], ["N", 3], {}, "Sum 1 (it has 1 operand; 2 are known)"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "shape", "arrays", "says"), REASONS)
def test_every_op_that_is_not_timed_is_named_with_its_reason(
    tmp_path: Path, nodes: list[NodeProto], shape: list[Any], arrays: dict[str, Any], says: str
) -> None:
    """Where there is no layer at all, and in the notes where there is one."""
    path = saved(tmp_path, model(nodes, shape, arrays))
    with pytest.raises(InputError, match=f"no op that could be run as a layer is in the model: .*{re.escape(says)}"):
        load_workload(path)
    beside = [*nodes, node("MatMul", "z u", "other"), *(node(each.op_type, " ".join(each.input), "again", **{
        given.name: helper.get_attribute_value(given) for given in each.attribute}) for each in nodes)]  # fmt: skip
    path = saved(tmp_path, model(beside, shape, {**arrays, "u": np.ones((2, 3))}, z=[6, 2]))
    notes = [each for each in open_workload(path, ModelOptions(batch=run_batch(None))).notes if "not timed" in each]
    in_place = nodes[0].op_type == "Reshape"
    assert notes == [] if in_place else [each for each in notes if each.startswith("not timed: ")] == notes != []
    assert in_place or says.replace(" 1 (", " 2 (") in notes[0]


# ---- random graphs


def in_every_way(path: Path, graph: RandomGraph) -> list[Workload | str]:
    """The workload by `--batch`, by `--dim`, by both, and by the arrays of `--input`; or what is said instead."""
    batch = {graph.name: graph.images}
    document = ModelOptions(arrays={"x": graph.x}, batch=run_batch(None))

    def by_arrays() -> Workload:
        opened = open_workload(path, document)
        assert opened.images is not None
        return workload_of(opened, opened.images)

    found: list[Workload | str] = []
    for way in (
        lambda: load_workload(path, graph.images, dims=graph.others),
        lambda: load_workload(path, dims={**graph.others, **batch}),
        lambda: load_workload(path, graph.images, dims={**graph.others, **batch}),
        by_arrays,
    ):
        try:
            found.append(way())
        except InputError as error:
            # What would help differs from way to way.
            found.append(str(error).split("; ")[0])
    return found


def check(folder: Path, graph: RandomGraph) -> None:
    path = saved(folder, graph.model)
    first, *others = in_every_way(path, graph)
    if isinstance(first, str):
        event(f"refused: {first.partition(': ')[2][:60]}")
        assert [*others] == [first] * len(others)
        return
    for other in others:
        assert isinstance(other, Workload), other
        assert other.batch == first.batch == graph.images
        assert other.layers == first.layers
        assert (other.edges, other.not_timed) == (first.edges, first.not_timed)
    values = graph.values()
    made, macs, nodes = Counter[str](), Counter[str](), Counter[str]()
    names = {each.name for each in graph.model.graph.node}
    for layer in first.layers:
        name = layer.name if layer.name in names else layer.name.rpartition("_")[0]
        made[name] += layer.outputs(first.batch)
        macs[name] += layer.macs(first.batch)
    weights = {each.name: tuple(each.dims) for each in graph.model.graph.initializer}
    shapes = {"x": graph.x.shape, **weights, **{name: each.shape for name, each in values.items()}}
    for each in graph.model.graph.node:
        size = prod(shapes[each.output[0]])
        if each.op_type in ("Conv", "MatMul", "Gemm"):
            summed = prod(shapes[each.input[1]][1:]) if each.op_type == "Conv" else shapes[each.input[0]][-1]
            assert (made[each.name], macs[each.name]) == (size, size * summed)
        elif each.op_type in VECTOR_OPS and values[each.output[0]].dtype.kind == "f":
            assert made[each.name] in (0, size)
            nodes[each.op_type] += made[each.name] == 0
    assert {op: count for op, count in first.not_timed if op in VECTOR_OPS} == +nodes


@settings(deadline=None, max_examples=cases(), suppress_health_check=[HealthCheck.too_slow])
@given(random_graphs())
def test_random_graphs_have_the_layers_of_their_values_in_every_way(tmp_path_factory, graph: RandomGraph) -> None:
    check(tmp_path_factory.getbasetemp(), graph)


@pytest.mark.long
@settings(deadline=None, max_examples=MANY, suppress_health_check=[HealthCheck.too_slow])
@given(random_graphs(largest=40))
def test_a_thousand_random_graphs_have_the_layers_of_their_values(tmp_path_factory, graph: RandomGraph) -> None:
    check(tmp_path_factory.getbasetemp(), graph)


def check_values(folder: Path, graph: RandomGraph, engine: str, runs: int = 1) -> None:
    """Every layer reads what the layers before it made, and the outputs are the evaluator's.

    Several `runs` are of the model with the sizes drawn as its own, one behind another.
    """
    dims = graph.others if runs == 1 else {}
    path = saved(folder, graph.model if runs == 1 else graph.fixed())
    every = [graph.x * np.float32(1 + number) for number in range(runs)]
    given_arrays = {"x": np.concatenate(every)}
    document = open_workload(path, ModelOptions(dims, arrays=given_arrays))
    assert document.images
    work = workload_of(document, document.images)
    network = read_graph(path, ModelOptions(dims), work.batch)
    journey = Journey(network, work, checked(network, given_arrays, work.batch), numbers_of("f32", "any"))
    go(journey, work, engine)
    (made,) = journey.outputs().values()
    apart = [graph.values(x)[graph.model.graph.output[0].name] for x in every]
    expected = np.concatenate(apart) if apart[0].ndim else np.stack(apart)
    np.testing.assert_allclose(
        made.reshape(expected.shape), expected, rtol=1e-3, atol=1e-3 * max(1, float(np.abs(expected).max(initial=0)))
    )


@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(random_graphs(largest=3), st.sampled_from([1, 2]))
def test_values_of_random_graphs_are_the_evaluators(tmp_path_factory, graph: RandomGraph, runs: int) -> None:
    unless_refused(tmp_path_factory.getbasetemp(), graph, ENGINE, runs)


@pytest.mark.long
@settings(deadline=None, max_examples=MANY // 10, suppress_health_check=[HealthCheck.too_slow])
@given(random_graphs(largest=3), st.sampled_from([1, 1, 2, 3]))
def test_values_of_many_random_graphs_are_the_evaluators_in_both_engines(
    tmp_path_factory, graph: RandomGraph, runs: int
) -> None:
    unless_refused(tmp_path_factory.getbasetemp(), graph, "both", runs)


def unless_refused(folder: Path, graph: RandomGraph, engine: str, runs: int) -> None:
    try:
        check_values(folder, graph, engine, runs)
    except InputError as error:
        event(f"refused: {str(error).partition(': ')[2][:60]}")
        if not re.search("no op that could be run|no multiple of the batch", str(error)):
            raise


def test_a_written_workload_keeps_the_batches_that_it_is_for(tmp_path: Path) -> None:
    """A sum over the three images of a model makes one row a run: of four images nobody knows the rows."""
    nodes = [node("ReduceSum", "x axis", "s"), node("MatMul", "s w", "y")]
    path = saved(tmp_path, model(nodes, [3, 8], {"axis": np.array([0]), "w": np.ones((8, 4), np.float32)}))
    written = tmp_path / "written.yaml"
    written.write_text(yaml_of(open_workload(path)))
    for batch, rows in ((3, 1), (6, 2), (None, 1)):
        assert [work.layers[-1].m for work in (load_workload(written, batch), load_workload(path, batch))] == [rows] * 2
    for each in (written, path):
        with pytest.raises(InputError, match="is for 3 images at once"):
            load_workload(each, 4)
