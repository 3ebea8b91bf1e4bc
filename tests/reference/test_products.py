"""Sums of products of the reference against nested loops: parts of them, shares of them, and the lowered matrix."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from tests.strategies import conv
from tpusim import reference
from tpusim.network.ops.array_op import Conv1d, Conv2d, Gemm
from tpusim.network.ops.elementwise import Add, Exp, HardSigmoid, HardSwish, Relu, Sub
from tpusim.network.ops.fused import Fused
from tpusim.network.ops.op import Op
from tpusim.network.ops.pool2d import Pool2d
from tpusim.network.ops.rows import LayerNorm, Lrn, ReduceMean, RmsNorm, Softmax
from tpusim.reference import products, rounding

GROUPED = Conv2d("grouped", 6, 5, 6, 4, (2, 3), (2, 1), (1, 2), (1, 2), 2)
PLAIN = Conv2d("plain", 3, 4, 3, 5, (3, 2), (1, 2), (0, 1, 2, 0), (2, 1))
PART = range(1, 4), range(1, 2), range(0, 2), range(1, 2)


def seen(layer: Conv2d, ifmap: Any, channel: int, tap: tuple[int, int], *at: int) -> int:
    """What a tap of an output at (row, col, image) sees."""
    row, col = (
        place * stride + number * step - pad
        for place, stride, number, step, (pad, _) in zip(
            at[:2], layer.stride, tap, layer.dilation, layer.pads, strict=True
        )
    )
    inside = 0 <= row < layer.in_height and 0 <= col < layer.in_width
    return int(ifmap[channel, row, col, at[2]]) if inside else 0


@pytest.mark.parametrize("layer", [GROUPED, PLAIN], ids=lambda each: each.name)
@pytest.mark.parametrize("box", [None, PART], ids=["whole", "part"])
@pytest.mark.parametrize("shares", [1, 3])
def test_shares_of_a_convolution(layer: Conv2d, box: Any, shares: int) -> None:
    """They add up to it, and each has as many products as the others, but for one."""
    operands = {name: each.astype(float) for name, each in reference.operands(layer, 2, 1).items()}
    box = box or tuple(map(range, layer.tensors(2).ofmap))
    into, out = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    expected = np.array([
        sum(
            int(operands["filter"][o, *tap, c]) * seen(layer, operands["ifmap"], o // out * into + c, tap, *at)
            for tap in np.ndindex(*layer.kernel) for c in range(into)
        )
        for o, *at in product(*box)
    ]).reshape([len(each) for each in box])  # fmt: skip
    found = products.shares_of_conv2d(layer, operands, box, shares)
    assert len(found) == shares
    np.testing.assert_array_equal(found.sum(axis=0), expected)
    ones = {"ifmap": 0 * operands["ifmap"] + 1, "filter": 0 * operands["filter"] + 1}
    inner = Conv2d("inner", layer.in_channels, 5, 6, layer.out_channels, layer.kernel, groups=layer.groups)
    counts = products.shares_of_conv2d(inner, ones, (box[0], range(1), range(1), range(1)), shares)[:, 0].ravel()
    assert counts.sum() == layer.terms(2)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("padding", [(1, 1), (3, 0), (0, 2)])
def test_a_convolution_of_sequences(padding: Any) -> None:
    """All of it, and a part across groups; and in shares."""
    layer = Conv1d("line", 4, 7, 6, 3, 2, padding, 2, 2)
    operands, (plain, _) = reference.operands(layer, 2, 1), layer.convolution(2)
    channels, _, positions, images = map(range, layer.tensors(2).ofmap)
    for box in ((channels, range(1), positions, images), (channels[1:5], range(1), positions[1:], images[1:])):
        expected = [
            sum(
                int(operands["filter"][o, 0, j, c]) * seen(plain, operands["ifmap"], o // 3 * 2 + c, (0, j), *at)
                for j in range(3) for c in range(2)
            )
            for o, *at in product(*box)
        ]  # fmt: skip
        np.testing.assert_array_equal(reference.compute(layer, operands, box).ravel(), expected)
        shares = products.shares_of_conv1d(layer, operands, box, 3)
        np.testing.assert_array_equal(shares.sum(axis=0).ravel(), expected)
        assert all(each.any() for each in shares)


@pytest.mark.parametrize("most", [1, 16, 1 << 19])
def test_a_convolution_is_the_same_however_much_is_gathered_at_a_time(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = {name: each.astype(float) for name, each in reference.operands(PLAIN, 2, 1).items()}
    box = tuple(map(range, PLAIN.tensors(2).ofmap))
    expected = reference.compute(PLAIN, operands)
    monkeypatch.setattr(products, "_MOST_ELEMENTS", most)
    monkeypatch.setattr(products, "_MOST_FACTORS", most)
    np.testing.assert_array_equal(products.shares_of_conv2d(PLAIN, operands, box, 3).sum(axis=0), expected)
    matrix = Gemm("fc", 4, 3, 11)
    factors = reference.operands(matrix, 1, 1)
    found = products.shares_of_gemm(matrix, factors, (range(1, 3), range(1), range(1), range(1, 4)), 3)
    first, second = (factors[name].astype(float).reshape(-1, 4 if name == "ifmap" else 11) for name in factors)
    np.testing.assert_array_equal(found.sum(axis=0)[:, 0, 0], (second @ first)[1:3, 1:4])
    np.testing.assert_array_equal(found[1][:, 0, 0], (second[:, 3:7] @ first[3:7])[1:3, 1:4])


@pytest.mark.parametrize("layer", [GROUPED, PLAIN, Conv1d("line", 4, 7, 2, 3, 2, 1, 1, 2)], ids=lambda each: each.name)
def test_the_lowered_matrix_is_what_every_tap_sees(layer: Any) -> None:
    """All of it and parts, within a tap and beyond a group; each element by the name that people know it by."""
    operands = reference.operands(layer, 2, 1)
    plain, _ = layer.convolution(2)
    ifmap = operands["ifmap"]
    size, taps = plain.in_channels // plain.groups, [*np.ndindex(*plain.kernel)]
    copies = [(group * size + c, tap) for group in range(plain.groups) for tap in taps for c in range(size)]
    made = products.LOWERED_MATRIX
    depth, (rows, cols) = len(copies), layer.tensors(2).ofmap[1:3]
    for ks in (range(depth), range(1, size), range(size - 1, size + 1), range(depth // 2 - 1, depth), range(1, depth)):
        if not len(ks):
            continue
        box = ks, range(rows // 2, rows), range(1, cols), range(1, 2)
        found = made.compute(layer, operands, box)
        expected = [seen(plain, ifmap, *copies[k], *at) for k, *at in product(*box)]
        np.testing.assert_array_equal(found, np.reshape(expected, [len(each) for each in box]))
    for k, (channel, tap) in enumerate(copies):
        axes, index = made.element_name(layer, (k, 1, 2, 3))
        assert axes == ("channel", "tap_row", "tap_col", "row", "col", "image")
        assert index == (channel, *tap, 1, 2, 3)


MAP = ("x", 3, 4, 5)


@pytest.mark.parametrize(
    ("layer", "times"),
    [
        # Once for every term; a quotient of sums by one more, and what their kinds add.
        (Gemm("fc", 2, 3, 7), 7), (conv(4, 6, 3, 3), 36), (Softmax("s", 9, 4), 9 + 3), (LayerNorm("n", 9), 9 + 8),
        (ReduceMean("m", 9), 9 + 1), (Lrn("l", 9, 2, 2, size=5), 2 * 5 + 4), (Add(*MAP), 1), (Relu(*MAP), 0),
        (RmsNorm("r", 9), 9 + 8), (Pool2d("p", "max", 3, 4, 4, 2), 0), (Exp(*MAP), 2),
        (Fused("f", conv(4, 6, 3, 3), True, (HardSwish("h", 3, 4, 4),), True), 36 + 2 + 3),
    ],
    ids=lambda each: getattr(each, "name", ""),
)  # fmt: skip
def test_how_often_an_output_is_rounded(layer: Op, times: int) -> None:
    assert rounding.roundings(layer, 2) == times


@pytest.mark.parametrize(("terms", "times"), [(4, None), (5, 2 + 2), (6, 2 + 2), (7, 3 + 2), (99, 33 + 2)])
def test_a_sum_in_shares_is_rounded_as_often_as_the_longest_and_then_to_join_them(
    terms: int, times: int | None
) -> None:
    layer = Gemm("fc", 2, 3, terms)
    operands = {name: each.astype(np.float32) for name, each in reference.operands(layer, 1, 1).items()}
    box = tuple(map(range, layer.tensors(1).ofmap))
    found = rounding.screen(layer, operands, box)
    assert (found and found.roundings) == times
    if found:
        np.testing.assert_array_equal(found.values, reference.compute(layer, operands))
        assert found.least is not None
        ends = [number * terms // 3 for number in range(4)]
        parts = (
            operands["filter"][:, 0, 0, start:stop] @ operands["ifmap"][start:stop, 0, 0]
            for start, stop in pairwise(ends)
        )
        np.testing.assert_array_equal(found.least[:, 0, 0], sum(abs(each) for each in parts))


@pytest.mark.parametrize(
    ("layer", "made"),
    [
        (Sub(*MAP), lambda x, y: x + y), (HardSwish(*MAP), lambda x: x * (x * np.float32(1 / 6) + np.float32(0.5))),
        (HardSigmoid(*MAP, alpha=-0.5, beta=-2), lambda x: x / 2 + 2), (Add(*MAP), lambda x, y: x + y),
    ],
    ids=lambda each: getattr(each, "op", ""),
)  # fmt: skip
def test_magnitudes_of_what_may_cancel(layer: Op, made: Any) -> None:
    operands = {name: abs(each.astype(np.float32)) for name, each in reference.operands(layer, 2, 1).items()}
    box = tuple(map(range, operands["ifmap"].shape))
    found = rounding.magnitudes(layer, operands, box, np.zeros_like(operands["ifmap"]))
    np.testing.assert_allclose(found, made(*operands.values()), rtol=1e-6)


@pytest.mark.parametrize("layer", [Exp(*MAP), Lrn("l", 3, 4, 5)], ids=lambda each: each.op)
def test_magnitudes_of_functions_are_those_of_their_results(layer: Op) -> None:
    operands, true = reference.operands(layer, 1, 1), np.linspace(-1, 1, 60).reshape(3, 4, 5, 1)
    box = tuple(map(range, true.shape))
    np.testing.assert_array_equal(rounding.magnitudes(layer, operands, box, true), abs(true))
    assert rounding.screen(layer, operands, box) is None
