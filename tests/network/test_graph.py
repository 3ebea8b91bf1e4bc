"""Values of a graph, and the tensors of layers that they are."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tpusim.network.graph import TensorView


@st.composite
def views(draw: st.DrawFn) -> TensorView:
    """Any axes of a value, in any order, along any axes of a tensor."""
    shape = draw(st.lists(st.integers(1, 4), max_size=5))
    order = draw(st.permutations(range(len(shape))))
    ends = sorted(draw(st.lists(st.integers(0, len(shape)), min_size=3, max_size=3)))
    axes = tuple(tuple(order[start:end]) for start, end in zip((0, *ends), (*ends, len(shape)), strict=True))
    mirrored = tuple(draw(st.sets(st.integers(0, 3))))
    return TensorView(axes, tuple(shape), mirrored=mirrored)


@given(views())
def test_a_value_is_made_of_the_tensor_that_it_is(view: TensorView) -> None:
    value = np.arange(prod(view.shape)).reshape(view.shape)
    tensor = view.tensor(value)
    assert tensor.shape == view.sizes(view.shape)
    np.testing.assert_array_equal(view.value(tensor), value)


def test_axes_run_along_a_tensor_the_outermost_first() -> None:
    value = np.arange(24).reshape(2, 3, 4)
    tensor = TensorView(((1,), (), (), (2, 0))).tensor(value)
    assert tensor.shape == (3, 1, 1, 8)
    np.testing.assert_array_equal(tensor[1, 0, 0], [4, 16, 5, 17, 6, 18, 7, 19])


def test_axes_may_be_told_apart_and_spread() -> None:
    apart = TensorView(((0, 2), (), (), (1,)), (2, -1, 3)).tensor(np.arange(12).reshape(4, 3))
    np.testing.assert_array_equal(apart[:, 0, 0], [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11]])
    spread = TensorView(((1,), (), (), (0,)), spread=(2, 3)).tensor(np.arange(3))
    np.testing.assert_array_equal(spread[:, 0, 0], [[0, 0], [1, 1], [2, 2]])
