"""Operands are as wide as sums stay exact, and depend on nothing but their layer and the seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.strategies import conv
from tpusim import reference
from tpusim.base.errors import InputError
from tpusim.network.ops import OPS
from tpusim.network.ops.array_op import Conv2d, Gemm
from tpusim.network.ops.elementwise import LeakyRelu
from tpusim.network.ops.fused import Fused
from tpusim.network.ops.rows import LayerNorm
from tpusim.reference import EXACT, pointwise, rows


def test_every_op_has_an_oracle() -> None:
    assert set(reference.ORACLES) == {*OPS, Fused.op}


def test_every_pointwise_op_says_how_often_it_is_rounded() -> None:
    """Once for each sum, product and quotient on the way; comparisons and copies round nothing."""
    counted = (
        (0, ("maximum", "minimum", "where")),
        (0, ("copy", "relu", "clip", "relu_gradient", "clip_gradient", "masked")),
        (1, ("add", "sub", "rsub", "mul", "prelu", "leaky_relu", "leaky_relu_gradient")),
        (2, ("power", "scale_shift", "hard_sigmoid", "weighted_sum", "batch_norm_shift")),
        (2, ("scale_shift_relu", "mean_of_total", "centred_total")),
        (3, ("hard_swish", "sigmoid_gradient", "tanh_gradient", "adam_second")),
        (3, ("batch_norm_offset", "batch_norm_gradient")), (4, ("shortcut", "variance_of_squares")),
        (pointwise.FUNCTION_ROUNDINGS, ("adam_step",)),
        (pointwise.FUNCTION_ROUNDINGS, pointwise.REAL_FUNCTIONS),
    )  # fmt: skip
    assert {name: times for times, names in counted for name in names} == pointwise.ROUNDINGS
    assert set(pointwise.ROUNDINGS) == set(pointwise.FUNCTIONS)


def test_a_leak_begins_at_zero() -> None:
    """Between the whole numbers that operands are made of, too."""
    x = np.float32([-1.5, -0.75, -0.0, 0.25, 3])
    leak = pointwise.FUNCTIONS["leaky_relu"](LeakyRelu("leak", 1, 1, 5, slope=0.5), x)
    np.testing.assert_array_equal(leak, np.float32([-0.75, -0.375, 0, 0.25, 3]))


def test_the_bound_of_a_norm_by_hand() -> None:
    """A row of 3 and 5, epsilon 3: mean size 4, apart 1, root 2. Of a share g, r is 1 + 4 g, and an output of scale 2
    and shift 1 is off by g times 2 / 2 (2 x 4 + 1 + r) + 1, as long as 2 g r is below one.
    """
    layer = LayerNorm("norm", 2, epsilon=3.0)
    values = {"ifmap": [3.0, 5.0], "scale": [2.0, 2.0], "shift": [1.0, 1.0]}
    given = {name: np.reshape(each, (2, 1, 1, 1)) for name, each in values.items()}
    box, true = (range(2), range(1), range(1), range(1)), np.zeros((2, 1, 1, 1))
    for share in (0.0, 1 / 16, 3 / 16):
        found = rows.magnitudes(layer, given, box, true, share)
        np.testing.assert_allclose(found.ravel(), 8 + 1 + (1 + 4 * share) + 1)
    assert np.isinf(rows.magnitudes(layer, given, box, true, 0.25)).all()


@pytest.mark.parametrize("layer", [conv(4, 6, 3, 3, groups=1), Gemm("fc", 3, 5, 7)])
def test_seed_and_layer_decide(layer) -> None:
    same, other, renamed = (
        [*reference.operands(each, 2, seed=seed).values()]
        for each, seed in ((layer, 1), (layer, 2), (replace(layer, name="x"), 1))
    )
    ifmap, filter_ = reference.operands(layer, 2, seed=1).values()
    assert (ifmap.shape, filter_.shape) == layer.tensors(2)[:2]
    np.testing.assert_array_equal(ifmap, same[0])
    np.testing.assert_array_equal(filter_, same[1])
    assert not np.array_equal(ifmap, other[0])
    assert not np.array_equal(ifmap, renamed[0])


@pytest.mark.parametrize(("k", "least"), [(2**18, -8), (2**18 + 1, -4), (2**20, -4), (2**20 + 1, -2), (2**24, -1)])
def test_the_largest_sum_of_products_is_still_exact(k: int, least: int) -> None:
    ifmap, filter_ = reference.operands(Gemm("fc", 1, 1, k), 1, seed=0).values()
    assert min(ifmap.min(), filter_.min()) == least
    assert k * least * least <= EXACT
    assert np.float32(EXACT) + np.float32(1) == np.float32(EXACT)


@pytest.mark.parametrize(("channels", "kernel"), [(673, (97, 257)), (2**23, (3, 3))])
def test_a_sum_too_long_for_float32_is_refused(channels: int, kernel: tuple[int, int]) -> None:
    """One product more than EXACT, and many."""
    layer = Conv2d("conv", channels, *kernel, 1, kernel)
    assert layer.macs(1) in (EXACT + 1, 9 * 2**23)
    with pytest.raises(InputError, match=r"layer conv: a sum of .* products is not exact in float32; check nothing"):
        reference.operands(layer, 1, seed=0)
