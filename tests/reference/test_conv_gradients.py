"""Gradients of convolutions of the reference against the convolutions themselves, and against PyTorch's autograd."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.strategies import cases, convs, has_gradients
from tpusim import reference
from tpusim.base.errors import InputError, UnsuitableError
from tpusim.network.ops.array_op import Conv2d
from tpusim.network.ops.gradients import Conv2dFilterGradient, Conv2dInputGradient

relaxed = settings(max_examples=cases(usual=30), deadline=None, suppress_health_check=list(HealthCheck))
BATCH = 3


def gradients_of(layer: Conv2d) -> tuple[Conv2dInputGradient, Conv2dFilterGradient]:
    sizes = [getattr(layer, each.name) for each in fields(layer)]
    return Conv2dInputGradient(*sizes), Conv2dFilterGradient(*sizes)


def drawn(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float64)


def by_input(layer: Conv2dInputGradient, gradient: Any, filter_: Any) -> Any:
    """The gradient by the input; the filter is the convolution's, with its channels exchanged."""
    groups, out = layer.groups, layer.out_channels // layer.groups
    turned = np.moveaxis(filter_.reshape(groups, out, *filter_.shape[1:]), -1, 1)
    own = np.moveaxis(turned, 2, -1).reshape(layer.in_channels, *layer.kernel, out)
    return reference.compute(layer, {"ifmap": gradient, "filter": own})


def by_filter(layer: Conv2dFilterGradient, ifmap: Any, gradient: Any) -> Any:
    """The gradient by the filter; images take the place of channels in what it reads."""
    groups, (high, wide), images = layer.groups, (layer.out_height, layer.out_width), ifmap.shape[-1]
    apart = ifmap.reshape(groups, -1, *ifmap.shape[1:])
    if layer.is_a_product:
        down, across = layer.stride
        touched = apart[:, :, ::down, ::across][:, :, :high, :wide]
        source = touched.transpose(0, 2, 3, 4, 1).reshape(groups * high * wide * images, 1, 1, -1)
        return reference.compute(layer, {"ifmap": source, "filter": gradient.reshape(len(gradient), 1, 1, -1)})
    rows, cols = layer.used
    source = apart[:, :, :rows, :cols].transpose(0, 4, 2, 3, 1).reshape(groups * images, rows, cols, -1)
    return reference.compute(layer, {"ifmap": source, "filter": gradient})


@relaxed
@given(convs(channels=6, size=5).filter(has_gradients))
def test_they_are_the_adjoints_of_the_convolution(layer: Conv2d) -> None:
    """<conv(x, w), y> is linear in x and in w, so it equals <x, by_input(y, w)> and <w, by_filter(x, y)>."""
    of_input, of_filter = gradients_of(layer)
    x, w, y = (drawn(*shape) for shape in layer.tensors(BATCH))
    product = np.sum(reference.compute(layer, {"ifmap": x, "filter": w}) * y)
    assert np.sum(by_input(of_input, y, w) * x) == product
    assert np.sum(by_filter(of_filter, x, y) * w) == product


@relaxed
@given(convs(channels=6, size=5).filter(has_gradients))
def test_a_part_of_them_is_a_part_of_the_whole(layer: Conv2d) -> None:
    for gradient in gradients_of(layer):
        operands = reference.operands(gradient, BATCH, seed=5)
        whole = reference.compute(gradient, operands)
        box = tuple(range(size // 3, size) for size in whole.shape)
        part = whole[tuple(slice(each.start, each.stop) for each in box)]
        np.testing.assert_array_equal(reference.compute(gradient, operands, box), part)


@relaxed
@given(convs(channels=6, size=5).filter(has_gradients))
def test_torch_agrees(layer: Conv2d) -> None:
    torch = pytest.importorskip("torch")
    of_input, of_filter = gradients_of(layer)
    x, w, y = (drawn(*shape) for shape in layer.tensors(BATCH))
    (top, bottom), (left, right) = layer.pads
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    images = torch.tensor(padded.transpose(3, 0, 1, 2), requires_grad=True)
    filters = torch.tensor(w.transpose(0, 3, 1, 2), requires_grad=True)
    how = {"stride": layer.stride, "dilation": layer.dilation, "groups": layer.groups}
    torch.nn.functional.conv2d(images, filters, **how).backward(torch.tensor(y.transpose(3, 0, 1, 2)))
    theirs = images.grad.numpy().transpose(1, 2, 3, 0)
    theirs = theirs[:, top : top + layer.in_height, left : left + layer.in_width]
    np.testing.assert_array_equal(by_input(of_input, y, w), theirs)
    np.testing.assert_array_equal(by_filter(of_filter, x, y), filters.grad.numpy().transpose(0, 2, 3, 1))


def test_they_have_the_sizes_and_the_work_of_the_convolution() -> None:
    layer = Conv2d("c", 6, 9, 8, 4, kernel=3, stride=2, padding=(1, 0), groups=2)
    of_input, of_filter = gradients_of(layer)
    assert of_input.tensors(5) == ((4, 5, 3, 5), (6, 3, 3, 2), (6, 9, 8, 5))
    # Column 7 is under no tap.
    assert of_filter.tensors(5) == ((10, 9, 7, 3), (4, 5, 3, 5), (4, 3, 3, 3))
    assert of_input.macs(5) == of_filter.macs(5) == layer.macs(5)
    assert (of_input.text, of_filter.text) == (layer.text, layer.text)
    assert of_input.folded == ("2 output channels", "3 input channels")
    assert of_filter.filled(128, 128)[0].out_channels == 256
    with pytest.raises(UnsuitableError, match="conv2d_input_gradient; lower it by stride_phases"):
        of_input.convolution(5)
    with pytest.raises(InputError, match="the kernel spans 3"):
        Conv2dFilterGradient("c", 6, 2, 8, 4, kernel=3)


def test_of_one_tap_the_filters_gradient_is_a_product_over_pixels() -> None:
    layer = Conv2dFilterGradient("c", 6, 9, 8, 4, kernel=1, stride=2)
    assert layer.is_a_product
    assert layer.tensors(5) == ((100, 1, 1, 6), (4, 1, 1, 100), (4, 1, 1, 6))
    assert layer.element_name((3, 0, 0, 5)) == (("out_channel", "tap_row", "tap_col", "in_channel"), (3, 0, 0, 5))


def test_a_filter_under_padding_alone_has_no_gradient() -> None:
    """One window of one tap on the padding above one row."""
    with pytest.raises(InputError, match=r"every tap along the .* stands on padding"):
        Conv2dFilterGradient("c", 1, 1, 1, 1, kernel=1, stride=(2, 1), padding=(1, 0, 0, 0))
    deeper = Conv2dFilterGradient("c", 1, 1, 1, 1, kernel=2, stride=(2, 1), padding=(1, 0, 0, 1))
    assert deeper.shapes(1)["ofmap"] == (1, 2, 2, 1)
