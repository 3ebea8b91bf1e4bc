"""Ops that only move elements: what they make, in files and graphs, and what is told of wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.strategies import machine
from tpusim import load_workload
from tpusim.base.errors import InputError
from tpusim.flow.verify import expected, operands_of
from tpusim.machines.tpu.lowering import vector_ops
from tpusim.machines.tpu.lowering.registry import lowered
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.network.ops.elementwise import Copy
from tpusim.network.ops.moves import ChannelShuffle, Move, Pad, Slice, Transpose, Upsample
from tpusim.network.workload import Source

SIZES = {"channels": 6, "height": 3, "width": 4}
MOVES: list[tuple[Move, str, tuple[int, int, int, int]]] = [
    (Transpose("t", **SIZES), "3x4x6 > whci", (4, 3, 6, 2)),
    (Transpose("t", **SIZES, images=5, order=["images", "width", "height", "channels"]), "3x4x6 n5 > iwhc",
     (5, 4, 3, 6)),
    (ChannelShuffle("s", **SIZES, groups=3), "3x4x6 > 3", (6, 3, 4, 2)),
    (Slice("s", **SIZES, start=1, stop=6, step=2), "3x4x6 > c 1:6:2", (3, 3, 4, 2)),
    (Slice("s", **SIZES, axis="images", stop=1), "3x4x6 > i 0:1", (6, 3, 4, 1)),
    (Pad("p", **SIZES, padding=(1, 0, 2, 3)), "3x4x6 > 1,0,2,3", (6, 6, 7, 2)),
    (Upsample("u", **SIZES, scale=(2, 1)), "3x4x6 > 2x1", (6, 6, 4, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "text", "shape"), MOVES)
def test_what_is_made(layer: Move, text: str, shape: tuple[int, ...]) -> None:
    assert (layer.text, layer.shapes(2)["ofmap"], layer.macs(2)) == (text, shape, 0)


@pytest.mark.parametrize(("layer", "text", "shape"), MOVES)
def test_every_element_comes_from_where_the_op_says(layer: Move, text: str, shape: tuple[int, ...]) -> None:
    """The oracle moves maps as a whole, and knows nothing of coordinates."""
    operands = operands_of(layer, 2, seed=1)
    ifmap, made = operands["ifmap"], expected(layer, operands)
    for index in np.ndindex(*shape):
        place = [0] * 4
        for each, at in zip(layer.taken(2), index, strict=True):
            place[each.axis] = each.coordinates[at]
        inside = all(0 <= at < size for at, size in zip(place, ifmap.shape, strict=True))
        assert made[index] == (ifmap[tuple(place)] if inside else 0)


def test_channels_are_shuffled_as_shufflenet_does() -> None:
    assert ChannelShuffle("s", 6, groups=3).taken(1)[0].coordinates == (0, 2, 4, 1, 3, 5)


@pytest.mark.parametrize(
    ("kind", "more", "says"),
    [
        (ChannelShuffle, {"groups": 4}, "groups 4 does not divide channels 6"),
        (Slice, {"start": 3, "stop": 3}, "nothing is from 3 to 3"),
        (Slice, {"axis": "width", "stop": 5}, "5 is behind the 4 that there are; write 4 at most"),
        (Pad, {"padding": "same"}, "same is for what a kernel moves over; write numbers"),
        (Transpose, {"order": ["width", "height"]}, "is no order; write channels, height, width, images"),
    ],
)
def test_what_is_wrong_with_one(kind: type[Move], more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        kind("m", **SIZES, **more)


GRAPH = """name: net
layers:
  - {name: conv, op: conv2d, in_channels: 3, in_height: 8, in_width: 6, out_channels: 8, kernel: 1}
  - {name: half, op: slice, inputs: [conv], start: 4, stop: 8}
  - {name: pad, op: pad, padding: 1}
  - {name: up, op: upsample}
  - {name: turn, op: transpose, order: [height, width, channels, images]}
  - {name: mix, op: channel_shuffle, groups: 5}
"""


def test_sizes_follow_through_a_graph(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text(GRAPH)
    work = load_workload(tmp_path / "net.yaml", 2)
    assert [layer.shapes(2)["ofmap"] for layer in work.layers[1:]] == [
        (4, 8, 6, 2), (4, 10, 8, 2), (4, 20, 16, 2), (20, 16, 4, 2), (20, 16, 4, 2),
    ]  # fmt: skip
    assert work.sources()["mix"] == (Source(("turn",)),)
    # Where an element stands is another matter than for an activation.
    (tmp_path / "net.yaml").write_text(f"{GRAPH}  - {{name: fc, op: conv2d, out_channels: 2, kernel: 1}}\n")
    work = load_workload(tmp_path / "net.yaml", 2, ops="array")
    assert work.sources()["fc"] == (Source(("conv",), direct=False),)


# ---- what it takes


def test_a_map_is_turned_in_whole_runs() -> None:
    """Blocks are as long along the innermost axes of both maps, so that turning moves no byte more than copying."""
    hardware = machine(16, 16, word_elements=8, capacity_words=4096)
    turned = Transpose("t", 16, 4, 1, images=64, order=("images", "height", "width", "channels"))
    moved = {
        kind: sum(
            step.hbm_bytes for step in lowered(turned, 1, hardware, "vector_ops")[0].rows if isinstance(step, kind)
        )
        for kind in (Fill, Spill)
    }
    assert moved == {Fill: 16 * 4 * 64 * 4, Spill: 16 * 4 * 64 * 4}


def test_lanes_and_words_have_the_axes_that_fill_them() -> None:
    """One image of 2 channels: columns are in lanes, rows in words; what is copied keeps channels in lanes."""
    hardware = machine(8, 8, word_elements=4)
    shuffled, _ = vector_ops.VECTOR_OPS.lower(ChannelShuffle("s", 2, 4, 8, groups=2), 1, hardware)
    copied, _ = vector_ops.VECTOR_OPS.lower(Copy("c", 2, 4, 8), 1, hardware)
    axes = [
        next(step for step in each.rows if isinstance(step, Fill)).parts[0].lane[0].axis for each in (shuffled, copied)
    ]
    assert axes == [2, 0]
    assert sum(step.words for step in shuffled.vectors) == 2


def test_channels_that_are_not_evenly_spaced_are_in_lanes_or_alone_in_words() -> None:
    hardware = machine(4, 4, word_elements=8)
    program, _ = vector_ops.VECTOR_OPS.lower(ChannelShuffle("s", 8, 1, 4, groups=2), 1, hardware)
    fill = next(step for step in program.rows if isinstance(step, Fill))
    assert [each.axis for each in fill.parts[0].items][-1] != 0
