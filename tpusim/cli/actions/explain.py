"""The action of `tpusim explain`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, TextIO

from tpusim.api.explain import Diagnosis, explain, picture_of
from tpusim.base.errors import InputError
from tpusim.base.files import probe, write
from tpusim.cli.actions.inputs import tell
from tpusim.cli.json_output import JsonOutput, refuse_shared
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.report.page.assemble import told_page
from tpusim.report.plots import KNOWN

_PAGE = ".html"


def explain_and_report(workload: str, hardware: str | None, json: str | None, out: Path | None, **asked: Any) -> None:
    """Explain as `explain` does, as JSON, in words, and into `out` as a picture or a page. Raises InputError."""
    output = JsonOutput(json)
    if out and out.suffix != _PAGE and out.suffix[1:] not in KNOWN:
        allowed = ", ".join(f".{kind}" for kind in (*KNOWN, _PAGE[1:]))
        raise InputError(f"{out}: it is written as {allowed}, not as {out.suffix or 'no suffix'}")
    if out:
        probe(out)
    refuse_shared({"--json": output.file, "--out": out})
    with Meter() as meter:
        found = explain(
            workload, hardware, **asked, drawn=bool(out and out.suffix != _PAGE), progress=meter.step, note=tell
        )
    draw = [partial(_write, found, out, output.words_to)] if out else []
    output.deliver(found.shown, *draw)


def _write(found: Diagnosis, out: Path, stream: TextIO) -> None:
    page = out.suffix == _PAGE
    write(out, told_page(found.title, found.shown, found.tiles) if page else picture_of(found).contents(out.suffix[1:]))
    say(stream, "", str(out))
