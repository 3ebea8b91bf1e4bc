"""How the units of the register engine become machine code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tpusim.base.compiled import compiled

F = TypeVar("F", bound=Callable[..., object])

_REGISTER = Path(__file__).parent
SOURCES = (_REGISTER, _REGISTER.parent / "definition.py", _REGISTER.parent / "program")
"""Whatever a kernel takes from another module, it takes from here: a test looks."""


def kernel(function: F) -> F:
    """Compile a loop over registers; kept on disk, so that only the first run of all waits for the compiler."""
    return compiled(function, SOURCES, _REGISTER)
