"""Runs that are looked at: every lane in every cycle of one layer, or what every unit of several layers does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tpusim.base.errors import CheckFailed, InputError, failures_named
from tpusim.flow.choice import prepared
from tpusim.flow.engines import Task, memory_needed, unwatched
from tpusim.flow.lowerings import asked_of
from tpusim.flow.need import Room, room_for
from tpusim.flow.numbers import SMALL
from tpusim.flow.simulation import shared
from tpusim.machines.family import Machine, family_of
from tpusim.machines.lowered import Cycle, Lowered, Told
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
    workload: Workload, hardware: Machine, *, lowering: str = "channel_first", seed: int = 0
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
    layer, batch = _only_layer(workload), workload.batch
    room_for(workload, hardware, lowering, "register", check=False)
    ((_, asked),) = asked_of(workload, lowering, family_of(hardware))
    ready = prepared(layer, batch, hardware, asked)
    with failures_named(layer), memory_needed(layer):
        total = ready.timing.cycles
        running = ready.lane_by_lane(SMALL.operands(layer, batch, seed))

    def cycles(first: int, watch: Told) -> Iterator[Cycle]:
        with failures_named(layer):
            yield from _agreeing(running(first, watch), total)

    return total, cycles


def recordings(workload: Workload, hardware: Machine, *, lowering: str = "channel_first") -> Iterator[Stretch]:
    """Runs of the event engine that tell what every unit does when, in the order of the network.

    Where layers overlap, those of a chain are one run. Others of one shape share theirs.

    Raises:
        InputError: an unknown lowering, a layer that cannot fit (CapacityError, names the layer), or one for which this
            computer has too little memory.
        DeadlockError: the steps of a Program wait for one another for ever; names the layer.
    """
    room = room_for(workload, hardware, lowering, "event", check=False)
    overlap = family_of(hardware).overlaps(hardware)
    return (_overlapping if overlap else _one_by_one)(workload, hardware, lowering, room)


def _one_by_one(workload: Workload, hardware: Machine, lowering: str, room: Room) -> Iterator[Stretch]:
    def record(layer: Op, asked: str) -> Any:
        ready = prepared(layer, workload.batch, hardware, asked)
        with failures_named(layer):
            return ready.recorded()

    for layer, _, recorded in shared(workload, lowering, record, room, family_of(hardware)):
        yield Stretch((layer,), recorded, (0, recorded.cycles))


def _overlapping(workload: Workload, hardware: Machine, lowering: str, room: Room) -> Iterator[Stretch]:
    def ready(layer: Op, asked: str) -> Lowered:
        return prepared(layer, workload.batch, hardware, asked)

    family = family_of(hardware)
    lowered = shared(workload, lowering, ready, room, family)
    tasks = (Task(layer, workload.batch, each, False, 0, unwatched) for layer, _, each in lowered)
    for chain in family.chains(tasks, workload, hardware, room.kept):
        with failures_named(chain):
            recorded, cuts = chain.recorded()
        yield Stretch(tuple(task.layer for task in chain.members), recorded, cuts)


def _only_layer(workload: Workload) -> Op:
    if len(workload.layers) != 1:
        names = ", ".join([*(layer.name for layer in workload.layers[:8]), *["..."] * (len(workload.layers) > 8)])
        raise InputError(
            f"a trace of lanes shows one layer; --layers leaves {len(workload.layers)} of {workload.name}: {names}; "
            "a .perfetto-trace shows any number"
        )
    return workload.layers[0]


def _agreeing(cycles: Iterator[Cycle], total: int) -> Iterator[Cycle]:
    """The event engine says how long a trace is; the register engine must end there."""
    last = -1
    for cycle in cycles:
        last = cycle.number
        if last >= total:
            break
        yield cycle
    if last != total - 1:
        raise CheckFailed(
            f"the engines disagree: {total:,} cycles in the event engine, "
            f"{'more' if last >= total else f'{last + 1:,}'} in the register engine"
        )
