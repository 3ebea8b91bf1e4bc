"""Lines of a user's source: where in it a primitive was asked for."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import jax

from tpusim.network.formats import printable

_OF_JAX = os.path.join(os.path.dirname(jax.__file__), "")
_OWN = os.path.join(Path(__file__).parents[3], "")
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]|[\\/]lib[\\/]python[\d.]+[\\/]")
_CELL = "ipykernel_"
"""The folder of the cells of a notebook, each a file named by a number that means nothing."""


def line_of(eqn: Any) -> str:
    """Return the source line of a primitive, such as "model.py:31": the innermost in a file of the user's, or else in a
    library that is not JAX; "" if there is none.
    """
    traced = eqn.source_info.traceback
    library = ""
    for frame in traced.frames if traced else ():
        told = _told(frame.file_name)
        if told and not _is_installed(frame.file_name):
            return f"{told}:{frame.line_num}"
        library = library or (told and f"{told}:{frame.line_num}")
    return library


def of_a_library(body: Any) -> bool:
    """Return whether the body of a call is that of a function of a library, JAX among them."""
    said = getattr(getattr(body, "jaxpr", body), "debug_info", None)
    told = getattr(said, "func_src_info", None) or ""
    return _OF_JAX in told or _is_installed(told)


@cache
def _told(file: str) -> str:
    """Return what is told of a file: its name; "" for JAX, tpusim, and what is typed."""
    if file.startswith((_OF_JAX, _OWN)) or file.startswith("<"):
        return ""
    path = Path(file)
    return "cell" if path.parent.name.startswith(_CELL) else printable(path.name)


@cache
def _is_installed(file: str) -> bool:
    return _INSTALLED.search(file) is not None
