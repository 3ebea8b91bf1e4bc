"""Programs that machines share: one that follows from nothing that differs is scheduled once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import cases, convs, gemms, lowerings_of, machines
from tpusim import Conv2d, load_hardware
from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering import drafts
from tpusim.machines.tpu.lowering.registry import drafts_of, lowered
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.schedule.scheduler import program_of
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.ops.elementwise import Relu
from tpusim.network.ops.fused import Fused

LAYER = Conv2d("conv", 24, 10, 10, 16, (3, 3), padding=(1, 1))


def at(hardware: Hardware, clock: int, bandwidth: int, latency: int) -> Hardware:
    """A machine with another clock and another HBM."""
    clocked = hardware.model_copy(update={"clock_hz": clock})
    return clocked.having("hbm", bandwidth_bytes_per_s=bandwidth, latency_ps=latency)


def told(program: Program) -> tuple[Any, ...]:
    """All that a Program says."""
    return program.tensors, program.buffers, program.banked, program.word_fill, tuple(program.rows)


@settings(max_examples=cases(0.1), deadline=None)
@given(
    machines(largest=12), st.one_of(convs(channels=12, size=6), gemms(largest=24)), st.integers(1, 5), st.data(),
    st.tuples(st.integers(1, 10**9), st.integers(10**6, 10**12), st.integers(0, 10**6)),
)  # fmt: skip
def test_what_a_program_follows_from_is_all_it_follows_from(
    hardware: Hardware, layer: ArrayOp, batch: int, data: st.DataObject, speed: tuple[int, int, int]
) -> None:
    """Of two machines whose clocks and memories differ, units of one key are scheduled alike."""
    name = data.draw(st.sampled_from(sorted(lowerings_of(layer))))
    try:
        known = [each.units for each in drafts_of(layer, batch, hardware, name)[:2]]
        other = [each.units for each in drafts_of(layer, batch, at(hardware, *speed), name)[:4]]
    except CapacityError:
        return
    for one in known:
        for its in other:
            if one.follows is not None and one.follows == its.follows:
                assert told(program_of(one)) == told(program_of(its))


def test_a_faster_clock_takes_the_program_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "_kept", {})
    slow, fast = (load_hardware("tiny_4x4", {"clock": f"{mhz} MHz"}) for mhz in (700, 710))
    (program, _), (again, _) = (lowered(LAYER, 2, each, "channel_first") for each in (slow, fast))
    assert again.rows is program.rows
    larger, _ = lowered(LAYER, 2, load_hardware("tiny_4x4", {"array.size": 8}), "channel_first")
    assert larger.rows is not program.rows


def test_units_that_add_to_a_plan_are_scheduled_by_themselves() -> None:
    hardware = load_hardware("tpu_v2", {"sequencer.fusion": "results"})
    fused = Fused("conv", LAYER, finish=(Relu("relu", 16, 10, 10),))
    assert drafts_of(LAYER, 2, hardware, "channel_first")[0].units.follows is not None
    assert drafts_of(fused, 2, hardware, "channel_first")[0].units.follows is None
    assert drafts_of(LAYER, 2, hardware, "explicit")[0].units.follows is None


def test_few_programs_are_kept_and_none_that_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "_kept", {})
    hardware = load_hardware("tiny_4x4")
    steps = [len(lowered(LAYER, batch, hardware, "channel_first")[0].rows) for batch in (1, 2, 3)]
    assert [len(each.rows) for each in drafts._kept.values()] == steps
    drafts._kept.clear()
    monkeypatch.setattr(drafts, "MOST_KEPT", 2)
    for batch in (1, 2, 3):
        lowered(LAYER, batch, hardware, "channel_first")
    assert [len(each.rows) for each in drafts._kept.values()] == steps[1:]
    monkeypatch.setattr(drafts, "LONGEST", 10)
    before = dict(drafts._kept)
    lowered(LAYER, 4, hardware, "channel_first")
    assert drafts._kept == before
