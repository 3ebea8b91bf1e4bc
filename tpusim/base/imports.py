"""Imports that wait until they are needed: entries of tables, libraries of some commands, compiled loops."""

from __future__ import annotations

import os
import sys
from collections import UserDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from warnings import warn

from tpusim.base.errors import InputError
from tpusim.base.interruption import HeldInterrupt

Thing = TypeVar("Thing")
F = TypeVar("F", bound=Callable[..., object])

_PACKAGE = __name__.partition(".")[0]
_WAIT = "loops are compiled for this computer, which may take half a minute, in the first run alone"
_ROOM = bytes(2**20)
"""More bytes than all compiled code takes."""


class Registry(UserDict[str, Thing], Generic[Thing]):
    """Things by name. Names, their order and their number cost no import; a thing costs the import of its module."""

    def __init__(self, package: str, places: Mapping[str, str]) -> None:
        """`places` has the place of each thing in `package`, by name: "module.attribute"."""
        super().__init__()
        self._package = package
        self.data = dict[str, Any](places)

    def __getitem__(self, name: str) -> Thing:
        found: Any = self.data[name]
        if isinstance(found, str):
            module, _, attribute = found.rpartition(".")
            found = self.data[name] = getattr(import_module(f"{self._package}.{module}"), attribute)
        thing: Thing = found
        return thing


def need(what: str, library: str, module: str) -> None:
    """Find out, before the work, whether `module` of a library can be imported; `what` names the feature that needs it.

    Raises:
        InputError: when it, or what it needs, cannot be imported; says how to install it for this Python.
    """
    try:
        import_module(module)
    except Exception as error:  # A library of the wrong version may raise anything.
        raise InputError(f"{what} needs {library}, which cannot be imported ({error}): {_install(library)}") from None


def _install(library: str) -> str:
    """The command that installs a library for this Python."""
    return f"{sys.executable} -m pip install {library.lower()}"


def compiled(function: F, sources: tuple[Path, ...], here: Path, **options: Any) -> F:
    """Compile a loop if Numba can be imported; otherwise the loop stays Python, and a warning says so once.

    The machine code is kept on disk, in or below `here`, so that only the very first run waits for the compiler;
    `sources` are the folders and files from which the loop takes constants and other loops; `options` are the
    compiler's.
    """
    numba = numba_if_there()
    if numba is None:
        return function
    config, folder = numba.config, _cache_folder(sources, here, numba.config.CACHE_DIR)
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder or before)
    try:
        return cast(F, numba.njit(cache=folder is not None, **options)(function))
    finally:
        config.CACHE_DIR = before


@cache
def numba_if_there() -> Any:
    """Numba; or None, with a warning, on a platform without it."""
    # Level 3, Numba's own, makes loops that are no faster, and the register engine takes half as long again to compile.
    os.environ.setdefault("NUMBA_OPT", "2")
    try:
        import numba
    except Exception as error:  # A library of the wrong version may raise anything.
        slow = "loops run as Python, some 20 times slower"
        warn(f"Numba cannot be imported ({error}): {slow}; {_install('numba')}", stacklevel=2)
        return None
    _follow_the_compiler()
    return numba


class FirstCompilation(UserWarning):
    """What somebody waits for who runs a loop for the first time."""


_under_way: list[str] = []
"""Loops of this package that are being compiled, each for the one ahead of it."""


def compiling() -> bool:
    """Whether a loop is being compiled, which takes a while."""
    return bool(_under_way)


def _follow_the_compiler() -> None:
    """Warn at the first loop of this package that is really compiled, not found on disk, in this process; note which
    are; and hear Ctrl-C between two of them.
    """
    from multiprocessing import parent_process

    event: Any = import_module("numba.core.event")
    told = parent_process() is not None  # Whoever started it says so, or shows progress.
    kept = HeldInterrupt()

    class Follower(event.Listener):  # type: ignore[misc]
        def on_start(self, started: Any) -> None:
            nonlocal told
            loop = started.data["dispatcher"].py_func
            if loop.__module__.startswith(f"{_PACKAGE}."):
                _under_way.append(loop.__name__)
                kept.hold()
                if not told:
                    told = True
                    warn(FirstCompilation(_WAIT), stacklevel=2)

        def on_end(self, ended: Any) -> None:
            if ended.data["dispatcher"].py_func.__module__.startswith(f"{_PACKAGE}."):
                _under_way.pop()
                kept.let_go()
                if _under_way:
                    kept.hold()

    event.register("numba:compile", Follower())


@cache
def _cache_folder(sources: tuple[Path, ...], here: Path, given: str) -> Path | None:
    """A folder for code compiled from exactly these sources; None if there is no place for one.

    The folder is in `given`, if that is not empty. Numba freezes constants, but checks for changes only in the loop's
    own file.
    """
    from tempfile import TemporaryFile

    places = (str(here / "__pycache__"), os.path.expanduser("~/.cache/tpusim"))
    # Without a home the last would be a folder of the working directory.
    for parent in (given,) if given else filter(os.path.isabs, places):
        folder = Path(parent, f"tpusim-{_digest(sources)}")
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder) as file:
                file.write(_ROOM)
            return folder
    return None


def _digest(sources: tuple[Path, ...]) -> str:
    import hashlib

    together = hashlib.sha256()
    for path in sorted(path for each in sources for path in ([each] if each.is_file() else each.glob("*.py"))):
        together.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return together.hexdigest()[:16]
