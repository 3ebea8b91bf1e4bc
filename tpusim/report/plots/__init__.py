"""Pictures, and their file formats; named here, so that the command line needs no matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

from tpusim.base.errors import InputError, did_you_mean

FORMATS = ("png", "svg")
"""The formats written unless others are asked for."""

KNOWN = ("png", "svg", "pdf")


def known_formats(formats: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return each format once, in the order given; a text is one. Raises InputError for an unknown one."""
    listed = formats or () if isinstance(formats, list | tuple | None) else [str(formats)]
    for each in listed:
        if each not in KNOWN:
            raise InputError(
                f"--format {each!r}: no such format{did_you_mean(each, KNOWN)}; there is {', '.join(KNOWN)}"
            )
    return tuple(dict.fromkeys(listed or FORMATS))
