"""How outputs are compared: every element must be equal, or, where sums are rounded, as near as is proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.numerics.bounds import BOUNDED
from tpusim.result.records import Mismatch

Tensor: TypeAlias = NDArray[np.float32]
Values: TypeAlias = NDArray[Any]
Index: TypeAlias = tuple[int, ...]
ElementName: TypeAlias = Callable[[Index], tuple[tuple[str, ...], Index]]
"""From an index in the tensor to the axes and index by which its user knows the element."""


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
        """With what was found of one of the tensors that these outputs were made of."""
        checked = self.intermediates_checked + intermediate.checked
        mismatched = self.intermediates_mismatched + intermediate.mismatched
        first = intermediate.first or self.first
        return replace(self, first=first, intermediates_checked=checked, intermediates_mismatched=mismatched)


def agreement(actual: Tensor, expected: Values) -> tuple[NDArray[np.bool_], float | None]:
    """Which elements are as expected, and the largest error of these over its bound; None where none has a bound.

    `expected` are numbers, to be equal, or BOUNDED ones. NaN (an output never written) agrees with nothing.
    """
    if expected.dtype != BOUNDED:
        return actual == expected, None
    bound = expected["bound"]
    with np.errstate(invalid="ignore"):  # Of infinities, which agree with nothing, and of nothing over nothing.
        error = np.asarray(actual - expected["value"])
        right = np.abs(error, out=error) <= bound
        if not right.all():
            error, bound = error[right], bound[right]
        return right, float(np.fmax.reduce(np.divide(error, bound, out=error), axis=None, initial=0.0))


def larger(one: float | None, other: float | None) -> float | None:
    """The larger share of those that there are."""
    return max((each for each in (one, other) if each is not None), default=None)


def difference(at: Index, actual: float, expected: Any, element_name: ElementName, tensor: str = "ofmap") -> Mismatch:
    """What is wrong with the element at `at`; NaN says that it was never written."""
    axes, index = element_name(at)
    value, bound = expected.item() if expected.dtype == BOUNDED else (expected.item(), 0.0)
    return Mismatch(index, axes, float(value), None if np.isnan(actual) else actual, tensor, max(0.0, bound))
