"""Networks of other tools on the command line: run as they are, written as workloads, and told what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import forked
from tests.invoked import tpusim

MISSING = "1 op of the network not timed: LogSoftmax 1."
UNKNOWN = "1 op not known, whose work is missing, even if they are convolutions or products: Mystery 1."
TINY = ("--hardware", "tiny_4x4", "--batch", "2", "--set", "mapping.search=estimate")


@pytest.fixture(autouse=True)
def in_a_directory_with_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("topology.csv").write_text("Layer, M, N, K,\nfc, 8, 10, 12,\n")
    nodes = [
        helper.make_node(op, reads.split(), makes.split(), name=makes)
        for op, reads, makes in (
            ("Conv", "x w", "conv"), ("Relu", "conv", "a"), ("Flatten", "w", "unused"), ("MatMul", "q k", "product"),
            ("Relu", "product", "b"), ("LogSoftmax", "b", "y"), ("Mystery", "y", "z"),
        )
    ]  # fmt: skip
    inputs = {"x": ["N", 2, 6, 6], "q": ["N", "seq", 8], "k": ["N", 8, "seq"]}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    weights = [numpy_helper.from_array(np.zeros((3, 2, 3, 3), np.float32), "w")]
    made = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", values, made, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="hand")
    Path("model.onnx").write_bytes(model.SerializeToString())


ASKED = ("model.onnx", "--dim", "seq=5", "--skip-unknown")


def test_a_model_is_run_and_what_it_misses_is_told_on_screen_and_in_json() -> None:
    done = tpusim("run", *ASKED, *TINY, "--json", "run.json")
    assert done.exit_code == 0, done.output
    assert "0 wrong" in done.stdout
    assert f"{MISSING} {UNKNOWN}" in done.stdout
    assert "Note: the model leaves its batch open (N); layers are for the batch of a run" in done.stderr
    result: dict[str, Any] = json.loads(Path("run.json").read_text())
    assert [(each["name"], each["macs"]) for each in result["layers"]] == [
        ("conv", 2 * 16 * 3 * 18), ("a", 0), ("product", 400), ("b", 0),
    ]  # fmt: skip
    assert (result["not_timed"], result["not_known"]) == ({"LogSoftmax": 1}, {"Mystery": 1})
    assert tpusim("run", *ASKED, *TINY, "--ops", "array", "--json", "array.json").exit_code == 0
    result = json.loads(Path("array.json").read_text())
    assert [each["name"] for each in result["layers"]] == ["conv", "product"]
    assert result["not_timed"] == {"Relu": 2, "LogSoftmax": 1}
    compared = tpusim("compare", "run.json", "run.json")
    assert UNKNOWN.split()[-1] in compared.stdout
    assert tpusim("report", "run.json", "-o", "page.html").exit_code == 0
    assert MISSING in Path("page.html").read_text()


def test_what_is_imported_runs_the_same() -> None:
    imported = tpusim("import", *ASKED, "-o", "net.yaml", "--batch", "2")
    assert imported.exit_code == 0, imported.output
    assert "net.yaml: 4 layers (relu 2, conv2d 1, gemm 1), 2.13 kMAC at batch 2" in imported.stderr
    assert MISSING in imported.stderr
    assert tpusim("import", *ASKED, "-o", "-").stdout == Path("net.yaml").read_text()
    assert Path("net.yaml").read_text() == tpusim("import", *ASKED).stdout == (
        "# the model leaves its batch open (N); layers are for the batch of a run\n"
        "# sizes given: seq=5\n"
        "# pooling, sums and activations are layers of their own; a run of the array's ops alone leaves them out\n"
        "# 1 op of weights and shapes alone: worked out before the network runs, no time\n"
        "# not timed: LogSoftmax 1 (no layer here computes it)\n"
        "name: model\n"
        "source: 'model.onnx, an ONNX model of opset 17, made by hand'\n"
        "inputs: [x, q, k]\n"
        "not_timed: {LogSoftmax: 1}\n"
        "not_known: {Mystery: 1}\n"
        "layers:\n"
        "  - {name: conv, op: conv2d, inputs: [x], in_channels: 2, in_height: 6, in_width: 6, out_channels: 3, "
        "kernel: 3}\n"
        "  - {name: a, op: relu, inputs: [conv], channels: 3, height: 4, width: 4}\n"
        "  - {name: product, op: gemm, inputs: [q, k], m: 5, n: 5, k: 8, groups: batch}\n"
        "  - {name: product_2, op: view, inputs: [product], channels: 5, height: 5, width: 1}\n"
        "  - {name: b, op: relu, inputs: [product_2], channels: 5, height: 5, width: 1}\n"
    )  # fmt: skip
    for source, file in ((ASKED, "one.json"), (("net.yaml",), "other.json")):
        assert tpusim("run", *source, *TINY, "--no-check", "--json", file).exit_code == 0
    one, other = (json.loads(Path(file).read_text()) for file in ("one.json", "other.json"))
    for each in (one, other):
        del each["workload"], each["total"]["wall_seconds"]
    assert one == other


@pytest.mark.usefixtures("undrawn")
def test_explain_trace_and_sweeps_tell_it_too() -> None:
    explained = tpusim("explain", *ASKED, *TINY, "--layer", "conv", "--json", "-")
    traced = tpusim("trace", *ASKED, *TINY, "--layers", "conv", "--to", "3")
    Path("sweep.yaml").write_text(
        "workloads: [net.yaml, topology.csv]\nhardware: tiny_4x4\naxes: {batch: [1, 2], mapping.search: [estimate]}\n"
    )
    tpusim("import", *ASKED, "-o", "net.yaml")
    swept = tpusim("sweep", "sweep.yaml", "--out", "swept", "--workers", "1", "--format", "svg")
    for done in (explained, traced, swept):
        assert done.exit_code == 0, done.output
        assert f"{MISSING} {UNKNOWN}" in done.stderr
    assert "Note: topology: M is as written, whatever the batch" in swept.stderr


def test_a_model_in_a_sweep_that_leaves_sizes_open_is_told() -> None:
    Path("sweep.yaml").write_text("workloads: [model.onnx]\nhardware: tiny_4x4\naxes: {batch: [1, 2]}\n")
    done = tpusim("sweep", "sweep.yaml")
    assert done.exit_code == 2
    assert "the inputs leave sizes open: seq (dimension 1 of q)" in done.stderr


def test_nothing_is_written_of_a_model_that_is_refused() -> None:
    done = tpusim("import", "model.onnx", "--dim", "seq=5", "-o", "net.yaml")
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: model.onnx: 1 op not known here: Mystery 1; tpusim run or import leaves them")
    assert not Path("net.yaml").exists()


def test_what_ops_leave_out_is_told_with_how_to_time_it() -> None:
    Path("graph.yaml").write_text(
        "name: graph\nops: array\nnot_timed: {Softmax: 1}\nlayers:\n"
        "  - {name: fc, op: gemm, m: batch, n: 4, k: 4}\n  - {name: relu, op: relu, inputs: [fc]}\n"
    )
    usual, whole = (tpusim("run", "graph.yaml", *TINY, *ops).stdout for ops in ((), ("--ops", "all")))
    told = "2 ops of the network not timed: Softmax 1, relu 1. --ops all times those that the vector unit computes."
    assert told in " ".join(usual.split())
    assert "1 op of the network not timed: Softmax 1." in whole
    assert "--ops all" not in whole
    # One layer is looked at, whatever else there is.
    assert forked.told(tpusim("explain", "graph.yaml", *TINY).stderr) == [
        "Note: 1 op of the network not timed: Softmax 1."
    ]
