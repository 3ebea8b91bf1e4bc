"""What it hides that a layer overlaps with its neighbours (`sequencer.between_layers`)."""

from __future__ import annotations

from dataclasses import dataclass

from tpusim.base.errors import InputError
from tpusim.flow.simulation import simulate
from tpusim.flow.steps import overlap_asked
from tpusim.machines.tpu.description import Hardware
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload


@dataclass(frozen=True)
class Between:
    """A layer between the one ahead of it and the one behind, which overlap as `how` says.

    Attributes:
        cycles: those that all of them take, and `hidden_cycles` how many fewer these are than one by one.
        own_cycles: the layer's share of them.
        hbm_saved_bytes: those that need not cross the bus, as something stays on chip.
        apart: why the layer does not overlap with the one ahead, if so.
        asked: whether the machine says `how`; else it is what it might say.
    """

    layers: tuple[str, ...]
    cycles: int
    hidden_cycles: int
    apart: str
    how: str
    own_cycles: int
    hbm_saved_bytes: int
    asked: bool


def overlapping(work: Workload, layer: Op, hardware: Hardware, lowering: str) -> Between | None:
    """The layer and its neighbours, timing alone, by the lowering that all are asked for; None where it has none, or
    these cannot run on the machine.
    """
    names = [each.name for each in work.layers]
    at = names.index(layer.name)
    around = tuple(names[max(0, at - 1) : at + 2])
    if len(around) == 1:
        return None
    asked = overlap_asked(hardware)
    machine = hardware if asked else hardware.with_overrides(["sequencer.between_layers=overlap"])
    try:
        few = work.with_layers(lambda each: each.name in around)
        result = simulate(few, machine, lowering=lowering, check=False)
    except InputError:
        return None
    total, mine = result.total, next(each for each in result.layers if each.name == layer.name)
    how = machine.sequencer.between_layers
    saved = total.hbm_saved_bytes
    return Between(around, total.cycles, total.hidden_cycles, mine.apart, how, mine.cycles, saved, asked)
