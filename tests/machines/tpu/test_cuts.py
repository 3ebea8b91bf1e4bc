"""How M, K and N are cut: the passes of the formula, every weight, output and point once, and no more fetched."""

from __future__ import annotations

import runpy
from itertools import pairwise, product
from math import ceil, gcd
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests import ROOT
from tests.covering import covering, few
from tests.rules import rule
from tests.strategies import cases, conv, fills, layers, machine, machines, spills
from tpusim import Workload, load_hardware, load_workload, simulate
from tpusim.base.errors import CapacityError
from tpusim.machines.tpu import event
from tpusim.machines.tpu.cut.dense import Dense, DenseTaps
from tpusim.machines.tpu.cut.geometry import shape_of
from tpusim.machines.tpu.cut.plan import Plan
from tpusim.machines.tpu.cut.reduction import TapGroups
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import by_taps, plan_of
from tpusim.machines.tpu.lowering.registry import LOWERINGS, planned_of
from tpusim.machines.tpu.program.addresses import Counter, Counters, boxes_of
from tpusim.machines.tpu.sections import MappingPolicy
from tpusim.network.ops.array_op import Conv2d

relaxed = settings(max_examples=cases(1 / 6), deadline=None, suppress_health_check=list(HealthCheck))
CUTS = {
    "channel_first": TapGroups,
    "by taps": lambda shape, hardware: Dense(shape, hardware, "channel_first"),
    "dense": DenseTaps,
    "by channels": lambda shape, hardware: Dense(shape, hardware, "taps_fastest"),
}


def mapped(hardware: Hardware, **mapping: Any) -> Hardware:
    return hardware.model_copy(update={"mapping": MappingPolicy(**mapping)})


def odd(channels: int, kernel: tuple[int, int], size: tuple[int, int], stride: tuple[int, int] = (1, 1)) -> Conv2d:
    """Neither map nor kernel is square."""
    return Conv2d("odd", channels, *size, 5, kernel, stride, (1, 0), (1, 1), 1)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    sizes = st.one_of(st.just("auto"), st.integers(1, 40))
    hardware = mapped(
        draw(machines()),
        fetch=draw(st.sampled_from(["resident", "per_tap"])),
        block_m=draw(sizes),
        block_k=draw(sizes),
        block_n=draw(sizes),
        layout=draw(st.sampled_from(["plain", "least_padding"])),
        row_windows=draw(st.integers(0, 3)),
    )
    try:
        return plan_of(CUTS[draw(st.sampled_from([*CUTS]))], draw(layers()), draw(st.integers(1, 9)), hardware)
    except CapacityError:
        assume(False)
        raise


# ---- K


@pytest.mark.parametrize(
    ("order", "block_k", "sizes"),
    covering(
        2,
        ["channels_fastest", "taps_fastest"],
        ["auto", 5, 8],
        [(3, (7, 5)), (5, (2, 3)), (13, (3, 1)), (1, (4, 4)), (20, (1, 1))],
    ),
)
def test_passes_are_those_of_the_formula(order: str, block_k: int | str, sizes: tuple[int, tuple[int, int]]) -> None:
    """ceil(H_F W_F C_I / block_k) a block and column fold."""
    channels, kernel = sizes
    hardware = mapped(machine(8, 3, capacity_words=4000), k_order=order, block_k=block_k)
    program, told = LOWERINGS["implicit_gemm"].lower(odd(channels, kernel, (9, 6)), 3, hardware)
    rows = 8 if block_k == "auto" else block_k
    each = ceil(kernel[0] * kernel[1] * channels / rows)
    assert len(program.streams) == each * told.blocking.blocks * told.blocking.col_folds
    assert told.blocking.col_folds == 2


@relaxed
@given(plans())
def test_every_weight_has_one_row(plan: Plan) -> None:
    weights = [k for rows in plan.weight_rows for k in rows.coordinates]
    assert sorted(weights) == [*range(plan.shape.taps * plan.shape.channels)]
    for each in plan.passes:
        ends = [run.first_lane for run in each.runs] + [each.rows]
        assert [b - a for a, b in pairwise(ends)] == [len(run.channels) for run in each.runs]
        assert each.rows <= plan.hardware.array.rows


@relaxed
@given(plans())
def test_a_run_finds_its_channels_and_points_in_its_place(plan: Plan) -> None:
    for chunk in plan.chunks:
        for run in (run for each in chunk.passes for run in each.runs):
            place = chunk.places[run.place]
            copies, size = len(place.first_lanes), len(place.channels)
            for row, channel in enumerate(run.channels, run.first_lane):
                assert row < place.first_lanes[0] + copies * size
                assert place.channels[row % size] == channel
                assert not place.taps or place.taps[row % size] == run.tap


@pytest.mark.parametrize(
    ("channels", "kernel", "rows", "places"), [(3, 7, 75, 1), (64, 3, 128, 1), (96, 5, 128, 3), (192, 3, 128, 3)]
)
def test_as_few_copies_as_the_passes_allow(channels: int, kernel: int, rows: int, places: int) -> None:
    plan = plan_of(CUTS["by taps"], conv(channels, 9, 8, kernel), 8, load_hardware("tpu_v2"))
    assert isinstance(plan.cut, Dense)
    (whole,) = plan.cut.chunks(plan.cut.groups, 1)
    assert (plan.cut.block_k, len(whole.places)) == (rows, places)
    assert places == min(len(plan.passes), channels // gcd(channels, rows))


def test_what_several_places_hold_is_fetched_for_each() -> None:
    """192 channels on 128 rows: three places, of which two hold each channel."""
    layer, hardware = conv(192, 9, 8, 3), mapped(load_hardware("tpu_v2"), chunks="needed")
    once = 192 * 9 * 9 * 8 * 4
    for name, times in (("channel_first", 1), ("implicit_gemm", 2)):
        assert (
            sum(step.hbm_bytes for step in fills(LOWERINGS[name].lower(layer, 8, hardware)[0], "ifmap")) == times * once
        )


def test_conv1_of_resnet50_takes_less_than_half() -> None:
    layer = next(each for each in load_workload("resnet50", batch=8).layers if each.name == "conv1")
    cycles = {}
    for name in ("channel_first", "implicit_gemm"):
        hardware = load_hardware("tpu_v2")
        cycles[name] = event.run(LOWERINGS[name].lower(layer, 8, hardware)[0], hardware).cycles
    assert cycles["implicit_gemm"] < cycles["channel_first"] / 2


def test_copies_that_do_not_fit_make_smaller_blocks_then_chunks_and_then_do_not_fit() -> None:
    """Ever less memory for a layer whose 14 passes want 12 places, a channel each; chunks of fewer hold fewer."""
    layer, found = conv(12, 6, 4, 3), []
    for words in (4000, 400, 60):
        hardware = mapped(machine(8, 4, capacity_words=words), chunks="needed")
        plan = plan_of(CUTS["by channels"], layer, 2, hardware)
        found.append((max(len(chunk.places) for chunk in plan.chunks), plan.blocks[0].words))
    (all_places, whole), (places, smaller), (few, _) = found
    assert len(plan.passes) == 14
    assert all_places == places == 12 > few
    assert whole > smaller
    with pytest.raises(CapacityError, match=r"vector_memory.capacity to at least \d+ B"):
        plan_of(CUTS["by channels"], layer, 2, machine(8, 4, capacity_words=4))


# ---- M and N


@relaxed
@given(plans())
def test_every_output_is_in_one_rectangle(plan: Plan) -> None:
    shape = plan.shape
    groups = -(-shape.word_images // plan.word_fill)
    times = np.zeros((shape.row.extent, shape.col.extent, groups), np.int64)
    for block in plan.blocks:
        for part in block.rectangles:
            times[part.rows.start : part.rows.stop, part.cols.start : part.cols.stop][
                ..., part.groups.start : part.groups.stop
            ] += 1
        assert block.words == sum(part.words for part in block.rectangles)
    assert (times == 1).all()
    wanted = plan.hardware.mapping.block_m
    if isinstance(wanted, int):
        assert [block.words for block in plan.blocks[:-1]] == [wanted] * (len(plan.blocks) - 1)
        assert plan.blocks[-1].words <= wanted


def test_a_block_may_begin_and_end_within_a_row() -> None:
    """Ten words of rows of seven: spilled as the end of a row, whole rows and the beginning of one."""
    hardware = mapped(machine(8, 4, word_elements=4, capacity_words=2000), block_m=10, block_n=3)
    program, _ = LOWERINGS["implicit_gemm"].lower(odd(5, (3, 2), (7, 8)), 4, hardware)
    assert [stream.words for stream in program.streams] == [10] * 4 * 8 + [9] * 8
    assert {stream.cols for stream in program.streams} == {3, 2}
    assert {len(step.parts) for step in spills(program)} == {2, 3}


@given(st.lists(st.integers(1, 4), max_size=3), st.data())
def test_the_boxes_of_a_window_are_its_positions_in_order(lengths: list[int], data: st.DataObject) -> None:
    total = int(np.prod(lengths, dtype=int))
    first = data.draw(st.integers(0, total))
    window = range(first, data.draw(st.integers(first, total)))
    positions = [*product(*map(range, lengths))][window.start : window.stop]
    assert [each for box in boxes_of(tuple(lengths), window) for each in product(*box)] == positions


@given(st.data())
def test_a_window_makes_the_accesses_of_its_positions(data: st.DataObject) -> None:
    draw = data.draw
    counters = tuple(
        Counter(draw(st.integers(1, 4)), draw(st.integers(-3, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 4)), 1)
        for _ in range(3)
    )
    total = Counters(0, counters).words
    first = draw(st.integers(0, total - 1))
    window = range(first, draw(st.integers(first + 1, total)))
    counts = [*product(*(range(each.length) for each in counters))][window.start : window.stop]
    real = [all(0 <= c.start + n * c.step < c.extent for c, n in zip(counters, at, strict=True)) for at in counts]
    pattern = Counters(0, counters, window)
    assert (pattern.words, pattern.accesses) == (len(window), sum(real))


# ---- fetch


@pytest.mark.parametrize("name", ["channel_first", "channel_last", "implicit_gemm"])
@pytest.mark.parametrize("stride", [1, 2, 4])
def test_per_tap_fetches_what_each_tap_stands_on(name: str, stride: int) -> None:
    """H_F W_F / stride^2 times the map where it divides; a lane holds the words of a pass, no more (paper Fig. 8)."""
    layer = conv(32, 16 + 3 - stride, 8, 3, stride=stride)
    hardware = mapped(load_hardware("tpu_v2"), fetch="per_tap")
    program, told = LOWERINGS[name].lower(layer, 16, hardware)
    outputs = (16 // stride) ** 2
    assert layer.outputs(1) == 8 * outputs
    assert sum(step.hbm_bytes for step in fills(program, "ifmap")) == 9 * outputs * 32 * 16 * 4
    held = [part.words for step in fills(program, "ifmap") for part in step.parts]
    assert max(held) <= max(stream.words for stream in program.streams)
    # Each of 9 taps comes once, to one place a pass; two words a point.
    assert sum(held) == len(program.streams) // told.blocking.col_folds * outputs * 2 // told.blocking.blocks


def test_per_tap_fills_tap_after_tap() -> None:
    """Under channel-first: first <1, 1>, then <1, 2>, ... of every block, one chunk each."""
    layer = conv(8, 9, 4, 3, stride=2)
    plan = plan_of(TapGroups, layer, 4, mapped(machine(8, 4, capacity_words=4000), fetch="per_tap"))
    assert [chunk.taps for chunk in plan.chunks] == [{(i, j)} for i in range(3) for j in range(3)]
    patches = [plan.patch(plan.blocks[0], chunk) for chunk in plan.chunks]
    assert {patch.words for patch in patches} == {plan.blocks[0].words}


def test_a_stride_costs_residence_and_not_per_tap() -> None:
    """What scripts/fetch_policies prints, of one of its layers: the order of K is not what matters."""
    figures = runpy.run_path(str(ROOT / "scripts" / "fetch_policies"))["figures"]
    found = {
        (order, fetch): [figures((28, 128, 128, 3), stride, order, fetch, []) for stride in (1, 4)]
        for order in ("channels_fastest", "taps_fastest")
        for fetch in ("resident", "per_tap")
    }
    for (_, fetch), (dense, strided) in found.items():
        assert (strided.utilization / dense.utilization > 0.8) == (fetch == "per_tap")
        assert (strided.ifmap_bytes / dense.ifmap_bytes < 1 / 12) == (fetch == "per_tap")


# ---- before it is written down


@pytest.mark.parametrize(("name", "fetch"), covering(1, ["channel_last", "implicit_gemm"], ["resident", "per_tap"]))
def test_how_many_steps_there_will_be(name: str, fetch: str) -> None:
    layers = {each.name: each for each in load_workload("resnet50", batch=8).layers}
    for layer in (layers["conv1"], layers["layer1.0.conv2"], layers["layer3.0.conv2"]):
        hardware = mapped(load_hardware("tpu_v2"), fetch=fetch)
        planned, program = planned_of(layer, 8, hardware, name)[0], LOWERINGS[name].lower(layer, 8, hardware)[0]
        assert planned is not None
        assert planned.passes == len(program.streams)
        moves = len(fills(program, "ifmap")) + len(fills(program, "filter")) + len(spills(program))
        assert moves / 2 <= planned.transfers <= 2 * moves


@rule("T47")
@pytest.mark.parametrize(
    ("taps", "cols", "channels", "passes"),
    few(3, [
        # 3 x 3 taps of 8 channels, four of which fit a pass of 32 rows: 5 stacked passes where nothing is whole.
        (9, 3, 8, 3),
        # 2 x 2 windows of 2 x 2 taps, a pass each; 3 x 2 of 1 x 2, half full; 2 of 2 x 3, two passes each.
        (4, 2, 8, 4), (2, 2, 8, 6), (6, 3, 8, 4),
        # Windows of 5 channels, the second of which has three: as many passes as five would take, six taps in each.
        (9, 3, 5, 4), (2, 1, 5, 12),
    ]),
)  # fmt: skip
def test_windows_of_taps_are_whole(taps: int, cols: int, channels: int, passes: int) -> None:
    """What they hold beyond the filter has no weight, and comes from nowhere."""
    block = {"block.taps": taps, "block.tap_cols": cols, "block.in_channels": channels}
    changes = {"array.size": 32, "vector_memory.word_elements": 1, "mapping.multi_tile": "dense"}
    changes |= {f"mapping.{name}": value for name, value in block.items()}
    hardware = load_hardware("tiny_4x4", [f"{path}={value}" for path, value in changes.items()])
    layer = Conv2d("c", 8, 6, 5, 6, (3, 3), padding=(1, 1))
    cut = by_taps(shape_of(layer, 2, hardware), hardware)
    assert cut.groups == passes
    result = simulate(Workload("one", 2, (layer,)), hardware, engine="both")
    assert result.correct
    assert result.layers[0].hbm_read_bytes < 2 * 8 * 6 * 5 * 2 * 4 * 9
