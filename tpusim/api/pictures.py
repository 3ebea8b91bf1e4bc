"""Pictures in a folder, with their captions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.base.files import write

if TYPE_CHECKING:
    from tpusim.report.plots.figure import Picture

CAPTIONS = "captions.txt"


def write_pictures(folder: Path, pictures: Iterable[Picture], kinds: Sequence[str]) -> Iterator[Path]:
    """Write pictures in every format, with CAPTIONS, and yield the paths as they are written."""
    drawn = []
    for picture in pictures:
        drawn.append(picture)
        for name, contents in picture.files(kinds):
            write(folder / name, contents)
            yield folder / name
    yield write_captions(folder, drawn)


def write_captions(folder: Path, pictures: Iterable[Picture]) -> Path:
    """Write CAPTIONS, and return its path."""
    captions = (f"{picture.name}: {picture.caption}\n" for picture in pictures)
    write(folder / CAPTIONS, "\n".join(captions).encode())
    return folder / CAPTIONS
