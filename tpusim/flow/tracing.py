"""Runs that are looked at: every lane in every cycle of one layer, or what every unit of several layers does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tpusim.base.errors import CheckFailed, InputError, failures_named
from tpusim.flow.engines import memory_needed
from tpusim.flow.lowerings import asked_of, prepared, usual
from tpusim.flow.need import room_for
from tpusim.flow.numbers import SMALL
from tpusim.flow.simulation import shared
from tpusim.machines.family import Machine, family_of
from tpusim.machines.lowered import Chain, Cycle, Lowered, Told
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload


@dataclass(frozen=True)
class Stretch:
    """Layers that ran as one, mostly one alone: what every unit did, and the first cycle of each layer, with the one
    after the last.
    """

    layers: tuple[Op, ...]
    recording: Any
    cuts: tuple[int, ...]


def trace(
    workload: Workload, hardware: Machine, *, lowering: str | None = None, seed: int = 0
) -> tuple[int, Callable[[int, Told], Iterator[Cycle]]]:
    """How many cycles a workload of one layer takes, from the event engine, and a run of the register engine.

    The run is called once, with the first cycle to show and what is told how many have passed. While it lasts it
    raises CheckFailed when it does not take as many cycles as the event engine says, and what Machine.clock raises.

    Raises:
        InputError: several layers, an unknown lowering, a layer that cannot fit, Numba is not installed, or this
            computer has too little memory.
        CheckFailed: the Program names lanes that do not exist.
        DeadlockError: the Program's steps wait for one another for ever.
    """
    if len(workload.layers) != 1:
        names = ", ".join([*(layer.name for layer in workload.layers[:8]), *["..."] * (len(workload.layers) > 8)])
        raise InputError(
            f"a trace of lanes shows one layer; --layers leaves {len(workload.layers)} of {workload.name}: {names}; "
            "a .perfetto-trace shows any number"
        )
    (layer,), batch, family = workload.layers, workload.batch, family_of(hardware)
    lowering = lowering or usual(family)
    room_for(workload, hardware, lowering, "register", check=False)
    ((_, asked),) = asked_of(workload, lowering, family)
    ready = prepared(layer, batch, hardware, asked)
    with failures_named(layer), memory_needed(layer):
        total = ready.timing.cycles
        running = ready.lane_by_lane(SMALL.operands(layer, batch, seed))

    def cycles(first: int, watch: Told) -> Iterator[Cycle]:
        last = -1
        with failures_named(layer):
            for cycle in running(first, watch):
                last = cycle.number
                if last >= total:
                    break
                yield cycle
            # The event engine says how long a trace is; the register engine must end there.
            if last != total - 1:
                found = "more" if last >= total else f"{last + 1:,}"
                says = f"the engines disagree: {total:,} cycles in the event engine, {found} in the register engine"
                raise CheckFailed(says)

    return total, cycles


def recordings(workload: Workload, hardware: Machine, *, lowering: str | None = None) -> Iterator[Stretch]:
    """Runs of the event engine that tell what every unit does when, in the order of the network.

    Where layers overlap, those of a chain are one run. Others of one shape share theirs.

    Raises:
        InputError: an unknown lowering, a layer that cannot fit (CapacityError, names the layer), or one for which this
            computer has too little memory.
        DeadlockError: the steps of a Program wait for one another for ever; names the layer.
    """
    family, batch = family_of(hardware), workload.batch
    lowering = lowering or usual(family)
    room = room_for(workload, hardware, lowering, "event", check=False)

    def ready(layer: Op, asked: str) -> Lowered:
        return prepared(layer, batch, hardware, asked)

    def recorded(layer: Op, asked: str) -> Any:
        made = ready(layer, asked)
        with failures_named(layer):
            return made.recorded()

    def together(chain: Chain) -> Stretch:
        with failures_named(chain):
            recording, cuts = chain.recorded()
        return Stretch(tuple(layer for layer, _ in chain.members), recording, cuts)

    if family.overlaps(hardware):
        lowered = shared(workload, lowering, ready, room, family)
        return map(together, family.chains(lowered, workload, hardware, room.kept))
    runs = shared(workload, lowering, recorded, room, family)
    return (Stretch((layer,), run, (0, run.cycles)) for layer, run in runs)
