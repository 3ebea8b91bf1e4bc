"""How far sums in float32 may lie from the true ones: the bound that is proven, element by element.

A sum of n products, each rounded, in whatever order and whether or not multiplications are fused with additions, is
off by at most gamma(n) times the sum of the products' magnitudes, where gamma(n) = n u / (1 - n u) and u is the unit
roundoff (N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, section 3.1). What is so small
that it is held with fewer bits adds half of the smallest number each time.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[Any]

SINGLE, DOUBLE = 2.0**-24, 2.0**-53
"""The unit roundoffs of float32 and float64."""
SMALLEST = 2.0**-149
"""The smallest number of float32 above zero."""
MOST_ROUNDINGS = 1 << 20
"""Longer sums may be off by more than a sixteenth of their magnitude: a bound that says little."""

BOUNDED = np.dtype([("value", np.float64), ("bound", np.float64)])
"""What is expected of an element, and how far from it it may be."""


def gamma(roundings: int, unit: float = SINGLE) -> float:
    """The largest relative error that so many roundings, fewer than MOST_ROUNDINGS, leave one after another."""
    return roundings * unit / (1 - roundings * unit)


def bounded(true: Values, magnitudes: Values, roundings: int) -> Values:
    """What is expected where the sums `true`, in float64, are worked out with at most so many roundings in float32.

    `magnitudes`, the sums of the products' magnitudes, come in float32: their own error counts as well, and so does
    that of the true ones. Where they are beyond float32 nothing is near enough.
    """
    slack = (gamma(roundings) + 2 * gamma(roundings, DOUBLE)) / (1 - gamma(roundings))
    bound = np.multiply(magnitudes, slack, dtype=np.float64)
    bound += roundings * SMALLEST
    expected = np.empty(true.shape, BOUNDED)
    expected["value"], expected["bound"] = true, bound
    if not np.isfinite(magnitudes.max(initial=0)):
        expected["bound"][~np.isfinite(magnitudes)] = -1
    return expected


def moved(true: Values) -> Values:
    """What is expected of numbers that are only moved."""
    expected = np.zeros(true.shape, BOUNDED)
    expected["value"] = true
    return expected


def surely_near(apart: Values, least: Values, roundings: int, own: int) -> Values:
    """Which results, of at most so many roundings, are within the bound for certain, seen from a sum in float32.

    `apart` is how far they are from that sum, which is rounded `own` times at most itself, fewer than they, and so
    within gamma(own) of the true one: what is left of gamma(roundings), times what the magnitudes come to at `least`,
    rounded `own` times as well, they may be apart. The last factor is for the roundings of all this, here and there.
    What is lost where numbers are too small to be held with all bits, on both sides, is no more than `bounded` allows.
    """
    left = (gamma(roundings) - gamma(own)) * (1 - gamma(own + 8))
    return np.asarray(apart <= least * np.float32(left))
