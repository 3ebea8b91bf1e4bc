"""Bytes of both operands: what blocks fetch, counted element by element, is what the formulas say."""

from __future__ import annotations

from itertools import product
from math import ceil

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.machines.gpu import conv, convolutions, fits, gpu, lowered, mappings
from tests.strategies import cases
from tpusim.machines.gpu import event
from tpusim.machines.gpu.description import Gpu
from tpusim.machines.gpu.lowering import LOWERINGS
from tpusim.machines.gpu.program import Boxes, GpuProgram, unique
from tpusim.network.ops.array_op import Conv2d

side = st.integers(1, 12)


@settings(max_examples=cases(0.05))
@given(side, side, side, side)
def test_overlap_is_that_of_the_set(outputs: int, taps: int, stride: int, dilation: int) -> None:
    read = {y * stride + i * dilation for y, i in product(range(outputs), range(taps))}
    assert unique(outputs, taps, stride, dilation) == len(read)


def test_nothing_is_saved_where_the_stride_is_as_long_as_the_kernel() -> None:
    for stride in (3, 4, 5):
        assert unique(16, 3, stride, 1) == 16 * 3


def counted(program: GpuProgram, reused: bool) -> tuple[int, int]:
    """Elements of both operands that blocks ask for: of a box that reuses them, each once."""
    products, taken = program.products, 0
    layer, blocks = products.conv, products.blocks
    channels = sum(run.channels for step in products.steps for run in step)
    for places in blocks.places(0, blocks.count):
        there = places[places >= 0]
        if not reused:
            taken += len(there) * channels
            continue
        image, *at = np.unravel_index(there, (products.images, layer.out_height, layer.out_width))
        read = {
            (n, y * layer.stride[0] + i * layer.dilation[0], x * layer.stride[1] + j * layer.dilation[1])
            for n, y, x in zip(image.tolist(), *(each.tolist() for each in at), strict=True)
            for i, j in product(*map(range, layer.kernel))
        }
        taken += len(read) * channels // (layer.kernel[0] * layer.kernel[1])
    return taken * products.columns, channels * layer.out_channels * blocks.count


@settings(max_examples=cases(0.05), deadline=None)
@given(convolutions(), mappings())
def test_counted_bytes_are_those_of_the_formulas(case: tuple[Conv2d, int], machine: Gpu) -> None:
    for lowering in LOWERINGS:
        if program := fits(*case, machine, lowering):
            figures, reuse = event.run(program, machine).figures, machine.mapping.reuse
            # Whether L1 holds what the cache is to share, the lowering decides; then its blocks fetch less.
            patched = lowering == "block_channel_first" and reuse == "patch"
            if lowering != "block_channel_first" or reuse != "cache":
                elements = counted(program, patched)
                assert (figures["a_bytes"], figures["b_bytes"]) == tuple(2 * each for each in elements)


def test_bytes_of_whole_boxes_by_hand() -> None:
    """8 x 16 outputs, 3 x 3 taps: 180 of 1152 elements; with channels for whole sectors L2 hands out just these."""
    layer, machine = conv(64, 32, 64, 3, padding=(1, 1)), gpu("mapping.tile=128x64", "mapping.split_k=none")
    program = lowered(layer, 1, machine, "block_channel_first")
    assert isinstance(program.products.blocks, Boxes)
    assert program.products.blocks.box == (1, 8, 16)
    figures = event.run(program, machine).figures
    assert figures["a_bytes"] == 8 * 180 * 64 * 2
    assert figures["b_bytes"] == 8 * 9 * 64 * 64 * 2
    assert figures["l2_bytes"] == figures["a_bytes"] + figures["b_bytes"]


def test_a_tap_outermost_asks_the_cache_for_every_channel() -> None:
    """Between two uses of an element lie all channels of a tile: too many for L1, so that nothing is saved."""
    layer, cache = conv(512, 16, 64, 3, padding=(1, 1)), "mapping.reuse=cache"
    figures = [
        event.run(lowered(layer, 8, machine, "block_channel_first"), machine).figures["a_bytes"]
        for machine in (gpu(cache), gpu(cache, "mapping.order=taps_outside"), gpu("mapping.reuse=none"))
    ]
    assert figures[0] < 0.5 * figures[1] == 0.5 * figures[2]


def test_stages_move_what_the_bytes_say() -> None:
    layer, machine = conv(64, 32, 128, 3, padding=(1, 1)), gpu()
    products = lowered(layer, 1, machine, "channel_last").products
    fetched = sum(stage.fetched for stage in products.stages)
    assert fetched * products.blocks.count * products.columns == products.a_bytes + products.b_bytes
    assert products.blocks.count == ceil(32 * 32 / products.tile.m)
