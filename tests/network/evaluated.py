"""Models whose values go from layer to layer, and what ONNX's own evaluator makes of the same arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.flow.journeys import ENGINE, SMALL_MACHINE, go
from tpusim.flow.numbers import numbers_of
from tpusim.flow.values import Journey, checked
from tpusim.network.formats import ModelOptions, read_graph
from tpusim.network.workload import Workload
from tpusim.network.workload_file import open_workload, run_batch, workload_of

Arrays = Mapping[str, NDArray[Any]]


def made_of(
    nodes: Sequence[NodeProto], inputs: Arrays, constants: Arrays, opset: int = 17, outputs: Sequence[str] = (),
    declared: Sequence[ValueInfoProto] = (), domains: Sequence[str] = (),
) -> ModelProto:  # fmt: skip
    """Return a model whose inputs are of the shapes and types of these arrays; its outputs are those of the last
    node, unless others are named.
    """
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in inputs.items()
    ]
    wanted = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs or nodes[-1].output]
    held = [numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items()]
    graph = helper.make_graph(list(nodes), "g", given, wanted, held, value_info=list(declared))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(each, 1) for each in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def written(folder: Path, model: ModelProto) -> Path:
    """Write a model, and return its path."""
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def through_layers(
    path: Path, arrays: Arrays, batch: int | None = None, engine: str = ENGINE, dtype: str = "f32",
    hardware: str = SMALL_MACHINE,
) -> tuple[Workload, dict[str, NDArray[Any]]]:  # fmt: skip
    """Send arrays through a model, layer by layer: through the reference's, or through an engine's, which are checked.
    Return the model's workload and its outputs.
    """
    asked = ModelOptions(arrays=dict(arrays), batch=run_batch(batch))
    document = open_workload(path, asked)
    assert document.images
    work = workload_of(document, document.images)
    graph = read_graph(path, asked, work.batch)
    journey = Journey(graph, work, checked(graph, arrays, work.batch), numbers_of(dtype, "any"))
    go(journey, work, engine, dtype, hardware)
    return work, journey.outputs()


def same_as_evaluator(
    folder: Path, model: ModelProto, arrays: Arrays, batch: int | None = None, near: float = 1e-5, **how: Any
) -> Workload:
    """Check that a model's outputs are ONNX's, in type, shape and value; return its workload."""
    wanted = ReferenceEvaluator(model).run(None, dict(arrays))
    work, outputs = through_layers(written(folder, model), arrays, batch, **how)
    for value, each in zip(model.graph.output, wanted, strict=True):
        assert outputs[value.name].shape == np.shape(each)
        assert outputs[value.name].dtype == np.asarray(each).dtype
        np.testing.assert_allclose(outputs[value.name], each, rtol=near, atol=near, equal_nan=True)
    return work
