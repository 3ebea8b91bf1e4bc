"""What a layer would cost by each lowering, and what it saves between its neighbours: both found by running it."""

from __future__ import annotations

from dataclasses import dataclass

from tpusim.base.errors import InputError, UnsuitableError, failures_named
from tpusim.flow.account import layer_result
from tpusim.flow.choice import prepared
from tpusim.flow.engines import UNCHECKED
from tpusim.flow.lowerings import AUTO, candidates
from tpusim.flow.need import room_for
from tpusim.flow.simulation import simulate
from tpusim.machines.family import Machine, family_of
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult, told
from tpusim.result.vocabulary.fields import by_path
from tpusim.study.explain.bottleneck import Left, Watch
from tpusim.study.explain.relaxation import Setup


@dataclass(frozen=True)
class Alternative:
    """A layer by one lowering; `workspace_bytes`: of its tensors in HBM that are neither operand nor result."""

    layer: LayerResult
    workspace_bytes: int

    @property
    def lowering(self) -> str:
        """Its name."""
        return self.layer.lowering

    @property
    def hbm_bytes(self) -> int:
        """Read and written."""
        return self.layer.hbm_read_bytes + self.layer.hbm_write_bytes

    @property
    def accesses(self) -> int:
        """Words through the ports of all lanes together."""
        memory = told(self.layer.vector_memory)
        return memory.reads + memory.writes


def alternatives(setup: Setup, watch: Watch) -> tuple[tuple[Alternative, ...], tuple[Left, ...]]:
    """The layer by every lowering there is for it, the fastest first; and those that do not fit."""
    fit: list[Alternative] = []
    unfit: list[Left] = []
    layer, batch, hardware = setup.layer, setup.batch, setup.hardware
    for number, name in enumerate(candidates(AUTO, family_of(hardware))):
        watch(number, f"by {name}")
        try:
            room_for(Workload("explained", batch, (layer,)), hardware, name, "event", check=False)
            ready = prepared(layer, batch, hardware, name)
            with failures_named(layer):
                result = layer_result(layer, batch, hardware, ready, ready.timing, UNCHECKED)
            fit.append(Alternative(result, ready.workspace_bytes(layer.shapes(batch))))
        except UnsuitableError:
            continue
        except InputError as error:
            unfit.append(Left(name, error.problems[0].message))
    return tuple(sorted(fit, key=lambda each: each.layer.cycles)), tuple(unfit)


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


def overlapping(work: Workload, layer: Op, hardware: Machine, lowering: str) -> Between | None:
    """The layer and its neighbours, timing alone, by the lowering that all are asked for; None where it has none, or
    these cannot run on the machine.
    """
    names = [each.name for each in work.layers]
    at = names.index(layer.name)
    around = tuple(names[max(0, at - 1) : at + 2])
    if len(around) == 1:
        return None
    asked = family_of(hardware).overlaps(hardware)
    machine = hardware if asked else hardware.with_overrides(["sequencer.between_layers=overlap"])
    try:
        few = work.with_layers(lambda each: each.name in around)
        result = simulate(few, machine, lowering=lowering, check=False)
    except InputError:
        return None
    total, mine = result.total, next(each for each in result.layers if each.name == layer.name)
    how = dict(by_path(machine.to_dict()))["sequencer.between_layers"]
    saved = total.hbm_saved_bytes
    return Between(around, total.cycles, total.hidden_cycles, mine.apart, how, mine.cycles, saved, asked)
