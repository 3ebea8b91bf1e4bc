"""Every engine finds the same of whole networks on shipped machines; `scripts/prove engines` runs all of both."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests import engines
from tests.checks import ESTIMATE
from tests.engines import Watch, watched
from tpusim import load_hardware, load_workload, simulate
from tpusim.base.errors import InputError
from tpusim.input.source import shipped
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.program import Program
from tpusim.network.ops.array_op import Gemm

ALL = os.environ.get("TPUSIM_NETWORKS") == "all"
MOST_STEPS = int(os.environ.get("TPUSIM_STEPS", 100_000))
"""Of a Program that all engines time: in longer ones the same steps come again."""
JOINED = "sequencer.between_layers=overlap"
STAYING = "sequencer.between_layers=stay"


def runs() -> Iterator[Any]:
    """Networks, machines and changes of these."""
    yield "tiny", "tpu_v2", ()
    yield "tiny", "tiny_4x4", (JOINED,)
    yield "fig7", "tpu_v2_core_hbm", ()
    some = [
        ("alexnet", "tpu_v2_banked", ()),
        ("resnet18", "tpu_v2_core", (JOINED,)),
        ("resnet18", "tpu_v6e", (STAYING,)),
    ]
    every = [(network, machine, ()) for machine in shipped("configs") for network in shipped("workloads")]
    for each in some + every * ALL:
        yield pytest.param(*each, marks=pytest.mark.long)


@pytest.mark.parametrize(("network", "machine", "changes"), [*runs()])
def test_networks_on_machines(network: str, machine: str, changes: tuple[str, ...]) -> None:
    """Of every Program that a run times, those of blocks that were not chosen among them."""
    hardware = load_hardware(machine, list(changes))
    if not isinstance(hardware, Hardware):
        pytest.skip("another family has an engine of its own")
    with watched(Watch(MOST_STEPS)) as watch:
        try:
            simulate(load_workload(network, batch=1), hardware, check=False)
        except InputError as refusal:
            pytest.skip(str(refusal))
    assert watch.programs + watch.left_out > 0
    print(f"{network} on {machine}: {watch}")


def test_who_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In any figure; and of a Program that is too slow to be timed to its end, by how slow it is at least."""
    hardware = load_hardware("tiny_4x4", ESTIMATE)
    program = CHANNEL_FIRST.lower(Gemm("g", m=16, n=4, k=8), 1, hardware)[0]
    run, cycles = event.run, event.run(program, hardware).cycles

    def later(program: Program, hardware: Hardware) -> Timing:
        timing = run(program, hardware)
        return replace(timing, reads=timing.reads + 1)

    def sooner(program: Program, hardware: Hardware) -> Timing:
        return replace(run(program, hardware), cycles=cycles // 2 - 1)

    monkeypatch.setattr(engines, "ENGINES", {"event": run, "same": run})
    with watched(Watch()) as watch:
        assert event.run(program, hardware).cycles == cycles
        assert event.run_within(program, hardware, cycles // 2) is None
        assert str(watch) == f"2 Programs of {2 * len(program.rows)} steps are equal by event, same"
    with watched(Watch(len(program.rows) - 1)) as watch:
        event.run(program, hardware)
        assert (watch.programs, watch.left_out) == (0, 1)
    monkeypatch.setattr(engines, "ENGINES", {"event": run, "later": later})
    with watched(Watch()), pytest.raises(AssertionError, match="later and event differ"):
        event.run(program, hardware)
    monkeypatch.setattr(engines, "ENGINES", {"event": run, "sooner": sooner})
    says = f"sooner takes {cycles // 2 - 1} cycles, event {cycles // 2} or more"
    with watched(Watch()), pytest.raises(AssertionError, match=says):
        event.run_within(program, hardware, cycles // 2)
