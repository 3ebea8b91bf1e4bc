"""Transposed convolutions by stride phases: what is fetched once, what stands side by side, and what it is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.checks import ESTIMATE, check_layer
from tests.rules import rule
from tests.strategies import GENERAL, OF_CELLS, conv, fills, machine, spills
from tpusim import load_hardware, simulate
from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.flow.lowerings import AUTO
from tpusim.machines.tpu import event
from tpusim.machines.tpu.lowering.registry import lowered, planned_of
from tpusim.machines.tpu.program.steps import Preload
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.network.ops.array_op import Conv2d, ConvTranspose2d, Gemm
from tpusim.network.workload import Workload

SMALL = machine(8, 8, word_elements=4)


def transposed(
    into: int, size: int, out: int, kernel: Any, stride: Any, padding: Any = 0, **more: Any
) -> ConvTranspose2d:
    return ConvTranspose2d("t", into, size, size, out, kernel, stride, padding, **more)


def test_it_takes_as_long_as_the_convolutions_of_its_phases() -> None:
    """28x28, 256 > 128, 4x4 of stride 2: four convolutions of 2x2 taps, each of as many outputs as there are inputs."""
    hardware, layer = load_hardware("tpu_v2"), transposed(256, 28, 128, 4, 2, 1)
    phase = Conv2d("phase", 256, 29, 29, 128, 2)
    assert layer.macs(8) == 4 * phase.macs(8)
    cycles = {
        name: event.run(lowered(each, 8, hardware, name)[0], hardware).cycles
        for each, name in ((layer, "stride_phases"), (layer, "zero_insertion"), (phase, "channel_first"))
    }
    assert cycles["stride_phases"] <= 1.1 * 4 * cycles["channel_first"]
    assert cycles["zero_insertion"] > 3.9 * cycles["stride_phases"]


def test_all_phases_read_what_is_fetched_once() -> None:
    """In a block of all outputs, as blocks share rows and columns at their edges."""
    layer, whole = transposed(8, 6, 16, 4, 2, 1), SMALL.mapping.block.model_copy(update={"rows": 12, "cols": 12})
    program, _ = lowered(layer, 4, SMALL.having("mapping", block=whole), "stride_phases")
    assert sum(step.hbm_bytes for step in fills(program, "ifmap")) == 8 * 6 * 6 * 4 * 4
    assert sum(step.hbm_bytes for step in spills(program)) == layer.outputs(4) * 4
    assert sum(step.hbm_bytes for step in fills(program, "filter")) == 8 * 16 * 16 * 4


@pytest.mark.parametrize(
    ("layer", "passes"),
    [
        (transposed(8, 4, 8, 5, 2, 2), 9 + 6 + 6 + 4),
        (transposed(8, 4, 8, 4, 2, 1), 4 * 4),
        (transposed(8, 4, 8, 3, 2, 1), 4 + 2 + 2 + 1),
        (transposed(8, 4, 8, 3, 3), 9),
        (transposed(8, 4, 8, 1, 2), 4),
        (transposed(8, 4, 8, 3, 1, 1), 9),
        (transposed(8, 4, 8, 3, 2, 1, dilation=2), 9 + 3),
        # Beside one another: all four read 3x3 elements, or the one that they have in common.
        (transposed(8, 4, 2, 4, 2, 1), 9),
        (transposed(8, 4, 2, 2, 2), 1),
        # Two taps of a phase in a pass; all four of a phase.
        (transposed(4, 4, 8, 4, 2, 1), 4 * 2),
        (transposed(2, 4, 8, 4, 2, 1), 4),
    ],
)
def test_each_phase_has_its_own_taps(layer: ConvTranspose2d, passes: int) -> None:
    program, told = lowered(layer, 4, SMALL, "stride_phases")
    assert len(program.streams) == passes * told.blocking.blocks
    assert check_layer(layer, 4, program, SMALL, seed=0).mismatched == 0


@pytest.mark.parametrize(
    "layer", [transposed(3, 2, 5, 1, 4), transposed(3, 2, 2, 1, 3, 1), transposed(1, 1, 1, 3, 1, 1)]
)
@pytest.mark.parametrize("name", sorted(OF_CELLS))
def test_what_no_tap_reaches_is_zero(layer: ConvTranspose2d, name: str) -> None:
    program, _ = lowered(layer, 3, SMALL, name)
    assert check_layer(layer, 3, program, SMALL, seed=1).mismatched == 0


@pytest.mark.parametrize("name", sorted(OF_CELLS))
def test_the_steps_are_known_before_it_is_lowered(name: str) -> None:
    layer = transposed(24, 12, 20, 5, 2, 2, output_padding=1)
    planned, (program, _) = planned_of(layer, 8, SMALL, name)[0], lowered(layer, 8, SMALL, name)
    transfers = sum(isinstance(step, Transfer) for step in program.rows)
    assert planned is not None
    assert planned.passes == len(program.streams)
    assert transfers - 16 <= planned.transfers <= 1.5 * transfers


def test_a_given_block_is_one_of_outputs() -> None:
    block = SMALL.mapping.block.model_copy(update={"rows": 5, "cols": 4, "out_channels": 8})
    hardware = SMALL.model_copy(update={"mapping": SMALL.mapping.model_copy(update={"block": block})})
    _, told = lowered(transposed(8, 6, 16, 4, 2, 1), 4, hardware, "stride_phases")
    assert (told.blocking.rows, told.blocking.cols, told.blocking.blocks) == (4, 4, 9)
    assert told.choices["kept_folds"] == 4
    assert "4 x 4 outputs of 4 images; 9 blocks for all 12 x 12" in told.aspects["block"]


def test_people_are_told_of_phases_and_zeros() -> None:
    layer = transposed(8, 4, 2, 5, 2, 2)
    assert lowered(layer, 4, SMALL, "stride_phases")[1].aspects["phases"] == (
        "4 phases with 4 to 9 of the taps each, 4 side by side in the columns of the array; the results of each lie "
        "2 rows and 2 columns apart in the ofmap"
    )
    zeros = "1 row and 1 column of zeros between the elements of the ifmap: streamed, not stored"
    assert lowered(layer, 4, SMALL, "zero_insertion")[1].aspects["zeros"] == zeros


@rule("T47")
def test_windows_of_taps_end_with_the_filter() -> None:
    """Three columns of taps in windows of two: no tap beyond the filter stands anywhere."""
    machine_with = load_hardware("tiny_4x4", {"mapping.multi_tile": "dense", "mapping.block.tap_cols": 2})
    layer = transposed(3, 3, 2, 3, 1, 1)
    for name in OF_CELLS:
        assert simulate(Workload("net", 2, (layer,)), machine_with, lowering=name, engine="both").correct


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [((1, 32), (1, 8), 0), ((1, 29), (1, 8), (0, 3)), ((5, 9), (2, 3), 1), (7, 4, 0)]
)
def test_weights_of_phases_side_by_side_come_in_the_words_of_one(kernel: Any, stride: Any, padding: Any) -> None:
    """Lanes are as many as columns, so a fill of a pass has the words of its rows, whatever number of phases it has."""
    layer = transposed(12, 6, 1, kernel, stride, padding)
    program, told = lowered(layer, 4, SMALL, "stride_phases")
    assert "side by side" in told.aspects["phases"]
    preloads = program.rows.done(Preload)
    assert sum(fill.words for fill in fills(program, "filter")) <= 1.6 * sum(
        -(-each.rows // 4) * count for each, count in preloads
    )
    assert simulate(Workload("net", 4, (layer,)), SMALL, lowering="stride_phases", engine="both").correct


def test_a_long_kernel_takes_as_long_as_its_product() -> None:
    """An overlap-add: 1,025 channels, 100 frames of 1,024 samples, 256 apart; it took 16 times as long."""
    hardware, layer = load_hardware("tpu_v2"), ConvTranspose2d("t", 1025, 1, 100, 1, (1, 1024), (1, 256))
    cycles = [
        simulate(Workload("net", 1, (each,)), hardware, check=False).total.cycles
        for each in (layer, Gemm("product", m=100, n=1024, k=1025))
    ]
    assert cycles[0] <= 1.25 * cycles[1]


# ---- which lowering


def by(layer: Any, lowering: str) -> str:
    result = simulate(Workload("net", 2, (layer,)), SMALL.with_overrides(ESTIMATE), lowering=lowering)
    assert result.correct
    return result.layers[0].lowering


def test_who_says_nothing_gets_stride_phases() -> None:
    layer = transposed(4, 4, 4, 4, 2, 1)
    assert [by(layer, name) for name in ("channel_first", AUTO, "zero_insertion")] == [
        "stride_phases", "stride_phases", "zero_insertion",
    ]  # fmt: skip
    assert by(conv(4, 4, 4, 3), AUTO) not in OF_CELLS


@pytest.mark.parametrize("name", GENERAL)
def test_no_other_lowering_takes_it(name: str) -> None:
    says = (
        "layer t: no convolution of one stride computes a conv_transpose2d; lower it by stride_phases or zero_insertion"
    )
    with pytest.raises(UnsuitableError, match=says):
        lowered(transposed(4, 4, 4, 4, 2, 1), 2, SMALL, name)


@pytest.mark.parametrize("name", sorted(OF_CELLS))
def test_they_take_nothing_else(name: str) -> None:
    with pytest.raises(
        UnsuitableError,
        match="layer conv: this lowering is for conv_transpose2d and conv2d_input_gradient, not for conv2d",
    ):
        lowered(conv(4, 4, 4, 3), 2, SMALL, name)


@pytest.mark.parametrize("name", sorted(OF_CELLS))
def test_what_they_do_without_is_told(name: str) -> None:
    layer = transposed(4, 4, 4, 4, 2, 1)
    with pytest.raises(CapacityError, match="this lowering reads from lanes alone"):
        lowered(layer, 2, machine(vector_memory={"organization": "banked"}), name)
    mapping = SMALL.mapping.model_copy(update={"fetch": "per_tap"})
    with pytest.raises(CapacityError, match=r"mapping\.fetch: .*; write resident"):
        lowered(layer, 2, SMALL.model_copy(update={"mapping": mapping}), name)
    assert lowered(replace(layer, kernel=(1, 1), padding=(0, 0)), 2, SMALL, name)
