"""What people are told of a lowering: each choice where it changes something, and that it changes nothing elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from tests.strategies import conv, machine
from tpusim import load_hardware
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS, lowered
from tpusim.machines.tpu.sections import BlockSizes
from tpusim.network.ops.array_op import ConvTranspose2d, Gemm
from tpusim.network.ops.channels import ChannelProducts
from tpusim.network.ops.flash_attention import FlashAttention
from tpusim.network.ops.op import Op
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.ops.rows import Softmax

OTHER: dict[str, Any] = {
    "multi_tile": "dense", "loop_order": "filter_major", "chunks": "needed", "transformation": "before",
    "loads": "whole", "fetch": "per_tap", "k_order": "taps_fastest", "patch": "window", "layout": "least_padding",
    "row_windows": 2, "transposed_channels": 8, "column_folds": "all", "entry": "relaid", "search": "simulate",
    "block_m": 3, "block_k": 3, "block_n": 2, "strips": "one_image",
}  # fmt: skip
"""Of each field a value that is not its default."""
SMALL = machine(
    8,
    4,
    capacity_words=150,
    vector_unit={"relayout_cycles": 8},
    hbm={"channel_multiple": 8},
    sequencer={"between_blocks": "drain"},
)
PLAIN = conv(6, 7, 9, 5, 2, padding=2)
LARGER = machine(
    8,
    4,
    capacity_words=300,
    vector_unit={"relayout_cycles": 8},
    hbm={"channel_multiple": 8},
    sequencer={"between_blocks": "drain"},
)
"""With room for a tile of 6 x 6."""
LARGEST = machine(
    8,
    4,
    capacity_words=3000,
    vector_unit={"relayout_cycles": 8},
    hbm={"channel_multiple": 8},
    sequencer={"between_blocks": "drain"},
)
"""With room for one of 16 x 16."""
TILES = ("winograd_2", "winograd_4")
MACHINES = {**dict.fromkeys(TILES, LARGER), "fft": LARGEST}
LAYERS: dict[str, Op] = {
    **dict.fromkeys(TILES, conv(6, 7, 9, 3, padding=1)),
    "fft": conv(6, 7, 9, 5, padding=2),
    "vector_ops": Pool2d("p", "max", 6, 7, 7, (3, 3), (2, 2)),
    "vector_rows": Softmax("s", 6, 7),
    "vector_channels": ChannelProducts("c", 6, 7, 7),
    "flash_attention": FlashAttention("a", 2, 5, 9),
    "vector": conv(6, 7, 6, 3, 2, padding=1, groups=6),
    "block_diagonal": conv(6, 7, 6, 3, 2, padding=1, groups=2),
    **dict.fromkeys(
        ("stride_phases", "zero_insertion"), ConvTranspose2d("t", 6, 5, 5, 6, (4, 4), (2, 2), (0, 0), (0, 0), (1, 1), 1)
    ),
}


def with_mapping(hardware: Hardware, **changes: Any) -> Hardware:
    return hardware.model_copy(update={"mapping": hardware.mapping.model_copy(update=changes)})


def ignored(name: str) -> frozenset[str]:
    found = LOWERINGS[name].ignores
    return found(SMALL) if callable(found) else found


def changed(field: str, hardware: Hardware = SMALL) -> Hardware:
    if field.startswith("block."):
        given = {field.removeprefix("block."): 2}
        return with_mapping(hardware, block=hardware.mapping.block.model_copy(update=given))
    return with_mapping(hardware, **{field: OTHER[field]})


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name in ("winograd_4", "fft")))
        for name in LOWERINGS
        if name != "deformable"
    ],
)
def test_what_a_lowering_does_not_know_changes_nothing_and_is_told(name: str) -> None:
    layer, hardware = LAYERS.get(name, PLAIN), MACHINES.get(name, SMALL)
    plain, explanation = lowered(layer, 3, hardware, name)
    assert "unused" not in explanation.aspects
    fields = sorted(ignored(name))
    for field in fields:
        hardware = changed(field, hardware)
    program, explanation = lowered(layer, 3, hardware, name)
    assert program == plain
    if fields:
        by, _, unused = explanation.aspects["unused"].partition(": ")
        assert (by, sorted(unused.split(", "))) == (f"of mapping, by {name}", fields)


def test_what_channel_first_knows_changes_its_steps_and_nothing_else_is_told() -> None:
    """So the layer above tells unused choices from others."""
    plain = lowered(PLAIN, 3, SMALL, "channel_first")[0]
    known = (ignored("explicit") | ignored("implicit_gemm") | {"loads"}) - ignored("channel_first")
    for field in sorted(known - {"block_k"}):
        program, explanation = lowered(PLAIN, 3, changed(field), "channel_first")
        assert program != plain, field
        assert "unused" not in explanation.aspects


def test_a_product_is_channel_firsts_whatever_it_is_asked_for() -> None:
    hardware = with_mapping(SMALL, transformation="on_chip", multi_tile="dense", k_order="taps_fastest")
    told = lowered(Gemm("g", 9, 8, 7), 1, hardware, "explicit")[1].aspects
    assert told["unused"] == "of mapping, by channel_first: transformation, k_order"
    assert (
        lowered(PLAIN, 3, hardware, "explicit")[1].aspects["unused"] == "of mapping, by explicit: multi_tile, k_order"
    )
    banked = load_hardware("tpu_v2_banked", ["mapping.row_windows=2", "mapping.loads=whole"])
    assert LOWERINGS["channel_first"].unused(banked) == ["row_windows"]


def told(layer: Op, **changes: Any) -> dict[str, str]:
    return dict(lowered(layer, 3, with_mapping(SMALL, **changes), "channel_first")[1].aspects)


def test_points_between_those_of_a_stride_are_told_where_they_come() -> None:
    between = "the points between those that its stride touches come, too (window)"
    assert between in told(conv(3, 7, 9, 1, 2), patch="window")["block"]
    assert between not in told(conv(3, 7, 9, 1, 2))["block"]
    assert between not in told(conv(3, 7, 9, 3, 2), patch="window")["block"]


def test_whole_loads_and_weights_that_share_no_pass_are_told() -> None:
    assert "each begins when its loads are whole" in told(PLAIN, loads="whole")["order"]
    assert "whole" not in told(PLAIN)["order"]
    alone = "weights lie with their input channels in lanes: no two taps share a pass"
    assert alone in told(conv(7, 7, 1, 3), multi_tile="dense", layout="least_padding")["taps"]
    assert alone not in told(conv(7, 7, 1, 3), multi_tile="dense")["taps"]


def test_what_was_given_of_a_block_is_told_of_the_vector_unit_too() -> None:
    hardware = with_mapping(SMALL, block=BlockSizes(rows=2, taps=1))
    aspects = lowered(LAYERS["vector"], 3, hardware, "vector")[1].aspects
    assert aspects["block"].endswith("given: rows 2, taps 1")
    assert aspects["unused"] == "of mapping, by vector: block.taps"


def test_what_takes_no_time_for_want_of_a_number_is_told() -> None:
    assert told(PLAIN, transposed_channels=8)["taps"].endswith("that takes no time (transpose_cycles)")
    assert told(PLAIN, entry="relaid")["words"].endswith("is laid out anew")
    aspects = lowered(PLAIN, 3, with_mapping(machine(), entry="relaid"), "channel_first")[1].aspects
    assert aspects["words"].endswith("is laid out anew in no time (relayout_cycles)")
