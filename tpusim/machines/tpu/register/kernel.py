"""How the units of the register engine become machine code."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar, cast

import numba

config: Any = numba.config
F = TypeVar("F", bound=Callable[..., object])

_REGISTER = Path(__file__).parent
SOURCES = (_REGISTER, _REGISTER.parent / "definition", _REGISTER.parent / "program")
"""Whatever a kernel takes from another module, it takes from here: a test looks."""

_ROOM = bytes(2**20)
"""More than all compiled code takes."""


def kernel(function: F) -> F:
    """Compile a loop over registers; kept on disk, so that only the first run of all waits for the compiler."""
    folder, before = cache_folder(SOURCES), config.CACHE_DIR
    config.CACHE_DIR = str(folder or before)
    try:
        return cast(F, numba.njit(cache=folder is not None)(function))
    finally:
        config.CACHE_DIR = before


@cache
def cache_folder(sources: tuple[Path, ...]) -> Path | None:
    """Return a folder for what is compiled from these very sources; None where there is no place for it.

    Numba freezes constants, but looks for changes only in the kernel's own file.
    """
    here = (str(_REGISTER / "__pycache__"), os.path.expanduser("~/.cache/tpusim"))
    for parent in (config.CACHE_DIR,) if config.CACHE_DIR else here:
        folder = Path(parent, f"tpusim-{_digest(sources)}")
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder) as file:
                file.write(_ROOM)
            return folder
    return None


def _digest(folders: tuple[Path, ...]) -> str:
    together = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        together.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return together.hexdigest()[:16]
