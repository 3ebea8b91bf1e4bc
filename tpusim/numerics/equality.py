"""Comparison of outputs: every element must be equal, or, if sums are rounded, within a proven bound.

A sum of n products, each rounded, in whatever order and whether or not multiplications are fused with additions, is
off by at most gamma(n) times the sum of the products' magnitudes, where gamma(n) = n u / (1 - n u) and u is the unit
roundoff (N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, section 3.1). What is so small
that it has fewer bits adds half of the smallest number each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.numerics.element_types import Values
from tpusim.result.records import Mismatch

_At: TypeAlias = tuple[int, ...]
ElementName: TypeAlias = Callable[[_At], tuple[tuple[str, ...], _At]]
"""Function from an index in the tensor to the axes and index by which users know the element."""

SINGLE, DOUBLE = 2.0**-24, 2.0**-53
"""Unit roundoffs of float32 and float64."""
SMALLEST = 2.0**-149
"""The smallest positive number of float32."""
MOST_ROUNDINGS = 1 << 20
"""Most roundings of a useful bound: longer sums may be off by more than a sixteenth of their magnitude."""

BOUNDED = np.dtype([("value", np.float64), ("bound", np.float64)])
"""An expected value, and its largest distance from the computed one."""


def gamma(roundings: int, unit: float = SINGLE) -> float:
    """The largest relative error of `roundings` roundings in a row, for fewer than MOST_ROUNDINGS."""
    return roundings * unit / (1 - roundings * unit)


def bounded(true: Values, magnitudes: Values, roundings: int) -> Values:
    """Return the expected results for sums `true`, in float64, that take at most `roundings` in float32.

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
    """Return the expected results where numbers are only moved."""
    expected = np.zeros(true.shape, BOUNDED)
    expected["value"] = true
    return expected


def surely_near(apart: Values, least: Values, roundings: int, own: int) -> Values:
    """Return which results, of at most `roundings`, are within the bound for certain, seen from a sum in float32.

    `apart` is the distance of each result from that sum. The sum has at most `own` roundings, fewer than the result, so
    the sum is within gamma(own) of the true value. The result is certainly near if the distance is at most the rest of
    gamma(roundings), times the magnitudes' sum, of which `least` is a lower bound with `own` roundings, too. The last
    factor covers the roundings of this formula. Numbers that are too small for all their bits lose no more, on both
    sides, than `bounded` allows.
    """
    left = (gamma(roundings) - gamma(own)) * (1 - gamma(own + 8))
    return np.asarray(apart <= least * np.float32(left))


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many outputs were held against the reference, how many differ, and the first element that does.

    Elements of `intermediates`, which the layer writes and reads again on its way to its outputs, count apart.
    """

    checked: int
    mismatched: int
    first: Mismatch | None
    intermediates_checked: int = 0
    intermediates_mismatched: int = 0
    error_share: float | None = None
    """The largest error of an output that is near enough, over its bound; None where they are equal."""

    def after(self, intermediate: Verdict) -> Verdict:
        """Return these findings and those on a tensor that the outputs were made from."""
        checked = self.intermediates_checked + intermediate.checked
        mismatched = self.intermediates_mismatched + intermediate.mismatched
        first = intermediate.first or self.first
        return replace(self, first=first, intermediates_checked=checked, intermediates_mismatched=mismatched)

    def beside(self, other: Verdict) -> Verdict:
        """Return these findings and those on the same layer of another chip: those of the worse one."""
        worse = max(self, other, key=lambda each: each.mismatched + each.intermediates_mismatched)
        return replace(worse, error_share=larger(self.error_share, other.error_share))


def agreement(actual: NDArray[np.float32], expected: Values) -> tuple[NDArray[np.bool_], float | None]:
    """Return which elements are as expected, and their largest error over its bound; None where none has a bound.

    `expected` are numbers, to be equal, or BOUNDED ones. NaN (an output never written) agrees with nothing, and an
    infinity with itself.
    """
    if expected.dtype != BOUNDED:
        return actual == expected, None
    bound = expected["bound"]
    with np.errstate(invalid="ignore"):  # Of infinities, which agree with nothing, and of nothing over nothing.
        error = np.asarray(actual - expected["value"])
        right = np.abs(error, out=error) <= bound
        if not right.all():
            right |= np.isinf(actual) & (actual == expected["value"])
            error, bound = error[right], bound[right]
        return right, float(np.fmax.reduce(np.divide(error, bound, out=error), axis=None, initial=0.0))


def larger(one: float | None, other: float | None) -> float | None:
    """Return the larger of two shares; None stands for no share."""
    return max((each for each in (one, other) if each is not None), default=None)


def difference(at: _At, actual: float, expected: Any, element_name: ElementName, tensor: str = "ofmap") -> Mismatch:
    """Describe the wrong element at `at`; NaN says that it was never written."""
    axes, index = element_name(at)
    value, bound = expected.item() if expected.dtype == BOUNDED else (expected.item(), 0.0)
    return Mismatch(index, axes, float(value), None if np.isnan(actual) else actual, tensor, max(0.0, bound))
