"""Whether numbers are all numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def all_finite(values: NDArray[Any]) -> bool:
    """Whether none is infinite or NaN. A sum is neither unless one of them is, or it grows too large itself."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(values.sum()) or np.isfinite(values).all())
