"""What areas and energies stand on: which of the shipped constants are quoted from memory of a publication."""

from __future__ import annotations

from collections.abc import Iterator

from tpusim.input.source import read_text, shipped
from tpusim.technology import chips, constants

_SIGN = "not verified"
"""Marks such a constant, in the comment on its line."""


def unverified() -> tuple[str, ...]:
    """Sentences on it, and each constant with what its file says."""
    found = [*_marked()]
    return (
        "Areas, energies and figures of whole chips come from the constants in configs/technology and configs/chips, a "
        f"source on each line. {len(found)} of them are quoted from memory of a publication and were not verified "
        "against it:",
        *found,
        "Verdicts on cycles stand on none of them.",
    )


def _marked() -> Iterator[str]:
    for folder in (constants.FOLDER, chips.FOLDER):
        for name, path in shipped(folder).items():
            for line in read_text(path).splitlines():
                constant, _, comment = line.partition("#")
                if _SIGN in comment and constant.strip():
                    yield f"{folder}/{name}.yaml, {constant.strip()} ({comment.strip()})"
