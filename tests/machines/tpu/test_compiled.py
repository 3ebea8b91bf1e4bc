"""What Google's compiler decides of a convolution, as options: the passes of its code, layouts, windows, bodies."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from tests.covering import few
from tests.rules import rule
from tests.strategies import conv, fills, machine
from tpusim.machines.tpu.cut.plan import Plan
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST, by_taps, plan_of
from tpusim.machines.tpu.program.steps import Preload, Stream
from tpusim.machines.tpu.program.transfers import Fill
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.study.validation.cases import Row, rows, sizes
from tpusim.study.validation.convolutions import shape_of, their_block, weights_transposed

CORE = load_hardware("tpu_v2_core")
WHOLE = 8
"""Cycles that its words take at least: all of their elements are streamed."""


def with_mapping(hardware: Hardware, **changes: Any) -> Hardware:
    return hardware.model_copy(update={"mapping": hardware.mapping.model_copy(update=changes)})


def planned(layer: Conv2d | Gemm, batch: int = 8, hardware: Hardware = CORE, **mapping: Any) -> Plan:
    return plan_of(by_taps, layer, batch, with_mapping(hardware, **mapping))


def emitted() -> list[Row]:
    return [row for row in rows("xla_tpu_v2_scheduled") if their_block(row).changes]


@pytest.mark.parametrize(
    "row", few(30, emitted()), ids=lambda row: f"{row['batch']}x{row['ci']}>{row['co']}x{row['kh']}x{row['kw']}"
)
def test_passes_are_those_of_the_code(row: Row) -> None:
    """One multiplication a word of output and pass: `count_vmatmul` of a body."""
    shape = shape_of(row)
    plan = plan_of(by_taps, shape.layer, shape.batch, CORE.with_overrides(their_block(row).changes))
    passes = {len(chunk.passes) for chunk in plan.chunks}
    assert passes == {int(row["count_vmatmul"]) // prod(sizes(row["output_window_bounds"]))}


@pytest.mark.parametrize(
    "row",
    [row for row in emitted() if row["batch"] != "1"][::6],
    ids=lambda row: f"{row['ci']}>{row['co']}x{row['kh']}x{row['kw']}",
)
def test_filter_rows_are_held_as_the_compiler_holds_them(row: Row) -> None:
    """Ours by `row_windows`, theirs by the window of the kernel; beside one image, theirs is whole."""
    shape = shape_of(row)
    taps = {len(chunk.taps) for chunk in planned(shape.layer, shape.batch).chunks}
    assert taps == {prod(sizes(row["kernel_window_bounds"])[:2])}


@pytest.mark.parametrize(
    ("channels", "kernel", "code", "expected"),
    [(48, 3, 5, 4), (64, 3, 5, 6), (80, 3, 6, 6), (192, 3, 14, 15), (32, 5, 7, 7), (128, 3, 9, 9)],
)
def test_passes_that_the_compiler_expects(channels: int, kernel: int, code: int, expected: int) -> None:
    """Taps are split below R / 2 channels, too; from there on no pass goes from one filter row to the next."""
    layer = conv(channels, 9, 256, kernel)
    assert len(planned(layer).passes) == code
    plan = planned(layer, multi_tile="dense_rows")
    assert len(plan.passes) == expected
    mixed = any(len({run.tap[0] for run in each.runs}) > 1 for each in plan.passes)
    assert mixed == (channels < 64)


def test_expected_passes_have_one_tap_where_input_channels_lie_in_lanes() -> None:
    layer = conv(32, 9, 24, 7)
    assert (len(planned(layer).passes), len(planned(layer, multi_tile="dense_rows").passes)) == (13, 49)


def test_a_kernel_of_one_column_is_one_row() -> None:
    tall = replace(conv(160, 9, 256, 3), kernel=(3, 1))
    assert len(planned(tall, multi_tile="dense_rows").passes) == 4


def test_weights_lie_as_the_compiler_lays_them() -> None:
    """With input channels in lanes, taps of 64 channels and more do not share a pass."""
    for channels, out in ((96, 128), (96, 24), (192, 64), (192, 256)):
        row = {"ci": str(channels), "co": str(out)}
        plan = planned(conv(channels, 9, out, 3))
        apart = all(len({run.tap for run in each.runs}) == 1 for each in plan.passes)
        assert apart == weights_transposed(row)
        assert len(planned(conv(channels, 9, out, 3), layout="plain").passes) == -(-9 * channels // 128)


@pytest.mark.parametrize(("channels", "places"), [(24, 1), (64, 1), (80, 2), (96, 3), (136, 2), (192, 2), (320, 3)])
def test_what_passes_share_comes_once(channels: int, places: int) -> None:
    """However many words of a lane hold it."""
    layer = conv(channels, 9, 256, 3)
    plan, (program, _) = planned(layer, 8), CHANNEL_FIRST.lower(layer, 8, CORE)
    assert len(plan.chunks[0].places) == places
    stored = -(-channels // 128) * 128 * 9 * 9 * 8 * 2
    assert sum(fill.hbm_bytes for fill in fills(program, "ifmap")) == pytest.approx(stored, rel=0.5)
    assert sum(fill.hbm_bytes for fill in fills(program, "ifmap")) >= stored


def test_a_few_channels_are_transposed_and_others_not() -> None:
    kernel = conv(3, 12, 8, 7)
    assert CHANNEL_FIRST.lower(conv(3, 12, 8, 1), 8, CORE)[0].word_cycles == 64
    assert CHANNEL_FIRST.lower(kernel, 8, CORE)[0].word_cycles == 64
    assert CHANNEL_FIRST.lower(kernel, 32, CORE)[0].word_cycles == 16
    assert (
        CHANNEL_FIRST.lower(kernel, 8, with_mapping(CORE, transposed_channels=2, layout="plain"))[0].word_cycles
        == WHOLE
    )
    assert len(planned(kernel).passes) == 2
    for other in (conv(5, 12, 8, 7), Gemm("g", 100, 100, 3)):
        assert CHANNEL_FIRST.lower(other, 8, CORE)[0].word_cycles == WHOLE


@pytest.mark.parametrize(
    ("batch", "channels", "cycles"), [(1, 3, 64), (2, 3, WHOLE), (4, 3, WHOLE), (4, 2, 64), (5, 3, 64), (8, 4, 64)]
)
def test_first_layers_of_few_images_are_transposed_where_channels_pad_less(
    batch: int, channels: int, cycles: int
) -> None:
    """Of two images, or four of three channels, images lie in words; one comes as eight strips."""
    assert CHANNEL_FIRST.lower(conv(channels, 16, 8, 3), batch, CORE)[0].word_cycles == cycles


ONE_IMAGE = [
    row for name in ("xla_tpu_v2_scheduled", "xla_tpu_v2_conv_more") for row in rows(name) if row["batch"] == "1"
]


@pytest.mark.parametrize("row", ONE_IMAGE, ids=lambda row: f"{row['H']}x{row['ci']}x{row['kh']}")
def test_an_image_comes_as_strips_of_columns_as_wide_as_theirs(row: Row) -> None:
    shape = shape_of(row)
    col = planned(shape.layer, 1).shape.col
    assert (col.strips, col.extent) == (WHOLE, sizes(row["output_window_bounds"])[1])


def test_words_of_several_images_hold_nothing_else() -> None:
    """Nor those of one whose strips would be narrower than what neighbours share."""
    assert [planned(conv(8, 9, 8, 3), batch).word_fill for batch in (1, 2, 3, 4)] == [8, 2, 3, 4]
    assert planned(conv(8, 9, 8, 5), 1).word_fill == 1
    assert planned(conv(8, 9, 8, 3), 2, strips="balanced").word_fill == 8


def test_images_in_lanes_are_moved_as_such_and_transposed() -> None:
    """16 channels of 128 images: 16 x 128 elements a pixel, and not 128 x 128."""
    layer = conv(16, 9, 32, 3)
    program, _ = CHANNEL_FIRST.lower(layer, 128, CORE)
    assert program.word_cycles == 8
    moved = sum(fill.hbm_bytes for fill in fills(program, "ifmap"))
    plain = CHANNEL_FIRST.lower(layer, 128, with_mapping(CORE, layout="plain"))[0]
    assert plain.word_cycles == WHOLE
    assert sum(fill.hbm_bytes for fill in fills(plain, "ifmap")) > 6 * moved
    assert CHANNEL_FIRST.lower(layer, 16, CORE)[0].word_cycles == WHOLE


@pytest.mark.parametrize(("patch", "points"), [("touched", 5 * 5), ("window", 9 * 9)])
def test_a_window_brings_what_is_between_the_points(patch: str, points: int) -> None:
    layer, hardware = conv(4, 10, 4, 1, stride=2), machine(4, 4, word_elements=8)
    block = hardware.mapping.block.model_copy(update={"rows": 5, "cols": 5})
    program, _ = CHANNEL_FIRST.lower(layer, 8, with_mapping(hardware, patch=patch, block=block))
    assert sum(fill.words for fill in fills(program, "ifmap")) == points


@rule("T42")
@pytest.mark.parametrize("loads", ["pieces", "whole"])
def test_a_body_begins_when_its_loads_are_whole(loads: str) -> None:
    """Else with the first of the four channel portions, and of the weights."""
    program, _ = CHANNEL_FIRST.lower(conv(16, 4, 4, 1), 8, with_mapping(machine(4, 4, word_elements=8), loads=loads))
    first = next(step for step in program.rows if isinstance(step, Stream))
    before = program.rows[: program.rows.index(first)]
    brought = {number for number, step in enumerate(before) if isinstance(step, Fill)}
    assert len(brought) == 8
    assert (brought <= {*first.after}) == (loads == "whole")


@rule("T40", "T41")
@pytest.mark.parametrize(("column_folds", "bodies"), [("one", 6), ("all", 2)])
def test_a_body_drains_once(column_folds: str, bodies: int) -> None:
    """Two blocks of three column folds."""
    hardware = machine(4, 4, sequencer={"between_blocks": "drain"}, mapping={"loop_order": "block_major"})
    block = hardware.mapping.block.model_copy(update={"rows": 3, "cols": 6})
    hardware = with_mapping(hardware, column_folds=column_folds, block=block)
    program, told = CHANNEL_FIRST.lower(conv(3, 6, 12, 1), 2, hardware)
    assert (told.blocking.blocks, told.blocking.col_folds) == (2, 3)
    preloads = [step for step in program.rows if isinstance(step, Preload)]
    waiting = sum(any(isinstance(program.rows[other], Stream) for other in step.after) for step in preloads)
    assert waiting == bodies - 1


def test_explain_says_what_the_policy_does() -> None:
    def aspects(layer: Conv2d, batch: int = 8) -> str:
        return " | ".join(CHANNEL_FIRST.lower(layer, batch, CORE)[1].aspects.values())

    assert "up to 2 stacked in a pass (dense)" in aspects(conv(64, 9, 128, 3))
    assert "up to 2 stacked in a pass, split where it is full (dense)" in aspects(conv(80, 9, 128, 3))
    assert "fed through a transposition" in aspects(conv(3, 9, 64, 7))
    assert "images lie in lanes, and are transposed" in aspects(conv(16, 9, 32, 3), 128)
    assert "one filter row at a time (row_windows)" in aspects(conv(80, 14, 128, 5))
    assert "all column folds in one body" in aspects(conv(80, 14, 256, 1))
