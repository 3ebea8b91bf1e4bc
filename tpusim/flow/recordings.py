"""Runs that are looked at: every lane in every cycle of one layer, or what every unit does in several layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tpusim.base.errors import CheckFailed, InputError, failures_named
from tpusim.flow.engines import memory_needed
from tpusim.flow.jobs import Job, Jobs
from tpusim.flow.lowerings import prepared
from tpusim.flow.need import room_for
from tpusim.flow.numbers import SMALL, seed_of
from tpusim.flow.simulation import shared
from tpusim.machines.lowered import Chain, LaneCycle, ReadyLayer, Told
from tpusim.network.ops.op import Op


class Stretch(NamedTuple):
    """Layers that ran as one, mostly a single layer: the recording of all units, and the first cycle of each layer,
    with the cycle after the last.
    """

    layers: tuple[Op, ...]
    recording: Any
    cuts: tuple[int, ...]


def trace(jobs: Jobs, seed: int = 0) -> tuple[int, Callable[[int, Told], Iterator[LaneCycle]]]:
    """Cycles of a single layer by the event engine, and a run of the register engine.

    The run is called once, with the first cycle to show and a function for progress. While it lasts it raises
    CheckFailed when it does not take as many cycles as the event engine says, and what RegisterMachine.run_to raises.

    Raises:
        InputError: several layers, a seed that is no whole number from 0 on, a layer that cannot fit, Numba is not
            installed, or this computer has too little memory.
        CheckFailed: the Program names lanes that do not exist.
        DeadlockError: the Program's steps wait for one another for ever.
    """
    seed = seed_of(seed)
    if len(jobs.each) != 1:
        names = ", ".join([*(job.layer.name for job in jobs.each[:8]), *["..."] * (len(jobs.each) > 8)])
        raise InputError(
            f"a trace of lanes shows one layer, not {len(jobs.each)} of {jobs.work.name}: {names}; name one of "
            "these as layers; a .perfetto-trace shows any number"
        )
    ((layer, batch, lowering, _),) = jobs.each
    room_for(jobs, "register", check=False)
    ready = prepared(layer, batch, jobs.machine, lowering)
    with failures_named(layer), memory_needed(layer):
        total = ready.timing.cycles
        running = ready.lane_by_lane(SMALL.operands(layer, batch, seed))

    def cycles(first: int, watch: Told) -> Iterator[LaneCycle]:
        last = -1
        with failures_named(layer):
            for cycle in running(first, watch):
                last = cycle.number
                if last >= total:
                    break
                yield cycle
            # The event engine says how long the trace is, and the register engine must end in the same cycle.
            if last != total - 1:
                found = "more" if last >= total else f"{last + 1:,}"
                says = f"the engines disagree: {total:,} cycles in the event engine, {found} in the register engine"
                raise CheckFailed(says)

    return total, cycles


def recordings(jobs: Jobs) -> Iterator[Stretch]:
    """Recordings of runs of the event engine, in the order of the network.

    Layers of a chain that overlap have one run. Other layers of one shape share a run.

    Raises:
        InputError: a layer that cannot fit (CapacityError, names the layer), or one for which this computer has too
            little memory.
        DeadlockError: the steps of a Program wait for one another for ever; names the layer.
    """
    family, machine = jobs.family, jobs.machine
    room = room_for(jobs, "event", check=False)

    def ready(job: Job) -> ReadyLayer:
        return prepared(job.layer, job.batch, machine, job.lowering)

    def recorded(job: Job) -> Any:
        made = ready(job)
        with failures_named(job.layer):
            return made.recorded()

    def together(chain: Chain) -> Stretch:
        with failures_named(chain):
            recording, cuts = chain.recorded()
        return Stretch(tuple(layer for layer, _ in chain.members), recording, cuts)

    if family.overlaps(machine):
        return map(together, family.chains(shared(jobs, ready, room), jobs.work, machine, room.kept))
    return (Stretch((layer,), run, (0, run.cycles)) for layer, run in shared(jobs, recorded, room))
