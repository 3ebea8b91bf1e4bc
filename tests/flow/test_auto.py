"""On each layer of the shipped networks `auto` takes as many cycles as the best single lowering.

All nine networks at batch 8 by hand (`scripts/prove lowerings`), one at batch 1 by `scripts/prove long`,
and otherwise some of its layers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.test_golden_figures import NETWORKS
from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import CapacityError
from tpusim.flow.lowerings import AUTO
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.runs.fastest_draft import prepared
from tpusim.network.ops.op import Op

ALL = os.environ.get("TPUSIM_NETWORKS") == "all"
BATCH = 8 if ALL else 1


def by_each(layer: Op, hardware: Hardware) -> Iterator[tuple[int, str]]:
    """The cycles of every lowering that fits."""
    for name in LOWERINGS:
        try:
            ready = prepared(layer, BATCH, hardware, name)
        except CapacityError:
            continue
        yield ready.timing.cycles, name


SOME = ("mobilenet_v2", ("features.1.conv.1", "features.3.conv.2", "features.18.0"))
"""Layers on which every lowering is quick, and of which not all take the same."""


@pytest.mark.parametrize(
    ("network", "names"),
    [(each, ()) for each in NETWORKS] if ALL else [SOME, pytest.param("alexnet", (), marks=pytest.mark.long)],
)
def test_auto_is_the_best_on_every_layer(network: str, names: tuple[str, ...]) -> None:
    work, hardware = load_workload(network, batch=BATCH), load_hardware("tpu_v2")
    work = work.with_layers(lambda layer: not names or layer.name in names)
    result = simulate(work, hardware, lowering=AUTO, check=False)
    assert names == () or len({layer.lowering for layer in result.layers}) > 1
    known: dict[object, tuple[int, str]] = {}
    for layer, took in zip(work.layers, result.layers, strict=True):
        if layer.shape_key not in known:
            known[layer.shape_key] = min(by_each(layer, hardware), key=lambda found: found[0])
        assert (took.cycles, took.lowering) == known[layer.shape_key], layer.name
