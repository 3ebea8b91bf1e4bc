"""How outputs are compared: every element must be equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.result.records import Mismatch

Tensor: TypeAlias = NDArray[np.float32]
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

    def after(self, intermediate: Verdict) -> Verdict:
        """With what was found of one of the tensors that these outputs were made of."""
        checked = self.intermediates_checked + intermediate.checked
        mismatched = self.intermediates_mismatched + intermediate.mismatched
        return Verdict(self.checked, self.mismatched, intermediate.first or self.first, checked, mismatched)


def compare(actual: Tensor, expected: Tensor, element_name: ElementName, tensor: str = "ofmap") -> Verdict:
    """Count the elements that differ; NaN (an output never written) differs from everything."""
    if np.array_equal(actual, expected):
        return Verdict(expected.size, 0, None)
    wrong = actual != expected
    at = tuple(map(int, np.unravel_index(int(wrong.argmax()), wrong.shape)))
    first = difference(at, float(actual[at]), float(expected[at]), element_name, tensor)
    return Verdict(expected.size, int(np.count_nonzero(wrong)), first)


def difference(at: Index, actual: float, expected: float, element_name: ElementName, tensor: str = "ofmap") -> Mismatch:
    """What is wrong with the element at `at`; NaN says that it was never written."""
    axes, index = element_name(at)
    return Mismatch(index, axes, expected, None if np.isnan(actual) else actual, tensor)
