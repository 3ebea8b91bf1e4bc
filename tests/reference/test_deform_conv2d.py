"""The deformable convolution of the reference against what else knows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.strategies import convolved, deform_convs
from tpusim import reference
from tpusim.network.ops.array_op import Conv2d
from tpusim.network.ops.deform_conv2d import MASK_PARTS, DeformConv2d
from tpusim.reference import EXACT

relaxed = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def deformed(**more: Any) -> DeformConv2d:
    return DeformConv2d("d", 6, 7, 8, 4, (3, 2), (2, 1), (1, 2), (1, 2), 2, **more)


PLAIN = Conv2d("c", 6, 7, 8, 4, (3, 2), (2, 1), (1, 2), (1, 2), 2)
IFMAP, FILTER = reference.operands(PLAIN, 3, seed=0).values()


def test_without_offsets_it_is_the_convolution() -> None:
    layer = deformed(offsets="zero", offset_groups=3)
    np.testing.assert_array_equal(
        convolved(layer, IFMAP, FILTER),
        convolved(PLAIN, IFMAP, FILTER),
    )


def test_whole_offsets_shift_taps() -> None:
    """All of them one down and two to the left: as if there were as much less padding above, and more to the left."""
    layer = deformed(offsets=(1, -2) * 6)
    shifted = replace(PLAIN, padding=(1 - 1, 2 + 2, 1 + 1, 2 - 2))
    np.testing.assert_array_equal(
        convolved(layer, IFMAP, FILTER),
        convolved(shifted, IFMAP, FILTER),
    )


def test_whole_offsets_of_every_output_are_elements() -> None:
    layer = deformed(offsets="integer", offset_groups=2)
    given_ = layer.displaced(3)
    expected = np.zeros(layer.tensors(3).ofmap)
    for o, y, x, n, c, i, j in np.ndindex(*expected.shape, 3, *layer.kernel):
        channel = o // 2 * 3 + c
        row = y * 2 - 1 + i + given_.down[channel // 3, i, j, y, x, n]
        col = x - 2 + j * 2 + given_.across[channel // 3, i, j, y, x, n]
        if 0 <= row < 7 and 0 <= col < 8:
            expected[o, y, x, n] += FILTER[o, i, j, c] * float(IFMAP[channel, row, col, n])
    np.testing.assert_array_equal(convolved(layer, IFMAP, FILTER), expected)


def test_halves_are_means_and_exact() -> None:
    """One tap half an element down and to the right of each output, on even numbers: the mean of four."""
    layer = DeformConv2d("d", 1, 5, 6, 1, 1, offsets=(0.5, 0.5))
    ifmap = 2 * np.random.default_rng(0).integers(-30, 30, (1, 6, 7, 2)).astype(np.int8)
    ifmap[:, -1], ifmap[:, :, -1] = 0, 0
    mean = ifmap[:, :-1, :-1] / 4 + ifmap[:, 1:, :-1] / 4 + ifmap[:, :-1, 1:] / 4 + ifmap[:, 1:, 1:] / 4
    np.testing.assert_array_equal(convolved(layer, ifmap[:, :-1, :-1], np.ones((1, 1, 1, 1), np.int8)), mean)


@pytest.mark.parametrize("at", [(-1, 0.0), (-0.75, 0.25), (4.5, 0.5), (5, 0.0)])
def test_all_around_the_map_is_zero(at: tuple[float, float]) -> None:
    """From one row before the first to one after the last, samples fade."""
    place, share = at
    layer = DeformConv2d("d", 1, 5, 1, 1, 1, offsets=(place, 0))
    ifmap = np.full((1, 5, 1, 1), 4, np.int8)
    assert convolved(layer, ifmap, np.ones((1, 1, 1, 1), np.int8))[0, 0, 0, 0] == 4 * share


@relaxed
@given(deform_convs())
def test_a_part_of_it_is_a_part_of_it(layer: DeformConv2d) -> None:
    ifmap, filter_ = reference.operands(layer, 3, seed=1).values()
    channels, rows, cols, images = map(range, layer.tensors(3).ofmap)
    some = channels[-2:], rows[len(rows) // 3 :], cols[:3], images[1:]
    whole = convolved(layer, ifmap, filter_)
    part = whole[tuple(slice(each.start, each.stop) for each in some)]
    np.testing.assert_array_equal(convolved(layer, ifmap, filter_, some), part)


@relaxed
@given(deform_convs())
def test_torchvision_agrees(layer: DeformConv2d) -> None:
    """Its offsets are [image, (offset_group, tap_row, tap_col, down or across), row, col]."""
    torch, torchvision = pytest.importorskip("torch"), pytest.importorskip("torchvision")
    ifmap, filter_ = reference.operands(layer, 2, seed=5).values()
    given_ = layer.displaced(2)
    pairs = np.stack([given_.down, given_.across], axis=3) / given_.parts
    images, weights, offsets, masks = (
        torch.from_numpy(np.ascontiguousarray(np.moveaxis(each, -1, axis)).astype(np.float64))
        for each, axis in ((ifmap, 0), (filter_, 1), (pairs, 0), (given_.masks / MASK_PARTS, 0))
    )
    shape = -1, layer.out_height, layer.out_width
    found = torchvision.ops.deform_conv2d(
        images, offsets.reshape(2, *shape), weights, None, layer.stride, layer.padding, layer.dilation,
        masks.reshape(2, *shape) if layer.modulated else None,
    )  # fmt: skip
    np.testing.assert_array_equal(convolved(layer, ifmap, filter_), np.moveaxis(found.numpy(), 0, -1))


def test_operands_are_small_enough_for_parts_to_be_exact() -> None:
    """The finest samples are 64th parts, and a long sum of them below 2^24 of those."""
    layer = DeformConv2d("d", 1024, 3, 3, 2, 3, 1, 1, modulated=True)
    ifmap, filter_ = reference.operands(layer, 1, seed=0).values()
    assert abs(ifmap.astype(int)).max() * abs(filter_.astype(int)).max() * 9 * 1024 * 64 <= EXACT
    assert layer.sample_parts == 64


def test_offsets_are_the_layers_whatever_its_name() -> None:
    one, other = (DeformConv2d(name, 4, 5, 5, 4, 3, offsets="half") for name in ("a", "b"))
    here, there = one.displaced(2), other.displaced(2)
    np.testing.assert_array_equal(here.down, there.down)
    assert here.parts == 2
    assert {*np.unique(here.across).tolist()} == {-3, -1, 1, 3}
