"""Tiles of tensors in HBM: against layouts that the compiler emitted, and against counting tiles."""

from __future__ import annotations

import re
from importlib.resources import files
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim import load_hardware
from tpusim.machines.family import family_of
from tpusim.memory.tile import Tile

WHOLE = Tile(8, 128, 1024)
_LAYOUT = re.compile(r"(bf16|f32)\[(\d+,\d+,\d+,\d+)\]\{([\d,]+):T\((\d+),(\d+)\)")


def test_emitted_layouts_of_networks_take_as_much() -> None:
    """Maps [image, row, col, channel] and filters [row, col, in, out], as the compiler of TPU v2 laid them."""
    text = files("tpusim.study.validation").joinpath("truth", "xla_tpu_v2_networks.csv").read_text()
    core = load_hardware("tpu_v2_core")
    tile = family_of(core).tile(core)
    found = 0
    for kind, dims, order, rows, lanes in {each.groups() for each in _LAYOUT.finditer(text)}:
        shape, bits = [int(each) for each in dims.split(",")], {"bf16": 16, "f32": 32}[kind]
        minor, second, *rest = (shape[int(axis)] for axis in order.split(","))
        padded = -(-minor // int(lanes)) * int(lanes) * -(-second // int(rows)) * int(rows) * prod(rest)
        first, row, col, last = shape
        ours = tile.bytes((last, row, col, first), bits), tile.bytes((last, first, row, col), bits)
        # Heads of attention, which are channels here, come apart there. Inputs lie as the host has them.
        if row == col and order != "2,1,3,0":
            assert padded * bits // 8 in ours, (dims, order)
            found += 1
    assert found > 20


@pytest.mark.parametrize(
    ("shape", "bits", "expected"),
    [
        ((64, 56, 56, 8), 16, 128 * 56 * 56 * 8 * 2),
        # Three rows fill a tile of four, two of them the smallest tile, which has four of bf16, too.
        ((3, 1, 1, 128), 16, 4 * 128 * 2),
        ((2, 1, 1, 128), 16, 4 * 128 * 2),
        ((2, 1, 1, 128), 32, 2 * 128 * 4),
        ((9, 1, 1, 128), 32, 16 * 128 * 4),
        ((3, 224, 224, 128), 16, 4 * 224 * 224 * 128 * 2),
        # One image with two channels, as in flax #1733: 64 times its elements.
        ((2, 2176, 1056, 1), 32, 128 * 2176 * 1056 * 4),
        ((5, 7, 9, 1), 16, 128 * 8 * 9 * 2),
        # A tensor of one axis fills tiles row by row.
        ((64, 1, 1, 1), 32, 1024),
        ((1000, 1, 1, 1), 32, 4096),
        ((4097, 1, 1, 1), 32, 5 * 4096),
        ((256, 1, 1, 256), 4, 256 * 256 // 2),
    ],
)
def test_tensors_by_hand(shape: tuple[int, ...], bits: int, expected: int) -> None:
    assert WHOLE.bytes(shape, bits) == expected


SHAPES = st.tuples(*[st.integers(1, 40)] * 4)


@given(SHAPES, st.sampled_from([4, 8, 16, 32]), st.sampled_from([1, 2, 8]), st.sampled_from([1, 4, 128]))
def test_a_tensor_takes_no_less_than_its_elements_and_no_more_than_whole_tiles_a_row(
    shape: tuple[int, ...], bits: int, rows: int, lanes: int
) -> None:
    tile, elements = Tile(rows, lanes), -(-prod(shape) * bits // 8)
    assert elements <= tile.bytes(shape, bits) <= prod(shape) * -(-rows * lanes * bits // 8)
    assert Tile().bytes(shape, bits) == elements
