"""Simulate the cases of sets, and hold the results against their figures; a plain roofline beside them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from os import cpu_count

from tpusim.base.errors import CapacityError
from tpusim.flow.engines import unwatched
from tpusim.flow.lowerings import check_known
from tpusim.flow.steps import steps_of
from tpusim.machines.family import Machine, family_of, load_hardware
from tpusim.network.ops.op import Op
from tpusim.study.processes import Processes
from tpusim.study.validation.cases import Case, NumberSet
from tpusim.study.validation.comparison import ComparedCase, Comparison

Progress = Callable[[int, str], None]


@dataclass(frozen=True)
class Simulation:
    """A layer, and what to run it on; complete in itself, so that any process can do it.

    Layers that differ in nothing but their name are one. `imposed`: with the compiler's block, which may not fit.
    """

    layer: Op = field(compare=False)
    batch: int
    hardware: Machine
    lowering: str
    imposed: bool
    shape: Hashable = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", self.layer.shape_key)


@dataclass(frozen=True)
class Work:
    """A case, and the simulations it takes: with our blocks, and with the compiler's where that is known."""

    case: Case
    ours: tuple[Simulation, ...]
    theirs: tuple[Simulation, ...]

    @property
    def hardware(self) -> Machine:
        """What it runs on."""
        return self.ours[0].hardware


class Validation:
    """All that is to be simulated for some sets, each shape once.

    `changes` are further overrides of every machine; `lowering` stands for that of every set.

    Raises:
        InputError: an unknown lowering, or a change that makes no machine.
    """

    def __init__(self, sets: Iterable[NumberSet], changes: Sequence[str] = (), lowering: str | None = None) -> None:
        self.sets = tuple(replace(each, lowering=lowering or each.lowering) for each in sets)
        machine = cache(lambda name, *changed: load_hardware(name, changed))
        for name in {each.hardware for each in self.sets} if lowering is not None else ():
            check_known(lowering, family_of(machine(name)))
        self.work = [[_work(case, each, changes, machine) for case in each.cases] for each in self.sets]
        wanted = (work.ours + work.theirs for of_set in self.work for work in of_set)
        self.simulations = list(dict.fromkeys(simulation for some in wanted for simulation in some))


def compare(plan: Validation, progress: Progress) -> list[Comparison]:
    """Run what is planned, on all processors; `progress` is told how many simulations are done, and the last of them.

    Raises:
        CapacityError: a case cannot fit the machine.
    """
    cycles: dict[Simulation, int | None] = {}
    with Processes(taken, cpu_count() or 1) as processes:
        for done, (simulation, found) in enumerate(processes.outcomes(plan.simulations), 1):
            cycles[simulation] = found
            progress(done, simulation.layer.text)
    return [
        Comparison(each, tuple(row_of(work, each.unit, cycles) for work in of_set))
        for each, of_set in zip(plan.sets, plan.work, strict=True)
    ]


def _work(case: Case, numbers: NumberSet, changes: Sequence[str], machine: Callable[..., Machine]) -> Work:
    def on(more: tuple[str, ...]) -> tuple[Simulation, ...]:
        hardware = machine(numbers.hardware, *numbers.changes, *case.changes, *changes, *more)
        how = [family_of(hardware).meant(layer, numbers.lowering) for layer in case.layers]
        asked = zip(case.layers, how, strict=True)
        return tuple(Simulation(layer, case.batch, hardware, name, bool(more)) for layer, name in asked)

    return Work(case, on(()), on(case.their_block) if case.their_block else ())


def taken(simulation: Simulation) -> int | None:
    """Its cycles; None where the machine cannot take a block that is imposed on it."""
    layer, batch, hardware, lowering = simulation.layer, simulation.batch, simulation.hardware, simulation.lowering
    try:
        ready = steps_of(hardware).prepared(layer, batch, lowering, partial(unwatched, layer.name))
        cycles: int = ready.timing.cycles
    except CapacityError:
        if not simulation.imposed:
            raise
        return None
    return cycles


def row_of(work: Work, unit: str, cycles: Mapping[Simulation, int | None]) -> ComparedCase:
    """A case with what its simulations took, in the unit of its set."""
    case = work.case
    bound = sum(_roofline(layer, case.batch, work.hardware) for layer in case.layers)
    ideal = 100 * sum(layer.macs(case.batch) for layer in case.layers) / work.hardware.pes

    def figure(clocks: float) -> float:
        if unit == "us":
            return clocks / work.hardware.clock_hz * 1e6
        return clocks if unit == "cycles" else ideal / clocks

    def of(simulations: tuple[Simulation, ...]) -> float | None:
        found = [known for each in simulations if (known := cycles[each]) is not None]
        return figure(float(sum(found))) if simulations and len(found) == len(simulations) else None

    ours = of(work.ours)
    assert ours is not None, "only a block that is imposed may not fit"
    return ComparedCase(
        case.name,
        ours,
        case.theirs,
        figure(bound),
        case.fitted,
        of(work.theirs),
        case.estimated,
        case.scheduled,
        case.quirk,
    )


def _roofline(layer: Op, batch: int, hardware: Machine) -> float:
    """Return the longer of all multiplications on all PEs and every tensor once through HBM."""
    elements = layer.operands(batch) + layer.outputs(batch)
    moved = elements * hardware.element_bytes * hardware.clock_hz / hardware.hbm_bytes_per_s
    return max(layer.macs(batch) / hardware.pes, moved)
