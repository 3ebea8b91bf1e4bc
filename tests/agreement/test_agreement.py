"""Every level computes the same values: one test class, and each level overrides one method."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, currently_in_test_context, example, given, settings
from hypothesis import strategies as st

from tests.agreement.engines import agree, agreed_timing
from tests.covering import covering, few
from tests.rules import rule
from tests.strategies import (
    cases,
    conv,
    conv_gradients,
    convs,
    deform_convs,
    fills,
    gemms,
    layers,
    lowerings_of,
    machine,
    machines,
    machines_of_all_kinds,
    small_layers,
    spills,
    transposed_convs,
    with_resident_taps,
)
from tpusim import reference
from tpusim.base.errors import CapacityError
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.cut.traffic import in_layout
from tpusim.machines.tpu.definition import DMA, IFMAP, PSUM, RESULT, ports_of
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.lowering.drafts import Lowering
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.program import Program
from tpusim.network.ops.array_op import Conv1d, Conv2d, ConvTranspose2d, Gemm
from tpusim.network.ops.deform_conv2d import DeformConv2d
from tpusim.network.ops.gradients import Conv2dFilterGradient, Conv2dInputGradient
from tpusim.network.workload_file import load_workload
from tpusim.reference import Tensor

Layer = Conv2d | Conv1d | ConvTranspose2d | DeformConv2d | Gemm | Conv2dInputGradient | Conv2dFilterGradient
MOST_WORK = 40_000
MOST_CYCLES = 2_000
"""Of a case for an engine that takes time for every cycle: longer ones cost most of it and show nothing more."""
CASES = cases(usual=12)
"""Random machines and layers on which the engines must agree; for a proof by hand, many more."""
KINDS: dict[str, st.SearchStrategy[Layer]] = {
    "forward": small_layers(),
    "transposed and deformed": st.one_of(transposed_convs(6, 2), deform_convs(4, 2)),
    "gradients": conv_gradients(6, 2),
}
"""Kinds of layers on which engines must agree: few of the second and third are as short as most of the first."""
IN_LANES = frozenset(name for name, each in LOWERINGS.items() if not each.banks)
"""Lowerings that do not find the ifmap in banks."""


def suppose(condition: bool) -> None:
    """Give a random case up; one written by hand must not need that."""
    if currently_in_test_context():
        assume(condition)
    assert condition


def lowered(layer: Layer, batch: int, hardware: Hardware, most_work: int = MOST_WORK) -> Program:
    """The Program, or give the case up when the layer cannot fit or would be long."""
    suppose(layer.macs(batch) / hardware.pes < most_work)
    try:
        return in_layout(CHANNEL_FIRST.lower(layer, batch, hardware)[0], hardware)
    except CapacityError as error:
        assert_enough_is_enough(layer, batch, hardware, error)
        suppose(False)
        raise


def fitted(layer: Layer, batch: int, hardware: Hardware, name: str) -> tuple[Program, Hardware]:
    """The Program and its machine, which has the least memory that does if the one given has too little."""
    return fitted_by(LOWERINGS[name], layer, batch, hardware)


def fitted_by(lowering: Lowering, layer: Layer, batch: int, hardware: Hardware) -> tuple[Program, Hardware]:
    """The same by a lowering that may have no name."""
    try:
        return in_layout(lowering.lower(layer, batch, hardware)[0], hardware), hardware
    except CapacityError as error:
        need = asked_for(error)
        with pytest.raises(CapacityError):
            lowering.lower(layer, batch, with_capacity(hardware, need - 1))
        enough = with_capacity(hardware, need)
        return in_layout(lowering.lower(layer, batch, enough)[0], enough), enough


def assert_enough_is_enough(layer: Layer, batch: int, hardware: Hardware, error: CapacityError) -> None:
    """The capacity the error asks for is the least that does."""
    need = asked_for(error)
    CHANNEL_FIRST.lower(layer, batch, with_capacity(hardware, need))
    with pytest.raises(CapacityError):
        CHANNEL_FIRST.lower(layer, batch, with_capacity(hardware, need - 1))


def asked_for(error: CapacityError) -> int:
    """The bytes that would do."""
    match = re.search(r"vector_memory.capacity to at least (\d+) B", str(error))
    assert match is not None, error
    return int(match[1])


def least_cycles(layer: Layer, batch: int, hardware: Hardware) -> float:
    """What HBM takes for filter and ofmap alone, by whatever lowering: tells of a long case before it is lowered."""
    elements = sum(prod(layer.shapes(batch)[name]) for name in ("filter", "ofmap"))
    return bus_cycles(elements * hardware.vector_memory.element_bytes, hardware)


def bus_cycles(moved: float, hardware: Hardware) -> float:
    """The least that so many bytes take, where no DRAM of its own pace is modelled."""
    return moved / hardware.hbm_bytes_per_cycle if hardware.hbm.dram is None else 0


def short(program: Program, hardware: Hardware) -> Timing:
    """What the event engine says of a Program; give a long case up, without asking any other engine about it."""
    timing = event.run(program, hardware)
    suppose(timing.cycles < MOST_CYCLES)
    return agreed_timing(program, hardware, timing)


def with_capacity(hardware: Hardware, capacity_bytes: int) -> Hardware:
    memory = hardware.vector_memory.model_copy(update={"capacity_bytes": capacity_bytes})
    return hardware.model_copy(update={"vector_memory": memory})


@rule("T9")
@pytest.mark.parametrize(
    ("name", "arrays"),
    covering(1, ["channel_first", "explicit", "channel_last", "indirect"], [(1, "shared"), (2, "own"), (2, "shared")]),
)
def test_the_last_words_of_pixels_have_a_frame_of_their_own(name: str, arrays: tuple[int, str]) -> None:
    """Fifteen images in words of eight and seven: all passes at one frame end before those at the other begin."""
    hardware = machine(word_elements=8, capacity_words=1024, alus=64, array={"count": arrays[0], "weights": arrays[1]})
    layer = conv(5, 4, 6, 3, padding=1)
    program, _ = LOWERINGS[name].lower(layer, 15, hardware)
    whole, last = program.frames(hardware)
    assert {step.fill for step in program.streams} == {0, 7}
    assert (program.word_fill, whole.period - last.period) == (8, 1)
    timing = agree(layer, 15, program, hardware)
    if hardware.array.count == 1:
        busy = sum(step.words * (step.fill or 8) for step in program.streams)
        assert timing.units["systolic_array"]["busy"] == busy


class Level:
    """What every level must do; `outputs` computes a layer's ofmap [c_out, h, w, n]."""

    def outputs(self, layer: Layer, batch: int, hardware: Hardware, ifmap: Tensor, filter_: Tensor) -> Tensor:
        raise NotImplementedError

    def check(self, layer: Layer, batch: int, hardware: Hardware) -> None:
        ifmap, filter_ = reference.operands(layer, batch, seed=1).values()
        actual = self.outputs(layer, batch, hardware, ifmap, filter_)
        np.testing.assert_array_equal(actual, by_hand(layer, ifmap, filter_))

    @settings(max_examples=cases(1 / 25), deadline=None, suppress_health_check=list(HealthCheck))
    @given(layer=layers(), batch=st.integers(1, 9), hardware=machines())
    @example(layer=conv(4, 5, 4, 3), batch=2, hardware=machine())
    @example(layer=conv(2, 5, 4, 3), batch=2, hardware=machine())
    @example(layer=conv(1, 2, 1, 5, padding=3), batch=2, hardware=machine())
    @example(layer=conv(1, 1, 1, 1, padding=3, stride=2), batch=1, hardware=machine(1, 1, word_elements=1))
    def test_random_layers_on_random_machines(self, layer: Layer, batch: int, hardware: Hardware) -> None:
        self.check(layer, batch, hardware)

    @pytest.mark.parametrize("multi_tile", few(3, range(9, 0, -1)))
    def test_any_number_of_stacked_taps(self, multi_tile: int) -> None:
        self.check(conv(2, 6, 5, 3, padding=1), 3, machine(20, 6, mapping={"multi_tile": multi_tile}))

    @pytest.mark.parametrize("order", ["block_major", "filter_major"])
    def test_either_loop_order_in_tight_memory(self, order: str) -> None:
        self.check(conv(5, 6, 5, 3, padding=1), 3, machine(capacity_words=100, mapping={"loop_order": order}))

    def test_stride_wider_than_the_kernel(self) -> None:
        self.check(conv(3, 11, 3, 2, stride=4), 2, machine())

    def test_grouped_and_depthwise(self) -> None:
        self.check(conv(6, 5, 6, 3, padding=1, groups=6), 4, machine())
        self.check(conv(6, 5, 9, 3, padding=1, groups=3), 4, machine())


class TestReference(Level):
    """The oracle itself, against nested loops."""

    def outputs(self, layer: Layer, batch: int, hardware: Hardware, ifmap: Tensor, filter_: Tensor) -> Tensor:
        return reference.compute(layer, {"ifmap": ifmap, "filter": filter_})


class TestDataPath(Level):
    """The Program, through the vector memories."""

    def outputs(self, layer: Layer, batch: int, hardware: Hardware, ifmap: Tensor, filter_: Tensor) -> Tensor:
        return datapath.run(lowered(layer, batch, hardware), hardware, {"ifmap": ifmap, "filter": filter_})["ofmap"]


class TestRegister(Level):
    """Every register, clock by clock: what leaves the bottom of the array."""

    def outputs(self, layer: Layer, batch: int, hardware: Hardware, ifmap: Tensor, filter_: Tensor) -> Tensor:
        program = lowered(layer, batch, hardware, 1_600)
        if currently_in_test_context():
            short(program, hardware)
        return register.run(program, hardware, {"ifmap": ifmap, "filter": filter_})[1]["ofmap"]


class TestTorch(Level):
    """A further witness where PyTorch is installed."""

    def outputs(self, layer: Layer, batch: int, hardware: Hardware, ifmap: Tensor, filter_: Tensor) -> Tensor:
        torch = pytest.importorskip("torch", reason="PyTorch is optional", exc_type=ImportError)
        x, f = (torch.from_numpy(np.ascontiguousarray(t)).double() for t in (ifmap, filter_))
        x, f = x.permute(3, 0, 1, 2), f.permute(0, 3, 1, 2)
        conv, _ = layer.convolution(batch)
        shape = {k: getattr(conv, k) for k in ("stride", "dilation", "groups")}
        x = torch.nn.functional.pad(x, (*conv.pads[1], *conv.pads[0]))
        out = torch.nn.functional.conv2d(x, f, **shape).permute(1, 2, 3, 0)
        return np.asarray(out.numpy(), dtype=np.float32)


def by_hand(layer: Layer, ifmap: Tensor, filter_: Tensor) -> Tensor:
    """The definition, one tap and one output pixel at a time, in float64."""
    if isinstance(layer, Gemm):
        first = ifmap.astype(np.float64).reshape(layer.groups, layer.k, layer.m)
        sums = np.einsum("gnk,gkm->gnm", filter_.reshape(layer.groups, layer.n, layer.k), first).reshape(-1, layer.m)
        return sums[:, None, None].astype(np.float32)
    layer, _ = layer.convolution(ifmap.shape[-1])
    (sh, sw), ((ph, _), (pw, _)), (dh, dw) = layer.stride, layer.pads, layer.dilation
    _, height, width, images = ifmap.shape
    per_group = layer.out_channels // layer.groups
    out = np.zeros((layer.out_channels, layer.out_height, layer.out_width, images))
    for g in range(layer.groups):
        filters = slice(g * per_group, (g + 1) * per_group)
        inputs = slice(g * filter_.shape[3], (g + 1) * filter_.shape[3])
        for y, x, i, j in np.ndindex(layer.out_height, layer.out_width, *layer.kernel):
            row, col = y * sh + i * dh - ph, x * sw + j * dw - pw
            if 0 <= row < height and 0 <= col < width:
                out[filters, y, x] += filter_[filters, i, j].astype(np.float64) @ ifmap[inputs, row, col]
    return out.astype(np.float32)


class Clock:
    """What every engine that keeps time must satisfy; `timing` runs one Program."""

    def timing(self, program: Program, hardware: Hardware) -> Timing:
        raise NotImplementedError

    @rule("T138")
    @settings(max_examples=cases(1 / 10), deadline=None, suppress_health_check=list(HealthCheck))
    @given(layer=layers(), batch=st.integers(1, 9), hardware=machines())
    def test_accounts_and_bounds(self, layer: Layer, batch: int, hardware: Hardware) -> None:
        program = lowered(layer, batch, hardware)
        timing = self.timing(program, hardware)
        for unit, account in timing.units.items():
            assert sum(account.values()) == timing.cycles, unit
            assert min(account.values()) >= 0, (unit, account)
        assert timing.cycles >= layer.macs(batch) / hardware.macs_per_cycle
        assert timing.cycles >= self.port_bound(program, hardware)
        assert timing.cycles >= hbm_bytes(program) / hardware.hbm_bytes_per_cycle
        ports = ports_of(hardware)
        assert timing.reads + timing.writes <= timing.cycles * hardware.lanes * len(ports)
        assert timing == self.timing(program, hardware)

    @staticmethod
    def port_bound(program: Program, hardware: Hardware) -> int:
        """Every slot that streams, and every word that transfers, take of the busiest of lane 0's ports."""
        words = sum(step.words for step in program.streams)
        sums = sum(step.words for step in program.streams if step.accumulate)
        moved = sum(getattr(step, "words", 0) for step in program.rows if hasattr(step, "hbm_bytes"))
        taken = {IFMAP: words, PSUM: sums, RESULT: words, DMA: moved}
        return max(sum(taken.get(client, 0) for client in port) for port in ports_of(hardware))

    @settings(max_examples=cases(1 / 3), deadline=None, suppress_health_check=list(HealthCheck))
    @given(layer=st.one_of(convs(), gemms()), batch=st.integers(1, 9), hardware=machines())
    def test_every_operand_byte_that_is_needed_is_read(self, layer: Layer, batch: int, hardware: Hardware) -> None:
        program = lowered(layer, batch, hardware)
        size = hardware.vector_memory.element_bytes
        filters, outputs = (program.tensor(name).bytes(size) for name in ("filter", "ofmap"))
        needed = touched(layer, batch) * size
        assert sum(step.hbm_bytes for step in fills(program, "filter")) >= filters
        assert sum(step.hbm_bytes for step in fills(program, "ifmap")) >= needed
        assert sum(step.hbm_bytes for step in spills(program)) >= outputs


class TestEventClock(Clock):
    """The event engine."""

    def timing(self, program: Program, hardware: Hardware) -> Timing:
        return agreed_timing(program, hardware)


class TestEnginesAgree:
    """Event engine == register engine: cycles, every unit's split, port accesses; and the values are right."""

    @pytest.mark.parametrize("kind", KINDS)
    @settings(max_examples=-(-CASES // len(KINDS)), deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        batch=st.integers(1, 9),
        hardware=machines_of_all_kinds(16, st.sampled_from([1, 2, 3, 4, 8, 16])),
        data=st.data(),
    )
    def test_to_the_cycle(self, kind: str, batch: int, hardware: Hardware, data: st.DataObject) -> None:
        """By every lowering that there is for the machine."""
        layer = data.draw(KINDS[kind])
        if layer.scatter:
            hardware = with_resident_taps(hardware)
        names = lowerings_of(layer) - (IN_LANES if hardware.banked else set())
        suppose(bool(names))
        name = data.draw(st.sampled_from(sorted(names)))
        suppose(layer.macs(batch) / hardware.pes < 800)
        suppose(least_cycles(layer, batch, hardware) < MOST_CYCLES)
        program, hardware = fitted(layer, batch, hardware, name)
        # A frame that words make long which are transposed: any Program may ask for it.
        program = replace(program, word_cycles=max(program.word_cycles, data.draw(st.sampled_from([0, 0, 3, 11, 40]))))
        agree(layer, batch, program, hardware, timing=short(program, hardware))

    def test_a_word_of_one_element_on_separate_ports(self) -> None:
        layer, hardware = (
            Gemm(name="g", m=9, n=2, k=1),
            machine(1, 1, word_elements=1, vector_memory={"ports": "separate"}),
        )
        program = CHANNEL_FIRST.lower(layer, 1, hardware)[0]
        agree(layer, 1, program, hardware)

    @pytest.mark.parametrize(
        ("layer", "hardware", "choices"),
        [
            (Gemm("folds", m=16, n=16, k=200), machine(capacity_words=80, bytes_per_cycle=8),
             {"chunk_folds": 2, "kept_folds": 4}),
            (conv(3, 6, 4, 5, padding=2), machine(capacity_words=24), {"chunk_taps": 1, "chunk_folds": 1}),
            (Gemm("behind", m=4, n=40, k=4), machine(bytes_per_cycle=4), {"lag": 2}),
        ],
        ids=["chunks of folds", "chunks of taps", "spills that lag behind"],
    )  # fmt: skip
    def test_on_every_way_to_hold_a_reduction(self, layer: Layer, hardware: Hardware, choices: dict[str, int]) -> None:
        program, explanation = CHANNEL_FIRST.lower(layer, 2, hardware)
        assert choices.items() <= explanation.choices.items()
        assert (explanation.blocking.chunks > 1) == ("chunk_folds" in choices)
        agree(layer, 2, program, hardware)

    @pytest.mark.parametrize(("network", "name"), few(1, [("alexnet", "conv5"), ("resnet18", "layer4.0.conv1")]))
    def test_on_the_whole_machine(self, network: str, name: str) -> None:
        """128 x 128, words of 8; scripts/prove does every layer."""
        layer = next(layer for layer in load_workload(network, batch=1).layers if layer.name == name)
        hardware = load_hardware("tpu_v2")
        program = CHANNEL_FIRST.lower(layer, 1, hardware)[0]
        agree(layer, 1, program, hardware)


def hbm_bytes(program: Program) -> int:
    return sum(getattr(step, "hbm_bytes", 0) for step in program.rows)


def touched(layer: Layer, batch: int) -> int:
    """Ifmap elements that some tap of some output touches, by marking them."""
    if isinstance(layer, Gemm):
        return layer.m * layer.k
    layer, _ = layer.convolution(batch)
    marks = np.zeros((layer.in_height, layer.in_width), dtype=bool)
    for y, x, i, j in np.ndindex(layer.out_height, layer.out_width, *layer.kernel):
        row = y * layer.stride[0] + i * layer.dilation[0] - layer.pads[0][0]
        col = x * layer.stride[1] + j * layer.dilation[1] - layer.pads[1][0]
        if 0 <= row < layer.in_height and 0 <= col < layer.in_width:
            marks[row, col] = True
    return int(marks.sum()) * layer.in_channels * batch
