"""Explicit im2col: the lowered matrix in HBM is NumPy's own, nothing moves twice, and both engines agree on it all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from math import gcd, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agreed_timing, clocked
from tests.agreement.test_agreement import asked_for, short, suppose, with_capacity
from tests.agreement.test_corruption import change, edit_part, shift_items, shift_lanes
from tests.checks import check_layer
from tests.covering import covering, few
from tests.rules import rule
from tests.strategies import cases, conv, convs, dram, fills, machine, machines, small_layers
from tests.written import by_hand
from tpusim import reference, simulate
from tpusim.base.errors import CapacityError, CheckFailed
from tpusim.flow.verify import expected, operands_of
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.cut.traffic import in_layout
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.lowering.explicit import EXPLICIT, LOWERED
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Stream
from tpusim.machines.tpu.program.transfers import Fill, Part, Spill, Transfer
from tpusim.machines.tpu.runs.prepared import transformation_cycles
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.network.workload_file import load_workload
from tpusim.reference import Tensor
from tpusim.result.vocabulary.figures import FIGURES

CASES = cases(1 / 14)
"""Random machines and layers; for a proof by hand, many more."""
SLOW = {"deadline": None, "suppress_health_check": list(HealthCheck)}
ORDERS = ("overlapped", "before")


def ordered(hardware: Hardware, order: str) -> Hardware:
    return hardware.model_copy(update={"mapping": hardware.mapping.model_copy(update={"transformation": order})})


def fitted(layer: Op, batch: int, hardware: Hardware) -> tuple[Program, Hardware]:
    """The Program and its machine, which has the least memory that does if the one given has too little."""
    try:
        return EXPLICIT.lower(layer, batch, hardware)[0], hardware
    except CapacityError as error:
        need = asked_for(error)
        with pytest.raises(CapacityError):
            EXPLICIT.lower(layer, batch, with_capacity(hardware, need - 1))
        enough = with_capacity(hardware, need)
        return EXPLICIT.lower(layer, batch, enough)[0], enough


def unfolded(layer: Op, ifmap: Tensor) -> Tensor:
    """The lowered matrix [k, row, col, image] by NumPy alone: windows of the padded map."""
    conv, _ = layer.convolution(ifmap.shape[-1])
    (sh, sw), (dh, dw), (kh, kw) = conv.stride, conv.dilation, conv.kernel
    padded = np.pad(ifmap, ((0, 0), *conv.pads, (0, 0)))
    reach = ((kh - 1) * dh + 1, (kw - 1) * dw + 1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(1, 2))[:, ::sh, ::sw, :, ::dh, ::dw]
    of_group = windows.reshape(conv.groups, -1, *windows.shape[1:])
    return np.asarray(of_group.transpose(0, 5, 6, 1, 2, 3, 4).reshape(-1, *windows.shape[1:4]), np.float32)


# ---- the engines


@settings(max_examples=CASES, **SLOW)
@given(
    layer=small_layers(),
    batch=st.integers(1, 9),
    hardware=machines(16, st.sampled_from([1, 2, 3, 4, 8, 16])),
    order=st.sampled_from(ORDERS),
)
def test_both_engines_agree_and_the_values_are_right(layer: Op, batch: int, hardware: Hardware, order: str) -> None:
    """To the cycle, in every account, every access and every element, those of the lowered matrix too."""
    suppose(layer.macs(batch) / hardware.pes < 800)
    program, hardware = fitted(layer, batch, ordered(hardware, order))
    timing = short(program, hardware)
    operands = operands_of(layer, batch, seed=3)
    _, written = clocked(program, hardware, operands, timing)
    assert sum(timing.bus.values()) == timing.cycles - timing.units["hbm"]["idle"]
    np.testing.assert_array_equal(written["ofmap"], expected(layer, operands))
    if LOWERED in program.written:
        assert not isinstance(layer, Gemm)
        np.testing.assert_array_equal(written[LOWERED], unfolded(layer, operands["ifmap"]))
    assert check_layer(layer, batch, program, hardware, seed=3).mismatched == 0


@settings(max_examples=cases(1 / 20), **SLOW)
@given(layer=convs(), batch=st.integers(1, 9), hardware=machines(), order=st.sampled_from(ORDERS))
def test_every_lowered_word_is_written_and_checked(layer: Conv2d, batch: int, hardware: Hardware, order: str) -> None:
    suppose(layer.macs(batch) / hardware.pes < 800)
    program, hardware = fitted(layer, batch, ordered(hardware, order))
    check_program(program, hardware)
    operands = operands_of(layer, batch, seed=3)
    verdict = check_layer(layer, batch, program, hardware, seed=3)
    assert (verdict.checked, verdict.mismatched, verdict.first) == (layer.outputs(batch), 0, None)
    matrix = unfolded(layer, operands["ifmap"])
    if LOWERED in program.written:
        np.testing.assert_array_equal(datapath.run(program, hardware, operands)[LOWERED], matrix)
        assert (verdict.intermediates_checked, verdict.intermediates_mismatched) == (matrix.size, 0)
        assert_read_when_written(program)
    whole = tuple(map(range, matrix.shape))
    oracle = reference.TENSORS[LOWERED].compute(layer, operands, whole)
    np.testing.assert_array_equal(oracle, matrix)


def assert_read_when_written(program: Program) -> None:
    """Each fill of the lowered matrix waits for the last spill that writes any of its elements, or for a later one."""
    shape = program.tensor(LOWERED).shape
    last = np.full(shape, -1)
    for index, step in enumerate(program.rows):
        if isinstance(step, Fill | Spill) and step.tensor.name == LOWERED:
            places = [elements(part, shape) for part in step.parts]
            if isinstance(step, Spill):
                for place in places:
                    last[place] = index
            else:
                assert max(program.sources(step)) >= max(int(last[place].max(initial=-1)) for place in places)


def elements(part: Part, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """The coordinates of the elements of a part, axis by axis, as far as they are inside the tensor."""
    counters = [part.lane, *((each,) for each in part.items)]
    at = [np.zeros([1] * len(counters), np.int64) for _ in shape]
    for number, alongs in enumerate(counters):
        for axis, coordinates in alongs:
            at[axis] = at[axis] + np.array(coordinates).reshape(
                [-1 if n == number else 1 for n in range(len(counters))]
            )
    every = np.broadcast_arrays(*at)
    inside = np.logical_and.reduce([(each >= 0) & (each < size) for each, size in zip(every, shape, strict=True)])
    return tuple(each[inside] for each in every)


def test_the_windows_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is optional", exc_type=ImportError)
    layer = replace(conv(3, 9, 4, 3, stride=2, padding=1), dilation=(2, 1), kernel=(2, 3))
    ifmap, _ = reference.operands(layer, 2, seed=0).values()
    unfold = torch.nn.Unfold(layer.kernel, layer.dilation, layer.padding, layer.stride)
    columns = unfold(torch.from_numpy(np.ascontiguousarray(ifmap)).double().permute(3, 0, 1, 2)).numpy()
    by_channel = columns.reshape(2, 3, 6, layer.out_height, layer.out_width)
    matrix = by_channel.transpose(2, 1, 3, 4, 0).reshape(18, layer.out_height, layer.out_width, 2)
    np.testing.assert_array_equal(unfolded(layer, ifmap), matrix)


# ---- what is moved


@settings(max_examples=cases(2 / 5), **SLOW)
@given(
    layer=convs(channels=12), images=st.integers(1, 3), order=st.sampled_from(ORDERS), burst=st.sampled_from([4, 64])
)
def test_the_bytes_are_those_of_the_formula(layer: Conv2d, images: int, order: str, burst: int) -> None:
    """A + 2L + O and the filter as often as it comes, where whole rows fit and the lowered matrix is read once; each
    run in whole bursts.
    """
    assume(all((k - 1) * d + 1 >= s for k, s, d in zip(layer.kernel, layer.stride, layer.dilation, strict=True)))
    hardware, batch = (
        ordered(machine(8, 16, word_elements=4, capacity_words=40_000, hbm={"burst_bytes": burst}), order),
        4 * images,
    )
    program = EXPLICIT.lower(layer, batch, hardware)[0]
    for step in program.rows:
        if isinstance(step, Fill | Spill) and step.tensor.name != "filter":
            least, most = in_bursts(step, burst)
            # Of an ifmap whose columns are taken in steps, the last of a row never shares a burst with the next row.
            assert least <= step.hbm_bytes
            assert step.hbm_bytes <= most or step.tensor.name == "ifmap"
    matrix, filters = layer.outputs(batch) // layer.out_channels * lowered_rows(layer), weights(program)
    if LOWERED in program.written and burst == 4:
        moved = program.use.hbm_read_bytes + program.use.hbm_write_bytes
        assert moved == 4 * (stored(layer, batch) + 2 * matrix + layer.outputs(batch) + filters)


@settings(max_examples=cases(1 / 5), **SLOW)
@given(layer=convs(channels=12), images=st.integers(1, 3))
def test_a_lowered_matrix_on_chip_never_is_in_hbm(layer: Conv2d, images: int) -> None:
    """A + O and the filter as often as it comes, where all of it fits; the lanes hold, and the array reads, every row
    of it once.
    """
    assume(all((k - 1) * d + 1 >= s for k, s, d in zip(layer.kernel, layer.stride, layer.dilation, strict=True)))
    assume(layer.kernel != (1, 1) and layer.out_channels // layer.groups <= 8)
    hardware, batch = (
        ordered(machine(8, 16, word_elements=4, capacity_words=40_000, hbm={"burst_bytes": 4}), "on_chip"),
        4 * images,
    )
    program, told = EXPLICIT.lower(layer, batch, hardware)
    assume(told.blocking is not None and told.blocking.blocks == told.blocking.chunks == 1)
    assert [tensor.name for tensor in program.tensors] == ["ifmap", "filter", "ofmap"]
    moved = program.use.hbm_read_bytes + program.use.hbm_write_bytes
    assert moved == 4 * (stored(layer, batch) + layer.outputs(batch) + weights(program))
    read = sum(step.rows * step.words for step in program.rows if isinstance(step, Stream))
    assert read == layer.outputs(batch) // layer.out_channels * lowered_rows(layer) // 4


def weights(program: Program) -> int:
    """All that come, however often."""
    return sum(step.hbm_bytes for step in fills(program, "filter")) // 4


def stored(layer: Conv2d, batch: int) -> int:
    """Elements of the ifmap from the first to the last that a tap touches, as far apart as taps and outputs are."""
    pixels = layer.in_channels * batch
    sides = (layer.in_height, layer.in_width), layer.kernel, layer.stride, layer.pads, layer.dilation
    for outputs, size, kernel, stride, (before, _), dilation in zip(
        (layer.out_height, layer.out_width), *sides, strict=True
    ):
        pitch = gcd(stride, dilation) if kernel > 1 else stride
        touched = np.arange(0, (outputs - 1) * stride + (kernel - 1) * dilation + 1, pitch) - before
        pixels *= int(np.count_nonzero((touched >= 0) & (touched < size)))
    return pixels


def in_bursts(step: Fill | Spill, burst: int) -> tuple[int, int]:
    """The fewest and the most bytes of its elements, where they lie in HBM one after another: row, column, channel,
    image. Those are the same unless fewer bytes than a burst lie between two runs, which then may be moved as one.
    """
    channels, _, cols, images = step.tensor.shape
    places = [elements(part, step.tensor.shape) for part in step.parts]
    at = np.unique(np.concatenate([((row * cols + col) * channels + c) * images + n for c, row, col, n in places]))
    runs = np.split(at, np.flatnonzero(np.diff(at) != 1) + 1)
    most = sum(-(-4 * len(run) // burst) * burst for run in runs if len(run))
    gaps = 4 * (np.diff(at) - 1)
    return (4 * len(at) if ((gaps > 0) & (gaps < burst)).any() else most), most


def lowered_rows(layer: Conv2d) -> int:
    return layer.in_channels * prod(layer.kernel)


def test_strips_wider_than_the_lowered_matrix_has_them() -> None:
    """Two outputs, in strips of the map of two columns each, are two strips of the lowered matrix of one."""
    hardware = machine(1, 1, word_elements=2, capacity_words=12).with_overrides(["mapping.strips=one_image"])
    layer = Conv2d("narrow", 1, 1, 4, 1, (1, 2), dilation=(1, 2))
    assert simulate(Workload("w", 1, (layer,)), hardware, lowering="explicit", engine="both").correct


def test_a_matrix_that_does_not_stay_is_read_again_and_that_is_said() -> None:
    """A filter of several column folds that goes outside: each of them reads the whole matrix."""
    small = machine(8, 8, word_elements=4, capacity_words=90, mapping={"loop_order": "filter_major"})
    hardware = small.with_overrides(["mapping.block.rows=3"])
    program, explanation = EXPLICIT.lower(conv(8, 9, 24, 3), 4, hardware)
    read, written = (
        sum(step.hbm_bytes for step in program.rows if isinstance(step, kind) and step.tensor.name == LOWERED)
        for kind in (Fill, Spill)
    )
    assert read == 2 * written
    assert "written once and read 2 times" in explanation.aspects["lowered"]
    once = EXPLICIT.lower(conv(8, 9, 24, 3), 4, machine(8, 8, word_elements=4))[1]
    assert once.aspects["lowered"].endswith("written and read once")


@pytest.mark.parametrize("words", [400, 90])
def test_columns_that_come_again_are_told(words: int) -> None:
    layer, hardware = conv(8, 20, 8, 3), machine(8, 8, word_elements=4, capacity_words=words)
    program, explanation = EXPLICIT.lower(layer, 4, hardware)
    brought = sum(step.hbm_bytes for step in program.rows if isinstance(step, Fill) and step.tensor.name == "ifmap")
    more = 100 * (brought / (4 * stored(layer, 4)) - 1)
    assert bool(more) == (words == 90)
    told = f"; columns that parts share come again, {more:.1f} % more" if more else "x 18 of 18 x 18 outputs at a time"
    assert told in explanation.aspects["window"]


# ---- what needs no transformation


@pytest.mark.parametrize(
    "layer", [conv(5, 6, 7, 1), conv(6, 6, 6, 1, groups=3), Gemm("g", m=9, n=5, k=7)], ids=["1x1", "grouped", "gemm"]
)
def test_an_ifmap_that_is_its_own_lowered_matrix_is_not_transformed(layer: Op) -> None:
    program, explanation = EXPLICIT.lower(layer, 3, machine())
    assert (program, explanation) == CHANNEL_FIRST.lower(layer, 3, machine())


@pytest.mark.parametrize("changes", [{"stride": 2}, {"padding": 1}, {"size": 5, "kernel": 2}])
def test_any_other_is(changes: dict[str, Any]) -> None:
    program, _ = EXPLICIT.lower(conv(5, **{"size": 6, "kernel": 1, **changes}, out_channels=7), 3, machine())
    assert LOWERED in program.written


# ---- what is told


@rule("T156")
def test_time_and_size_of_the_transformation() -> None:
    """Before the product, it is done when the last spill leaves the bus; what is not transformed has none."""
    layer, hardware = conv(6, 9, 7, 3), ordered(machine(8, 8, sequencer={"launch_cycles": 17}), "before")
    result = simulate(
        Workload("net", 3, (layer, replace(conv(5, 6, 7, 1), name="plain"))),
        hardware,
        lowering="explicit",
        engine="both",
    )
    transformed, plain = result.layers
    assert transformed.lowered_bytes == 4 * 54 * 7 * 7 * 3
    program = EXPLICIT.lower(layer, 3, hardware)[0]
    moves = event.record(program, hardware).log.moves
    last = max(at for at, move in enumerate(moves) if program.rows[move["step"]].label == "lowered spill")
    assert (
        transformed.transformation_cycles
        == moves[last]["ended"] - 17
        == transformation_cycles(program, agreed_timing(program, hardware))
    )
    assert transformed.transformation_share == transformed.transformation_cycles / transformed.cycles
    assert (plain.lowered_bytes, plain.transformation_cycles, plain.transformation_share) == (0, 0, 0)
    total = result.total
    assert total.lowered_bytes == transformed.lowered_bytes
    assert total.transformation_share == pytest.approx(total.transformation_cycles / total.cycles)
    assert total.intermediates_checked == 54 * 7 * 7 * 3


@pytest.mark.parametrize("order", few(1, reversed(ORDERS)))
def test_drafts_that_share_a_transformation_are_what_each_is_alone(order: str) -> None:
    """Before the product the window stands at one place; beside it, behind what each draft holds."""
    layer, hardware = Conv2d("conv", 9, 8, 8, 20, 3, padding=1), ordered(machine(8, 4, capacity_words=200), order)
    searching = hardware.having("mapping", search="simulate")
    together = EXPLICIT.drafts(layer, 5, searching)
    assert len(together) > 3
    assert len({draft.units.work for draft in together}) < len(together)
    # Each draft alone takes a search of its own: the first, which share most, and some of all others.
    for place, draft in [*enumerate(together)][:2] + [*enumerate(together)][2::24]:
        assert draft.lower()[0] == EXPLICIT.drafts(layer, 5, searching)[place].lower()[0]


def test_the_size_of_the_lowered_matrix_is_told_without_the_padding_of_its_channels() -> None:
    layer, hardware = conv(5, 9, 8, 3), machine(8, 8)
    plain, padded = (
        simulate(Workload("net", 3, (layer,)), each, lowering="explicit").total
        for each in (hardware, hardware.with_overrides({"hbm.channel_multiple": 8}))
    )
    assert padded.lowered_bytes == plain.lowered_bytes == 4 * 45 * 7 * 7 * 3
    assert padded.hbm_write_bytes > plain.hbm_write_bytes
    assert "without padding" in FIGURES["lowered_bytes"].meaning


def test_beside_the_product_takes_no_longer_than_before_it() -> None:
    layers = [layer for layer in load_workload("resnet18", batch=8).layers if layer.name == "layer3.1.conv1"]
    cycles = {
        order: simulate(
            Workload("some", 8, tuple(layers)),
            ordered(load_hardware("tpu_v2"), order),
            lowering="explicit",
            check=False,
        ).total.cycles
        for order in ("before", "overlapped")
    }
    assert cycles["overlapped"] < cycles["before"]


# ---- the check bites

LAYER, BATCH = conv(6, 7, 7, 3), 2
MACHINE = machine(8, 8, capacity_words=100)


def edit_feed(spill: Spill, **changes: Any) -> Spill:
    """The address pattern of the first lane group of the first part, with changes."""
    part, *others = spill.parts
    assert part.feed is not None
    group, *groups = part.feed.groups
    feed = replace(part.feed, groups=(group._replace(pattern=group.pattern._replace(**changes)), *groups))
    return replace(spill, parts=(part._replace(feed=feed), *others))


def first_pattern(spill: Spill) -> Any:
    assert spill.parts[0].feed is not None
    return spill.parts[0].feed.groups[0].pattern


def moved(spill: Spill) -> Any:
    row, *others = first_pattern(spill).counters
    return (row._replace(start=row.start + 1), *others)


def swap_taps(spill: Spill) -> Spill:
    """The copies of two taps go to each other's rows of the lowered matrix."""
    first, *between, last = spill.parts
    return replace(spill, parts=(first._replace(lane=last.lane), *between, last._replace(lane=first.lane)))


CORRUPTIONS: dict[str, Callable[[Program], Program]] = {
    "an address": lambda p: change(p, Spill, lambda s: edit_feed(s, base=first_pattern(s).base + 1), of=LOWERED),
    "a grid point": lambda p: change(p, Spill, lambda s: edit_feed(s, counters=moved(s)), of=LOWERED),
    "a tap": lambda p: change(p, Spill, swap_taps, of=LOWERED),
    "a lane": lambda p: change(p, Spill, lambda s: edit_part(s, shift_lanes), of=LOWERED),
    "an ifmap row": lambda p: change(p, Fill, lambda f: edit_part(f, lambda part: shift_items(part, 1)), of="ifmap"),
    "the rows of outputs": lambda p: change(
        p, Spill, lambda s: edit_part(s, lambda part: shift_items(part, 1)), of=LOWERED
    ),
    "a word that is lost": lambda p: change(p, Spill, lambda s: replace(s, parts=s.parts[1:]), of=LOWERED),
}


@pytest.mark.parametrize(("name", "engine"), covering(1, CORRUPTIONS, ["event", "register"]))
def test_a_wrong_lowered_word_is_caught(name: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix is wrong, and said to be so before the outputs that it makes wrong."""

    def corrupt(*arguments: Any) -> Any:
        program, explanation = EXPLICIT.lower(*arguments)
        return CORRUPTIONS[name](program), explanation

    monkeypatch.setitem(LOWERINGS, "explicit", by_hand("explicit", corrupt))
    result = simulate(Workload("net", BATCH, (LAYER,)), MACHINE, lowering="explicit", engine=engine)
    assert not result.correct
    assert result.total.intermediates_mismatched > 0
    assert str(result.layers[0].first_mismatch).startswith("lowered[channel=")


def test_a_wrong_word_that_no_output_shows_fails_the_run() -> None:
    """A weight of zero hides it from the outputs."""
    program = EXPLICIT.lower(LAYER, BATCH, MACHINE)[0]
    corrupted = CORRUPTIONS["an address"](program)
    operands = operands_of(LAYER, BATCH, seed=0)
    hidden = {**operands, "filter": np.zeros_like(operands["filter"])}
    written = datapath.run(corrupted, MACHINE, hidden)
    assert not written["ofmap"].any()
    assert (written[LOWERED] != unfolded(LAYER, operands["ifmap"])).any()


@rule("T115")
def test_what_is_read_must_be_waited_for() -> None:
    program = EXPLICIT.lower(LAYER, BATCH, MACHINE)[0]
    hasty = change(program, Fill, lambda f: replace(f, after=()), of=LOWERED)
    with pytest.raises(CheckFailed, match="reads a lowered that it does not wait for"):
        check_layer(LAYER, BATCH, hasty, MACHINE, seed=0)


def test_a_tensor_that_nobody_knows_is_refused() -> None:
    program = EXPLICIT.lower(LAYER, BATCH, MACHINE)[0]
    lost = replace(program.tensor(LOWERED), name="lost")
    renamed = tuple(
        replace(step, tensor=lost) if isinstance(step, Fill | Spill) and step.tensor.name == LOWERED else step
        for step in program.rows
    )
    with pytest.raises(CheckFailed, match="writes lost, of which the reference knows nothing"):
        check_layer(LAYER, BATCH, replace(program, tensors=(*program.tensors, lost), rows=renamed), MACHINE, seed=0)


def test_the_command_says_where_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tpusim.cli import app as cli

    net = tmp_path / "net.yaml"
    layer = "{name: conv3, op: conv2d, in_channels: 6, in_height: 9, in_width: 9, out_channels: 7, kernel: 3}"
    net.write_text(f"name: net\nlayers: [{layer}]\n")

    def corrupt(*arguments: Any) -> Any:
        program, explanation = EXPLICIT.lower(*arguments)
        return CORRUPTIONS["an address"](program), explanation

    monkeypatch.setitem(LOWERINGS, "explicit", by_hand("explicit", corrupt))
    monkeypatch.setattr(
        "sys.argv", ["tpusim", "run", str(net), "--hardware", "tiny_4x4", "--batch", "3", "--lowering", "explicit"]
    )
    # What leaves the process takes SIGINT with it, and would take it from the tests that follow.
    monkeypatch.setattr(cli, "leave_now", sys.exit)
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 1
    told = capsys.readouterr().err
    assert "conv3" in told
    assert "intermediate elements" in told
    assert "lowered[channel=" in told


@pytest.mark.parametrize("batch", [3, 8])
def test_a_spill_may_take_the_port_in_the_first_cycle(batch: int) -> None:
    """The first words of this lowered matrix are all padding, so nothing comes ahead of their spill to a DRAM."""
    small = machine(
        1,
        3,
        word_elements=4,
        capacity_words=8000,
        alus=4,
        hbm={"burst_bytes": 4, "alignment_bytes": 1},
        vector_unit={"pack_cycles": 13.4},
    )
    hbm = small.hbm.model_copy(update={"model": "banks", "device": dram(columns=4, burst_bytes=4)})
    hardware = small.model_copy(update={"hbm": hbm}).having("mapping", transformation="before", search="estimate")
    layer = Conv2d("conv", 4, 2, 2, 8, kernel=(2, 1), stride=(3, 4), padding="same", dilation=(3, 2))
    program = in_layout(EXPLICIT.lower(layer, batch, hardware)[0], hardware)
    first = next(step for step in program.rows if isinstance(step, Transfer))
    assert isinstance(first, Spill)
    assert not first.after
    timing, _ = register.run(program, hardware, operands_of(layer, batch, seed=1))
    assert agreed_timing(program, hardware) == timing
