"""How the units of the register engine become machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile a loop over registers; kept on disk, so that only the first run of all waits for the compiler."""
    try:
        return cast(F, numba.njit(cache=True)(function))
    except RuntimeError:
        # Neither the package's folder nor the user's cache can be written to.
        return cast(F, numba.njit(function))
