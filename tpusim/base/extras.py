"""Libraries that only some commands need, and that are installed only by those who want them."""

from __future__ import annotations

import sys
from importlib import import_module

from tpusim.base.errors import InputError


def need(what: str, library: str, module: str) -> None:
    """Find out, before the work, whether `module` of a library can be imported; `what` is what needs it.

    Raises:
        InputError: when it, or what it needs, cannot be imported; says how to install it for this Python.
    """
    try:
        import_module(module)
    except Exception as error:  # A library of the wrong version may raise anything.
        install = f"{sys.executable} -m pip install {library.lower()}"
        raise InputError(f"{what} needs {library}, which cannot be imported ({error}): {install}") from None
