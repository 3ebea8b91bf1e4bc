"""Time of a pipeline by SimPy, for people who want to read the rules: each stage is a process, and each thing sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import simpy

from tpusim.flow.chip_steps.schedule import CycleSpan
from tpusim.flow.pipeline.schedule import PipelineLog, PipelinePlan, Way


def run(plan: PipelinePlan) -> PipelineLog:
    """Return when everything begins and is done, as the event engine does."""
    env: Any = simpy.Environment()
    count, last = plan.microbatches, len(plan.stages) - 1
    ways = {way: [simpy.Resource(env) for _ in plan.stages] for way in ("forward", "backward")}
    # By way and stage: each microbatch has come from there.
    came = {way: [[env.event() for _ in range(count)] for _ in plan.stages] for way in ("forward", "backward")}
    turns: list[list[CycleSpan]] = [[] for _ in plan.stages]
    sent: dict[str, list[list[CycleSpan]]] = {way: [[] for _ in plan.stages] for way in ("forward", "backward")}

    def send(at: int, way: Way, number: int, cycles: int) -> Iterator[Any]:
        with ways[way][at].request() as turn:
            yield turn
            start = int(env.now)
            yield env.timeout(cycles)
            sent[way][at].append(CycleSpan(start, int(env.now)))
        came[way][at][number].succeed()

    def stage(at: int) -> Iterator[Any]:
        own = plan.stages[at]
        for way, number in plan.turns(at):
            forward = way == "forward"
            if (at > 0) if forward else (at < last):
                yield came[way][at - 1 if forward else at + 1][number]
            start = int(env.now)
            yield env.timeout(own.forward if forward else own.backward)
            turns[at].append(CycleSpan(start, int(env.now)))
            if (at < last) if forward else (at > 0):
                sending = env.process(send(at, way, number, own.ahead if forward else own.back))
                if not plan.beside:
                    yield sending
        start = int(env.now)
        yield env.timeout(own.update)
        turns[at].append(CycleSpan(start, int(env.now)))

    for at in range(len(plan.stages)):
        env.process(stage(at))
    env.run()
    return PipelineLog(*(tuple(map(tuple, each)) for each in (turns, sent["forward"], sent["backward"])))
