"""What an op says of itself, against what others make of it."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.strategies import conv, convs, gemms, layers, machine
from tpusim import reference
from tpusim.machines.tpu.lowering.geometry import ConvShape, shape_of
from tpusim.network.ops import Conv2d, Gemm, Op


@settings(deadline=None)
@given(layers())
def test_the_tensors_are_those_of_the_reference(layer: Op) -> None:
    ifmap, filter_ = reference.operands(layer, 3, seed=0)
    ofmap = reference.compute(layer, ifmap, filter_)
    assert layer.tensors(3) == (ifmap.shape, filter_.shape, ofmap.shape)
    assert (layer.operands(3), layer.outputs(3)) == (ifmap.size + filter_.size, ofmap.size)


@given(gemms())
def test_a_product_is_a_convolution_of_as_many_pixels_as_it_has_rows(layer: Gemm) -> None:
    point, images = layer.convolution(8)
    assert point.tensors(images) == layer.tensors(8)
    assert point.macs(images) == layer.macs(8) == layer.m * layer.n * layer.k
    shape = shape_of(layer, 8, machine(word_elements=8))
    assert isinstance(shape, ConvShape)
    assert (shape.images, shape.row.strips) == (layer.m, 1)


@given(layers())
def test_layers_of_one_shape_have_one_key(layer: Op) -> None:
    assert replace(layer, name="other").shape_key == layer.shape_key
    assert hash(layer.shape_key) == hash(pickle.loads(pickle.dumps(layer)).shape_key)


@pytest.mark.parametrize("field", ["in_channels", "in_height", "in_width", "out_channels", "kernel", "stride"])
def test_any_size_makes_another_key(field: str) -> None:
    layer = conv(4, 9, 4, 3)
    value = getattr(layer, field)
    assert replace(layer, **{field: (1, 2) if isinstance(value, tuple) else value + 1}).shape_key != layer.shape_key


@settings(deadline=None)
@given(convs())
def test_filled_groups_of_a_convolution_have_channels_for_every_pe(layer: Conv2d) -> None:
    filled, how = layer.filled(8, 16)
    into, out = filled.in_channels // filled.groups, filled.out_channels // filled.groups
    assert (into % 8, out % 16) == (0, 0)
    assert 0 <= into - layer.in_channels // layer.groups < 8
    assert 0 <= out - layer.out_channels // layer.groups < 16
    assert how == f"in_channels={filled.in_channels} out_channels={filled.out_channels}"


@given(gemms())
def test_twice_the_input_of_a_product_is_twice_its_rows(layer: Gemm) -> None:
    twice, batch, how = layer.with_more_input(8)
    assert (twice.macs(batch), batch, how) == (2 * layer.macs(8), 8, f"m={2 * layer.m}")
    assert layer.filled(8, 16)[0].m == layer.m


def test_the_product_of_a_convolution_is_one_of_its_lowered_matrix() -> None:
    layer = Conv2d("c", 6, 9, 8, 4, (3, 2), (2, 1), (1, 0), (1, 2), 2)
    product = layer.product
    assert (product.is_a_product, layer.is_a_product) == (True, False)
    assert product.tensors(5).ifmap == (36, *layer.tensors(5).ofmap[1:])
    assert product.tensors(5).ofmap == layer.tensors(5).ofmap
    assert product.macs(5) == layer.macs(5)
    assert product.product == product
