"""A Program as a table of rows and recipes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agreement.test_agreement import fitted
from tests.agreement.test_on_the_way import worked
from tests.covering import few
from tests.strategies import cases, conv, machines, small_layers
from tpusim import load_hardware, load_workload
from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Lowering
from tpusim.machines.tpu.lowering.registry import LOWERINGS, drafts_of, lowered
from tpusim.machines.tpu.program.addresses import SlotPlaces, in_slot
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.rows import Rows
from tpusim.machines.tpu.program.steps import Step, Stream
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.machines.tpu.schedule.scheduler import program_of
from tpusim.machines.tpu.schedule.units import Units
from tpusim.machines.tpu.sections import BlockSizes
from tpusim.network.ops.array_op import Conv2d, Gemm

DOCS = Path(__file__).parents[3] / "docs"


@settings(max_examples=cases(1 / 4), deadline=None, suppress_health_check=list(HealthCheck))
@given(layer=small_layers(), hardware=machines(8))
def test_rows_tell_what_their_steps_do(layer: Conv2d | Gemm, hardware: Hardware) -> None:
    """A table that was made of steps, one by one, says the same as the one that the scheduler wrote."""
    program, hardware = fitted(layer, 2, hardware, "channel_first")
    rows, again = program.rows, Rows.of(tuple(program.rows))
    assert rows == again
    assert [rows[at] for at in range(len(rows))] == [*rows]
    assert rows.table["array"].tolist() == again.table["array"].tolist()
    assert sum(count for _, count in rows.done(Step)) == len(rows)
    assert sum(step.words * count for step, count in rows.done(Stream)) == sum(step.words for step in program.streams)
    assert len(rows.recipes) <= len(again.recipes)
    assert all(replace(each) == each for each in rows if isinstance(each, Transfer)), "placing keeps all figures"


@settings(max_examples=cases(1 / 2), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=small_layers(),
    hardware=machines(8),
    lowering=st.sampled_from([each for each in LOWERINGS.values() if each.unit == "array" and not each.whole_rows]),
)
def test_steps_are_the_same_whether_or_not_they_are_said_once(
    layer: Conv2d | Gemm, hardware: Hardware, lowering: Lowering
) -> None:
    """Transfers that share a recipe move what each would move if it had one of its own."""
    try:
        units = lowering.drafts(layer, 2, hardware)[0].units
    except (CapacityError, UnsuitableError):
        return
    assert_said_once(units)


def assert_said_once(units: Units) -> None:
    """Units have the same steps where nobody says what is alike."""
    rows = program_of(units).rows
    units.moves_words = True
    with patch.object(units, "alike", lambda unit: None):
        alone = program_of(units).rows
    assert [*rows] == [*alone]
    assert len(rows.recipes) <= len(alone.recipes)


@settings(max_examples=cases(1 / 4), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layer=small_layers(),
    hardware=machines(8),
    lowering=st.sampled_from([each for each in LOWERINGS.values() if each.unit == "array" and not each.whole_rows]),
    words=st.integers(1, 9),
)
def test_a_program_that_is_moved_is_the_one_that_is_scheduled_there(
    layer: Conv2d | Gemm, hardware: Hardware, lowering: Lowering, words: int
) -> None:
    try:
        units = lowering.drafts(layer, 2, hardware)[0].units
    except (CapacityError, UnsuitableError):
        return
    moved, there = program_of(units).moved(words), program_of(units, words)
    if not moved.banked:
        assert ([*moved.rows], moved.buffers) == ([*there.rows], there.buffers)


@pytest.mark.parametrize("batch", few(1, [1, 2]))
def test_steps_of_a_network_are_the_same_whether_or_not_they_are_said_once(batch: int) -> None:
    """Here patches begin in the padding, on its last row, and behind it; in one strip and in several."""
    hardware = load_hardware("tpu_v2")
    shapes = {layer.shape_key: layer for layer in load_workload("resnet18", batch=batch).layers}
    for layer in shapes.values():
        if isinstance(layer, Conv2d):
            assert_said_once(LOWERINGS["channel_first"].drafts(layer, batch, hardware)[0].units)


@pytest.mark.parametrize("machine", few(1, ["tpu_v2", "tpu_v2_core"]))
def test_fused_layers_are_the_same_whether_or_not_they_are_said_once(machine: str) -> None:
    """What is worked on as it comes and goes depends on its channels; what is tallied, on which results come first."""
    hardware = load_hardware(machine).having("mapping", block=BlockSizes(rows=4, cols=5))
    # Blocks of two column folds, and of two groups, differ in their channels alone.
    inner, grouped = conv(160, 9, 256, 3, padding=1), conv(96, 9, 64, 3, padding=1, groups=2)
    # Each kind of work with each other, of any two of the three places.
    ways = [(2 * at, (0, 1, 3)[to], (at + to) % 3) for at, to in product(range(3), repeat=2)]
    layers = [worked(of, *each) for each in ways if any(each) for of in (inner, grouped)]
    layers += [worked(inner, bias=True), worked(inner, adds=True), worked(inner, 2, 3, 2, bias=True, adds=True)]
    for layer in layers:
        with suppress(UnsuitableError):
            assert_said_once(drafts_of(layer, 5, hardware, "channel_first")[0].units)


def test_what_is_done_again_is_said_once() -> None:
    layer = next(each for each in load_workload("resnet50", batch=8).layers if each.name == "layer1.0.conv2")
    program, _ = lowered(layer, 8, load_hardware("tpu_v2"), "channel_first")
    streams = [count for _, count in program.rows.done(Stream)]
    assert sum(streams) == program.passes == len(program.streams)
    assert len(streams) < program.passes / 4
    moved = [count for _, count in program.rows.done(Transfer)]
    assert len(moved) < sum(moved) / 3


def test_a_program_without_steps_takes_the_skew_alone() -> None:
    hardware = load_hardware("tiny_4x4")
    program, _ = lowered(Gemm("fc", m=4, k=4, n=4), 1, hardware, "channel_first")
    empty = replace(program, rows=Rows.of(()))
    check_program(empty, hardware)
    assert event.run(empty, hardware).cycles == event.by_simpy(empty, hardware).cycles == hardware.skew


def test_addresses_are_relative_to_slots() -> None:
    slots = SlotPlaces([7, 100, 30], 1)
    assert [slots(each) for each in (0, 5, in_slot(0), in_slot(1) + 4, in_slot(0) - 3)] == [0, 5, 100, 34, 97]


def test_a_program_is_printed_as_the_docs_show() -> None:
    layer = load_workload("tiny", batch=2).layers[0]
    program, _ = lowered(layer, 2, load_hardware("tiny_4x4"), "channel_first")
    assert f"```text\n{program}\n```" in (DOCS / "programs.md").read_text()
