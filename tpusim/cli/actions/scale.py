"""The action of `tpusim scale`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, TextIO

from tpusim.api.scale import ScalingAnswer, scale
from tpusim.base.errors import InputError, Problem
from tpusim.base.files import probe, write
from tpusim.cli.actions.inputs import tell
from tpusim.cli.json_output import JsonOutput, refuse_shared
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.report.page.assemble import told_page
from tpusim.report.plots import KNOWN

_PAGE = ".html"


def scale_and_report(
    workload: str, slices: str, hardware: str | None, json: str | None, out: Path | None, **asked: Any
) -> None:
    """Time a network on slices as `scale` does: a table, JSON, and into `out` a picture or a page. Raises InputError as
    that.
    """
    output = JsonOutput(json)
    if out and out.suffix != _PAGE and out.suffix[1:] not in KNOWN:
        allowed = ", ".join(f".{kind}" for kind in (*KNOWN, _PAGE[1:]))
        raise InputError(f"{out}: it is written as {allowed}, not as {out.suffix or 'no suffix'}")
    if out:
        probe(out)
    refuse_shared({"--json": output.file, "--out": out})
    names = [each.strip() for each in slices.split(",")]
    if not all(names):
        raise InputError(Problem(f"{slices!r} leaves a name out; write names such as v6e_8,v6e_4x4", "--slices"))
    with Meter() as meter:
        made = scale(workload, names, hardware, **asked, progress=meter.step, note=tell)
    output.deliver(made.shown, *([partial(_write, made, out, output.words_to)] if out else []))


def _write(made: ScalingAnswer, out: Path, stream: TextIO) -> None:
    page = out.suffix == _PAGE
    picture = made.picture
    write(out, told_page(made.title, made.shown, made.tiles, [picture]) if page else picture.contents(out.suffix[1:]))
    say(stream, "", str(out))
