"""How the loops of the DRAM become machine code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tpusim.base.compiled import compiled

F = TypeVar("F", bound=Callable[..., object])

_DRAM = Path(__file__).parent


def kernel(function: F) -> F:
    """Compile a loop over requests or banks, where Numba is installed.

    It must not make arrays: nothing counts references to them, which would take three times as long as the work.
    Other threads, such as that which tells how far it is, go on meanwhile.
    """
    return compiled(function, (_DRAM,), _DRAM, _nrt=False, nogil=True)


def inlined(function: F) -> F:
    """The same for what is small, or used once: it is copied into loops before they are compiled, and never alone."""
    return compiled(function, (_DRAM,), _DRAM, _nrt=False, inline="always")


def part(function: F) -> F:
    """The same for a part of such a loop, which is copied into it: a call would copy all the state."""
    return compiled(function, (_DRAM,), _DRAM, _nrt=False, forceinline=True)
