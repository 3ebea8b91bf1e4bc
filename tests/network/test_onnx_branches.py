"""Branches of models: an If gives way to the branch that is taken, where that can be known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.network.test_onnx_models import model_of, node, saved
from tpusim.base.errors import InputError
from tpusim.input.document import Document
from tpusim.network.formats import ModelOptions
from tpusim.network.ops.array_op import Gemm
from tpusim.network.workload_file import load_workload, open_workload

RATE = TensorProto.INT64


def graph(nodes: list[NodeProto], *made: str, **weights: np.ndarray) -> GraphProto:
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in made]
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    return helper.make_graph(nodes, "branch", [], outputs, held)


def choice(condition: str, makes: str, one: GraphProto, other: GraphProto) -> NodeProto:
    return helper.make_node("If", [condition], makes.split(), name=f"if_{makes}", then_branch=one, else_branch=other)


def by_rate(x: list[Any]) -> ModelProto:
    """At 8 the product of a weight of 10 outputs, else one of 20: in a branch that has weights of its own."""
    wide = graph([node("MatMul", "x w", "a")], "a", w=np.ones((64, 20), np.float32))
    narrow = graph([node("MatMul", "h w", "a")], "a", w=np.ones((64, 10), np.float32))
    model = model_of(
        [node("Relu", "x", "h"), node("Equal", "rate eight", "c"), choice("c", "y", narrow, wide)],
        {"x": x, "rate": []}, {},
    )  # fmt: skip
    model.graph.input[1].type.tensor_type.elem_type = RATE
    model.graph.initializer.append(numpy_helper.from_array(np.array(8), "eight"))
    return model


def by_shape(axis: int) -> ModelProto:
    """One element along an axis is squeezed away; inside, another If asks again."""
    squeezed = graph([node("Squeeze", "x axes", "s"), node("MatMul", "s w", "a")], "a")
    inner = choice("c", "a", graph([node("MatMul", "x u", "i")], "i"), graph([node("MatMul", "x v", "i")], "i"))
    inner.input[0] = "d"
    model = model_of(
        [node("Shape", "x", "s0"), node("Gather", "s0 at", "n"), node("Equal", "n one", "c"), node("Not", "c", "d"),
         choice("c", "y", squeezed, graph([inner], "a"))],
        {"x": ["N", "T", 8]}, {"w": [8, 2], "u": [8, 3], "v": [8, 4]},
    )  # fmt: skip
    constants = {"at": np.array(axis), "one": np.array(1), "axes": np.array([axis])}
    model.graph.initializer.extend(numpy_helper.from_array(each, name) for name, each in constants.items())
    return model


def opened(folder: Path, model: ModelProto, **asked: Any) -> Document:
    return open_workload(saved(folder, model), ModelOptions(**asked))


@pytest.mark.parametrize(("rate", "outputs", "way"), [(8, 10, "then"), (16, 20, "else")])
def test_an_input_that_is_given_decides(tmp_path: Path, rate: int, outputs: int, way: str) -> None:
    """What only the other branch reads is gone, too."""
    arrays = {"x": np.zeros((3, 64), np.float32), "rate": np.array(rate)}
    document = opened(tmp_path, by_rate(["N", 64]), arrays=arrays)
    ops = {entry["op"]: entry for entry in document.data["layers"]}
    assert ops["gemm"]["n"] == outputs
    assert ("relu" in ops) == (rate == 8)
    assert f"the branch that is taken of each If: if_y {way}" in document.notes
    assert document.images == 3


def test_who_decides_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"If if_y: rate decides it; tpusim run --input FILE.npz with rate in it"):
        opened(tmp_path, by_rate(["N", 64]))


def test_arrays_without_images_are_refused(tmp_path: Path) -> None:
    arrays = {"x": np.zeros((0, 64), np.float32), "rate": np.array(8)}
    with pytest.raises(InputError, match=r"dimension 0 of the array 'x' is 0, so it holds nothing; give at least one"):
        opened(tmp_path, by_rate(["N", 64]), arrays=arrays)


@pytest.mark.parametrize(("steps", "columns"), [(1, 2), (5, 3)])
def test_shapes_decide_also_inside_of_branches(tmp_path: Path, steps: int, columns: int) -> None:
    work = load_workload(saved(tmp_path, by_shape(1)), 4, dims={"T": steps})
    assert work.layers == (Gemm(work.layers[0].name, 4 * steps, columns, 8),)


def test_the_batch_of_a_run_decides(tmp_path: Path) -> None:
    """Of no number of images more than the branch follows; no workload is for all of them."""
    path = saved(tmp_path, by_shape(0))
    for asked in ({"batch": 1}, {"batch": 1, "dims": {"T": 5, "N": 1}}, {"dims": {"T": 5, "N": 1}}):
        (layer,) = load_workload(path, **{"dims": {"T": 5}, **asked}).layers
        assert (layer.m, layer.n) == (5, 2)
    (layer,) = load_workload(path, 2, dims={"T": 5}).layers
    assert (layer.m, layer.n) == (10, 3)


def test_names_inside_of_branches_may_be_those_of_others(tmp_path: Path) -> None:
    """Both Ifs make an `a` of their own, of a `w` of their own."""

    def half(x: str, size: int) -> GraphProto:
        return graph([node("MatMul", f"{x} w", "a"), node("Relu", "a", "b")], "b", w=np.ones((8, size), np.float32))

    model = model_of(
        [choice("c", "h", half("x", 8), half("x", 7)), choice("c", "y", half("h", 6), half("h", 5))],
        {"x": ["N", 8]}, {},
    )  # fmt: skip
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
    document = opened(tmp_path, model)
    gemms = [entry for entry in document.data["layers"] if entry["op"] == "gemm"]
    assert [(entry["k"], entry["n"]) for entry in gemms] == [(8, 8), (8, 6)]
    assert gemms[1]["inputs"] == ["relu_b"]
