"""Functions of elements that no short row of sums and products gives.

Whatever approximation a machine's ALUs use, what is computed here is the function itself, in float64, rounded once to
what words hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import erf, erfc, pi, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.floating[Any]]
Doubles: TypeAlias = NDArray[np.float64]

_ERF = np.frompyfunc(erf, 1, 1)
_ERFC = np.frompyfunc(erfc, 1, 1)

BEND = 0.044715
"""Of the cubic term of GELU by tanh: Hendrycks and Gimpel, 2016 (arXiv:1606.08415), section 2."""


def rounded_once(
    function: Callable[..., Doubles],
) -> Callable[[Iterable[Values], Values, tuple[float, ...]], Values]:
    """As an operation on the words of operands; scalars of a lane are operands for all of its elements."""

    def values(operands: Iterable[Values], scalars: Values, coefficients: tuple[float, ...]) -> Values:
        terms = [*operands, *(scalars[-1:, :, None, None] if len(scalars) else ())]
        number = terms[0].dtype
        # Infinities and what is not a number agree with nothing that is expected.
        with np.errstate(all="ignore"):
            doubles = [np.array(each, np.float64, order="C") for each in terms]
            return function(*doubles, *coefficients).astype(number)

    return values


def sigmoid(x: Doubles) -> Doubles:
    """1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: Doubles) -> Doubles:
    """The element times its sigmoid."""
    return np.asarray(x / (1 + np.exp(-x)))


def error_function(x: Doubles) -> Doubles:
    """erf."""
    return np.asarray(_ERF(x), np.float64)


def gelu(x: Doubles) -> Doubles:
    """x times the share of the normal distribution below it."""
    return np.asarray(x / 2 * _ERFC(x / -sqrt(2)), np.float64)


def gelu_tanh(x: Doubles) -> Doubles:
    """The same, its share approximated by a tanh: x times the sigmoid of twice the tanh's argument."""
    return np.asarray(x / (1 + np.exp(-2 * sqrt(2 / pi) * x * (1 + BEND * x * x))))


# ---- of the elements of rows


def exp_sum(*terms: Doubles) -> Doubles:
    """The sum of the powers of e, of all operands less the last."""
    *elements, most = terms
    return np.asarray(sum(np.exp(each - most) for each in elements))


def exp_scaled(x: Doubles, most: Doubles, factor: Doubles) -> Doubles:
    """e to the power of what x is more than the largest, times a factor."""
    return np.asarray(np.exp(x - most) * factor)


def squares_sum(*terms: Doubles) -> Doubles:
    """The sum of the squares of what all operands are more than the last."""
    *elements, mean = terms
    return np.asarray(sum((each - mean) ** 2 for each in elements))


def reciprocal_sum(*terms: Doubles) -> Doubles:
    """One over the sum."""
    return np.asarray(1 / sum(terms))


def reciprocal_root(*terms: Any) -> Doubles:
    """One over the root of the sum times the first coefficient, and the second added."""
    *sums, part, more = terms
    return np.asarray(1 / np.sqrt(sum(sums) * part + more))


def normalize(x: Doubles, mean: Doubles, factor: Doubles, scale: Doubles, shift: Doubles) -> Doubles:
    """What x is more than the mean, times a factor and a scale, and a shift added."""
    return np.asarray((x - mean) * factor * scale + shift)


def sum_of_squares(operands: Iterable[Values], first: bool) -> Values:
    """Squares of the words of operands, added one after another; the `first` as it is, if so."""
    total: Values | None = None
    for each in operands:
        term = each if first and total is None else each * each
        total = term if total is None else total + term
    assert total is not None
    return total


def over_power(squares: Doubles, x: Doubles, slope: float, shift: float, beta: float) -> Doubles:
    """x / (slope squares + shift)^beta."""
    return np.asarray(x * np.exp(-beta * np.log(slope * squares + shift)))
