"""Time of a pipeline cycle by cycle: nothing is known ahead, and everything is counted down."""

from __future__ import annotations

from dataclasses import dataclass, field

from tpusim.flow.pipeline.schedule import PipelineLog, PipelinePlan, Turn
from tpusim.flow.steps.schedule import CycleSpan


@dataclass
class _Link:
    """One way between two stages: microbatches that wait for it, and the one that goes."""

    cycles: int
    waiting: list[int] = field(default_factory=list)
    left: int = 0
    start: int = 0
    done: list[CycleSpan] = field(default_factory=list)


@dataclass
class _Chip:
    """A stage: its turns that are left, and the one that it takes."""

    turns: list[Turn]
    now: Turn | None = None
    left: int = 0
    start: int = 0
    done: list[CycleSpan] = field(default_factory=list)


def run(plan: PipelinePlan) -> PipelineLog:
    """Return when everything begins and is done, as the event engine does."""
    last = len(plan.stages) - 1
    chips = [_Chip([*plan.turns(at)]) for at in range(len(plan.stages))]
    ahead, back = [_Link(each.ahead) for each in plan.stages], [_Link(each.back) for each in plan.stages]
    links = {"forward": ahead, "backward": back}
    updated = [False] * len(chips)
    cycle = 0
    while True:
        for at, chip in enumerate(chips):
            # What ends: a turn hands on what it made.
            if chip.now is not None and not chip.left:
                way, number = chip.now
                chip.done.append(CycleSpan(chip.start, cycle))
                chip.now = None
                if (at < last) if way == "forward" else (at > 0):
                    link = links[way][at]
                    link.waiting.append(number)
                    if len(link.waiting) == 1:
                        link.left, link.start = link.cycles, cycle
        for link in (*ahead, *back):
            while link.waiting and not link.left:
                link.done.append(CycleSpan(link.start, cycle))
                del link.waiting[0]
                link.left, link.start = link.cycles, cycle
        for at, chip in enumerate(chips):
            if chip.now is not None or (not plan.beside and any(links[way][at].waiting for way in links)):
                continue
            if chip.turns:
                way, number = chip.turns[0]
                # What a turn reads comes from a neighbour, but at the ends of the pipeline.
                from_stage = at - 1 if way == "forward" else at + 1
                if 0 <= from_stage <= last and len(links[way][from_stage].done) <= number:
                    continue
                chip.now, chip.start = chip.turns.pop(0), cycle
                chip.left = plan.stages[at].forward if way == "forward" else plan.stages[at].backward
            elif not updated[at]:
                updated[at] = True
                chip.done.append(CycleSpan(cycle, cycle + plan.stages[at].update))
        if all(updated):
            found = [chip.done for chip in chips], *([link.done for link in links[way]] for way in links)
            return PipelineLog(*(tuple(map(tuple, each)) for each in found))
        # A cycle passes.
        cycle += 1
        for chip in chips:
            chip.left -= chip.left > 0
        for link in (*ahead, *back):
            link.left -= link.left > 0
