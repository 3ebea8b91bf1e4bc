"""Passes, and words of a preload, that the event engine takes at once come out as they do one by one; runs that are
given up early would have taken as long as the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch
from weakref import ref

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis.strategies import integers, sampled_from, sets

from tests.strategies import cases, convs, machine, machines, machines_of_all_kinds
from tpusim import load_hardware, load_workload
from tpusim.base.errors import CapacityError
from tpusim.base.memory import at_rest
from tpusim.machines.tpu import event
from tpusim.machines.tpu.definition import FREE, IFMAP, WEIGHT
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.board import Board
from tpusim.machines.tpu.event.calendar import Calendar
from tpusim.machines.tpu.event.issue import IssueUnit
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.runs.prepared import prepared
from tpusim.network.ops.array_op import Conv2d


def one_by_one(program: Program, hardware: Hardware) -> Timing:
    with patch.object(IssueUnit, "_repeat", return_value=0):
        return event.run(program, hardware)


@contextmanager
def counted() -> Iterator[list[int]]:
    """How many places each look back skipped."""
    skipped, sound = [], IssueUnit._repeat

    def repeat(self: IssueUnit, *arguments: object) -> int:
        skipped.append(sound(self, *arguments))  # type: ignore[arg-type]
        return skipped[-1]

    with patch.object(IssueUnit, "_repeat", repeat):
        yield skipped


MOST_PASSES = 400
"""Of a case: few have more, and they take most of the time; whole layers of networks are below."""
relaxed = settings(max_examples=cases(1 / 15), deadline=None, suppress_health_check=list(HealthCheck))


def agree(layer: Conv2d, hardware: Hardware) -> None:
    pixels = layer.out_height * layer.out_width
    # Each has a weight in every PE at most: most of those that are too long need not be lowered to be told.
    assume(layer.macs(1) / pixels / hardware.pes < MOST_PASSES)
    try:
        program = CHANNEL_FIRST.lower(layer, 3, hardware)[0]
    except CapacityError:
        return
    assume(len(program.streams) < MOST_PASSES)
    assert event.run(program, hardware) == one_by_one(program, hardware)


@relaxed
@given(
    layer=convs(channels=60, size=9),
    hardware=machines_of_all_kinds(6),
    how=sampled_from(["channel_first", "implicit_gemm", "explicit"]),
    more=integers(-40, 40),
)
def test_a_run_is_given_up_only_if_it_reaches_its_limit(layer: Conv2d, hardware: Hardware, how: str, more: int) -> None:
    pixels = layer.out_height * layer.out_width
    assume(layer.macs(1) / pixels / hardware.pes < MOST_PASSES)
    try:
        ready = prepared(layer, 3, hardware.having("mapping", search="estimate"), how)
    except CapacityError:
        return
    program, hardware = ready.program, ready.running
    whole = event.run(program, hardware)
    assert event.run_within(program, hardware, whole.cycles + 1) == whole
    found = event.run_within(program, hardware, whole.cycles + more)
    assert found in (None, whole)
    assert found or more <= 0


def test_a_run_that_cannot_win_is_given_up_on_its_way() -> None:
    layer, hardware = Conv2d("conv", 128, 14, 14, 128, 3, padding=1), load_hardware("tpu_v2")
    program = CHANNEL_FIRST.lower(layer, 8, hardware)[0]
    cycles = event.run(program, hardware).cycles
    with patch.object(Board, "finish", autospec=True, side_effect=Board.finish) as finish:
        assert event.run_within(program, hardware, cycles // 2) is None
    assert 0 < finish.call_count < len(program.steps) / 2


def test_a_run_is_given_up_when_the_bus_cannot_make_it() -> None:
    layer, hardware = Conv2d("conv", 512, 14, 14, 128, 1), load_hardware("tpu_v2", {"hbm.bandwidth": "20 GB/s"})
    program = CHANNEL_FIRST.lower(layer, 8, hardware)[0]
    cycles = event.run(program, hardware).cycles
    with patch.object(Board, "finish", autospec=True, side_effect=Board.finish) as finish:
        assert event.run_within(program, hardware, cycles * 9 // 10) is None
    assert 0 < finish.call_count < len(program.steps) / 2


def test_a_program_whose_run_was_given_up_is_gone_at_once() -> None:
    """Without the garbage collector, which rests while Programs are made and timed."""
    layer, hardware = Conv2d("conv", 128, 14, 14, 128, 3, padding=1), load_hardware("tpu_v2")
    program = CHANNEL_FIRST.lower(layer, 8, hardware)[0]
    held = ref(program)
    with at_rest():
        assert event.run_within(program, hardware, 1000) is None
        del program
        assert held() is None


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 8))])
@relaxed
@given(layer=convs(channels=60, size=9), hardware=machines(6))
def test_repeating_changes_no_figure(part: int, layer: Conv2d, hardware: Hardware) -> None:
    agree(layer, hardware)


@settings(relaxed, max_examples=cases(1 / 20))
@given(layer=convs(channels=60, size=9), hardware=machines(6), rate=integers(1, 4))
def test_nor_where_each_client_has_a_port(layer: Conv2d, hardware: Hardware, rate: int) -> None:
    agree(layer, hardware.with_overrides(["vector_memory.ports=separate", f"array.weights_per_cycle={rate}"]))


LAYERS = [
    ("vgg16", "conv4_1", 8, ["array.size=32", "mapping.chunks=needed"], 0.8),
    ("vgg16", "conv5_1", 8, ["array.size=64", "vector_memory.word_elements=1"], 0.8),
    ("resnet50", "layer3.1.conv2", 1, ["array.size=16", "array.weight_buffers=1"], 0.8),
    ("resnet50", "layer3.1.conv2", 8, ["array.size=32", "array.count=2", "hbm.bandwidth=100 GB/s"], 0.3),
    ("googlenet", "inception3a.branch2.1", 3, ["array.size=16", "vector_memory.word_elements=3"], 0.3),
]


@pytest.mark.parametrize(("network", "name", "batch", "changes", "share"), LAYERS)
def test_on_layers_of_networks(network: str, name: str, batch: int, changes: list[str], share: float) -> None:
    layer = next(layer for layer in load_workload(network, batch=batch).layers if layer.name == name)
    hardware = load_hardware("tpu_v2", changes)
    program = CHANNEL_FIRST.lower(layer, batch, hardware)[0]
    with counted() as skipped:
        timing = event.run(program, hardware)
    assert timing == one_by_one(program, hardware)
    assert sum(skipped) / 2 > share * len(program.streams)


def test_the_log_names_every_step_once() -> None:
    hardware = machine(4, 4, word_elements=4)
    layer = Conv2d("conv", 40, 9, 9, 12, (3, 3))
    program = CHANNEL_FIRST.lower(layer, 4, hardware)[0]
    log = event.logged(program, hardware)
    steps = [step for each in (*log.loads, *log.passes) for step in each.steps] + [move.step for move in log.moves]
    assert sorted(steps) == list(range(len(program.steps)))
    assert len(log.passes) < len(program.streams)


@relaxed
@given(owned=sets(integers(0, 60)), start=integers(0, 80), words=integers(1, 40), spacing=integers(1, 4))
def test_a_preload_takes_the_first_free_cycles(owned: set[int], start: int, words: int, spacing: int) -> None:
    port = Calendar()
    for cycle in owned:
        port.reserve(IFMAP, cycle, 1, 1)
    taken, cycle = list[int](), start
    while len(taken) < words:
        if cycle not in owned:
            taken.append(cycle)
            cycle += spacing - 1
        cycle += 1
    assert port.claim(WEIGHT, start, words, spacing) == taken[-1]
    owners = {**dict.fromkeys(owned, IFMAP), **dict.fromkeys(taken, WEIGHT)}
    assert port.ahead(0) == bytes(owners.get(each, FREE) for each in range(max(owners) + 1))
