"""Which fills of a layer go among the transfers of the layer before, and where.

The DMA takes transfers in order, and has little to do while it waits for the last results of a layer. Estimates here
choose an order; how long it takes is for the engines to find.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from math import ceil
from typing import NamedTuple

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step, Stream, Vector
from tpusim.machines.tpu.program.transfers import Fill, Spill


class Early(NamedTuple):
    """A fill that may go ahead, and the steps that it waits for."""

    step: Fill
    waits: Collection[int]


class Layer:
    """A layer in its order, with the fills of the next that go among its steps; `numbers` are those of its steps."""

    def __init__(self, numbers: Sequence[int], steps: Sequence[Step], program: Program, hardware: Hardware) -> None:
        self._numbers, self._steps, self._hardware = numbers, steps, hardware
        self._place = {number: at for at, number in enumerate(numbers)}
        pace = program.frame(hardware).period / hardware.array.together if program.streams else 0.0
        self._left = [*accumulate((_cycles(each, pace, program, hardware) for each in reversed(steps)), initial=0.0)]
        self._last_fill = max((at for at, each in enumerate(steps) if isinstance(each, Fill)), default=-1)
        self.last_pass = max(
            (number for number, each in zip(numbers, steps, strict=True) if isinstance(each, Stream | Vector)),
            default=-1,
        )

    def with_ahead(self, early: Mapping[int, Early]) -> tuple[list[int], set[int]]:
        """The numbers of its steps with those of `early` among them, and which of these are: as many as its last passes
        leave time for.

        One goes behind the last fill of the layer and all that it waits for; one of what the layer has spilled, behind
        its last pass, if that is in HBM by then.
        """
        behind: defaultdict[int, list[int]] = defaultdict(list)
        spent = 0.0
        for number, (step, waits) in early.items():
            at, taken = self._behind(waits), spent + self._bus(step)
            if at is not None and taken <= self._behind_of(self._last_fill):
                behind[at].append(number)
                spent = taken
        order = [*behind[-1]]
        for at, number in enumerate(self._numbers):
            order += [number, *behind[at]]
        return order, {number for each in behind.values() for number in each}

    def _behind(self, waits: Collection[int]) -> int | None:
        """The place behind which a fill goes, None where it had better not."""
        places = [self._place[each] for each in waits if each in self._place]
        last = self._place[self.last_pass]
        spills = [at for at in places if isinstance(self._steps[at], Spill)]
        if max(places, default=-1) >= last:
            return None
        if not spills:
            return max([self._last_fill, *places])
        stored = self._hardware.latency_cycles + self._hardware.lanes
        return max(last, self._last_fill) if self._behind_of(max(spills)) >= stored else None

    def _behind_of(self, at: int) -> float:
        """Cycles of all passes and vector steps behind a place."""
        return self._left[len(self._steps) - 1 - at]

    def _bus(self, step: Fill) -> float:
        """Cycles that a fill keeps others waiting: two transfers are under way at once."""
        hardware = self._hardware
        moved = max(ceil(step.hbm_bytes / hardware.hbm_bytes_per_cycle), step.conversion_cycles(hardware))
        return max(moved, (moved + hardware.latency_cycles) / 2)


def _cycles(step: Step, pace: float, program: Program, hardware: Hardware) -> float:
    """Cycles of a pass, whose words take `pace` each, or of a vector step."""
    if isinstance(step, Stream):
        return step.words * pace
    return step.words * step.beat(program.word_fill, hardware).period if isinstance(step, Vector) else 0.0
