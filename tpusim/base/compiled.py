"""Loops that become machine code. Where Numba cannot be imported they stay Python, and a warning says so once."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar, cast
from warnings import warn

F = TypeVar("F", bound=Callable[..., object])

_ROOM = bytes(2**20)
"""More than all compiled code takes."""


def compiled(function: F, sources: tuple[Path, ...], here: Path, **options: Any) -> F:
    """Compile a loop; kept on disk, in or below `here`, so that only the first run of all waits for the compiler.

    `sources` are the folders and files from which the loop takes constants and other loops; `options` are the
    compiler's.
    """
    numba = _numba()
    if numba is None:
        return function
    config, folder = numba.config, cache_folder(sources, here, numba.config.CACHE_DIR)
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder or before)
    try:
        return cast(F, numba.njit(cache=folder is not None, **options)(function))
    finally:
        config.CACHE_DIR = before


@cache
def _numba() -> Any:
    """Numba, or None, with a warning, on a platform for which there is none."""
    try:
        import numba
    except Exception as error:  # A library of the wrong version may raise anything.
        install = f"{sys.executable} -m pip install numba"
        warn(f"Numba cannot be imported ({error}): loops of the DRAM run as Python, some 20 times slower; {install}",
             stacklevel=2)  # fmt: skip
        return None
    return numba


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
