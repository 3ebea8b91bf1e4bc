"""What areas and energies stand on: which of the shipped constants are quoted from memory of a publication."""

from __future__ import annotations

from collections.abc import Iterator

from tpusim.input.source import read_text, shipped
from tpusim.technology import chips, constants

_SIGNS = {
    "not verified": "quoted from memory of a publication, and not held against it",
    "second hand": "quoted alike by others, and not held against the publication either",
}
"""Marks of such a constant, in the comment on its line, and what they say."""


def unverified() -> tuple[str, ...]:
    """Sentences on them, and each constant with what its file says."""
    listed = [sentence for sign, meaning in _SIGNS.items() for sentence in _sentences(sign, meaning)]
    where = "Areas, energies and figures of whole chips come from constants in configs/technology and configs/chips."
    return where, *listed, "Verdicts on cycles stand on none of them."


def _sentences(sign: str, meaning: str) -> Iterator[str]:
    found = [*_marked(sign)]
    if found:
        yield f"{len(found)} of them are {meaning}:"
        yield from found


def _marked(sign: str) -> Iterator[str]:
    for folder in (constants.FOLDER, chips.FOLDER):
        for name, path in shipped(folder).items():
            for line in read_text(path).splitlines():
                constant, _, comment = line.partition("#")
                if sign in comment and constant.strip():
                    yield f"{folder}/{name}.yaml, {constant.strip()} ({comment.strip()})"
