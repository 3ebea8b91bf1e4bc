"""Time of a pipeline cycle by cycle: nothing is known ahead, and everything is counted down."""

from __future__ import annotations

from dataclasses import dataclass, field

from tpusim.flow.chip_steps.schedule import CycleSpan
from tpusim.flow.pipeline.schedule import PipelineLog, PipelinePlan, Turn


@dataclass
class _Worker:
    """A stage, or a way between two stages, with its turns: those that wait, and the one that is under way."""

    waiting: list[Turn] = field(default_factory=list)
    now: Turn | None = None
    left: int = 0
    start: int = 0
    done: list[CycleSpan] = field(default_factory=list)

    def begin(self, cycle: int, cycles: int) -> None:
        """Begin what waits longest."""
        self.now, self.start, self.left = self.waiting.pop(0), cycle, cycles

    def ended(self, cycle: int) -> Turn | None:
        """Return what ends in this cycle, if anything does."""
        ended = None if self.left else self.now
        if ended is not None:
            self.done.append(CycleSpan(self.start, cycle))
            self.now = None
        return ended


def run(plan: PipelinePlan) -> PipelineLog:
    """Return when everything begins and is done, as the event engine does."""
    stages, last = plan.stages, len(plan.stages) - 1
    chips = [_Worker([*plan.turns(at)]) for at in range(len(stages))]
    ahead, back = [_Worker() for _ in stages], [_Worker() for _ in stages]
    links, updated, cycle = {"forward": ahead, "backward": back}, [False] * len(chips), 0
    while True:
        for at, chip in enumerate(chips):
            # A turn that ends hands on what it made, but at the ends of the pipeline.
            if (turn := chip.ended(cycle)) and ((at < last) if turn[0] == "forward" else (at > 0)):
                links[turn[0]][at].waiting.append(turn)
        for stage, *ways in zip(stages, ahead, back, strict=True):
            for link, cycles in zip(ways, (stage.ahead, stage.back), strict=True):
                link.ended(cycle)
                while link.now is None and link.waiting:
                    link.begin(cycle, cycles)
                    link.ended(cycle)
        for at, chip in enumerate(chips):
            if chip.now is not None or (not plan.beside and any(links[way][at].now for way in links)):
                continue
            if chip.waiting:
                way, number = chip.waiting[0]
                # What a turn reads comes from a neighbour, but at the ends of the pipeline.
                from_stage = at - 1 if way == "forward" else at + 1
                if not 0 <= from_stage <= last or len(links[way][from_stage].done) > number:
                    chip.begin(cycle, stages[at].forward if way == "forward" else stages[at].backward)
            elif not updated[at]:
                updated[at] = True
                chip.done.append(CycleSpan(cycle, cycle + stages[at].update))
        if all(updated):
            found = [chip.done for chip in chips], *([link.done for link in links[way]] for way in links)
            return PipelineLog(*(tuple(map(tuple, each)) for each in found))
        # A cycle passes.
        cycle += 1
        for worker in (*chips, *ahead, *back):
            worker.left -= worker.left > 0
