"""The function that FILE.py:NAME names, and its arguments by shapes or arrays.

This is the only place where code of a user's file is executed: the file is imported as a module.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tpusim.base.errors import InputError, Problem, did_you_mean
from tpusim.input.scalars import INTEGER, whole_number
from tpusim.network.formats import ModelOptions, printable
from tpusim.network.workload import MOST_SIZE

_TYPES = {
    "f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16, "i32": jnp.int32, "i8": jnp.int8, "i4": jnp.int4,
    "bool": jnp.bool_,
}  # fmt: skip
_SCALAR = "scalar"
_FORM = (
    f"write sizes such as 8x224x224x3, or {_SCALAR}, with a type behind a colon: {', '.join(_TYPES)} (f32 unless said)"
)


def named(path: Path, asked: ModelOptions) -> tuple[Callable[..., Any], Sequence[Any]]:
    """Import the file and return its function, with arguments of the shapes that are `asked` for, or the arrays.

    Raises InputError where no arguments are given, so that no file is executed which a user only named in another
    file.
    """
    file, _, name = str(path).rpartition(":")
    if asked.shapes is None and not asked.arrays:
        says = "a function needs the shapes of its arguments, or arrays for them"
        raise InputError(Problem(f"{says}; run it by tpusim run {path} --shapes AxB,C, or with --input", str(path)))
    if asked.dims:
        raise InputError(
            Problem("a function of JAX leaves no size open; leave --dim out, and change --shapes", str(path))
        )
    shapes = [_shape(each, str(path)) for each in filter(None, (asked.shapes or "").split(","))]
    module = _imported(Path(os.path.realpath(file)))
    function = getattr(module, name, None)
    if not callable(function):
        known = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
        raise InputError(Problem(f"{file} has no function {name}{did_you_mean(name, known) or ''}", str(path)))
    wanted = [each for each in inspect.signature(function).parameters.values() if each.default is each.empty]
    names = [each.name for each in wanted if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if asked.shapes is None:
        if missing := [each for each in names if each not in asked.arrays]:
            says = f"--input has no array for {', '.join(missing)}; it has {', '.join(asked.arrays)}"
            raise InputError(Problem(says, str(path)))
        return function, [asked.arrays[each] for each in names]
    if len(shapes) < len(names) or (asked.arrays and {*asked.arrays} != {*names}):
        says = f"it takes {', '.join(names) or 'no arguments'}, and --shapes has {len(shapes)}"
        raise InputError(Problem(f"{says}; give one shape for each, with commas between", str(path)))
    return function, shapes


def _shape(text: str, where: str) -> jax.ShapeDtypeStruct:
    """Read a shape, such as 8x16:i32."""
    sizes, _, kind = text.strip().partition(":")
    each = [] if sizes == _SCALAR else sizes.split("x")
    if not all(INTEGER.fullmatch(size) for size in each) or (kind or "f32") not in _TYPES:
        raise InputError(Problem(f"{printable(text)!r} is no shape; {_FORM}", f"--shapes: {where}"))
    return jax.ShapeDtypeStruct(tuple(whole_number(int(size), 1, MOST_SIZE) for size in each), _TYPES[kind or "f32"])


@cache
def _imported(file: Path) -> Any:
    """Import a file as a module, whose own folder it may import from."""
    spec = spec_from_file_location(file.stem, file)
    if not os.path.isfile(file) or spec is None or spec.loader is None:
        raise InputError(Problem("there is no such file of Python", str(file)))
    module = module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)
    except Exception as error:  # The file is the user's, and may raise anything.
        says = f"it cannot be imported: {type(error).__name__}: {printable(' '.join(str(error).split()))}"
        raise InputError(Problem(says, str(file))) from None
    finally:
        sys.path.remove(str(file.parent))
    return module
