"""Sizes of ONNX models: those that the model itself has at the batch of the run, whichever way the batch is given."""

from __future__ import annotations

import os
import re
from collections import Counter
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.network.onnx_graphs import RandomGraph, random_graphs
from tests.network.test_onnx_models import saved
from tpusim import load_hardware, simulate
from tpusim.base.errors import InputError
from tpusim.flow.numbers import numbers_of
from tpusim.flow.values import Journey, checked
from tpusim.network.formats import ModelOptions, read_graph
from tpusim.network.formats.onnx_model.vector_nodes import VECTOR_OPS
from tpusim.network.workload import Workload
from tpusim.network.workload_file import load_workload, open_workload, run_batch, workload_of

MANY = int(os.environ.get("TPUSIM_CASES", "1000"))


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
    for node in graph.model.graph.node:
        size = prod(shapes[node.output[0]])
        if node.op_type in ("Conv", "MatMul", "Gemm"):
            summed = prod(shapes[node.input[1]][1:]) if node.op_type == "Conv" else shapes[node.input[0]][-1]
            assert (made[node.name], macs[node.name]) == (size, size * summed)
        elif node.op_type in VECTOR_OPS and values[node.output[0]].dtype.kind == "f":
            assert made[node.name] in (0, size)
            nodes[node.op_type] += made[node.name] == 0
    assert {op: count for op, count in first.not_timed if op in VECTOR_OPS} == +nodes


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(random_graphs())
def test_random_graphs_have_the_layers_of_their_values_in_every_way(tmp_path_factory, graph: RandomGraph) -> None:
    check(tmp_path_factory.getbasetemp(), graph)


@pytest.mark.long
@settings(deadline=None, max_examples=MANY, suppress_health_check=[HealthCheck.too_slow])
@given(random_graphs(largest=40))
def test_a_thousand_random_graphs_have_the_layers_of_their_values(tmp_path_factory, graph: RandomGraph) -> None:
    check(tmp_path_factory.getbasetemp(), graph)


def check_values(folder: Path, graph: RandomGraph, engine: str, runs: int = 1) -> None:
    """On a machine, every layer reads what the layers before it made, and the outputs are the evaluator's.

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
    machine = load_hardware("tiny_4x4", ["mapping.search=estimate"])
    assert simulate(work, machine, dtype="f32", engine=engine, journey=journey).correct
    (made,) = journey.outputs().values()
    apart = [graph.values(x)[graph.model.graph.output[0].name] for x in every]
    expected = np.concatenate(apart) if apart[0].ndim else np.stack(apart)
    np.testing.assert_allclose(
        made.reshape(expected.shape), expected, rtol=1e-3, atol=1e-3 * max(1, float(np.abs(expected).max(initial=0)))
    )


@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(random_graphs(largest=3), st.sampled_from([1, 2]))
def test_values_of_random_graphs_are_the_evaluators(tmp_path_factory, graph: RandomGraph, runs: int) -> None:
    unless_refused(tmp_path_factory.getbasetemp(), graph, "event", runs)


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
