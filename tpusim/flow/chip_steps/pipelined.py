"""The step of a pipeline: the turns of its stages, each timed by itself, and when they are taken."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from tpusim.base.errors import InputError, Problem
from tpusim.flow.chip_steps.schedule import CycleSpan
from tpusim.flow.pipeline.schedule import PipelineLog, PipelinePlan, PipelineStage
from tpusim.flow.plan_engines import agreed
from tpusim.machines.exchanged import DCN, Exchanges, TimedCollective
from tpusim.network.mesh import HOST, STAGE
from tpusim.network.workload import ACCUMULATE, FORWARD, RELOAD, UPDATE, CollectiveLayer, Workload
from tpusim.result.records import CollectiveResult, LayerResult, StageResult

WAITS = ("links", DCN, HOST, "bubble")
"""Parts of a step in which a chip waits."""


class TimedPart(NamedTuple):
    """Layers one after another, and collectives beside them: cycles, all and by what they go to, collectives, and when
    layers run.
    """

    cycles: int
    parts: dict[str, int]
    collectives: tuple[CollectiveResult, ...]
    layers: Sequence[CycleSpan]


Timing: TypeAlias = Callable[[Sequence[LayerResult], Sequence[int]], TimedPart]
"""Times some layers, and the collectives of some numbers."""


def collective_result(
    layer: CollectiveLayer, own: TimedCollective, start: int, end: int, waits: int, times: int = 1
) -> CollectiveResult:
    """Return the record of a collective from a cycle to another, for some of which the chip waits."""
    told = layer.name, layer.op, own.bytes, layer.over, own.algorithm, own.cycles, own.hbm_cycles
    return CollectiveResult(*told, start, end, waits, times)


_TURNS = FORWARD, "backward", UPDATE
"""What a stage does: once a microbatch on each way, and updates once."""


def step_of_stages(
    work: Workload, layers: Sequence[LayerResult], made: Exchanges, timing: Timing, engine: str
) -> tuple[int, dict[str, int], tuple[CollectiveResult, ...], tuple[StageResult, ...]]:
    """Return the cycles of a step, where they go to in the stage that is busy longest, its collectives, and all stages.

    What stages send goes over links beside turns; it takes no HBM from layers, and waits for no other collective.

    Raises:
        InputError: a stage has nothing to run, as of some layers alone; or too many cycles are to be stepped through.
        CheckFailed: with engine "both", two engines disagree.
    """
    count = 1 + max(number for _, number in work.stages)
    turns = [*_turns(work, layers, count)]
    timed = [{name: timing(*turns[at][name]) if turns[at][name][0] else None for name in _TURNS} for at in range(count)]
    if any(each[FORWARD] is None for each in timed):
        raise InputError(Problem("a pipeline is timed as a whole; take all layers", f"network {work.name}"))
    ways = _ways(work, made)

    def cycles_of(at: int, name: str) -> int:
        part = timed[at][name]
        return part.cycles if part else 0

    forward, backward, update = ([cycles_of(at, name) for at in range(count)] for name in _TURNS)
    stages = tuple(
        PipelineStage(forward[at], backward[at], update[at], ways[at, at + 1], ways[at, at - 1]) for at in range(count)
    )
    plan = PipelinePlan(stages, work.microbatches, made.beside)
    log: PipelineLog = agreed("pipeline", plan, engine, "stages take turns")
    # Where senders wait, that time is the links' and no bubble.
    bubbles = [log.bubble(at) - _waits(plan, at) for at in range(count)]
    busiest = min(range(count), key=lambda at: bubbles[at])
    starts = {FORWARD: 0, UPDATE: log.turns[busiest][-1].start}
    starts |= {way: log.turns[busiest][at].start for at, (way, number) in reversed([*enumerate(plan.turns(busiest))])
               if number == 0}  # fmt: skip
    parts, collectives = Counter[str](dict.fromkeys(WAITS, 0)), list[CollectiveResult]()
    for name in _TURNS:
        times = 1 if name == UPDATE else plan.microbatches
        if part := timed[busiest][name]:
            parts.update({key: times * size for key, size in part.parts.items()})
            at = starts[name]
            collectives += (
                replace(each, start=each.start + at, end=each.end + at, times=times) for each in part.collectives
            )
    collectives += _sent(work, made, plan, log, busiest)
    parts["links"] += _waits(plan, busiest)
    parts["bubble"] = bubbles[busiest]
    of = Counter(number for _, number in work.stages)
    told = tuple(StageResult(of[at], *stage, bubbles[at], plan.held(at)) for at, stage in enumerate(stages))
    return log.cycles, dict(parts), tuple(collectives), told


def _turns(
    work: Workload, layers: Sequence[LayerResult], count: int
) -> Iterator[dict[str, tuple[list[LayerResult], list[int]]]]:
    """Yield by stage the layers of each turn, and the numbers of its collectives."""
    number, phases, place = dict(work.stages), dict(work.phases), {each: at for at, each in enumerate(_TURNS)}
    carrier = {rider: layer for layer, riders in work.riders for rider in riders}
    sums = {name for name, phase in work.phases if phase == ACCUMULATE}
    found = [{name: (list[LayerResult](), list[int]()) for name in _TURNS} for _ in range(count)]
    of: dict[str, tuple[int, int]] = {}
    for layer in layers:
        phase = phases.get(layer.name, FORWARD)
        turn = place["backward" if phase == ACCUMULATE else phase]
        of[layer.name] = number[layer.name], turn
        found[number[layer.name]][_TURNS[turn]][0].append(layer)
    for at, each in enumerate(work.collectives):
        if STAGE in each.over:
            continue
        makers = [(read, of[name]) for read in each.reads if (name := carrier.get(read, read)) in of]
        readers = [of[name] for name in each.read_by if name in of]
        # Gradients are exchanged once they are sums, in the end.
        turns = [2 if read in sums else turn for read, (_, turn) in makers]
        if (each.reads and not makers) or not (makers or readers):
            continue
        stage = makers[0][1][0] if makers else readers[0][0]
        # What comes back from the host, and weights, come for those who read them.
        late = each.op == RELOAD or not makers
        turn = min(which for _, which in readers) if late and readers else max(turns)
        of[each.name] = stage, turn
        found[stage][_TURNS[turn]][1].append(at)
    yield from found


def _ways(work: Workload, made: Exchanges) -> dict[tuple[int, int], int]:
    """Return the cycles of all that goes from a stage to the next, or to the one ahead, for a microbatch."""
    found: defaultdict[tuple[int, int], int] = defaultdict(int)
    for each, own in zip(work.collectives, made.each, strict=True):
        if STAGE in each.over:
            found[each.axis, each.to] += own.cycles
    return found


def _waits(plan: PipelinePlan, at: int) -> int:
    """Cycles in which a stage waits for what it sends."""
    own, last = plan.stages[at], len(plan.stages) - 1
    sends = (own.ahead if at < last else 0) + (own.back if at and own.backward else 0)
    return 0 if plan.beside else plan.microbatches * sends


def _sent(
    work: Workload, made: Exchanges, plan: PipelinePlan, log: PipelineLog, stage: int
) -> Iterator[CollectiveResult]:
    """Yield what a stage sends, as of the first microbatch."""
    for to, gone in ((stage + 1, log.ahead[stage]), (stage - 1, log.back[stage])):
        now = gone[0].start if gone else 0
        for each, own in zip(work.collectives, made.each, strict=True):
            if STAGE in each.over and (each.axis, each.to) == (stage, to):
                waits = 0 if plan.beside else own.cycles
                yield collective_result(each, own, now, now + own.cycles, waits, plan.microbatches)
                now += own.cycles
