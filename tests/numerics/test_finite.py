"""Numbers that are all numbers."""

from __future__ import annotations

import numpy as np
import pytest

from tpusim.numerics.element_types import all_finite


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([1, -2], True),
        ([], True),
        ([3e38, 3e38], True),
        ([1, np.inf], False),
        ([np.inf, -np.inf], False),
        ([np.nan], False),
    ],
)
def test_finite(values: list[float], finite: bool) -> None:
    """A sum may be too large of numbers that are not."""
    assert all_finite(np.float32(values)) == finite
