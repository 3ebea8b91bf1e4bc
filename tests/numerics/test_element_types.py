"""Operands are rounded as their type says, and sums that may not fit are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpusim.base.errors import InputError
from tpusim.numerics.element_types import BF16, ELEMENT_TYPES, F32, INT8, to_bfloat16, to_int8
from tpusim.reference.nodes import Call, compute

SINGLES = st.floats(width=32, allow_nan=False)


def of_eight_bits(value: float) -> float:
    """The nearest number of 8 significant bits and a float32's exponents, by arithmetic in float64."""
    if not np.isfinite(value) or value == 0:
        return value
    unit = 2.0 ** max(np.frexp(value)[1] - 8, -133)
    near = float(np.rint(value / unit)) * unit  # To the even one, as Python and NumPy round.
    return float(np.copysign(np.inf, near)) if abs(near) >= 2.0**128 else near


@given(SINGLES)
def test_bfloat16_is_the_nearest_number_of_eight_bits(value: float) -> None:
    assert to_bfloat16(np.float32([value]))[0] == of_eight_bits(value)


@given(SINGLES | st.sampled_from([float("nan"), -0.0]))
def test_the_reference_rounds_so_by_itself(value: float) -> None:
    values = np.float32([value])
    (made,) = compute("lax.convert_element_type", Call({"new_dtype": "bfloat16"}), [values])
    np.testing.assert_array_equal(made, to_bfloat16(values))


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1 + 2**-8, 1.0),
        (1 + 3 * 2**-8, 1 + 2**-6),
        (1 + 2**-8 + 2**-20, 1 + 2**-7),
        (3.4e38, np.inf),
        (-np.inf, -np.inf),
    ],
)
def test_halfway_to_the_even_one(value: float, rounded: float) -> None:
    assert to_bfloat16(np.float32([value]))[0] == rounded


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF])
def test_no_number_stays_none(bits: int) -> None:
    assert np.isnan(to_bfloat16(np.array([bits], np.uint32).view(np.float32))[0])


def test_int8_ends_where_a_byte_does() -> None:
    np.testing.assert_array_equal(to_int8(np.array([0.5, 1.5, -0.6, 127.4, 300, -300])), [0, 2, -1, 127, 127, -128])


@pytest.mark.parametrize("kind", ELEMENT_TYPES.values(), ids=ELEMENT_TYPES)
def test_what_is_drawn_is_of_the_type(kind) -> None:
    drawn = kind.drawn(np.random.default_rng(0), (50, 400))
    np.testing.assert_array_equal(kind.rounded(drawn), drawn)
    assert drawn.shape == (50, 400)
    assert drawn.dtype == (np.int8 if kind is INT8 else np.float32)


def test_bytes_have_their_full_range() -> None:
    drawn = INT8.drawn(np.random.default_rng(0), (100, 100))
    assert (drawn.min(), drawn.max()) == (-128, 127)


def test_sums_that_32_bits_may_not_hold() -> None:
    INT8.check_sum(2**17 - 1)
    with pytest.raises(InputError, match=r"131,072 products of int8 may not fit 32 bits, 131,071 always do"):
        INT8.check_sum(2**17)
    for kind in (F32, BF16):
        kind.check_sum(2**40)


def test_sums_that_float32_may_not_hold() -> None:
    assert [INT8.needs_doubles(products) for products in (1024, 1025)] == [False, True]
    assert not F32.needs_doubles(10**6)
