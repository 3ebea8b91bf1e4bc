"""Minimal filtering: its transforms, who it is for, and where it is faster: where the array has most to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.agreement.test_fft import operations
from tests.agreement.test_tiles import worked_out
from tests.rules import rule
from tests.strategies import conv, fills, machine, spills
from tpusim import simulate
from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.description import load_hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS, lowered
from tpusim.machines.tpu.tiles.winograd import F2, F4, MinimalFiltering
from tpusim.network.ops.array_op import Conv1d, Conv2d, ConvTranspose2d, Gemm
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload

TILES = {"winograd_2": F2, "winograd_4": F4}


# ---- the transforms


@rule("T102")
@pytest.mark.parametrize("by", TILES.values(), ids=TILES)
def test_every_recipe_makes_what_the_matrix_says(by: MinimalFiltering) -> None:
    axis = by.tiles.down
    for recipe in axis.data:
        np.testing.assert_array_equal(worked_out(recipe, axis.reach), by.data)
    for recipe in axis.inverse:
        np.testing.assert_array_equal(worked_out(recipe, axis.reach), by.inverse)


@rule("T102")
@pytest.mark.parametrize("by", TILES.values(), ids=TILES)
def test_a_tile_by_hand(by: MinimalFiltering) -> None:
    """The outputs, times the scale, straight from the matrices."""
    random, reach = np.random.default_rng(1), by.tiles.down.reach
    data, taps = random.integers(-99, 99, (reach, reach)), random.integers(-99, 99, (3, 3))
    one, other = np.array(by.data), np.array(by.inverse)
    made = other @ (by.transformed(taps[None, ..., None]).reshape(reach, reach) * (one @ data @ one.T)) @ other.T
    windows = np.lib.stride_tricks.sliding_window_view(data, (3, 3))
    np.testing.assert_array_equal(made, by.tiles.outputs_scale * (windows * taps).sum(axis=(2, 3)))


@rule("T103")
def test_the_ways_of_a_transform_take_what_the_table_says() -> None:
    """Operations, and words read and written: row by row, and with what rows have in common computed once."""
    ways = {
        (name, of): [(operations(each), sum(len(line.factors) + 1 for line in each)) for each in recipes]
        for name, by in TILES.items()
        for of, recipes in (("data", by.tiles.down.data), ("outputs", by.tiles.down.inverse))
    }
    assert ways == {
        ("winograd_2", "data"): [(4, 12)],
        ("winograd_2", "outputs"): [(4, 8)],
        ("winograd_4", "data"): [(28, 28), (18, 32)],
        ("winograd_4", "outputs"): [(20, 22), (13, 26)],
    }


@rule("T104")
def test_published_factors() -> None:
    """Lavin and Gray: 2.25 and 4 times fewer multiplications; filters 16 / 9 and 4 times larger."""
    assert [9 * by.outputs**2 / by.tiles.multiplications for by in (F2, F4)] == [2.25, 4]
    assert [by.tiles.outputs_scale for by in (F2, F4)] == [4, 576]


# ---- who it is for

OTHERS: dict[str, Op] = {
    "5x5": conv(8, 9, 8, 5),
    "1x1": conv(8, 9, 8, 1),
    "stride 2": conv(8, 9, 8, 3, stride=2),
    "dilated": conv(8, 9, 8, 3, dilation=2),
    "grouped": conv(8, 9, 8, 3, groups=2),
    "a sequence": Conv1d("sequence", 4, 9, 4, 3),
    "a product": Gemm("fc", m=4, n=4, k=4),
    "transposed": ConvTranspose2d("transposed", 4, 5, 5, 4, (3, 3)),
}


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize("other", OTHERS)
def test_other_layers_are_refused(name: str, other: str) -> None:
    with pytest.raises(CapacityError) as error:
        lowered(OTHERS[other], 2, machine(), name)
    (problem,) = error.value.problems
    assert other == "transposed" or "takes convolutions of 3 x 3 taps, stride 1, dilation 1 and one" in str(problem)


def test_banks_are_refused() -> None:
    with pytest.raises(CapacityError, match="reads from lanes alone"):
        lowered(conv(8, 5, 8, 3), 2, machine(vector_memory={"organization": "banked"}), "winograd_2")


# ---- how fast


def run(layer: Conv2d, lowering: str, alus: int = 256, **options: Any) -> Any:
    hardware = load_hardware("tpu_v2", {"vector_unit.alus": alus})
    (result,) = simulate(Workload("net", 8, (layer,)), hardware, lowering=lowering, **options).layers
    return result


@pytest.mark.parametrize(
    ("channels", "size", "alus", "best"),
    [
        pytest.param(64, 56, 2048, "channel_last", marks=pytest.mark.long),
        pytest.param(512, 14, 256, "winograd_2", marks=pytest.mark.long),
        pytest.param(256, 14, 2048, "winograd_4", marks=pytest.mark.long),
    ],
)
def test_auto_takes_the_fastest(channels: int, size: int, alus: int, best: str) -> None:
    layer = conv(channels, size, channels, 3, padding=1)
    direct, *tiles = (run(layer, name, alus, check=False) for name in ("channel_first", *TILES))
    found = run(layer, "auto", alus, check=False)
    assert found.lowering == best
    assert found.cycles <= min(each.cycles for each in (direct, *tiles))


@pytest.mark.long
def test_every_output_of_a_layer_of_vgg16() -> None:
    found = run(conv(512, 14, 256, 3, padding=1), "winograd_4", 2048)
    assert found.outputs_checked == found.outputs
    assert not found.outputs_mismatched
    assert found.pe_utilization > 1


@rule("T104")
def test_weights_come_once_a_block_and_the_ifmap_once() -> None:
    """Two row folds are transformed a block, for all of its four column folds."""
    layer, hardware = conv(256, 28, 512, 3, padding=1), load_hardware("tpu_v2")
    program, told = LOWERINGS["winograd_2"].lower(layer, 8, hardware)
    weights = sum(step.hbm_bytes for step in fills(program, "transformed"))
    assert weights == told.blocking.blocks * 16 * 256 * 512 * 4
    assert len(fills(program, "ifmap")) == told.blocking.blocks * 2
    assert len(spills(program)) == told.blocking.blocks * 4
