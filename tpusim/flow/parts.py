"""Values of a graph in parts, of which each goes through it by itself, and all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Values = NDArray[Any]
Parts = list[Values]


def together(parts: Sequence[Values]) -> Values:
    """The parts one behind the other along the first axis: as they stand where they were one array before."""
    if len(parts) == 1:
        return parts[0]
    apart = _apart(parts)
    if apart is None:
        return np.concatenate(parts)
    first = parts[0]
    strides = (apart // len(first), *first.strides[1:])
    return as_strided(first, (len(parts) * len(first), *first.shape[1:]), strides)


def _apart(parts: Sequence[Values]) -> int | None:
    """The bytes from each part to the next, where together they are a view of what they are all parts of."""
    first, starts = parts[0], [each.__array_interface__["data"][0] for each in parts]
    alike = all(
        each.base is not None
        and each.base is first.base
        and (each.dtype, each.shape, each.strides[1:]) == (first.dtype, first.shape, first.strides[1:])
        for each in parts
    )
    bytes_apart = {other - one for one, other in pairwise(starts)}
    if not alike or not first.size or len(bytes_apart) != 1:
        return None
    (apart,) = bytes_apart
    return apart if len(first) == 1 or apart == first.strides[0] * len(first) else None
