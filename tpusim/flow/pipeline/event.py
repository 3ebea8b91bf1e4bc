"""Time of a pipeline turn by turn: as soon as all that a turn waits for is known, so is the turn."""

from __future__ import annotations

from collections import deque

from tpusim.flow.chip_steps.schedule import CycleSpan
from tpusim.flow.pipeline.schedule import PipelineLog, PipelinePlan


def run(plan: PipelinePlan) -> PipelineLog:
    """Return when everything begins and is done."""
    stages, last = plan.stages, len(plan.stages) - 1
    due = [deque(plan.turns(at)) for at in range(len(stages))]
    made: list[list[CycleSpan]] = [[] for _ in stages]
    sent: dict[str, list[list[CycleSpan]]] = {way: [[] for _ in stages] for way in ("forward", "backward")}
    free = [0] * len(stages)
    open_stages = deque(range(len(stages)))
    while open_stages:
        at = open_stages.popleft()
        while due[at]:
            way, number = due[at][0]
            neighbour = at - 1 if way == "forward" else at + 1
            came = 0
            if 0 <= neighbour <= last:
                # The neighbour is yet to come to it: another stage goes on first.
                if len(sent[way][neighbour]) <= number:
                    break
                came = sent[way][neighbour][number].end
            due[at].popleft()
            start = max(free[at], came)
            end = start + (stages[at].forward if way == "forward" else stages[at].backward)
            made[at].append(CycleSpan(start, end))
            free[at] = end
            if (at < last) if way == "forward" else (at > 0):
                on_the_way = stages[at].ahead if way == "forward" else stages[at].back
                gone = sent[way][at]
                begun = max(end, gone[-1].end if gone else 0)
                gone.append(CycleSpan(begun, begun + on_the_way))
                free[at] = end if plan.beside else begun + on_the_way
        if due[at]:
            open_stages.append(at)
    for at, each in enumerate(stages):
        made[at].append(CycleSpan(free[at], free[at] + each.update))
    return PipelineLog(*(tuple(map(tuple, each)) for each in (made, sent["forward"], sent["backward"])))
