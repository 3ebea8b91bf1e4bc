"""The steps that a run asks of a machine, family by family: this is where the flow parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, cast

from tpusim.base.errors import InputError
from tpusim.flow.account import layer_result
from tpusim.flow.choice import Doing, prepared
from tpusim.flow.engines import ENGINES, Begun, Prepared, Task
from tpusim.flow.modelled import ModelledSteps
from tpusim.flow.need import Room, room_for
from tpusim.flow.numbers import Numbers, check_numbers
from tpusim.machines.family import Machine, Modelled, family_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.observation.timing import Timing
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.numerics.equality import Verdict


class Steps(Protocol):
    """How layers run on one machine. What `prepared` returns is for `begun` alone."""

    def check_engine(self, engine: str) -> None:
        """Raise InputError for one that the machine's family does not have."""

    def check_numbers(self, workload: Workload, lowering: str, numbers: Numbers) -> None:
        """Raise InputError for layers whose values could not be checked."""

    def room(self, workload: Workload, lowering: str, engine: str, check: bool, numbers: Numbers) -> Room:
        """Look at every layer before the first is simulated. Raises InputError where one cannot be."""

    def prepared(self, layer: Op, batch: int, lowering: str, doing: Doing) -> Any:
        """Lower a layer. Raises CapacityError when it does not fit the machine."""

    def begun(self, engine: str, tasks: Iterable[Task[Any]], workload: Workload, room: Room) -> Iterator[Begun]:
        """Time layers, those of a workload in its order."""


@dataclass(frozen=True)
class TpuSteps:
    """Those of a TPU, each in a module of its own."""

    machine: Hardware

    def check_engine(self, engine: str) -> None:
        """It has all."""

    def check_numbers(self, workload: Workload, lowering: str, numbers: Numbers) -> None:
        """See Steps."""
        check_numbers(workload, self.machine, lowering, numbers)

    def room(self, workload: Workload, lowering: str, engine: str, check: bool, numbers: Numbers) -> Room:
        """See Steps."""
        return room_for(workload, self.machine, lowering, engine, check, numbers)

    def prepared(self, layer: Op, batch: int, lowering: str, doing: Doing) -> Prepared:
        """See Steps."""
        return prepared(layer, batch, self.machine, lowering, doing)

    def begun(self, engine: str, tasks: Iterable[Task[Prepared]], workload: Workload, room: Room) -> Iterator[Begun]:
        """See Steps."""
        if overlap_asked(self.machine):
            from tpusim.flow.chains import chains_of, overlapping

            chains = chains_of(tasks, workload, self.machine, room)
            return chain.from_iterable(overlapping(each, engine) for each in chains)
        return (_begun(task, *ENGINES[engine](task)) for task in tasks)


def _begun(task: Task[Prepared], timing: Timing, verdict: Callable[[], Verdict]) -> Begun:
    return Begun(task.layer, lambda: layer_result(task.layer, task.batch, task.prepared, timing, verdict()))


def steps_of(machine: Machine) -> Steps:
    """Those of a machine's family."""
    if isinstance(machine, Hardware):
        return TpuSteps(machine)
    return ModelledSteps(cast(Modelled, family_of(machine)), machine)


def overlap_asked(machine: Machine) -> bool:
    """Whether layers are to overlap on it."""
    return isinstance(machine, Hardware) and machine.sequencer.between_layers != "drain"


def tpu_only(machine: Machine, what: str) -> Hardware:
    """The machine, for what TPUs alone offer. Raises InputError for another."""
    if isinstance(machine, Hardware):
        return machine
    says = f"{machine.name} is {family_of(machine).title}, and {what} is of TPUs alone"
    raise InputError(f"{says}; give a TPU with --hardware, such as tpu_v2")
