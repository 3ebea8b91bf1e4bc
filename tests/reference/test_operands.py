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
from tpusim.network.ops.fused import Fused
from tpusim.reference import EXACT, pointwise


def test_every_op_has_an_oracle() -> None:
    assert set(reference.ORACLES) == {*OPS, Fused.op}


def test_every_pointwise_op_says_how_often_it_is_rounded() -> None:
    assert set(pointwise.ROUNDINGS) == set(pointwise.FUNCTIONS)


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
    with pytest.raises(InputError, match=r"layer conv: a sum of .* products is not exact in float32; use --no-check"):
        reference.operands(layer, 1, seed=0)
