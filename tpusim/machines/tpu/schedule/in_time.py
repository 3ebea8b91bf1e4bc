"""The order of the transfers of layers that overlap: wherever the queue would wait, fills that wait for nothing but
words go ahead, from whatever later layer.

Steps are timed by an estimate, one after another. It decides only what goes ahead of what: interpreters find out how
long steps take.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import NamedTuple

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Pace
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Vector
from tpusim.machines.tpu.program.transfers import Transfer


class Known(NamedTuple):
    """A step of a layer that begins with step `first`, with its pace, its array, and the numbers of all steps that it
    waits for.
    """

    step: Step
    first: int
    pace: Pace
    array: int
    waits: Collection[int]


class Estimate:
    """About when steps end, if they are taken in this order."""

    def __init__(self, hardware: Hardware) -> None:
        self.bus = 0.0
        self._hardware, self._done = hardware, dict[int, float]()
        self._frame = cache(lambda pace: pace.frame(hardware))
        # By array: when its last weights are there, and when its last stream has begun and ended.
        self._loaded, self._issued, self._ended = (defaultdict[int, float](float) for _ in range(3))
        # When all results so far are written.
        self._last = 0.0

    def moved(self, step: Transfer) -> float:
        """Cycles that a transfer keeps the bus."""
        hardware = self._hardware
        return max(float(step.hbm_bytes / hardware.hbm_bytes_per_cycle), step.conversion_cycles(hardware), step.words)

    def ready(self, waits: Iterable[int]) -> float:
        """When all of `waits` are over."""
        return max((self._done[each] for each in waits), default=0.0)

    def knows(self, waits: Iterable[int]) -> bool:
        """Whether all of `waits` have been taken."""
        return all(each in self._done for each in waits)

    def take(self, number: int, known: Known) -> None:
        """Take the next step."""
        step, first, pace, array, waits = known
        hardware, ready = self._hardware, self.ready(waits)
        match step:
            case Transfer():
                self.bus = max(self.bus, ready) + self.moved(step)
                done = self.bus + hardware.latency_cycles + hardware.skew
            case Preload():
                begun = max(ready, self._loaded[array], self._issued[array]) + step.delay
                done = self._loaded[array] = begun + hardware.preload_cycles
            case Stream():
                frame = self._frame(pace)
                begun = self._issued[array] = max(ready, self._ended[array], self._done[first + step.preload])
                self._ended[array] = begun + frame.frames(step.words) * frame.period
                done = self._ended[array] + frame.result_delay
                self._last = max(self._last, done)
            case Vector():
                begun = max(ready, self._last, *self._loaded.values(), 0.0) + step.delay
                done = begun + step.scalars.words + step.beat(pace.word_fill, hardware).last(step.words)
                self._last = done
                for each in range(hardware.array.queues):
                    self._issued[each] = self._ended[each] = done
            case _:
                done = ready
        self._done[number] = done


def in_time(steps: Sequence[Known], early: Collection[int], hardware: Hardware) -> list[int]:
    """Numbers of the steps in order; those in `early` may go ahead of the others.

    They keep their order among themselves. One goes ahead of a transfer if that waits for at least half as long as the
    one that goes ahead takes.
    """
    estimate, order, ahead = Estimate(hardware), list[int](), deque(sorted(early))

    def take(number: int) -> None:
        order.append(number)
        estimate.take(number, steps[number])

    for number, (step, *_, waits) in enumerate(steps):
        if number in early:
            if ahead and ahead[0] == number:
                take(ahead.popleft())
            continue
        while isinstance(step, Transfer) and ahead:
            first, *_, own = steps[ahead[0]]
            assert isinstance(first, Transfer)
            if not estimate.knows(own):
                break
            begins = max(estimate.bus, estimate.ready(own))
            if begins + estimate.moved(first) / 2 > estimate.ready(waits):
                break
            take(ahead.popleft())
        take(number)
    return order
