"""Loops that become machine code where Numba is installed, and stay Python where it is not."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])

_ROOM = bytes(2**20)
"""More than all compiled code takes."""


def compiled(function: F, sources: tuple[Path, ...], here: Path, **options: Any) -> F:
    """Compile a loop; kept on disk, in or below `here`, so that only the first run of all waits for the compiler.

    `sources` are the folders and files from which the loop takes constants and other loops; `options` are the
    compiler's.
    Raises ImportError where Numba cannot be imported.
    """
    import numba

    config: Any = numba.config
    compiler: Any = numba.njit
    folder, before = cache_folder(sources, here, config.CACHE_DIR), config.CACHE_DIR
    config.CACHE_DIR = str(folder or before)
    try:
        return cast(F, compiler(cache=folder is not None, **options)(function))
    finally:
        config.CACHE_DIR = before


def compiled_if_possible(function: F, sources: tuple[Path, ...], here: Path, **options: Any) -> F:
    """The same, and the function itself where Numba cannot be imported."""
    try:
        return compiled(function, sources, here, **options)
    except ImportError:
        return function


@cache
def cache_folder(sources: tuple[Path, ...], here: Path, given: str) -> Path | None:
    """Return a folder for what is compiled from these very sources; None where there is no place for it.

    It lies in `given`, if that is not empty. Numba freezes constants, but looks for changes only in the loop's own
    file.
    """
    places = (str(here / "__pycache__"), os.path.expanduser("~/.cache/tpusim"))
    for parent in (given,) if given else places:
        folder = Path(parent, f"tpusim-{_digest(sources)}")
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder) as file:
                file.write(_ROOM)
            return folder
    return None


def _digest(sources: tuple[Path, ...]) -> str:
    together = hashlib.sha256()
    for path in sorted(path for each in sources for path in ([each] if each.is_file() else each.glob("*.py"))):
        together.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return together.hexdigest()[:16]
