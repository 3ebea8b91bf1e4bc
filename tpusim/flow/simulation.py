"""The whole flow on one screen: lower each layer, time it, compute it, verify it, and report; and recordings of the
same layers for traces.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, starmap
from os import cpu_count
from typing import TYPE_CHECKING, Any, TypeVar

from threadpoolctl import threadpool_limits

from tpusim.base.errors import CheckFailed, InputError, did_you_mean, failures_named
from tpusim.base.version import __version__
from tpusim.flow.engines import ENGINES, Begun, LayerWatch, Task, layer_result, memory_needed, overlapping, timed
from tpusim.flow.fusion import fused
from tpusim.flow.lowerings import USUAL_FAMILY, asked_of, at_its_place, by_layer, prepared, usual
from tpusim.flow.need import Room, room_for
from tpusim.flow.numbers import ANY_ORDER, INTEGERS, SMALL, Numbers, check_numbers, numbers_of, seed_of
from tpusim.machines.family import Family, Machine, family_of
from tpusim.machines.lowered import Chain, LaneCycle, ReadyLayer, Told, unheard
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.result.records import LayerResult, Result, total_of

if TYPE_CHECKING:
    from tpusim.flow.values import Journey

Made = TypeVar("Made")
Needing = tuple[int, Callable[[], Made]]
"""A task, with the bytes that it needs ahead of it."""

MOST_THREADS = 4
ROOM_BYTES = 2**30
"""Most bytes of tasks that run at once, however much is free, unless there is a single task."""
SWITCH_SECONDS = 0.0005
"""Longest time that a thread back from NumPy waits for a thread that runs Python: about as long as coming back takes.

The interpreter's default, ten times as long, would have it wait most of the time.
"""


def simulate(
    workload: Workload,
    hardware: Machine,
    *,
    lowering: str | None = None,
    engine: str = "event",
    check: bool = True,
    seed: int = 0,
    dtype: str = INTEGERS,
    sums: str = ANY_ORDER,
    journey: Journey | None = None,
    progress: Callable[[LayerResult], None] = unheard,
    watch: LayerWatch = unheard,
) -> Result:
    """Run every layer of `workload` on `hardware`, one after another.

    Args:
        workload: what `load_workload` returns, or a Workload made in Python.
        hardware: what `load_hardware` returns.
        lowering: one that the machine's family has, such as those in machines/tpu/lowering/registry.py, or "auto":
            layer by layer the one of the fewest cycles, of real numbers that are checked one for which a bound is
            proven. None: the family's first, of a TPU channel_first, and of layers of several groups what their
            estimate prefers. A layer of `workload` that has one of its own is lowered by that. Layers may be given
            others by patterns of their names, which go before that: "auto,conv*=fft,conv1=explicit".
        engine: event, register or both, where the machine's family has them.
        check: compute every output through the Program and compare it with the reference.
        seed: of the random operands.
        dtype: what operands are: integers (small ones, so that outputs must be equal), f32, bf16 (random reals; outputs
            must be within a proven bound of sums in float64), f8 (the same, e4m3) or int8 (full range, equal). Time
            follows it where the machine's file tells of the type (`types`).
        sums: the order in which the data path adds: any, or array, that of the machine, which takes much longer.
        journey: the values of the network that the layers are of: each then reads what comes before it, instead of
            random operands, and hands on its outputs. It needs `check`.
        progress: called after each layer, in network order.
        watch: called now and then, on any thread, with a layer's name and what is done to it.

    Raises:
        InputError: a name where a workload or a machine is asked for, unknown lowering, engine, dtype or sums, a seed
            that is no whole number from 0 on, a layer that cannot fit (CapacityError, names the layer), a layer for
            which this computer has too little memory, a lowering for which no bound is proven, or, with the register
            engine, Numba is not installed.
        CheckFailed: a Program addressed words that do not exist, or, with engine "both", the two disagree.
            Wrong values do not raise: see `Result.correct`.
        DeadlockError, PortConflict: the machine stopped, or was asked for two things at once; names the layer.

    Examples:
        >>> from tpusim import Conv2d, Workload, load_hardware, load_workload, simulate
        >>> layer = Conv2d("conv1", in_channels=16, in_height=8, in_width=8, out_channels=32, kernel=3, padding=1)
        >>> result = simulate(Workload("mine", 4, [layer]), load_hardware("tpu_v2"))
        >>> result.correct, result.total.outputs_checked
        (True, 8192)
        >>> simulate(load_workload("tiny", batch=2), load_hardware("tiny_4x4"), engine="both").total.cycles
        224
    """
    for given, kind, what in ((workload, Workload, "Workload"), (hardware, Machine, "Hardware")):
        # Arguments typed in Python have no other check.
        if not isinstance(given, kind):
            raise InputError(f"{given!r} is no {what}; give what tpusim.load_{what.lower()}(...) returns")
    if engine not in ENGINES:
        raise InputError(
            f"unknown engine {engine!r}{did_you_mean(engine, ENGINES) or ';'} there is {', '.join(ENGINES)}"
        )
    seed, numbers, family = seed_of(seed), numbers_of(dtype, sums), family_of(hardware)
    if engine not in family.engines:
        keeps = f"{hardware.label} is {family.title}, whose time is kept by {', '.join(family.engines)}"
        raise InputError(f"engine {engine}: {keeps}")
    began = time.perf_counter()
    workload, lowering = by_layer(workload, lowering, family)
    machine = hardware.of_type(dtype)
    workload = journey.work if journey else fused(workload, machine, lowering, watch=watch)
    lowering = lowering or usual(family)
    if check:
        check_numbers(workload, machine, lowering, numbers)
    layers = []
    for layer in _results(workload, machine, lowering, engine, check, seed, watch, numbers, journey):
        layers.append(layer)
        progress(layer)
    seconds = time.perf_counter() - began
    found = result_of(
        workload, hardware, layers, seconds, lowering=lowering, engine=engine, seed=seed, dtype=dtype, sums=sums
    )
    return replace(found, reference_only=journey.reference_only) if journey else found


def result_of(
    workload: Workload,
    hardware: Machine,
    layers: Sequence[LayerResult],
    seconds: float,
    *,
    lowering: str,
    engine: str,
    seed: int,
    dtype: str = INTEGERS,
    sums: str = ANY_ORDER,
) -> Result:
    """The result of `layers`, the first of `workload`; at least one."""
    done, left = tuple(layers), len(workload.layers) - len(layers)
    asked = workload.name, workload.batch, lowering, engine, seed
    more = dict(workload.not_timed), dict(workload.not_known), dict(workload.sizes), dtype, sums
    told = __version__, hardware.to_dict(), *asked, total_of(done, seconds), done, left, *more
    return Result(*told, changes=dict(hardware.changes), chips=workload.chips)


def _results(
    workload: Workload,
    machine: Machine,
    lowering: str,
    engine: str,
    check: bool,
    seed: int,
    watch: LayerWatch,
    numbers: Numbers,
    journey: Journey | None,
) -> Iterator[LayerResult]:
    """Yield each layer lowered, timed and checked, in network order; the next is lowered while values are checked.

    These are maps, not loops with variables, so that nothing holds a Program once its last layer is done.
    """
    family, batch, inputs, riders = family_of(machine), workload.batch, workload.inputs(), dict(workload.riders)
    phases = dict(workload.phases)
    lowerings = {layer.name: name for layer, name in asked_of(workload, lowering, family)}
    # Memory is measured before any layer is lowered, and decides how far the next layer may be ahead.
    room = room_for(workload, machine, lowering, engine, check, numbers)
    failure = journey.ended_by_failure if journey else nullcontext

    def made(layer: Op, name: str) -> ReadyLayer:
        return prepared(layer, batch, machine, name, partial(watch, layer.name), check and numbers.bounded)

    def asked(layer: Op, ready: ReadyLayer) -> Task:
        return Task(layer, batch, ready, check, seed, watch, numbers, journey)

    def begun(layer: Op, ready: ReadyLayer) -> Begun:
        timing, verdict = timed(asked(layer, ready), engine)
        return Begun(
            layer,
            lambda: layer_result(layer, batch, machine, ready.account(layer, batch, timing), timing, verdict()),
        )

    def together(layers: Chain) -> Iterator[Begun]:
        return overlapping(layers, [*starmap(asked, layers.members)], machine, engine)

    def left(each: Begun) -> Needing[LayerResult]:
        name = each.layer.name

        def rest() -> LayerResult:
            with failure():
                told = replace(each.rest(), inputs=inputs.get(name, ()), riders=riders.get(name, ()))
                return replace(told, phase=phases.get(name, ""))

        return room.needs[each.layer.shape_key, lowerings[name]].total, rest

    ready = shared(workload, lowering, made, room, family)
    if family.overlaps(machine):
        chains = family.chains(ready, workload, machine, room.kept)
        tasks = map(left, chain.from_iterable(map(together, chains)))
    else:
        tasks = map(left, starmap(begun, ready))
    most = min(ROOM_BYTES, room.ahead)
    return ahead(tasks, most) if check and most else map(lambda task: task[1](), tasks)


# ---- runs that are looked at: every lane in every cycle of one layer, or what every unit of several layers does


@dataclass(frozen=True)
class Stretch:
    """Layers that ran as one, mostly a single layer: the recording of all units, and the first cycle of each layer,
    with the cycle after the last.
    """

    layers: tuple[Op, ...]
    recording: Any
    cuts: tuple[int, ...]


def trace(
    workload: Workload, hardware: Machine, *, lowering: str | None = None, seed: int = 0
) -> tuple[int, Callable[[int, Told], Iterator[LaneCycle]]]:
    """Cycles of a workload of one layer by the event engine, and a run of the register engine.

    The run is called once, with the first cycle to show and a function for progress. While it lasts it raises
    CheckFailed when it does not take as many cycles as the event engine says, and what RegisterMachine.run_to raises.

    Raises:
        InputError: several layers, an unknown lowering, a seed that is no whole number from 0 on, a layer that cannot
            fit, Numba is not installed, or this computer has too little memory.
        CheckFailed: the Program names lanes that do not exist.
        DeadlockError: the Program's steps wait for one another for ever.
    """
    seed = seed_of(seed)
    if len(workload.layers) != 1:
        names = ", ".join([*(layer.name for layer in workload.layers[:8]), *["..."] * (len(workload.layers) > 8)])
        raise InputError(
            f"a trace of lanes shows one layer, not {len(workload.layers)} of {workload.name}: {names}; choose one of "
            "these; a .perfetto-trace shows any number"
        )
    (layer,), batch, family = workload.layers, workload.batch, family_of(hardware)
    workload, lowering = by_layer(workload, lowering, family)
    lowering = lowering or usual(family)
    room_for(workload, hardware, lowering, "register", check=False)
    ((_, asked),) = asked_of(workload, lowering, family)
    ready = prepared(layer, batch, hardware, asked)
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


def recordings(workload: Workload, hardware: Machine, *, lowering: str | None = None) -> Iterator[Stretch]:
    """Recordings of runs of the event engine, in the order of the network.

    Layers of a chain that overlap have one run. Other layers of one shape share a run.

    Raises:
        InputError: an unknown lowering, a layer that cannot fit (CapacityError, names the layer), or one for which this
            computer has too little memory.
        DeadlockError: the steps of a Program wait for one another for ever; names the layer.
    """
    family, batch = family_of(hardware), workload.batch
    workload, lowering = by_layer(workload, lowering, family)
    lowering = lowering or usual(family)
    room = room_for(workload, hardware, lowering, "event", check=False)

    def ready(layer: Op, asked: str) -> ReadyLayer:
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


# ---- one result for all layers that are alike, and a few tasks at once


def shared(
    workload: Workload, lowering: str, make: Callable[[Op, str], Made], room: Room, family: Family = USUAL_FAMILY
) -> Iterator[tuple[Op, Made]]:
    """Each layer, with the result of `make` for the first layer of its shape and lowering.

    A result is dropped after the last such layer; a result that there is no room to keep is made again.
    """
    asked = asked_of(workload, lowering, family)
    left = Counter((layer.shape_key, name) for layer, name in asked)
    known: dict[Hashable, Made] = {}

    def made(layer: Op, name: str) -> Made:
        with at_its_place(workload, layer):
            return make(layer, name)

    for layer, name in asked:
        kind = layer.shape_key, name
        left[kind] -= 1
        if kind in known:
            # The last layer of a kind takes the result along, so that its memory is free afterwards.
            yield layer, known[kind] if left[kind] else known.pop(kind)
        elif left[kind] and sum(room.needs[each].program for each in (kind, *known)) <= room.kept:
            known[kind] = made(layer, name)
            yield layer, known[kind]
        else:
            yield layer, made(layer, name)


def ahead(tasks: Iterable[Needing[Made]], room: int = ROOM_BYTES) -> Iterator[Made]:
    """Results of tasks, in order. At most `room` bytes are needed at once, unless a single task needs more.

    Threads work on tasks while the next ones are taken from `tasks`. NumPy releases the interpreter lock; BLAS stays on
    one thread.
    """
    threads = min(MOST_THREADS, cpu_count() or 1)
    pool = ThreadPoolExecutor(threads)
    under_way: deque[tuple[int, Future[Made]]] = deque()
    usual_interval = sys.getswitchinterval()
    with threadpool_limits(1, user_api="blas"):
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            for need, task in tasks:
                while under_way:
                    full = len(under_way) > threads or sum(each for each, _ in under_way) + need > room
                    if not (full or under_way[0][1].done()):
                        break
                    yield under_way.popleft()[1].result()
                under_way.append((need, pool.submit(task)))
                del task  # It holds a Program, and to ask for the next takes a while.
            while under_way:
                yield under_way.popleft()[1].result()
        finally:
            sys.setswitchinterval(usual_interval)
            # An interrupted run does not wait for tasks under way.
            pool.shutdown(wait=False, cancel_futures=True)
