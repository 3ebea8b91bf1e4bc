"""The bound holds for every order of a sum, and some sums come near it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tpusim.numerics.equality import agreement, bounded, difference, gamma, moved, surely_near

NUMBERS = st.floats(width=32, min_value=-(2.0**50), max_value=2.0**50)


def expected(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Of one sum of products, as the reference works it out."""
    true = np.array([first.astype(float) @ second.astype(float)])
    return bounded(true, np.array([np.abs(first) @ np.abs(second)]), len(first))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_no_order_goes_beyond_it(pairs, random) -> None:
    first, second = np.float32(pairs).T
    terms = [*(first * second)]
    while len(terms) > 1:
        one, other = (terms.pop(random.randrange(len(terms))) for _ in range(2))
        terms.append(one + other)
    true = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in pairs)
    (want,) = expected(first, second)
    error = abs(Fraction(float(terms[0])) - Fraction(float(want["value"])))
    assert error <= Fraction(float(want["bound"]))
    # And it is not wider than that of exact arithmetic by more than a little.
    magnitude = sum(abs(Fraction(float(a)) * Fraction(float(b))) for a, b in pairs)
    room = Fraction(1001, 1000) * Fraction(gamma(len(pairs))) * magnitude + len(pairs) * Fraction(2) ** -149
    assert Fraction(float(want["bound"])) <= room
    assert abs(Fraction(float(want["value"])) - true) <= room


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS), min_size=9, max_size=40),
    st.sampled_from([0, 0.5, 0.9, 1, 1.1]),
    st.randoms(use_true_random=False),
)
def test_what_is_surely_near_is_within_the_bound(pairs, share, random) -> None:
    """Of a sum in three shares, and results as far from it as they may be, or further."""
    first, second = np.float32(pairs).T
    products, own = first * second, -(-len(pairs) // 3) + 2
    shares = [np.float32(0)] * 3
    for number, each in enumerate(random.sample([*products], len(products))):
        shares[number % 3] += each
    value = np.float32([(shares[0] + shares[1]) + shares[2]])
    least = np.float32([(abs(shares[0]) + abs(shares[1])) + abs(shares[2])])
    left = gamma(len(pairs)) - gamma(own)
    result = value + np.float32(share * left) * least * random.choice([-1, 1])
    true = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in pairs)
    magnitude = sum(abs(Fraction(float(a)) * Fraction(float(b))) for a, b in pairs)
    near = surely_near(np.abs(result - value), least, len(pairs), own).all()
    if near:
        bound = Fraction(gamma(len(pairs))) * magnitude + len(pairs) * Fraction(2) ** -149
        assert abs(Fraction(float(result[0])) - true) <= bound
    # Nothing near the sum is left to float64 where its shares are all there is.
    assert near or share > 0.5 or np.abs(result - value) < 1e-44


def test_what_is_rounded_as_often_settles_nothing_that_differs() -> None:
    assert list(surely_near(np.float32([0, 1e-9]), np.ones(2, np.float32), 4, 4)) == [True, False]


def test_a_sum_that_loses_all_it_can() -> None:
    """One and then what is rounded away each time."""
    first = np.float32([1, *[2.0**-24] * 999])
    second = np.ones(1000, np.float32)
    total = np.float32(0)
    for each in first:
        total += each
    assert total == 1
    right, share = agreement(np.float32([total]), expected(first, second))
    assert right.all()
    assert share is not None
    assert 0.99 < share <= 1


def test_what_is_just_beyond_is_wrong() -> None:
    want = expected(np.ones(100, np.float32), np.ones(100, np.float32))
    beyond = 100 + np.float32(1.01 * want["bound"][0])
    assert not agreement(np.float32([beyond]), want)[0].any()
    wrong = str(difference((0,), float(beyond), want[0], lambda index: (("at",), index)))
    assert wrong.startswith("ofmap[at=0] is 100.0006")
    assert wrong.endswith(f"expected 100 within {want['bound'][0]:.2g}")


def test_no_number_is_near_enough() -> None:
    want = expected(np.ones(3, np.float32), np.ones(3, np.float32))
    assert not agreement(np.float32([np.nan]), want)[0].any()


def test_beyond_float32_nothing_is_near_enough() -> None:
    huge = np.full(4, 1e20, np.float32)
    with np.errstate(over="ignore"):
        want = expected(huge, huge)
    for actual in (np.inf, 4e40):
        assert not agreement(np.array([actual]), want)[0].any()


def test_what_is_moved_is_equal() -> None:
    want = moved(np.array([1.5, -2.0]))
    right, share = agreement(np.float32([1.5, -2.0]), want)
    assert right.all()
    assert share == 0
    nearly = np.nextafter(np.float32([1.5, -2.0]), np.float32(0))
    assert not agreement(nearly, want)[0].any()
