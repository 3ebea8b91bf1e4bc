"""What an op says of itself, against what others make of it."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import cases, conv, convs, gemms, layers, machine, sequences
from tpusim import reference
from tpusim.base.errors import InputError
from tpusim.machines.tpu.cut.geometry import ConvShape, shape_of
from tpusim.network.ops.array_op import Conv1d, Conv2d, Gemm
from tpusim.network.ops.op import Op


@settings(deadline=None, max_examples=cases(usual=40))
@given(layers())
def test_the_tensors_are_those_of_the_reference(layer: Op) -> None:
    ifmap, filter_ = reference.operands(layer, 3, seed=0).values()
    ofmap = reference.compute(layer, {"ifmap": ifmap, "filter": filter_})
    assert layer.tensors(3) == (ifmap.shape, filter_.shape, ofmap.shape)
    assert (layer.operands(3), layer.outputs(3)) == (ifmap.size + filter_.size, ofmap.size)


@given(gemms())
def test_a_product_is_a_convolution_of_as_many_pixels_as_it_has_rows(layer: Gemm) -> None:
    point, images = layer.convolution(8)
    assert point.tensors(images) == layer.tensors(8)
    assert point.macs(images) == layer.macs(8) == layer.groups * layer.m * layer.n * layer.k
    shape = shape_of(layer, 8, machine(word_elements=8))
    assert isinstance(shape, ConvShape)
    assert (shape.images, shape.row.strips) == (layer.m, 1)


@settings(max_examples=cases(usual=40))
@given(layers())
def test_layers_of_one_shape_have_one_key(layer: Op) -> None:
    assert replace(layer, name="other").shape_key == layer.shape_key
    assert hash(layer.shape_key) == hash(pickle.loads(pickle.dumps(layer)).shape_key)


@pytest.mark.parametrize("field", ["in_channels", "in_height", "in_width", "out_channels", "kernel", "stride"])
def test_any_size_makes_another_key(field: str) -> None:
    layer = conv(4, 9, 4, 3)
    value = getattr(layer, field)
    assert replace(layer, **{field: (1, 2) if isinstance(value, tuple) else value + 1}).shape_key != layer.shape_key


@settings(deadline=None, max_examples=cases(usual=40))
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


# ---- padding


def padded(size: int, kernel: int, stride: int, padding: object) -> Conv2d:
    """Rows of `size` elements, each alone."""
    return Conv2d("c", 1, 1, size, 1, (1, kernel), (1, stride), padding)  # type: ignore[arg-type]


@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 4))
def test_same_is_what_onnx_and_tensorflow_define(size: int, kernel: int, stride: int) -> None:
    """ceil(size / stride) outputs, by the least padding; the odd element last, under same_lower first."""
    last, first = (padded(size, kernel, stride, word) for word in ("same", "same_lower"))
    assert last.out_width == first.out_width == ceil(size / stride)
    (before, after), other = last.pads[1], first.pads[1]
    assert other == (after, before)
    assert after - before in (0, 1)
    assert before + after == max(0, (last.out_width - 1) * stride + kernel - size)
    assert last.pads[0] == (0, 0)


@pytest.mark.parametrize(
    ("written", "pads"),
    [
        (2, ((2, 2), (2, 2))),
        ([1, 2], ((1, 1), (2, 2))),
        ([1, 2, 1, 2], ((1, 1), (2, 2))),
        ([0, 1, 2, 3], ((0, 2), (1, 3))),
        ("same", ((0, 1), (0, 1))),
        ("same_lower", ((1, 0), (1, 0))),
    ],
)
def test_ways_to_write_a_padding(written: object, pads: object) -> None:
    layer = Conv2d("c", 3, 224, 224, 8, (3, 3), (2, 2), written)  # type: ignore[arg-type]
    assert layer.pads == pads
    (top, bottom), (left, right) = layer.pads
    alike = replace(layer, padding=(top, left, bottom, right))
    assert alike.shape_key == layer.shape_key
    assert alike.text == layer.text
    assert (f" p{top}x{left}x{bottom}x{right}" in layer.text) == ((top, left) != (bottom, right))


def test_same_follows_the_kernel() -> None:
    layer = conv(3, 9, 4, 3, stride=2)
    same = replace(layer, padding="same")
    assert replace(same, kernel=(5, 5)).pads == ((2, 2), (2, 2))
    assert same.shape_key == replace(layer, padding=(1, 1)).shape_key != layer.shape_key


# ---- sequences


@settings(deadline=None, max_examples=cases(usual=40))
@given(sequences())
def test_a_sequence_is_a_map_of_one_row(layer: Conv1d) -> None:
    plane, images = layer.convolution(4)
    assert (images, plane.in_height, plane.out_height) == (4, 1, 1)
    assert layer.tensors(4) == plane.tensors(4)
    assert layer.out_length == plane.out_width
    assert (layer.macs(4), layer.folded) == (plane.macs(4), plane.folded)
    operands = reference.operands(layer, 4, seed=0)
    np.testing.assert_array_equal(reference.compute(layer, operands), reference.compute(plane, operands))
    assert layer.filled(8, 16)[0].convolution(4)[0] == plane.filled(8, 16)[0]
    assert layer.element_name((3, 0, 5, 1)) == (("channel", "position", "image"), (3, 5, 1))


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"kernel": 12}, "kernel", "the kernel spans 12 in length with its dilation, but the padded input only 11"),
        ({"groups": 2}, "groups", "groups 2 does not divide in_channels 3"),
        ({"padding": [1, 2, 3]}, "padding", "3] is not a padding; write a whole number, [before, after], same"),
    ],
)
def test_a_sequence_that_cannot_be(changes: dict[str, object], field: str, words: str) -> None:
    sizes = {"name": "s", "in_channels": 3, "in_length": 9, "out_channels": 4, "kernel": 3, "padding": 1, **changes}
    with pytest.raises(InputError, match=re.escape(words)) as error:
        Conv1d(**sizes)  # type: ignore[arg-type]
    assert [problem.where for problem in error.value.problems] == [field]


def test_the_text_of_a_sequence() -> None:
    layer = Conv1d("s", 80, 3000, 384, 3, 2, (0, 1), 2, 4)
    assert layer.text == "3000x80>384 3/2 d2 p0x1 g4"
    assert Conv1d("s", 80, 3000, 384, 3, padding=(1, 1)).text == "3000x80>384 3"
