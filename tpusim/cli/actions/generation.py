"""The action of `tpusim run --tokens`: a generation, token by token."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tpusim.api.answer import Answer
from tpusim.api.generate import generate
from tpusim.api.pictures import write_pictures
from tpusim.base.files import probe, write
from tpusim.cli.actions.inputs import tell
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.names import PAGE_FILE
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.report.plots import FORMATS
from tpusim.report.tables.generation import GENERATION_FILE


def generate_and_report(workload: str, hardware: str | None, json: str | None, out: Path | None, **asked: Any) -> None:
    """Time tokens as `generate` does: a table, JSON, and in `out` a picture and a page. Raises InputError as that."""
    output = JsonOutput(json, made=out)
    if out is not None:
        probe(out / GENERATION_FILE, make_folder=True)
    with Meter() as meter:
        made = generate(workload, hardware, **asked, progress=meter.step, note=tell)
    output.deliver(made.shown, *([partial(_to_folder, made, out, output)] if out is not None else []))


def _to_folder(made: Answer, folder: Path, output: JsonOutput) -> None:
    write(folder / GENERATION_FILE, f"{made.to_json()}\n".encode())
    pictures = [made.draw()] if made.draw else []
    for path in write_pictures(folder, pictures, FORMATS):
        say(output.words_to, str(path))
    write(folder / PAGE_FILE, made.to_page(*pictures))
    say(output.words_to, str(folder / PAGE_FILE))
