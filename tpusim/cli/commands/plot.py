"""The command `tpusim plot`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpusim.base.errors import InputError
from tpusim.base.files import probe, write
from tpusim.cli.options import FormatOption
from tpusim.cli.terminal import errors_reported, say
from tpusim.report.plots.formats import FORMATS, known_formats
from tpusim.result.load import RESULT_FILE, read_result

if TYPE_CHECKING:
    from tpusim.report.plots.figure import Picture

CAPTIONS = "captions.txt"
EXAMPLE = "Example: tpusim plot results/resnet50 --out figures --format pdf"


def plot(
    source: Annotated[
        Path,
        typer.Argument(metavar="DIR_OR_JSON", help=f"Written by tpusim run --json, or --out (DIR/{RESULT_FILE})."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where pictures go; default: beside the result.")
    ] = None,
    formats: FormatOption = None,
) -> None:
    """Draw PE utilisation and the cycle breakdown of every layer, each with a caption."""
    with errors_reported():
        kinds = known_formats(formats)
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
