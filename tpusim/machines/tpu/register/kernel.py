"""How the units of the register engine become machine code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

F = TypeVar("F", bound=Callable[..., object])

_REGISTER = Path(__file__).parent
SOURCES = (_REGISTER, _REGISTER.parent / "definition", _REGISTER.parent / "program")
"""Whatever a kernel takes from another module, it takes from here: a test looks."""


def kernel(function: F) -> F:
    """Compile a loop over registers; kept on disk, so that only the first run of all waits for the compiler."""
    compiled = numba.njit(function)
    # Neither is there a place for it with NUMBA_DISABLE_JIT=1 nor where no folder can be written to.
    with suppress(RuntimeError):
        if compiled is not function:
            compiled._cache = Cache(function, digest(SOURCES))
    return cast(F, compiled)


def digest(folders: tuple[Path, ...]) -> str:
    """The digest of all sources: Numba freezes constants, but looks for changes only in the kernel's own file."""
    together = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        together.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return together.hexdigest()[:16]


class Cache(FunctionCache):
    """Compiled code on disk, each version of the sources in files of its own; it can be slow, but never wrong."""

    def __init__(self, function: Callable[..., object], version: str) -> None:
        super().__init__(function)
        self._cache_file = IndexDataCacheFile(self.cache_path, f"{self._impl.filename_base}.{version}", version)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code; None when there is none, or what is there is damaged."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a pickle that is cut off or overwritten can raise anything
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the compiled code, if the disk takes it."""
        with suppress(Exception):
            super().save_overload(sig, data)
