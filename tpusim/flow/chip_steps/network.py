"""The step of a network that several chips share: its plan, what an engine makes of it, and the record of both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from tpusim.base.errors import InputError, Problem
from tpusim.flow.chip_steps.pipelined import WAITS, TimedPart, collective_result, step_of_stages
from tpusim.flow.chip_steps.schedule import CycleSpan, StepCollective, StepLayer, StepLog, StepPlan
from tpusim.flow.jobs import Jobs
from tpusim.flow.plan_engines import agreed
from tpusim.machines.exchanged import DCN, HOST_BACK, HOST_OUT, Exchanges
from tpusim.network.mesh import HOST, OF_BATCH
from tpusim.network.workload import FORWARD, RELOAD, BlocksAhead, CollectiveLayer, Workload
from tpusim.result.records import CollectiveResult, LayerResult, StageResult, StepResult

_WAITS_FOR = {DCN: DCN, HOST_OUT: HOST, HOST_BACK: HOST}
"""Parts of a step by what the collective holds for which the chip waits; for others these are links."""


def exchanges_of(jobs: Jobs, place: object) -> Exchanges | None:
    """Time the collectives of jobs on a slice; None where one chip runs them.

    Raises:
        InputError: the chips of the mesh and those of the slice are not the same, nobody names a slice, or a slice is
            given of a network of one chip.
    """
    if prod(chips for _, chips in jobs.work.mesh) == 1 and not jobs.work.collectives and place is None:
        # One chip alone exchanges nothing, whatever its axes are called.
        return None
    if jobs.work.mesh or jobs.work.collectives:
        return jobs.family.exchanges(jobs.work, place, jobs.machine)
    if place is not None:
        says = f"{jobs.work.name} is loaded for one chip; load it for a mesh, such as data=8"
        raise InputError(Problem(f"{says}, or leave the slice out", "slice"))
    return None


def step_of(jobs: Jobs, layers: Sequence[LayerResult], made: Exchanges, engine: str) -> StepResult:
    """Return the step of jobs whose layers were timed one by one, and their collectives.

    Raises:
        InputError: the step is too long for an engine that steps through every cycle, or what waits for what goes round
            in a circle.
        CheckFailed: with engine "both", two engines disagree.
    """
    work = made.work
    if work.stages:
        of_stages = step_of_stages(
            work, layers, made, lambda those, numbers: _part(work, those, made, numbers, engine), engine
        )
        return _step(jobs, made, *of_stages)
    part = _part(work, layers, made, _kept(work, layers), engine)
    starts, ends = (tuple(getattr(span, edge) for span in part.layers) for edge in ("start", "end"))
    return replace(_step(jobs, made, part.cycles, part.parts, part.collectives), layer_starts=starts, layer_ends=ends)


def _part(
    work: Workload, layers: Sequence[LayerResult], made: Exchanges, numbers: Sequence[int], engine: str
) -> TimedPart:
    """Time layers one after another, and the collectives of these numbers beside them."""
    plan, log, waited = _planned(work, layers, made, numbers, engine)
    parts = {
        **_parts_of_layers(layers),
        "shared_hbm": sum(span.cycles - layer.cycles for span, layer in zip(log.layers, plan.layers, strict=True)),
        **dict.fromkeys(WAITS, 0),
    }
    collectives = []
    for number, span, cycles in zip(numbers, log.collectives, waited, strict=True):
        # What goes over the network between slices, too, is as slow as that.
        holds = made.each[number].holds
        parts[next((_WAITS_FOR[each] for each in holds if each in _WAITS_FOR), "links")] += cycles
        collectives.append(collective_result(work.collectives[number], made.each[number], *span, cycles))
    return TimedPart(log.cycles, parts, tuple(collectives), log.layers)


class TimedPlan(NamedTuple):
    """A plan, when everything in it begins and is done, and for how many cycles the chip waits for each collective."""

    plan: StepPlan
    log: StepLog
    exposed: list[int]


def plan_of(jobs: Jobs, layers: Sequence[LayerResult], made: Exchanges) -> TimedPlan:
    """Return what the step of jobs consists of, whose layers were timed. Raises InputError where it has stages."""
    if jobs.work.stages:
        says = "each of its stages has turns of its own, once a microbatch; leave the axis stage out of the mesh"
        raise InputError(Problem(says, f"network {jobs.work.name}"))
    return _planned(made.work, layers, made, _kept(made.work, layers), "event")


def _planned(
    work: Workload, layers: Sequence[LayerResult], made: Exchanges, numbers: Sequence[int], engine: str
) -> TimedPlan:
    plan = _plan(work, layers, made, numbers)
    log = timed(plan, engine)
    return TimedPlan(plan, log, exposed(plan, log))


def _step(
    jobs: Jobs, made: Exchanges, cycles: int, parts: Mapping[str, int], collectives: tuple[CollectiveResult, ...],
    stages: tuple[StageResult, ...] = (),
) -> StepResult:  # fmt: skip
    work = jobs.work
    seconds = cycles / jobs.machine.clock_hz
    items, many = items_of(work)
    return StepResult(
        slice=made.place, about=made.about, chips=made.chips, mesh=dict(work.mesh), cycles=cycles, seconds=seconds,
        parts=parts, collectives=collectives, items=items, items_per_second=many / seconds,
        items_per_second_chip=many / seconds / made.chips, stages=stages, microbatches=work.microbatches,
    )  # fmt: skip


def items_of(work: Workload) -> tuple[str, int]:
    """Return what all chips make in a step, and how many: tokens where the network has them, else images."""
    images = images_of_all(work)
    tokens = dict(work.sizes).get("tokens")
    return ("tokens", images * tokens) if tokens else ("images", images)


def images_of_all(work: Workload) -> int:
    """Return the images of all chips together."""
    return work.batch * work.microbatches * prod(size for name, size in work.mesh if name in OF_BATCH)


def _parts_of_layers(layers: Sequence[LayerResult]) -> dict[str, int]:
    """Return the cycles that layers take by themselves: for launches, waiting for HBM, and all else."""
    cycles, launches = (sum(getattr(each, name) for each in layers) for name in ("cycles", "launch_cycles"))
    hbm = max(0, sum(each.stall_cycles.get("starved", 0) for each in layers) - launches)
    return {"compute": cycles - hbm - launches, "hbm": hbm, "launches": launches}


# ---- the plan


def _kept(work: Workload, layers: Sequence[LayerResult]) -> list[int]:
    """Return the numbers of the collectives between layers that run; of some layers, those that touch none are left
    out.
    """
    there = {layer.name for layer in layers}
    there |= {rider for layer, riders in work.riders if layer in there for rider in riders}
    found = []
    for number, each in enumerate(work.collectives):
        touched = {*each.reads, *each.read_by}
        if not touched or touched & there:
            there.add(each.name)
            found.append(number)
    return found


def _plan(work: Workload, layers: Sequence[LayerResult], made: Exchanges, numbers: Sequence[int]) -> StepPlan:
    """Return what waits for what."""
    each = [work.collectives[number] for number in numbers]
    place = {layer.name: at for at, layer in enumerate(layers)}
    place |= {rider: place[layer] for layer, riders in work.riders if layer in place for rider in riders}
    called = {one.name: number for number, one in enumerate(each)}
    waits: dict[int, set[int]] = defaultdict(set)
    for number, one in enumerate(each):
        for name in one.read_by:
            if name in place:
                waits[place[name]].add(number)
    # A bearer reads what its riders read, under its own name; whoever rides is in no edge.
    for layer, sources in work.edges:
        if layer in place:
            waits[place[layer]] |= {called[name] for source in sources for name in source.names if name in called}
    behind = _behind(work, each, [layer.name for layer in layers], place, waits, made.ahead)
    collectives = []
    for number, (one, at) in enumerate(zip(each, numbers, strict=True)):
        own = made.each[at]
        after = tuple(called[name] for name in one.reads if name in called)
        collectives.append(
            StepCollective(one.name, own.cycles, own.hbm_cycles, own.holds, own.kind, behind[number], after, own.alone)
        )
    planned = [StepLayer(one.name, one.cycles, min(_busy(one), one.cycles), tuple(sorted(waits[at])))
               for at, one in enumerate(layers)]  # fmt: skip
    return StepPlan(tuple(planned), tuple(collectives), made.most, made.beside)


def _busy(layer: LayerResult) -> int:
    return layer.units.get("hbm", {}).get("busy", 0)


def _behind(
    work: Workload, each: Sequence[CollectiveLayer], layers: Sequence[str], place: Mapping[str, int],
    waits: Mapping[int, set[int]], ahead: int,
) -> list[int]:  # fmt: skip
    """Return for each collective how many layers come before it: those that make its operand, and of a gather of
    weights the readers of the block that is more than `ahead` before, as what is gathered takes memory until it is
    read. What comes back from the host does so likewise, and behind the last layer of the way there.
    """
    found = [max((place[name] + 1 for name in one.reads if name in place), default=0) for one in each]
    readers: dict[int, list[int]] = defaultdict(list)
    for layer, numbers in waits.items():
        for number in numbers:
            readers[number].append(layer)
    phases, copies = dict(work.phases), work.copies
    turn = sum(phases.get(name) == FORWARD for name in layers)
    # In the order of the workload, which is that of their readers.
    gathers = [number for number, one in enumerate(each) if one.weights and readers[number]]
    reloads = [number for number, one in enumerate(each) if one.op == RELOAD and readers[number]]
    for window, least in ((gathers, 0), (reloads, turn)):
        blocks = BlocksAhead(ahead)
        for number in window:
            block = work.block_of(layers[min(readers[number])], copies)
            least = max(least, blocks.behind(block, readers[number]) + 1)
            # Weights that are read once more later must not wait for that.
            found[number] = max(found[number], min(least, min(readers[number])))
    return found


# ---- its time


def timed(plan: StepPlan, engine: str = "event") -> StepLog:
    """Return when everything begins and is done, by an engine of `--engine`; with `both` all must agree.

    Raises:
        InputError: the step is too long to be stepped through.
        CheckFailed: engines disagree.
    """
    log: StepLog = agreed("chip_steps", plan, engine, "layers and collectives of a step run")
    return log


def exposed(plan: StepPlan, log: StepLog) -> list[int]:
    """Return for how many cycles the chip waits for each collective.

    A chip waits in each cycle in which no layer runs. It waits for the collective under way beside which none may; else
    for the first that its next layer needs or, where none is, for the first that is; behind the last layer for that.
    """
    found = [0] * len(log.collectives)
    # Those that began first come first, so that one that a later layer needs is not blamed for an earlier wait.
    order = sorted(range(len(found)), key=lambda number: (log.collectives[number], number))
    under_way: list[int] = []
    at = 0
    for layer, gap in _gaps(log):
        while at < len(order) and log.collectives[order[at]].start < gap.end:
            under_way.append(order[at])
            at += 1
        under_way = [number for number in under_way if log.collectives[number].end > gap.start]
        needed = set().union(*(plan.needs[number] for number in plan.layers[layer].after)) if layer is not None else {}
        now = gap.start
        # Between two edges the same collectives are under way.
        while now < gap.end:
            there = [number for number in under_way if log.collectives[number].covers(now)]
            then = min(edge for number in under_way for edge in (*log.collectives[number], gap.end) if edge > now)
            alone = (number for number in there if plan.collectives[number].alone)
            first = next(alone, next((number for number in there if number in needed), there[0]))
            found[first] += then - now
            now = then
    return found


def _gaps(log: StepLog) -> Iterator[tuple[int | None, CycleSpan]]:
    """Yield the cycles in which no layer runs, each time with the next layer; None: there is none."""
    now = 0
    for layer, span in enumerate(log.layers):
        if span.start > now:
            yield layer, CycleSpan(now, span.start)
        now = span.end
    if log.cycles > now:
        yield None, CycleSpan(now, log.cycles)
