"""Commands run on GPUs: both interpreters agree, every output is checked, and the accounts add up."""

from __future__ import annotations

import time

import pytest
from typer.testing import CliRunner

from tpusim import load_hardware, load_workload, simulate
from tpusim.cli import app as cli
from tpusim.machines.gpu.lowering import LOWERINGS

GPUS = ["v100", "a100", "h100", "t4"]


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_every_lowering_runs_by_both_engines(lowering: str) -> None:
    result = simulate(load_workload("tiny"), load_hardware("v100"), lowering=lowering, engine="both")
    assert result.correct
    for layer in result.layers:
        assert layer.outputs_checked == layer.outputs
        assert sum(layer.units["sms"].values()) == layer.cycles
        assert layer.own["blocks"] == 1


@pytest.mark.parametrize("name", GPUS)
def test_shipped_gpus_run_a_network(name: str) -> None:
    said = CliRunner().invoke(cli.app, ["run", "resnet18", "--hardware", name, "--no-check"])
    assert said.exit_code == 0, said.output
    assert f"on {name}: channel_last lowering" in said.output


def test_faster_gpus_are_faster() -> None:
    workload = load_workload("resnet18")
    taken = [
        simulate(workload, load_hardware(name), check=False).total.time_us for name in ("t4", "v100", "a100", "h100")
    ]
    assert taken == sorted(taken, reverse=True)


def test_a_network_takes_little_time() -> None:
    """ResNet-50 of eight images is timed in ten seconds of this computer's time; it takes some tenths of one."""
    began = time.process_time()
    simulate(load_workload("resnet50", batch=8), load_hardware("v100"), check=False)
    assert time.process_time() - began < 10
