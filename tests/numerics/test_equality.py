"""Every wrong element is counted, and the first is named as its user knows it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.strategies import conv
from tpusim import reference
from tpusim.flow.numbers import SMALL
from tpusim.flow.verify import verdict_of
from tpusim.network.ops.array_op import Gemm
from tpusim.network.ops.op import OFMAP, Op
from tpusim.numerics.equality import Verdict, agreement, bounded, moved

CONV = conv(3, 5, 4, 3)
GEMM = Gemm("fc", m=3, n=5, k=7)


def verdict(layer: Op, *wrong: tuple[int, ...], instead: float = 1000.0) -> Verdict:
    """What comes of outputs of which those at `wrong` are `instead`."""
    operands = reference.operands(layer, 2, seed=0)
    actual = reference.compute(layer, operands)
    for at in wrong:
        actual[at] = instead
    return verdict_of(layer, operands, {OFMAP: actual}, SMALL)


@pytest.mark.parametrize("layer", [CONV, GEMM])
def test_equal_outputs(layer: Op) -> None:
    assert verdict(layer) == Verdict(layer.outputs(2), 0, None)


def test_the_first_wrong_output_of_a_convolution() -> None:
    found = verdict(CONV, (3, 0, 1, 0), (2, 1, 2, 1))
    assert (found.checked, found.mismatched) == (4 * 3 * 3 * 2, 2)
    assert str(found.first).startswith("ofmap[channel=2, row=1, col=2, image=1] is 1000, expected ")


def test_the_first_wrong_output_of_a_product_is_named_by_row_and_column() -> None:
    """Row 2, column 4 of a 3 x 5 product; the other way round there is no such element."""
    ifmap, filter_ = reference.operands(GEMM, 2, seed=0).values()
    first = verdict(GEMM, (4, 0, 0, 2), instead=np.nan).first
    assert first is not None
    assert (first.axes, first.index, first.actual) == (("m", "n"), (2, 4), None)
    assert first.expected == ifmap[:, 0, 0, 2].astype(int) @ filter_[4, 0, 0]
    assert str(first).startswith("ofmap[m=2, n=4] was never written")


def test_what_a_mask_leaves_out_agrees_with_itself() -> None:
    actual, true = np.float32([-np.inf, np.inf, 1, -np.inf]), np.array([-np.inf, -np.inf, -np.inf, 1])
    for expected in (moved(true), bounded(true, abs(true).astype(np.float32), 1)):
        assert [*agreement(actual, expected)[0]] == [True, False, False, False]


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 1.0])
def test_infinities_agree_with_themselves_alone(number: float) -> None:
    """Without a warning of NumPy's on the screen."""
    expected = moved(np.array([number]))
    assert agreement(np.array([np.inf], np.float32), expected)[0].all() == (number == np.inf)
