"""A file that is a picture or a page, as its name says."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from tpusim.api.answer import Answer
from tpusim.base.errors import InputError
from tpusim.base.files import probe, write
from tpusim.cli.json_output import JsonOutput, refuse_shared
from tpusim.cli.terminal import say
from tpusim.report.plots import KNOWN

_PAGE = ".html"


def check_drawn(out: Path | None, output: JsonOutput) -> None:
    """Check the file of --out, if there is one: a picture or a page, which can be written beside that of --json.

    Raises InputError.
    """
    if out and not is_page(out) and out.suffix[1:] not in KNOWN:
        allowed = ", ".join(f".{kind}" for kind in (*KNOWN, _PAGE[1:]))
        raise InputError(f"{out}: it is written as {allowed}, not as {out.suffix or 'no suffix'}")
    if out:
        probe(out)
    refuse_shared({"--json": output.file, "--out": out})


def is_page(out: Path) -> bool:
    """Return whether a file is a page."""
    return out.suffix == _PAGE


def write_drawn(made: Answer, out: Path, stream: TextIO, illustrated: bool = False) -> None:
    """Write an answer as its picture, or as its page, in which the picture stands, too, if that is `illustrated`."""
    pictures = [made.draw()] if made.draw and (illustrated or not is_page(out)) else []
    write(out, made.to_page(*pictures) if is_page(out) else pictures[0].contents(out.suffix[1:]))
    say(stream, "", str(out))
