"""What it would hide that a layer overlaps with its neighbours (`sequencer.between_layers`)."""

from __future__ import annotations

from dataclasses import dataclass

from tpusim.base.errors import InputError
from tpusim.flow.simulation import simulate
from tpusim.network.workload import Workload
from tpusim.study.explain.relaxation import Setup


@dataclass(frozen=True)
class Between:
    """A layer between the one ahead of it and the one behind: the cycles that all of them take, how many fewer these
    are than one by one, and why the layer does not overlap with the one ahead, if so.
    """

    layers: tuple[str, ...]
    cycles: int
    hidden_cycles: int
    apart: str


def overlapping(work: Workload, setup: Setup) -> Between | None:
    """The layer and its neighbours, timing alone; None where it has none, or these cannot run on the machine."""
    names = [layer.name for layer in work.layers]
    at = names.index(setup.layer.name)
    around = tuple(names[max(0, at - 1) : at + 2])
    if len(around) == 1:
        return None
    machine = setup.hardware.with_overrides(["sequencer.between_layers=overlap"])
    try:
        few = work.with_layers(lambda layer: layer.name in around)
        result = simulate(few, machine, lowering=setup.lowering, check=False)
    except InputError:
        return None
    apart = next((layer.apart for layer in result.layers if layer.name == setup.layer.name), "")
    return Between(around, result.total.cycles, result.total.hidden_cycles, apart)
