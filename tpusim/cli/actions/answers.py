"""Actions of the commands that show an answer of the facade: `tpusim explain`, `scale`, `trace`, `run --tokens` and
`compare --closed-form`. What each asks is imported when it is asked.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tpusim.base.errors import InputError, Problem
from tpusim.base.files import probe, write
from tpusim.cli.actions.inputs import tell
from tpusim.cli.json_output import JsonOutput, refuse_shared
from tpusim.cli.names import GENERATION_FILE, PAGE_FILE
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.report.plots import FORMATS, KNOWN

if TYPE_CHECKING:
    from tpusim.api.answer import Answer
    from tpusim.flow.jobs import Jobs

_PAGE = ".html"


def explain_and_report(workload: str, hardware: str | None, json: str | None, out: Path | None, **asked: Any) -> None:
    """Explain as `explain` does, as JSON, in words, and into `out` as a picture or a page. Raises InputError."""
    from tpusim.api.explain import explain

    output = JsonOutput(json)
    _check_drawn(out, output)
    with Meter() as meter:
        found = explain(
            workload, hardware, **asked, drawn=bool(out and out.suffix != _PAGE), progress=meter.step, note=tell
        )
    output.deliver(found.shown, *([partial(_write_drawn, found, out, output.words_to)] if out else []))


def scale_and_report(
    workload: str, slices: str, hardware: str | None, json: str | None, out: Path | None, **asked: Any
) -> None:
    """Time a network on slices as `scale` does: a table, JSON, and into `out` a picture or a page. Raises InputError as
    that.
    """
    from tpusim.api.scale import scale

    output = JsonOutput(json)
    _check_drawn(out, output)
    names = [each.strip() for each in slices.split(",")]
    if not all(names):
        raise InputError(Problem(f"{slices!r} leaves a name out; write names such as v6e_8,v6e_4x4", "--slices"))
    with Meter() as meter:
        made = scale(workload, names, hardware, **asked, progress=meter.step, note=tell)
    output.deliver(made.shown, *([partial(_write_drawn, made, out, output.words_to, illustrated=True)] if out else []))


def generate_and_report(workload: str, hardware: str | None, json: str | None, out: Path | None, **asked: Any) -> None:
    """Time tokens as `generate` does: a table, JSON, and in `out` a picture and a page. Raises InputError as that."""
    from tpusim.api.generate import generate

    output = JsonOutput(json, made=out)
    if out is not None:
        probe(out / GENERATION_FILE, make_folder=True)
    with Meter() as meter:
        made = generate(workload, hardware, **asked, progress=meter.step, note=tell)
    output.deliver(made.shown, *([partial(_to_folder, made, out, output)] if out is not None else []))


def print_or_write(workload: str, hardware: str | None, out: Path | None, **asked: Any) -> None:
    """Print the trace as text, or write it in the form that the suffix of `out` names. Raises InputError as `trace`."""
    from tpusim.api.trace import trace

    with Meter() as meter:
        made = trace(workload, hardware, out, **asked, progress=meter.step, note=tell)
    if made.file is not None:
        say(sys.stdout, str(made.file))
    # Lines are printed as long as somebody reads them.
    for line in made:
        if not say(sys.stdout, line):
            break


def compare_forms_and_report(jobs: Jobs, json: str | None) -> None:
    """Time a network beside closed forms of other simulators, as JSON and in words."""
    from tpusim.report.tables.closed_form import forms_compared
    from tpusim.study.closed_form import array_of, compare_with_forms

    array_of(jobs.machine)
    output, done = JsonOutput(json), [job.layer.name for job in jobs.each]
    with Meter(len(done)) as meter:
        found = compare_with_forms(jobs, lambda layer, doing: meter.show(done.index(layer), f"{layer}: {doing}"))
    output.deliver(forms_compared(found))


# ---- files: a picture or a page, as the name says, or a folder


def _check_drawn(out: Path | None, output: JsonOutput) -> None:
    """Check the file of --out, if there is one: a picture or a page, which can be written beside that of --json.

    Raises InputError.
    """
    if out and out.suffix != _PAGE and out.suffix[1:] not in KNOWN:
        allowed = ", ".join(f".{kind}" for kind in (*KNOWN, _PAGE[1:]))
        raise InputError(f"{out}: it is written as {allowed}, not as {out.suffix or 'no suffix'}")
    if out:
        probe(out)
    refuse_shared({"--json": output.file, "--out": out})


def _write_drawn(made: Answer, out: Path, stream: TextIO, illustrated: bool = False) -> None:
    """Write an answer as its picture, or as its page, in which the picture stands, too, if that is `illustrated`."""
    page = out.suffix == _PAGE
    pictures = [made.draw()] if made.draw and (illustrated or not page) else []
    write(out, made.to_page(*pictures) if page else pictures[0].contents(out.suffix[1:]))
    say(stream, "", str(out))


def _to_folder(made: Answer, folder: Path, output: JsonOutput) -> None:
    from tpusim.api.pictures import write_pictures

    write(folder / GENERATION_FILE, f"{made.to_json()}\n".encode())
    pictures = [made.draw()] if made.draw else []
    for path in write_pictures(folder, pictures, FORMATS):
        say(output.words_to, str(path))
    write(folder / PAGE_FILE, made.to_page(*pictures))
    say(output.words_to, str(folder / PAGE_FILE))
