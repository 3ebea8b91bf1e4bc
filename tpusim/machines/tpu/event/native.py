"""The loop as machine code: compiled once for a computer by Numba, kept as an object file, loaded by llvmlite alone.

Importing Numba, and having it load what it has compiled, takes longer than many a network. The object file asks for no
function of Python or Numba, because the loop makes no arrays and raises nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any, TypeAlias
from warnings import warn

import numpy as np
from numpy.typing import NDArray

from tpusim.base.imports import numba_if_there
from tpusim.machines.tpu import definition
from tpusim.machines.tpu.event import columns, log, loop, state
from tpusim.machines.tpu.event.columns import Columns
from tpusim.machines.tpu.event.state import LoopRun, LoopState

_SOURCES = (loop, state, log, columns, definition, sys.modules[__name__])
"""Modules from which the loop takes functions, constants and tables, and the one that compiles it."""
_HEAD = b"tpusim loop "


Loop: TypeAlias = Callable[[Columns, LoopState], LoopRun]
"""A form of the loop, as the function that begins a run of it."""


def linked(code: bytes) -> Loop:
    """Make a loop of its machine code."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    # Two places for what it returns; of each array five numbers, and two for each axis.
    numbers = 2 + sum(5 + 2 * axes for axes in (*_AXES_READ, *_AXES_WRITTEN))
    call = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * numbers)
    # The code lives as long as its engine.
    return partial(NativeRun, engine, call(engine.get_function_address(loop.run.__name__)))


class NativeRun(LoopRun):
    """A run of the loop as machine code, which an `engine` holds."""

    def __init__(self, engine: Any, run: Callable[..., int], program: Columns, tables: LoopState) -> None:
        super().__init__(program, tables)
        self._engine, self._run, self._given, self._described = engine, run, list[int](), tables

    def _once(self) -> int:
        status, error = ctypes.c_int64(), ctypes.c_void_p()
        if self._described is not self.state:
            self._given = [number for table in (*self.program, *self.state) for number in _described(table)]
            self._described = self.state
        if self._run(ctypes.addressof(status), ctypes.addressof(error), *self._given):
            raise RuntimeError("the compiled loop of the event engine has failed")
        return status.value


def _described(table: NDArray[Any]) -> tuple[int, ...]:
    """An array as compiled functions take it: without an owner, its size, bytes of an element, its address, the length
    of each axis, and bytes from an element to the next along each axis.
    """
    return 0, 0, table.size, table.itemsize, table.ctypes.data, *table.shape, *table.strides


_AXES_READ = [1] * len(Columns._fields)
_AXES_WRITTEN = [state.AXES.get(name, 1) for name in LoopState._fields]


@cache
def loaded() -> Loop | None:
    """The loop as machine code, compiled now if no object file has it; None, with a warning, where nothing can."""
    try:
        found = code()
        return None if found is None else linked(found)
    except Exception as error:  # A library of the wrong version may raise anything.
        slow = "it runs as Python, some 20 times slower"
        warn(f"The loop of the event engine cannot be compiled ({error}): {slow}", stacklevel=2)
        return None


# ---- the object file


def code() -> bytes | None:
    """The object file of the loop, compiled and kept where there is none; None without a compiler."""
    name = _name()
    if (kept := next(_kept(name), None)) is not None:
        return kept
    if (numba := numba_if_there()) is None:
        return None
    made = object_code(numba)
    _keep(name, made)
    return made


def _name() -> str:
    """Name of the object file of these sources on this processor."""
    import llvmlite
    from llvmlite import binding

    sources = b"".join(Path(str(module.__file__)).read_bytes() for module in _SOURCES)
    # Numba lays out arguments, and may change how; where it is not installed, a file from before will do.
    with suppress(metadata.PackageNotFoundError):
        sources += metadata.version("numba").encode()
    machine = llvmlite.__version__, binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten(), sys.maxsize
    return f"loop-{_digest(sources + f'{sys.platform} {machine}'.encode()).hex()[:16]}.o"


def _digest(content: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(content).digest()


def _places() -> Iterator[Path]:
    """Folders for object files, the best first."""
    import tempfile

    # Without a home the path would be one of the working directory.
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if caches.is_absolute():
        yield caches / "tpusim"
    with suppress(OSError):
        yield Path(tempfile.gettempdir(), f"tpusim-{_user()}")


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _kept(name: str) -> Iterator[bytes]:
    """The code in object files that this user has written, and that are whole."""
    for place in _places():
        with suppress(OSError):
            # Machine code of somebody else would run with the rights of this user; a pipe would be waited for.
            if not _own(os.stat(place)) or not (place / name).is_file():
                continue
            with open(place / name, "rb") as file:
                if not _own(os.fstat(file.fileno())):
                    continue
                head, digest, code = file.read(len(_HEAD)), file.read(32), file.read()
            if head == _HEAD and digest == _digest(code):
                yield code


def _own(about: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user, and nobody else may write there; other systems than POSIX have no
    such rights.
    """
    return os.name != "posix" or (about.st_uid == _user() and not about.st_mode & 0o022)


def _keep(name: str, code: bytes) -> None:
    """Keep the code in the first place that takes it; without any it lasts as long as the process."""
    import tempfile

    for place in _places():
        with suppress(OSError):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Whoever reads meanwhile sees the file that was there, or the whole new one.
            handle, path = tempfile.mkstemp(dir=place)
            try:
                with open(handle, "wb") as file:
                    file.write(_HEAD + _digest(code) + code)
                os.replace(path, place / name)
            except OSError:
                os.unlink(path)
                raise
            return


# ---- the compiler


def compiled(wrap: Callable[[FunctionType], Any]) -> Any:
    """`run` of the loop, made by a compiler's `wrap`, and all that it calls."""
    # Functions find one another by name, so copies of them that look here find what was made of the others.
    scope = dict(vars(loop))
    for name, each in vars(loop).items():
        if isinstance(each, FunctionType) and each.__module__ == loop.__name__:
            scope[name] = wrap(FunctionType(each.__code__, scope, name))
    return scope[loop.run.__name__]


def object_code(numba: Any) -> bytes:
    """Compile the loop to an object file, in which its name is `run`."""
    from llvmlite import binding

    # No counting of references, no exceptions, no way in from Python: nothing but the loop.
    options = {"_nrt": False, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    run = compiled(lambda each: numba.njit(**options, forceinline=each.__name__ != "run")(each))
    run.compile(_types(numba))
    (signature,) = run.signatures
    module = binding.parse_assembly(run.inspect_llvm(signature))
    module.get_function(run.overloads[signature].fndesc.llvm_func_name).name = loop.run.__name__
    asked = {each.name for each in module.functions if each.is_declaration and not each.name.startswith("llvm.")}
    if asked - {"memset", "memcpy", "memmove"}:
        raise RuntimeError(f"the compiled loop asks for {', '.join(sorted(asked))}")
    machine = binding.Target.from_default_triple().create_target_machine(
        opt=2, jit=True, cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten()
    )
    code: bytes = machine.emit_object(module)
    return code


def _types(numba: Any) -> tuple[Any, Any]:
    """Numba's types of the arguments of `run`."""

    def table(row: Any, axes: int, number: Any = np.int64) -> Any:
        record = columns.record_of(row) if row else np.dtype(number)
        return numba.types.Array(numba.from_dtype(record), axes, "C")

    read = [table(columns.ROWS.get(name), 1) for name in Columns._fields]
    numbers = {"cells": np.uint8}
    written = [
        table(state.ROWS.get(name), state.AXES.get(name, 1), numbers.get(name, np.int64)) for name in LoopState._fields
    ]
    return numba.types.NamedTuple(read, Columns), numba.types.NamedTuple(written, LoopState)
