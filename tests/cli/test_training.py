"""`--training`, `--keep`, `--offload` and `--optimizer` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.conftest import in_this_process
from tpusim.base.errors import DeadlockError
from tpusim.cli import app as cli
from tpusim.cli.actions import run as run_action
from tpusim.flow.jobs import Jobs

NETWORK = """
name: net
training: {batch_norm: [conv]}
layers:
  - {name: conv, op: conv2d, in_channels: 2, in_height: 4, in_width: 4, out_channels: 4, kernel: 3, padding: 1}
  - {name: relu, op: relu}
  - {name: flat, op: flatten}
  - {name: fc, op: gemm, n: 3}
"""


TINY = ("--hardware", "tiny_4x4", "--set", "mapping.search=estimate")
"""Blocks that simulation chooses take most of the time, and have no say in what is told of a step."""


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "net.yaml"
    path.write_text(NETWORK)
    return path


def run(*words: object) -> tuple[int, str, str]:
    made = CliRunner().invoke(cli.app, [str(each) for each in words])
    return made.exit_code, made.stdout, made.stderr


def test_a_step_is_run_and_told_phase_by_phase(network: Path, tmp_path: Path) -> None:
    made = tmp_path / "run.json"
    code, out, err = run("run", network, *TINY, "--batch", 2, "--training", "--json", made)
    assert code == 0
    assert "net_training, batch 2, on tiny_4x4" in out
    assert "for weights and what their updates keep" in err
    found = json.loads(made.read_text())
    assert [*found["by_phase"]] == ["forward", "backward", "update"]
    assert sum(each["cycles"] for each in found["by_phase"].values()) == found["total"]["cycles"]
    assert {each["phase"] for each in found["layers"]} == {*found["by_phase"]}


def test_what_is_kept_and_the_optimizer_are_choices(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is simulated; no layer need be."""

    def layers(*more: str) -> dict[str, str]:
        taken: list[Jobs] = []

        def take(jobs: Jobs, **_: object) -> None:
            taken.append(jobs)
            raise DeadlockError("no layer is run here")

        monkeypatch.setattr(run_action, "run", take)
        assert run("run", network, *TINY, "--batch", 2, "--training", *more)[0] == 1
        return {layer.name: layer.op for layer in taken[0].work.layers}

    assert "conv.again" not in layers()
    assert "conv.again" in layers("--keep", "none")
    assert "conv.again" not in layers("--keep", "conv", "--keep", "relu")
    assert "adam_step" in layers("--optimizer", "adam").values()


@pytest.mark.parametrize(("words", "says"), [
    (["--keep", "all"], "--keep: only a training step has it; add --training"),
    (["--offload", "all"], "--offload: only a training step has it; add --training"),
    (["--training", "--offload", "none", "--offload", "conv"], "--offload: none stands for itself"),
    (["--training", "--offload", "cnov"], 'training.offload: no layer is named "cnov"; did you mean conv?'),
    (["--training", "--keep", "none", "--offload", "relu"], "training.offload: no output of these layers is kept"),
    (["--optimizer", "adam"], "--optimizer: only a training step has it; add --training"),
    (["--training", "--keep", "all", "--keep", "conv"], "--keep: all stands for itself"),
    (["--training", "--keep", "cnov"], 'training.keep: no layer is named "cnov"; did you mean conv?'),
    (["--training", "--optimizer", "sdg"], 'optimizer: "sdg" is not allowed; did you mean sgd?'),
    (["--training", "--ops", "array"], "--training: a training step takes the ops of the vector unit, too"),
])  # fmt: skip
def test_what_cannot_be_is_refused(network: Path, words: list[str], says: str) -> None:
    code, _, err = run("run", network, *TINY, *words)
    assert code == 2
    assert says in " ".join(err.split())


def test_a_layer_of_a_step_is_explained(network: Path) -> None:
    code, out, _ = run("explain", network, *TINY, "--batch", 2, "--training", "--layer", "conv.dw")
    assert code == 0
    assert "conv.dw" in out
