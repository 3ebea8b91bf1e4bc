"""Recurrent networks of models: steps that are layers give what the operators' definitions give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.flow.test_values import carried
from tests.network.test_onnx_models import model_of, node, saved
from tpusim.base.errors import InputError
from tpusim.network.formats import ModelOptions, read_graph
from tpusim.network.workload_file import load_workload, open_workload
from tpusim.reference.nodes import Call, compute

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
SIZE, INPUTS, STEPS = 3, 2, 3


def recurrent(op: str, reads: str = "x w r b", images: Any = "N", opset: int = 17, **attributes: Any) -> ModelProto:
    ways = 2 if attributes.get("direction") == "bidirectional" else 1
    rows, random = GATES[op] * SIZE, np.random.default_rng(5)
    shapes = {"w": (ways, rows, INPUTS), "r": (ways, rows, SIZE), "b": (ways, 2 * rows), "h": (ways, 1, SIZE),
              "c": (ways, 1, SIZE), "p": (ways, 3 * SIZE)}  # fmt: skip
    made = "y z e" if op == "LSTM" else "y z"
    nodes = [helper.make_node(op, reads.replace("_", "").split(" "), made.split(), name="rec", hidden_size=SIZE,
                              **attributes)]  # fmt: skip
    model = model_of(nodes, {"x": [STEPS, images, INPUTS]}, {}, opset=opset)
    for name in made.split()[1:]:
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    held = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    model.graph.initializer.extend(
        numpy_helper.from_array(held[name], name) for name in reads.split()[1:] if name in held
    )
    return model


@pytest.mark.parametrize(
    "model",
    [
        recurrent("LSTM", "x w r b _ h c", 1), recurrent("LSTM", "x w r", direction="bidirectional", opset=11),
        recurrent("GRU", "x w r b _ h", 1, direction="reverse"), recurrent("GRU", linear_before_reset=1),
        recurrent("GRU", "x w r b _ h", 1, linear_before_reset=1, direction="bidirectional"),
        recurrent("GRU"), pytest.param(recurrent("GRU", opset=12), marks=pytest.mark.long),
        recurrent("LSTM", "x w r b _ h c p", 1),
        recurrent("LSTM", "x w r _ _ _ _ p", direction="bidirectional"),
    ],
)  # fmt: skip
def test_steps_give_what_the_operator_gives(tmp_path: Path, model: ModelProto) -> None:
    """The definition of the operator is the reference's own."""
    path = saved(tmp_path, model)
    # Without an open dimension, the first is the batch.
    batch = STEPS if model.graph.input[0].type.tensor_type.shape.dim[1].dim_value else 2
    given, outputs = carried(path, batch)
    assert {"gemm", "sigmoid", "tanh", "mul"} <= {layer.op for layer in load_workload(path, batch).layers}
    (operator,), held = model.graph.node, {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    call = Call({each.name: _value(each) for each in operator.attribute}, len(operator.output))
    expected = compute(operator.op_type, call, [{**held, **given}.get(name) for name in operator.input])
    for name, each in zip(operator.output, expected, strict=True):
        np.testing.assert_allclose(outputs[name], each, rtol=1e-5, atol=1e-6)


def _value(attribute: Any) -> Any:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def test_a_plain_one_is_the_tangent_of_a_sum(tmp_path: Path) -> None:
    path = saved(tmp_path, recurrent("RNN", "x w r b"))
    given, outputs = carried(path, 2)
    held, state = read_graph(path, ModelOptions(), 2).constants, 0
    weights, backs, biases = (held[name][0] for name in "wrb")
    for step, x in enumerate(given["x"].reshape(STEPS, 2, INPUTS)):
        state = np.tanh(x @ weights.T + biases.reshape(2, -1).sum(axis=0) + (state @ backs.T if step else 0))
        np.testing.assert_allclose(outputs["y"].reshape(STEPS, 2, SIZE)[step], state, rtol=1e-5, atol=1e-6)


def test_activations_are_those_of_the_node(tmp_path: Path) -> None:
    """Each direction has its own, and what is said of them is for those that take it, one after another."""
    said = {"activations": ["HardSigmoid", "LeakyRelu", "Softsign", "HardSigmoid", "Relu", "Elu"],
            "activation_alpha": [0.25, 0.5, 0.125, 2.0], "activation_beta": [0.4]}  # fmt: skip
    functions = [
        (lambda x: np.clip(0.25 * x + 0.4, 0, 1), lambda x: np.where(x > 0, x, x / 2), lambda x: x / (1 + abs(x))),
        (lambda x: np.clip(0.125 * x + 0.5, 0, 1), lambda x: np.maximum(x, 0),
         lambda x: np.where(x > 0, x, 2 * np.expm1(x))),
    ]  # fmt: skip
    path = saved(tmp_path, recurrent("LSTM", "x w r b", direction="bidirectional", **said))
    given, outputs = carried(path, 2)
    held, sequence = read_graph(path, ModelOptions(), 2).constants, given["x"].reshape(STEPS, 2, INPUTS)
    for way, (gate, new, made) in enumerate(functions):
        weights, backs, biases = (held[name][way] for name in "wrb")
        output = cell = np.zeros((2, SIZE))
        for step in range(STEPS)[:: -1 if way else 1]:
            every = sequence[step] @ weights.T + output @ backs.T + biases.reshape(2, -1).sum(axis=0)
            enters, leaves, stays, content = np.split(every, 4, axis=1)
            cell = gate(stays) * cell + gate(enters) * new(content)
            output = gate(leaves) * made(cell)
            np.testing.assert_allclose(outputs["y"][step, way], output, rtol=1e-5, atol=1e-6)


def test_inputs_of_all_steps_are_one_product(tmp_path: Path) -> None:
    """And the state of each but the first, where there is none before it, another."""
    document = open_workload(saved(tmp_path, recurrent("LSTM")))
    gemms = [(entry["m"], entry["n"], entry["k"]) for entry in document.data["layers"] if entry["op"] == "gemm"]
    rows = 4 * SIZE
    assert gemms == [(f"batch*{STEPS}", rows, INPUTS), *[("batch", rows, SIZE)] * (STEPS - 1)]
    assert (
        "recurrent networks are a product of all inputs, then one of the state a step; steps: rec 3" in document.notes
    )


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            recurrent("LSTM", activations=["Relu", "Tanh", "Affine"]),
            "its activations are Relu, Tanh, Affine; Relu, .* ar",
        ),
        (recurrent("LSTM", activations=["Relu", "Tanh"]), "its activations are Relu, Tanh; .* are known, 3 of them"),
        (recurrent("LSTM", activations=[1, 2, 3]), "its activations are 1, 2, 3; .* are known, 3 of them"),
        (recurrent("LSTM", direction="sideways"), "there is no direction sideways"),
        (recurrent("LSTM", direction=3), "there is no direction 3"),
        (recurrent("GRU", clip=1.0), "it clips, couples its gates"),
    ],
)
def test_what_cannot_be_steps_says_why(tmp_path: Path, model: ModelProto, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_workload(saved(tmp_path, model))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sequence", r"leave sizes open: sequence \(dimension 0 of x\)"),
        ("rows", "how many steps it has depends on the batch.* --dim rows=N says"),
        ("", "how many steps it has depends on the batch.* --dim x.0=N says"),
    ],
)
def test_steps_that_are_no_batch_have_to_be_said(tmp_path: Path, name: str, says: str) -> None:
    """By their name, or as they follow what stands in the place of the batch."""
    model = recurrent("LSTM", images=1)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
    model.graph.node.append(node("Relu", "y", "q"))
    path = saved(tmp_path, model)
    with pytest.raises(InputError, match=says):
        load_workload(path)
    assert sum(layer.op == "gemm" for layer in load_workload(path, 1, dims={name or "x.0": 4}).layers) == 4
