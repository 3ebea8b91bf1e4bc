"""The whole flow of a run on one page, stage by stage: whoever opens the house begins here.

A workload and a machine come in from their files (`load_workload`, `load_hardware`). Then:

1. Resolve: which layers run, and by which lowerings, is settled once. All that follows takes these jobs (`flow/jobs`).
2. Look ahead: what would end the run in its middle is refused before the first layer (`flow/need`).
3. Lower: the family of the machine makes a Program of each layer (`flow/lowerings`), one for all that are
   alike (`shared`).
4. Time: an engine runs the Program, of one layer or of several that overlap (`flow/engines`).
5. Check: its values are held against the reference, while the next layer is lowered (`flow/verify`).
6. Add up: the layers' results and their total are the result; of a network that several chips share, layers and
   collectives make a step (`flow/chip_steps`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, starmap
from math import prod
from typing import TYPE_CHECKING

from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.version import __version__
from tpusim.flow.ahead import ROOM_BYTES, Made, Needing, ahead
from tpusim.flow.engines import ENGINES, Execution, PendingResult
from tpusim.flow.jobs import Job, Jobs, resolve
from tpusim.flow.lowerings import prepared
from tpusim.flow.need import Room, check_numbers, room_for
from tpusim.flow.numbers import ANY_ORDER, INTEGERS, numbers_of, seed_of
from tpusim.machines.family import Machine
from tpusim.machines.lowered import LayerWatch, ReadyLayer, unheard
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.result.records import HbmContents, LayerResult, Result, StepResult, total_of

if TYPE_CHECKING:
    from tpusim.flow.values import Journey


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
    slice: object = None,
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
        engine: event, simpy, register or both, which is all of them, where the machine's family has them.
        check: compute every output through the Program and compare it with the reference.
        seed: of the random operands.
        dtype: what operands are: integers (small ones, so that outputs must be equal), f32, bf16 (random reals; outputs
            must be within a proven bound of sums in float64), f16, f8 (the same; e4m3) or int8 (full range, equal).
            Time follows it where the machine's file tells of the type (`types`).
        sums: the order in which the data path adds: any, or array, that of the machine, which takes much longer.
        journey: the values of the network that the layers are of: each then reads what comes before it, instead of
            random operands, and hands on its outputs. It needs `check`.
        slice: the chips of a workload that several share: a name that `tpusim list` shows, such as "v6e_2x4", or what
            `load_slice` returns.
        progress: called after each layer, in network order.
        watch: called now and then, on any thread, with a layer's name and what is done to it.

    Raises:
        InputError: a name where a workload or a machine is asked for, unknown lowering, engine, dtype or sums, a seed
            that is no whole number from 0 on, a layer that cannot fit (CapacityError, names the layer), a layer for
            which this computer has too little memory, a lowering for which no bound is proven, or, with the register
            engine, Numba is not installed; a mesh without a slice, or of other chips than it.
        CheckFailed: a Program addressed words that do not exist, or, with engine "both", two engines disagree.
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
            raise InputError(f"{given!r:.80} is no {what}; give what tpusim.load_{what.lower()}(...) returns")
    # 1. Resolve: a journey has the workload as it runs.
    jobs = resolve(journey.work if journey else workload, hardware, lowering, dtype=dtype, watch=watch)
    return run(
        jobs, engine=engine, check=check, seed=seed, sums=sums, journey=journey, slice=slice, progress=progress,
        watch=watch,
    )  # fmt: skip


def run(
    jobs: Jobs,
    *,
    engine: str = "event",
    check: bool = True,
    seed: int = 0,
    sums: str = ANY_ORDER,
    journey: Journey | None = None,
    slice: object = None,
    progress: Callable[[LayerResult], None] = unheard,
    watch: LayerWatch = unheard,
) -> Result:
    """Run jobs one after another; arguments, and what is raised, are as in `simulate`."""
    _check_engine(engine, jobs)
    seed, numbers, began = seed_of(seed), numbers_of(jobs.dtype, sums), time.perf_counter()
    # 2. Look ahead: at numbers first, as that costs least.
    if check:
        check_numbers(jobs, numbers)
    step_of = _step_of(jobs, engine, journey, slice)
    room = room_for(jobs, engine, check, numbers)
    # 3 to 5. Lower, time and check, layer by layer.
    execution = Execution(jobs.machine, jobs.work.batch, engine, check, seed, watch, numbers, journey)
    layers = []
    for layer in _results(jobs, room, execution):
        layers.append(layer)
        progress(layer)
    # 6. Add up.
    step = step_of(layers) if step_of else None
    found = result_of(jobs, layers, time.perf_counter() - began, room.hbm, engine=engine, seed=seed, sums=sums)
    found = replace(found, step=step) if step else found
    return replace(found, reference_only=journey.reference_only) if journey else found


def _step_of(
    jobs: Jobs, engine: str, journey: Journey | None, slice: object
) -> Callable[[Sequence[LayerResult]], StepResult] | None:
    """Return what makes a step of layers that were timed; None where one chip runs them, or nobody asks for a time.

    Raises InputError where the chips of the workload are not those of the slice.
    """
    # Values of all chips are sent through without a word on time, where nobody names a slice.
    if slice is None and (journey or not (jobs.work.mesh or jobs.work.collectives)):
        return None
    # Imported here, as runs of one chip need nothing of it.
    from tpusim.flow.chip_steps.network import exchanges_of, step_of

    if (made := exchanges_of(jobs, slice)) is None:
        return None
    return lambda layers: step_of(jobs, layers, made, engine)


def layers_of(jobs: Jobs) -> tuple[LayerResult, ...]:
    """Return the layers of jobs, timed by the event engine, and no more: also of a share, whose chips nobody names.

    Raises InputError when they cannot be simulated.
    """
    numbers = numbers_of(jobs.dtype, ANY_ORDER)
    execution = Execution(jobs.machine, jobs.work.batch, ENGINES[0], False, 0, unheard, numbers, None)
    return tuple(_results(jobs, room_for(jobs, ENGINES[0], False, numbers), execution))


def _check_engine(engine: str, jobs: Jobs) -> None:
    if engine not in ENGINES:
        near = did_you_mean(engine, ENGINES) if isinstance(engine, str) else ""
        raise InputError(f"unknown engine {engine!r}{near or ';'} there are {', '.join(ENGINES)}")
    if engine not in jobs.family.engines:
        keeps = f"{jobs.hardware.label} is {jobs.family.title}, whose time is kept by {', '.join(jobs.family.engines)}"
        raise InputError(f"engine {engine}: {keeps}")


def _results(jobs: Jobs, room: Room, execution: Execution) -> Iterator[LayerResult]:
    """Yield each layer lowered, timed and checked, in network order; the next is lowered while values are checked.

    These are maps, not loops with variables, so that nothing holds a Program once its last layer is done.
    """
    family, machine, work, journey = jobs.family, jobs.machine, jobs.work, execution.journey
    inputs, riders, phases = work.inputs(), dict(work.riders), dict(work.phases)
    needs = {job.layer.name: room.needs[kind].total for job, kind in zip(jobs.each, jobs.kinds, strict=True)}
    bounded = execution.check and execution.numbers.bounded
    failure = journey.ended_by_failure if journey else nullcontext

    # 3. Lower.
    def made(job: Job) -> ReadyLayer:
        doing = partial(execution.watch, job.layer.name)
        return prepared(job.layer, job.batch, machine, job.lowering, doing, bounded)

    # 5. Check: what is left of a layer whose time is known.
    def left(each: PendingResult) -> Needing[LayerResult]:
        name, result = each

        def rest() -> LayerResult:
            with failure():
                return result().called(name, inputs.get(name, ()), riders.get(name, ()), phases.get(name, ""))

        return needs[name], rest

    ready = shared(jobs, made, room)
    # 4. Time: layers by themselves, or in chains.
    if family.overlaps(machine):
        chains = family.chains(ready, work, machine, room.kept)
        begun: Iterator[PendingResult] = chain.from_iterable(map(execution.together, chains))
    else:
        begun = starmap(execution.begun, ready)
    # Memory decides how far the next layer may be ahead.
    most, tasks = min(ROOM_BYTES, room.ahead), map(left, begun)
    return ahead(tasks, most) if execution.check and most else map(lambda task: task[1](), tasks)


def shared(jobs: Jobs, make: Callable[[Job], Made], room: Room) -> Iterator[tuple[Op, Made]]:
    """Each layer, with the result of `make` for the first job of its kind.

    A result is dropped after the last such job; a result that there is no room to keep is made again.
    """
    left = Counter(jobs.kinds)
    known: dict[Hashable, Made] = {}

    def made(job: Job) -> Made:
        with job.placed():
            return make(job)

    for job, kind in zip(jobs.each, jobs.kinds, strict=True):
        left[kind] -= 1
        if kind in known:
            # The last job of a kind takes the result along, so that its memory is free afterwards.
            yield job.layer, known[kind] if left[kind] else known.pop(kind)
        elif left[kind] and sum(room.needs[each].program for each in (kind, *known)) <= room.kept:
            known[kind] = made(job)
            yield job.layer, known[kind]
        else:
            yield job.layer, made(job)


def result_of(
    jobs: Jobs, layers: Sequence[LayerResult], seconds: float, hbm: HbmContents | None, *, engine: str, seed: int,
    sums: str = ANY_ORDER,
) -> Result:  # fmt: skip
    """The result of `layers`, those of the first jobs, at least one; `hbm` is what the machine's HBM has to hold."""
    work, done = jobs.work, tuple(layers)
    asked = work.name, work.batch, jobs.lowering, engine, seed
    more = dict(work.not_timed), dict(work.not_known), dict(work.sizes), jobs.dtype, sums
    left = len(work.layers) - len(layers)
    narrow = dict(Counter(work.narrow.values()))
    told = __version__, jobs.hardware.to_dict(), *asked, total_of(done, seconds), done, left, *more
    chips = prod(many for _, many in work.mesh) if work.mesh else work.chips
    return Result(*told, changes=dict(jobs.hardware.changes), chips=chips, narrow=narrow, hbm_use=hbm)
