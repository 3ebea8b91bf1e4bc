"""The module of PyTorch that docs/your_model.md exports: it runs, for every batch, and its values are PyTorch's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.typed import Page
from tpusim import load_workload
from tpusim.cli.app import app

torch = pytest.importorskip("torch", reason="exporting a module needs the extra torch: pip install '.[torch]'")
pytest.importorskip("onnxscript", reason="exporting a module needs the extra torch: pip install '.[torch]'")
pytestmark = pytest.mark.long
"""PyTorch takes seconds to be imported, and more to export."""

SOURCE = Page("docs/your_model.md").files["my_torch_net.py"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    (folder / "my_torch_net.py").write_text(SOURCE)
    done = subprocess.run([sys.executable, "my_torch_net.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "net.onnx"


def test_it_is_for_every_batch(exported: Path) -> None:
    one, many = (load_workload(exported, batch=batch) for batch in (1, 6))
    ops = {layer.op for layer in many.layers}
    assert {"conv2d", "silu", "gemm", "softmax", "layer_norm"} <= ops
    assert sum(layer.macs(6) for layer in many.layers) == 6 * sum(layer.macs(1) for layer in one.layers)
    assert not many.not_known


def test_its_values_are_those_of_the_module(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the weights that the file holds."""
    onnx = pytest.importorskip("onnx")
    module = ModuleType("my_torch_net")
    exec(compile(SOURCE, "my_torch_net.py", "exec"), module.__dict__)
    net = module.Net().eval()
    torch.manual_seed(1)
    monkeypatch.chdir(tmp_path)
    with torch.no_grad():
        for each in net.parameters():
            each.copy_(torch.randn(each.shape) * 0.2)
        net.stem[1].running_var.copy_(torch.rand(64) + 0.5)
        images = torch.randn(3, 3, 32, 32)
        wanted = net(images).numpy()
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        net, (images,), "net.onnx", input_names=["images"], output_names=["scores"], dynamic_shapes=({0: batch},),
        dynamo=True, external_data=False,
    )  # fmt: skip
    assert [each.name for each in onnx.load("net.onnx").graph.output] == ["scores"]
    np.savez("images.npz", images=images.numpy())
    asked = "run", "net.onnx", "--input", "images.npz", "--dtype", "f32", "--save-outputs", "scores.npz"
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    with np.load("scores.npz") as held:
        np.testing.assert_allclose(held["scores"], wanted, rtol=2e-3, atol=2e-4)
