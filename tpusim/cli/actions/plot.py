"""What `tpusim plot` does, and how every command writes its pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.base.errors import InputError
from tpusim.base.files import probe, write
from tpusim.cli.terminal import say
from tpusim.report.page.sweep_file import POINTS_FILE, is_sweep
from tpusim.report.plots.formats import FORMATS
from tpusim.result.load import RESULT_FILE, read_result

if TYPE_CHECKING:
    from tpusim.report.plots.figure import Picture

CAPTIONS = "captions.txt"
_SWEPT = (
    "is of a sweep, and plot draws a run; the sweep has left its pictures there, its command draws them again, "
    "--format pdf for instance, without computing a point twice, and `tpusim report` makes a page of them"
)


def plot_result(source: Path, out: Path | None, kinds: Sequence[str]) -> None:
    """Draw a result into `out`, or beside itself, in every one of `kinds` of files."""
    if source.name == POINTS_FILE or (source.is_dir() and is_sweep(source) and not (source / RESULT_FILE).exists()):
        raise InputError(f"{source}: {_SWEPT}")
    result = read_result(source)
    folder = out or (source if source.is_dir() else source.parent)
    probe(folder / RESULT_FILE, make_folder=True)
    # Here, because matplotlib takes longer to import than a run does.
    from tpusim.report.plots.run import plots

    try:
        pictures = plots(result)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    for path in write_pictures(folder, pictures, kinds):
        say(sys.stdout, str(path))


def write_pictures(folder: Path, pictures: Iterable[Picture], kinds: Sequence[str] = FORMATS) -> Iterator[Path]:
    """Write each in every format, and CAPTIONS with what to put under them; gives the paths as they are written."""
    captions = []
    for picture in pictures:
        captions.append(f"{picture.name}: {picture.caption}\n")
        for name, contents in picture.files(kinds):
            write(folder / name, contents)
            yield folder / name
    write(folder / CAPTIONS, "\n".join(captions).encode())
    yield folder / CAPTIONS
