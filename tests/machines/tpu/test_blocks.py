"""Blocks of registers: compiled loops do with them what Python says."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import few
from tests.strategies import cases
from tpusim.machines.tpu.register.array import _multiply_row
from tpusim.machines.tpu.register.wires import copy

ROW = st.integers(1, 40).flatmap(lambda length: st.tuples(st.just(length), st.integers(0, length)))


@numba.njit(_nrt=False)
def _copied(to: np.ndarray, of: np.ndarray) -> None:
    copy(to[1], of[1])


@numba.njit(_nrt=False)
def _multiplied(sums: np.ndarray, factors: np.ndarray, weights: np.ndarray, since: int) -> None:
    _multiply_row(sums[1], factors[1], weights[0], weights[1], since)


@pytest.mark.parametrize("number", [np.float32, np.float64])
@settings(max_examples=cases(1 / 2), deadline=None)  # The first call compiles.
@given(row=ROW, seed=st.integers(0, 99))
def test_a_row_of_any_length_is_multiplied_with_two_rows_of_weights(
    row: tuple[int, int], seed: int, number: type[np.floating]
) -> None:
    """Before any column with one, and from there on with the other; neighbours in memory stay as they are."""
    (length, since), random = row, np.random.default_rng(seed)
    sums, factors, weights = (random.integers(-9, 10, (3, length)).astype(number) for _ in range(3))
    expected = sums.copy()
    expected[1] += factors[1] * np.where(np.arange(length) < since, weights[0], weights[1])
    _multiplied(sums, factors, weights, since)
    assert (sums == expected).all()


@pytest.mark.parametrize("number", few(2, [np.int8, np.int64, np.float32, np.float64]))
@settings(max_examples=cases(1 / 2), deadline=None)
@given(length=st.integers(1, 40), seed=st.integers(0, 99))
def test_a_row_of_any_length_is_copied(length: int, seed: int, number: type[np.number]) -> None:
    """And neighbours in memory stay as they are."""
    to, of = np.random.default_rng(seed).integers(-9, 10, (2, 3, length)).astype(number)
    expected = to.copy()
    expected[1] = of[1]
    _copied(to, of)
    assert (to == expected).all()
