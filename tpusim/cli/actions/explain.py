"""The action of `tpusim explain`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, TextIO

from tpusim.api.explain import Diagnosis, explain, picture_of
from tpusim.base.files import write
from tpusim.cli.actions.drawn import check_drawn, is_page
from tpusim.cli.actions.inputs import tell
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.report.page.assemble import told_page


def explain_and_report(workload: str, hardware: str | None, json: str | None, out: Path | None, **asked: Any) -> None:
    """Explain as `explain` does, as JSON, in words, and into `out` as a picture or a page. Raises InputError."""
    output = JsonOutput(json)
    check_drawn(out, output)
    with Meter() as meter:
        found = explain(
            workload, hardware, **asked, drawn=bool(out and not is_page(out)), progress=meter.step, note=tell
        )
    draw = [partial(_write, found, out, output.words_to)] if out else []
    output.deliver(found.shown, *draw)


def _write(found: Diagnosis, out: Path, stream: TextIO) -> None:
    page = is_page(out)
    write(out, told_page(found.title, found.shown, found.tiles) if page else picture_of(found).contents(out.suffix[1:]))
    say(stream, "", str(out))
