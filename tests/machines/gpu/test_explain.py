"""`tpusim explain` on GPUs: everything that is made easier can be, and none of it makes a layer slower."""

from __future__ import annotations

import pytest

from tpusim import load_hardware, load_workload
from tpusim.machines.gpu.lowering import LOWERINGS
from tpusim.study.explain.bottleneck import alternatives, explain_layer
from tpusim.study.explain.relaxation import Setup, relaxations


@pytest.mark.parametrize("name", ["v100", "h100"])
def test_whatever_is_easier_is_no_slower(name: str) -> None:
    layers = {each.name: each for each in load_workload("resnet18", batch=8).layers}
    setup = Setup(layers["layer2.0.conv1"], 8, load_hardware(name), "channel_last")
    told: list[int] = []
    found = explain_layer(setup, lambda done, _: told.append(done))
    assert told == [*range(len(relaxations(setup)))]
    assert not found.untried
    fit, _ = alternatives(setup, lambda done, _: None)
    assert {each.lowering for each in fit} == {*LOWERINGS}
    assert next(each.layer for each in fit if each.lowering == "channel_last") == found.layer
    # One more k-step under way, or twice the shared memory, lets other tiles be chosen by an estimate.
    assert all(each.gain > 0.97 for each in found.gains)
    assert found.gains[0].gain > 1.05
