"""The transposed convolution of the reference against what else knows it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from tests.strategies import cases, conv, convolved, transposed_convs
from tpusim import reference
from tpusim.network.ops.array_op import Conv2d, ConvTranspose2d
from tpusim.reference import products

relaxed = settings(max_examples=cases(usual=30), deadline=None, suppress_health_check=list(HealthCheck))


@relaxed
@given(transposed_convs())
def test_it_is_the_gradient_of_a_convolution(layer: ConvTranspose2d) -> None:
    """<conv(x), y> = <x, transposed(y)> for all x and y: each is the other's adjoint."""
    assume(all(added < stride for added, stride in zip(layer.output_padding, layer.stride, strict=True)))
    # Its outputs are what is convolved, so a filter of it has them as input channels.
    forth = Conv2d(
        "forth", layer.out_channels, layer.out_height, layer.out_width, layer.in_channels, layer.kernel, layer.stride,
        layer.padding, layer.dilation, layer.groups,
    )  # fmt: skip
    y, weights = reference.operands(layer, 2, seed=3).values()
    x, _ = reference.operands(forth, 2, seed=4).values()
    into, out = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    grouped = weights.reshape(layer.groups, out, *layer.kernel, into)
    turned = np.moveaxis(grouped, -1, 1).reshape(layer.in_channels, out, *layer.kernel)
    there = convolved(forth, x, np.moveaxis(turned, 1, -1))
    back = convolved(layer, y, weights)
    assert np.sum(there.astype(float) * y) == np.sum(x * back.astype(float))


@relaxed
@given(transposed_convs())
def test_a_strided_part_of_it_is_a_part_of_it(layer: ConvTranspose2d) -> None:
    ifmap, filter_ = reference.operands(layer, 3, seed=1).values()
    channels, rows, cols, images = map(range, layer.tensors(3).ofmap)
    some = channels[-2:], rows[len(rows) // 3 :: 2], cols[::3], images[1:]
    whole = convolved(layer, ifmap, filter_)
    part = whole[tuple(slice(each.start, each.stop, each.step) for each in some)]
    np.testing.assert_array_equal(convolved(layer, ifmap, filter_, some), part)


def test_each_phase_of_a_long_kernel_is_made_by_few_taps() -> None:
    layer = ConvTranspose2d("t", 2, 3, 9, 3, (2, 96), (1, 24), (0, 30))
    ifmap, filter_ = reference.operands(layer, 3, seed=1).values()
    channels, rows, cols, images = map(range, layer.tensors(3).ofmap)
    whole = convolved(layer, ifmap, filter_)
    for phase in range(24):
        part = convolved(layer, ifmap, filter_, (channels, rows, cols[phase::24], images))
        np.testing.assert_array_equal(part, whole[:, :, phase::24])
        assert len(products.landings(layer.scatter, 1, cols[phase::24])) == 4
        assert len(products.landings(layer.scatter, 1, cols[phase : phase + 1])) <= 4


def test_of_stride_one_it_is_a_convolution_with_the_filter_turned() -> None:
    layer = ConvTranspose2d("t", 3, 5, 6, 4, (3, 2), 1, (1, 0))
    ifmap, filter_ = reference.operands(layer, 2, seed=0).values()
    turned = Conv2d("c", 3, 5, 6, 4, (3, 2), 1, (1, 1))
    np.testing.assert_array_equal(
        convolved(layer, ifmap, filter_),
        convolved(turned, ifmap, filter_[:, ::-1, ::-1]),
    )


@relaxed
@given(transposed_convs())
def test_torch_agrees(layer: ConvTranspose2d) -> None:
    """Its filter is [in_channel, out_channel of the group, tap_row, tap_col]."""
    torch = pytest.importorskip("torch")
    ifmap, filter_ = reference.operands(layer, 2, seed=5).values()
    into, out = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    weights = np.moveaxis(filter_.reshape(layer.groups, out, *layer.kernel, into), -1, 1)
    given_ = (np.moveaxis(ifmap, -1, 0), weights.reshape(layer.in_channels, out, *layer.kernel))
    images, kernels = (torch.from_numpy(np.ascontiguousarray(each).astype(np.float64)) for each in given_)
    options = {"stride": layer.stride, "padding": layer.padding, "output_padding": layer.output_padding}
    found = torch.nn.functional.conv_transpose2d(
        images, kernels, groups=layer.groups, dilation=layer.dilation, **options
    )
    np.testing.assert_array_equal(convolved(layer, ifmap, filter_), np.moveaxis(found.numpy(), 0, -1))


def test_torchs_gradient_of_a_convolution_agrees() -> None:
    torch = pytest.importorskip("torch")
    forth = conv(4, 9, 6, 3, stride=2, padding=1)
    layer = ConvTranspose2d("t", 6, 5, 5, 4, 3, 2, 1)
    y, filter_ = reference.operands(layer, 2, seed=6).values()
    images = torch.zeros(2, 4, 9, 9, dtype=torch.float64, requires_grad=True)
    weights = torch.from_numpy(np.ascontiguousarray(np.moveaxis(filter_, -1, 0)).astype(np.float64))
    there = torch.nn.functional.conv2d(images, weights, stride=forth.stride, padding=forth.padding)
    there.backward(torch.from_numpy(np.ascontiguousarray(np.moveaxis(y, -1, 0)).astype(np.float64)))
    np.testing.assert_array_equal(convolved(layer, y, filter_), np.moveaxis(images.grad.numpy(), 0, -1))
