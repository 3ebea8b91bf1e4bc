"""The estimate by which fills of later layers go ahead: what it says of steps, by hand."""

from __future__ import annotations

from dataclasses import replace

from tests.agreement.test_own_weights import COLS, ROWS, WORDS, independent
from tests.strategies import machine
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload
from tpusim.machines.tpu.schedule.in_time import Estimate

TWO = machine(ROWS, COLS, word_elements=8, bytes_per_cycle=8, latency_cycles=9, array={"count": 2, "weights": "own"})
"""Arrays with weights of their own, and a bus that moves a fill of 64 B in 8 cycles."""


def ends(program: Program, hardware: Hardware) -> list[float]:
    """When each step is over, as somebody finds who waits for this step alone."""
    found = list[float]()
    for number in range(len(program.rows)):
        whole = replace(program, rows=(*program.rows, replace(program.rows[0], after=(number,))))
        estimate = Estimate(whole.rows, [whole.pace] * len(whole.rows), hardware)
        for each in range(len(program.rows)):
            estimate.take(each)
        found.append(estimate.ready(len(program.rows)))
    return found


def late(program: Program, number: int, delay: int) -> Program:
    """A Program one of whose preloads begins late."""
    at = [place for place, step in enumerate(program.rows) if isinstance(step, Preload)][number]
    steps = [replace(step, delay=delay) if place == at else step for place, step in enumerate(program.rows)]  # type: ignore[call-arg]
    return replace(program, rows=tuple(steps))


def test_each_step_ends_behind_what_it_waits_for_and_its_unit() -> None:
    program = late(independent(TWO), 2, 5)
    found = ends(program, TWO)
    weights, frame, skew = TWO.preload_cycles, program.frame(TWO), TWO.skew
    streaming, drained = WORDS * frame.period, frame.result_delay
    ifmap, filter_, *rest = found
    assert skew == ROWS - 1
    # The second has 16 words, which cross the port one a cycle.
    assert (ifmap, filter_) == (8 + 9 + skew, 8 + 16 + 9 + skew)
    preloads, streams = rest[:-1:2], rest[1:-1:2]
    # The first two begin at once, each on its array; the third and the fourth behind them, when their passes begin.
    assert preloads[:2] == [filter_ + weights] * 2
    assert preloads[2:4] == [filter_ + weights + 5 + weights, filter_ + 2 * weights]
    begun = preloads[0]
    assert streams[:2] == [begun + streaming + drained] * 2
    for at, loaded in enumerate(preloads[2:4]):
        assert streams[2 + at] == max(begun + streaming, loaded) + streaming + drained
    # The spill takes the bus, of 8 B a cycle, when all is written: more words than that.
    words = program.rows[-1].words  # type: ignore[attr-defined]
    assert rest[-1] == max(streams) + max(8, words) + 9 + skew


def test_nobody_knows_when_a_step_ends_that_was_not_taken() -> None:
    program = independent(TWO)
    estimate = Estimate(program.rows, [program.pace] * len(program.rows), TWO)
    assert estimate.ready(0) == 0
    assert estimate.ready(2) == float("inf")
    assert (estimate.moved(0), estimate.moved(1), estimate.moved(2)) == (8, 16, 0)
