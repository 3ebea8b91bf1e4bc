"""The action of `tpusim explain`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tpusim.api.explain import explain
from tpusim.cli.actions.drawn import check_drawn, is_page, write_drawn
from tpusim.cli.actions.inputs import tell
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.progress import Meter


def explain_and_report(workload: str, hardware: str | None, json: str | None, out: Path | None, **asked: Any) -> None:
    """Explain as `explain` does, as JSON, in words, and into `out` as a picture or a page. Raises InputError."""
    output = JsonOutput(json)
    check_drawn(out, output)
    with Meter() as meter:
        found = explain(
            workload, hardware, **asked, drawn=bool(out and not is_page(out)), progress=meter.step, note=tell
        )
    output.deliver(found.shown, *([partial(write_drawn, found, out, output.words_to)] if out else []))
