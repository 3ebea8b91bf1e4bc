"""The compiler's windows: what their bounds count, in every row there is, and the blocks that we make of them."""

from __future__ import annotations

from collections import Counter
from math import ceil, prod

import pytest

from tests.strategies import GENERAL
from tpusim import load_hardware
from tpusim.machines.tpu.cut.plan import Plan
from tpusim.machines.tpu.cut.reduction import TapGroups
from tpusim.machines.tpu.lowering.convolution import plan_of
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.sections import BlockSizes
from tpusim.network.ops.array_op import Conv2d
from tpusim.study.validation.cases import Row, rows
from tpusim.study.validation.convolutions import (
    LANES,
    SUBLANES,
    Shape,
    images_in_lanes,
    their_block,
    weights_transposed,
    windows_of,
)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (Shape(8, 56, 28, 64, 128, (3, 3), 2, (1, 0)), "56x28x64>128 3x3/2"),
        (Shape(8, 56, 28, 64, 128, (3, 2), 1, (0, 0)), "56x28x64>128 3x2/1 unpadded"),
        (Shape(2, 5, 5, 6, 7, (1, 1), 1, (0, 0)), "5x5x6>7 1x1/1 batch 2"),
        (Shape(16, 5, 5, 6, 7, (3, 3), 1, (0, 0)), "5x5x6>7 3x3/1 unpadded batch 16"),
    ],
)
def test_a_shape_says_what_is_not_usual(shape: Shape, name: str) -> None:
    assert shape.name == name


@pytest.mark.parametrize(
    ("channels", "out", "turned"), [(128, 128, False), (96, 96, False), (8, 128, False), (128, 8, True)]
)
def test_weights_are_transposed_only_where_that_pads_them_less(channels: int, out: int, turned: bool) -> None:
    assert weights_transposed({"ci": f"{channels}", "co": f"{out}"}) == turned


TABLES = ("xla_tpu_v2_scheduled", "xla_tpu_v2_conv_more")


def numbers(row: Row, *keys: str) -> list[int]:
    return [int(row[key]) for key in keys]


def bounds(row: Row, of: str) -> list[int]:
    return [int(size) for size in row[f"{of}_bounds"].split("x")]


def layer_of(row: Row) -> Conv2d:
    channels, height, width, out, rows, cols, stride, down, across = numbers(
        row, "ci", "H", "W", "co", "kh", "kw", "s", "ph", "pw"
    )
    return Conv2d("their", channels, height, width, out, (rows, cols), (stride, stride), (down, across), (1, 1), 1)


def plan_in_their_block(row: Row) -> Plan:
    hardware = load_hardware("tpu_v2_core", their_block(row).changes)
    return plan_of(TapGroups, layer_of(row), int(row["batch"]), hardware)


@pytest.mark.parametrize("table", TABLES)
def test_every_bound_counts_what_we_say(table: str) -> None:
    """So many windows of such an extent, and no fewer, cover the whole; the input's are the output's with the halo."""
    for row in rows(table):
        found, batch = windows_of(row), int(row["batch"])
        kernel, stride = numbers(row, "kh", "kw"), int(row["s"])
        strips = ceil(int(row["wo"]) / found.cols) if batch == 1 else 1
        pairs = (
            (int(row["co"]), found.out_channels),
            (batch, found.images),
            (int(row["ho"]), found.rows),
            (int(row["wo"]), found.cols * strips),
            (kernel[0], found.tap_rows),
            (kernel[1], found.tap_cols),
            (int(row["ci"]), found.in_channels),
        )
        assert [ceil(all_ / some) for all_, some in pairs] == [*found.iterations], row
        assert strips <= SUBLANES
        taps = found.tap_rows, found.tap_cols
        halo = [(some - 1) * stride + tap for some, tap in zip((found.rows, found.cols), taps, strict=True)]
        assert bounds(row, "input_window")[:2] == halo, row


@pytest.mark.parametrize("table", TABLES)
def test_sublanes_and_lanes_are_channels_and_images(table: str) -> None:
    for row in rows(table):
        found = windows_of(row)
        sublanes, lanes = bounds(row, "kernel_window")[2:]
        out = sublanes * SUBLANES if weights_transposed(row) else lanes * LANES
        assert ceil(out / LANES) == ceil(found.out_channels / LANES)
        assert images_in_lanes(row) == (row["emitter"] == "EmitInputFeaturePackedInputBatchInLanes")


REASONS = {
    "xla_tpu_v2_scheduled": {},
    "xla_tpu_v2_conv_more": {"taps at a time": 6, "images lie in lanes": 1},
}
"""Why rows have no block of ours, and how many; all others have one."""


@pytest.mark.parametrize("table", TABLES)
def test_which_rows_have_no_block_of_ours(table: str) -> None:
    reasons = [found.reason for row in rows(table) if (found := their_block(row)).reason]
    assert Counter(key for reason in reasons for key in REASONS[table] if key in reason) == REASONS[table]
    assert len(reasons) == sum(REASONS[table].values())
    assert all(not their_block(row).changes for row in rows(table) if their_block(row).reason)


def test_our_blocks_are_their_windows() -> None:
    """A row of each kind of code, kernel, stride and batch."""
    with_block = [row for row in rows(TABLES[1]) if not their_block(row).reason]
    kinds = {
        (row["emitter"], *numbers(row, "kh", "kw", "s", "batch"), weights_transposed(row)): row for row in with_block
    }
    assert 30 < len(kinds) < len(with_block) / 2
    blocks_are_windows([*kinds.values()])


@pytest.mark.long
@pytest.mark.parametrize("table", TABLES)
def test_our_blocks_are_their_windows_in_every_row(table: str) -> None:
    blocks_are_windows([row for row in rows(table) if not their_block(row).reason])


def blocks_are_windows(chosen: list[Row]) -> None:
    """As many, as large, in as many parts of the reduction and of the output channels."""
    for row in chosen:
        found, theirs = plan_in_their_block(row), windows_of(row)
        tiling, turns = found.tiling, theirs.iterations
        assert (tiling.rows, tiling.cols) == (theirs.rows, theirs.cols), row
        assert tiling.blocks == prod((turns.images, turns.rows, turns.cols)), row
        assert len(found.chunks) == prod((turns.tap_rows, turns.tap_cols, turns.in_channels)), row
        assert ceil(len(found.col_folds) / tiling.kept_folds) == turns.out_channels, row


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.long] * (each == "explicit")) for each in GENERAL]
)
def test_every_lowering_takes_them(name: str) -> None:
    """3 x 21 outputs at a time: seven blocks."""
    row = next(row for row in rows(TABLES[0]) if numbers(row, "H", "ci", "co") == [23, 160, 128])
    block = BlockSizes(rows=3, cols=21, images=8, in_channels=160, out_channels=128, taps=9)
    assert their_block(row).block == block.given
    hardware = load_hardware("tpu_v2_core", [each for each in their_block(row).changes if "in_channels" not in each])
    assert LOWERINGS[name].lower(layer_of(row), 8, hardware)[1].blocking.blocks == 7


def test_read_by_eye() -> None:
    """28 x 28 of 64 channels by 5 x 5: seven rows for one filter row after the other."""
    row = next(row for row in rows(TABLES[0]) if numbers(row, "H", "ci", "co", "kh") == [28, 64, 128, 5])
    assert their_block(row).changes == (
        "mapping.block.rows=7",
        "mapping.block.cols=28",
        "mapping.block.images=8",
        "mapping.block.in_channels=64",
        "mapping.block.out_channels=128",
        "mapping.block.taps=5",
        "mapping.block_m=auto",
        "mapping.loop_order=block_major",
    )


def test_their_block_stands_instead_of_a_size_that_words_are_cut_to() -> None:
    row = next(row for row in rows(TABLES[0]) if their_block(row).changes)
    hardware = load_hardware("tpu_v2_core", ["mapping.block_m=5", *their_block(row).changes])
    assert (hardware.mapping.block_m, hardware.mapping.block.given) == ("auto", their_block(row).block)
