"""The timeline: the accounts, slice by slice, and the cycles that the register engine finds by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.rules import rule
from tests.strategies import cases, convs, layers, machine, machines, small_layers
from tpusim import load_hardware, load_workload
from tpusim.base.errors import CapacityError
from tpusim.flow.verify import operands_of
from tpusim.machines.tpu import event
from tpusim.machines.tpu.definition import CLIENTS
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.observation.timeline import Cycles, Timeline, TimeSlice, Timing, Track
from tpusim.machines.tpu.program.program import Program
from tpusim.network.ops.array_op import Conv2d, Gemm

MOST_PASSES = 1000
relaxed = settings(max_examples=cases(1 / 8), deadline=None, suppress_health_check=list(HealthCheck))


def lowered(layer: Conv2d | Gemm, batch: int, hardware: Hardware) -> Program:
    """Assumes that it fits, and in passes that do not take most of the time."""
    try:
        program = CHANNEL_FIRST.lower(layer, batch, hardware)[0]
    except CapacityError:
        assume(False)
        raise
    assume(len(program.streams) < MOST_PASSES)
    return program


def slices_add_up(timeline: Timeline, timing: Timing) -> None:
    """Of every unit the slices called by a name add up to what is reported under it, and none overlaps another."""
    assert timeline.cycles == timing.cycles
    for unit, account in timing.units.items():
        sums = timeline.tracks[unit].sums()
        idle = timing.cycles - sum(sums.values())
        assert {**{name: sums.get(name, 0) for name in account}, "idle": idle} == account, unit
        assert {name for name, cycles in sums.items() if cycles} <= set(account)
    for name, track in timeline.tracks.items():
        assert (track.starts < track.ends).all(), name
        assert (track.ends[:-1] <= track.starts[1:]).all(), name
        assert not len(track) or (track.starts[0] >= 0 and track.ends[-1] <= timing.cycles), name


# ---- tracks by hand


def alike(starts: Cycles, cycles: int, steps: Cycles) -> Track:
    """A track of slices of one name, equally long."""
    return Track.in_order(("a",), np.zeros_like(starts), starts, np.full_like(starts, cycles), steps)


def test_pieces_become_slices_in_order() -> None:
    """Those of one name and step that touch are one; empty ones are none."""
    starts, none = np.array([0, 4, 8]), np.full(3, -1)
    kinds, cycles = np.repeat([0, 1], 3), np.array([1, 0, 1, 3, 4, 2])
    track = Track.in_order(("b", "a"), kinds, np.append(starts + 3, starts), cycles, np.append(none, np.full(3, 7)))
    assert list(track) == [
        TimeSlice(0, 3, "a", 7),
        TimeSlice(3, 4, "b", -1),
        TimeSlice(4, 10, "a", 7),
        TimeSlice(11, 12, "b", -1),
    ]
    assert track.sums() == {"a": 9, "b": 2}


def test_slices_of_two_steps_stay_two() -> None:
    assert len(alike(np.array([0, 2]), 2, np.array([0, 1]))) == 2


def test_nothing_makes_an_empty_track() -> None:
    track = alike(np.array([], int), 5, np.array([], int))
    assert (list(track), track.sums(), list(track.clipped(0, 9))) == ([], {"a": 0}, [])


def test_clipping_cuts_slices_at_the_edges() -> None:
    track = alike(np.array([0, 10, 20]), 5, np.full(3, -1))
    assert [(each.start, each.end) for each in track.clipped(3, 21)] == [(3, 5), (10, 15), (20, 21)]
    assert len(track.clipped(5, 10)) == len(track.clipped(3, 3)) == 0


# ---- the pass of docs/timing.md, section 7


def by_hand() -> Timeline:
    hardware = machine(4, 4, word_elements=2)
    return event.record(CHANNEL_FIRST.lower(Gemm("gemm", 4, 4, 4), 1, hardware)[0], hardware).timeline()


PASS_BY_HAND = {
    "hbm": [(0, 1, "busy"), (1, 2, "busy"), (2, 24, "blocked"), (24, 25, "busy"), (25, 27, "port_stall")],
    "dma_0": [(0, 8, "filter fill"), (24, 26, "ofmap spill")],
    "dma_1": [(1, 12, "ifmap fill")],
    "queue": [
        (0, 7, "starved"), (7, 8, "port_stall"), (8, 12, "port_stall"), (12, 24, "blocked"), (24, 25, "starved"),
        (25, 26, "port_stall"),
    ],
    "preload": [(0, 7, "starved"), (7, 8, "port_stall"), (8, 12, "busy")],
    "stream": [(14, 17, "stream")],
    "systolic_array": [(0, 7, "starved"), (7, 13, "port_stall"), (13, 17, "busy")],
    "drain": [(21, 24, "drain")],
    "vector_unit": [],
    "port": [
        (6, 8, "dma"), (8, 9, "weight"), (9, 10, "dma"), (10, 11, "weight"), (11, 12, "dma"), (14, 15, "ifmap"),
        (16, 17, "ifmap"), (21, 22, "result"), (23, 24, "result"), (24, 26, "dma"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", PASS_BY_HAND)
def test_the_pass_worked_by_hand(name: str) -> None:
    assert [(each.start, each.end, each.name) for each in by_hand().tracks[name]] == PASS_BY_HAND[name]


def test_every_track_is_in_the_pass_by_hand() -> None:
    assert list(by_hand().tracks) == list(PASS_BY_HAND)


# ---- against the accounts


@rule("T138")
@relaxed
@given(hardware=machines(), layer=layers(), batch=st.integers(1, 9))
def test_slices_add_up_to_the_accounts(hardware: Hardware, layer: Conv2d | Gemm, batch: int) -> None:
    program = lowered(layer, batch, hardware)
    slices_add_up(event.record(program, hardware).timeline(), event.run(program, hardware))


@pytest.mark.long
@pytest.mark.long
@settings(relaxed, max_examples=cases(1 / 12))
@given(hardware=machines(6), layer=convs(channels=60, size=9))
def test_slices_of_passes_that_repeat(hardware: Hardware, layer: Conv2d) -> None:
    program = lowered(layer, 3, hardware)
    slices_add_up(event.record(program, hardware).timeline(), event.run(program, hardware))


@relaxed
@given(hardware=machines(), layer=layers(), edges=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_part_of_a_timeline_is_the_timeline_clipped(
    hardware: Hardware, layer: Conv2d | Gemm, edges: tuple[float, float]
) -> None:
    run = event.record(lowered(layer, 4, hardware), hardware)
    first, stop = sorted(int(edge * run.cycles) for edge in edges)
    part, whole = run.timeline(first, stop), run.timeline()
    for name, track in whole.tracks.items():
        assert list(part.tracks[name].clipped(first, stop)) == list(track.clipped(first, stop)), name


LAYERS = [
    ("resnet50", "conv1", "tpu_v2", []),
    ("resnet50", "layer1.0.conv2", "tpu_v2", []),
    ("resnet50", "layer4.2.conv2", "tpu_v3_core", []),
    ("resnet50", "layer2.0.downsample", "tpu_v2", ["vector_memory.word_elements=1"]),
    ("resnet50", "layer3.1.conv2", "tpu_v2", ["array.size=64", "array.weight_buffers=1"]),
    ("alexnet", "fc6", "tpu_v2", []),
    ("resnet50", "layer1.0.conv2", "tpu_v2", ["vector_memory.ports=separate", "array.weights_per_cycle=8"]),
]


@pytest.mark.parametrize(("network", "name", "base", "changes"), LAYERS)
def test_layers_of_networks(network: str, name: str, base: str, changes: list[str]) -> None:
    hardware = load_hardware(base, changes)
    layer = next(layer for layer in load_workload(network, batch=8).layers if layer.name == name)
    program = CHANNEL_FIRST.lower(layer, 8, hardware)[0]
    slices_add_up(event.record(program, hardware).timeline(), event.run(program, hardware))


# ---- against the register engine


@rule("T10")
@settings(relaxed, max_examples=cases(1 / 16))
@given(hardware=machines(6), layer=small_layers(), batch=st.integers(1, 4))
def test_the_ports_are_those_of_lane_0_in_the_register_engine(
    hardware: Hardware, layer: Conv2d | Gemm, batch: int
) -> None:
    """Cycle by cycle, who owns each."""
    pytest.importorskip("numba")
    from tpusim.machines.tpu.register import RegisterMachine

    program = lowered(layer, batch, hardware)
    run = event.record(program, hardware)
    assume(run.cycles < 2000)
    tracks = [track for name, track in run.timeline().tracks.items() if name.startswith("port")]
    owners = [{cycle: each.name for each in track for cycle in range(each.start, each.end)} for track in tracks]
    running = RegisterMachine(program, hardware, operands_of(layer, batch, seed=0))
    while not running.finished:
        now = running.now
        running.run_to(now + 1)
        told = [CLIENTS[client] for client in running.lanes.obeyed["client"][:, 0]]
        assert told == [owner.get(now, "idle") for owner in owners], now
