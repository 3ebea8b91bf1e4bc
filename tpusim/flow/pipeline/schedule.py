"""The waist of this folder: what the stages of a pipeline do in a step, and when. Engines share these records, and the
order of a stage's turns, and nothing else.

The blocks of a network are parted in stages, one behind another, and a batch in microbatches, all alike. These are the
rules:

1. A stage takes its turns in order, one at a time: all of its layers of the way there for a microbatch, or all of those
   of the way back, and in the end its updates.
2. It begins with as many turns forward as there are stages behind it, then takes one forward and one backward in turn,
   and the turns back that are left. So it holds what the way back reads of as many microbatches, at most, as there are
   stages from it on.
3. A turn forward begins when what it reads has come from the stage ahead, a turn back when gradients have come from the
   stage behind; the last stage has them of its own turn forward.
4. What a turn makes is sent on when the turn is done. Each way between two stages carries one microbatch after another.
   Where nothing runs beside one another, the sender waits until it is there.

Source: Narayanan et al.: PipeDream, 2019 (arXiv:1806.03377), section 3.2; as a schedule with one update a step,
Narayanan et al.: Megatron-LM, 2021 (arXiv:2104.04473), section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from tpusim.base.errors import InputError, Problem
from tpusim.flow.chip_steps.schedule import CycleSpan

Way: TypeAlias = Literal["forward", "backward"]
Turn: TypeAlias = tuple[Way, int]
"""A way, and the number of a microbatch."""


class PipelineStage(NamedTuple):
    """A stage: the cycles of its turns, and of what they send.

    Attributes:
        forward: cycles of a turn forward.
        backward: cycles of a turn back; 0: there is none.
        update: cycles of its updates.
        ahead: cycles in which what a turn forward makes goes to the next stage; 0: nothing goes.
        back: cycles in which gradients go to the stage ahead.
    """

    forward: int
    backward: int = 0
    update: int = 0
    ahead: int = 0
    back: int = 0


@dataclass(frozen=True)
class PipelinePlan:
    """The stages of a pipeline in order.

    Attributes:
        microbatches: parts of the batch.
        beside: whether what is sent goes beside turns.
    """

    stages: tuple[PipelineStage, ...]
    microbatches: int
    beside: bool = True

    def __post_init__(self) -> None:
        back = {each.backward > 0 for each in self.stages}
        wrong = [f"stage {at}" for at, each in enumerate(self.stages) if each.forward < 1 or min(each) < 0]
        if wrong or self.microbatches < 1 or len(back) != 1:
            says = "a stage takes a cycle or more forward, and all of them go back or none does"
            raise InputError(Problem(f"{says}; write such, and a microbatch or more", ", ".join(wrong) or "pipeline"))

    def held(self, stage: int) -> int:
        """Microbatches whose values a stage holds at once for the way back, at most."""
        return min(self.microbatches, len(self.stages) - stage)

    def turns(self, stage: int) -> Iterator[Turn]:
        """Yield the turns of a stage in order."""
        if not self.stages[stage].backward:
            yield from (("forward", number) for number in range(self.microbatches))
            return
        first = self.held(stage) - 1
        yield from (("forward", number) for number in range(first))
        for number in range(self.microbatches):
            if first + number < self.microbatches:
                yield "forward", first + number
            yield "backward", number


@dataclass(frozen=True)
class PipelineLog:
    """When everything began and was done.

    Attributes:
        turns: by stage those of its turns, in order, and of its updates.
        ahead: by stage those in which each microbatch went to the next stage, in order; none of the last.
        back: by stage those in which gradients of each went to the stage ahead; none of the first.
    """

    turns: tuple[tuple[CycleSpan, ...], ...]
    ahead: tuple[tuple[CycleSpan, ...], ...]
    back: tuple[tuple[CycleSpan, ...], ...]

    @property
    def cycles(self) -> int:
        """Cycles until all stages are done."""
        return max(each[-1].end for each in self.turns)

    def bubble(self, stage: int) -> int:
        """Cycles in which a stage does nothing of its own."""
        return self.cycles - sum(each.cycles for each in self.turns[stage])
