"""Stages of a pipeline: one forward and one backward in turn, by three engines and by closed form."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import cases
from tpusim.base.errors import InputError
from tpusim.flow.pipeline import event, processes, stepping
from tpusim.flow.pipeline.schedule import PipelinePlan, PipelineStage


@st.composite
def plans(draw: st.DrawFn) -> PipelinePlan:
    back = draw(st.booleans())
    times, sends = st.integers(1, 12), st.integers(0, 8)
    stage = st.builds(PipelineStage, times, times if back else st.just(0), st.integers(0, 5), sends, sends)
    stages = draw(st.lists(stage, min_size=1, max_size=5))
    return PipelinePlan(tuple(stages), draw(st.integers(1, 9)), draw(st.booleans()))


@settings(max_examples=cases(usual=50))
@given(plans())
def test_three_engines_agree_on_every_turn_and_all_that_is_sent(plan: PipelinePlan) -> None:
    log = event.run(plan)
    assert processes.run(plan) == log
    assert stepping.run(plan) == log


@settings(max_examples=cases(usual=50))
@given(plans())
def test_the_rules_hold_in_any_schedule(plan: PipelinePlan) -> None:
    """Read off the log by themselves: order, what comes before what, and that nobody idles where all is there."""
    log, last = event.run(plan), len(plan.stages) - 1
    for at, stage in enumerate(plan.stages):
        turns = [*plan.turns(at)]
        intervals = dict(zip(turns, log.turns[at], strict=False))
        assert [*intervals.values()] == sorted(intervals.values())
        ways = {"forward": stage.forward, "backward": stage.backward}
        assert all(each.end - each.start == ways[way] for (way, _), each in intervals.items())
        assert sorted(turns) == sorted((way, n) for way in ways if ways[way] for n in range(plan.microbatches))
        free = 0
        for (way, number), each in intervals.items():
            source = (log.ahead[at - 1] if at else ()) if way == "forward" else (log.back[at + 1] if at < last else ())
            came = source[number].end if source else 0
            assert each.start == max(free, came)
            out = (log.ahead if way == "forward" else log.back)[at]
            free = out[number].end if out and not plan.beside else each.end
            if out:
                assert out[number].start == max(each.end, out[number - 1].end if number else 0)
        assert log.turns[at][-1] == (free, free + stage.update)
        # The way back begins behind all that it reads.
        if stage.backward:
            assert all(intervals["forward", n].end <= intervals["backward", n].start for n in range(plan.microbatches))
            under_way = [sum(way == "forward" for way, _ in turns[:n]) - sum(way == "backward" for way, _ in turns[:n])
                         for n in range(len(turns) + 1)]  # fmt: skip
            assert max(under_way) == plan.held(at)
        assert log.bubble(at) >= 0
    for each in (*log.ahead, *log.back):
        assert all(one.end <= other.start for one, other in pairwise(each))


@pytest.mark.parametrize("stages", [1, 2, 4, 7])
@pytest.mark.parametrize("microbatches", [1, 3, 4, 16])
def test_equal_stages_take_as_long_as_a_closed_form_says(stages: int, microbatches: int) -> None:
    """(M + S - 1) (f + b) in all, of which each stage works M (f + b): Narayanan et al. 2021, section 2.2.1."""
    plan = PipelinePlan((PipelineStage(5, 9, 3),) * stages, microbatches)
    log = event.run(plan)
    assert log.cycles == (microbatches + stages - 1) * 14 + 3
    assert {log.bubble(at) for at in range(stages)} == {(stages - 1) * 14}
    forward = event.run(PipelinePlan((PipelineStage(5),) * stages, microbatches))
    assert forward.cycles == (microbatches + stages - 1) * 5


def test_a_slow_way_is_what_bounds_a_pipeline() -> None:
    """Forward alone, of ways of 9 cycles beside turns of 5: a microbatch each 9 cycles; each 14 where senders wait."""
    stages = (PipelineStage(5, ahead=9),) * 3
    assert event.run(PipelinePlan(stages, 10)).cycles == 5 + 10 * 9 + 9 + 5 + 5
    assert event.run(PipelinePlan(stages, 10, beside=False)).cycles == 10 * 14 + 14 + 5


@pytest.mark.parametrize(
    "stages", [(PipelineStage(0),), (PipelineStage(1), PipelineStage(1, 1)), (PipelineStage(1, 1, -1),)]
)
def test_what_is_no_pipeline_is_refused(stages: tuple[PipelineStage, ...]) -> None:
    with pytest.raises(InputError, match="a stage takes a cycle or more forward"):
        PipelinePlan(stages, 1)
    with pytest.raises(InputError):
        PipelinePlan((PipelineStage(1),), 0)
