"""The order of the transfers of layers that overlap: wherever the queue would wait, fills that wait for nothing but
words go ahead, from whatever later layer.

Steps are timed by an estimate, one after another. It decides only what goes ahead of what: interpreters find out how
long steps take.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from functools import cache

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Pace
from tpusim.machines.tpu.program.rows import Rows
from tpusim.machines.tpu.program.steps import Preload, Stream, Vector
from tpusim.machines.tpu.program.transfers import Transfer

_UNKNOWN = float("inf")


class Estimate:
    """About when the steps of rows end, if they are taken in some order; `paces` has the pace of each."""

    def __init__(self, rows: Rows, paces: Sequence[Pace], hardware: Hardware) -> None:
        self.bus = 0.0
        self._recipes, self._paces, self._hardware = rows.recipes, paces, hardware
        columns = [rows.table[name].tolist() for name in ("recipe", "array", "preload", "delay", "waits")]
        self._rows, self._waits = [*zip(*columns, rows.ends.tolist(), strict=True)], rows.waits.tolist()
        self._done = [_UNKNOWN] * len(rows)
        self._frame = cache(lambda pace: pace.frame(hardware))
        self._bus_cycles = cache(self._moving)
        # By array: when its last weights are there, and when its last stream has begun and ended.
        self._loaded, self._issued, self._ended = (defaultdict[int, float](float) for _ in range(3))
        # When all results so far are written.
        self._last = 0.0

    def moved(self, number: int) -> float:
        """Cycles that a transfer keeps the bus; 0 for other steps."""
        return self._bus_cycles(self._rows[number][0])

    def _moving(self, recipe: int) -> float:
        step, hardware = self._recipes[recipe], self._hardware
        if not isinstance(step, Transfer):
            return 0.0
        return max(float(step.hbm_bytes / hardware.hbm_bytes_per_cycle), step.conversion_cycles(hardware), step.words)

    def ready(self, number: int) -> float:
        """When all that a step waits for is over; never, as long as some of it has not been taken."""
        *_, first, end = self._rows[number]
        return max([self._done[each] for each in self._waits[first:end]], default=0.0)

    def take(self, number: int) -> None:
        """Take the next step."""
        recipe, array, preload, delay, *_ = self._rows[number]
        step, hardware, ready = self._recipes[recipe], self._hardware, self.ready(number)
        match step:
            case Transfer():
                self.bus = max(self.bus, ready) + self._bus_cycles(recipe)
                done = self.bus + hardware.latency_cycles + hardware.skew
            case Preload():
                begun = max(ready, self._loaded[array], self._issued[array]) + delay
                done = self._loaded[array] = begun + hardware.preload_cycles
            case Stream():
                frame = self._frame(self._paces[number])
                begun = self._issued[array] = max(ready, self._ended[array], self._done[preload])
                self._ended[array] = begun + frame.frames(step.words) * frame.period
                done = self._ended[array] + frame.result_delay
                self._last = max(self._last, done)
            case Vector():
                begun = max(ready, self._last, *self._loaded.values(), 0.0) + delay
                done = begun + step.scalars.words
                done += step.beat(self._paces[number].word_fill, hardware).last(step.words)
                self._last = done
                for each in range(hardware.array.queues):
                    self._issued[each] = self._ended[each] = done
            case _:
                done = ready
        self._done[number] = done


def in_time(rows: Rows, paces: Sequence[Pace], early: Collection[int], hardware: Hardware) -> list[int]:
    """Numbers of the rows in order; those in `early` may go ahead of the others.

    They keep their order among themselves. One goes ahead of a transfer if that waits for at least half as long as the
    one that goes ahead takes.
    """
    estimate, order, ahead = Estimate(rows, paces, hardware), list[int](), deque(sorted(early))
    transfers = rows.are(Transfer).tolist()

    def take(number: int) -> None:
        order.append(number)
        estimate.take(number)

    for number in range(len(rows)):
        if number in early:
            if ahead and ahead[0] == number:
                take(ahead.popleft())
            continue
        while ahead and transfers[number]:
            first = ahead[0]
            begins = max(estimate.bus, estimate.ready(first))
            # A fill whose words are still in use does not go ahead.
            if begins == _UNKNOWN or begins + estimate.moved(first) / 2 > estimate.ready(number):
                break
            take(ahead.popleft())
        take(number)
    return order
