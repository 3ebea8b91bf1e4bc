"""The action of `tpusim scale`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tpusim.api.scale import scale
from tpusim.base.errors import InputError, Problem
from tpusim.cli.actions.drawn import check_drawn, write_drawn
from tpusim.cli.actions.inputs import tell
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.progress import Meter


def scale_and_report(
    workload: str, slices: str, hardware: str | None, json: str | None, out: Path | None, **asked: Any
) -> None:
    """Time a network on slices as `scale` does: a table, JSON, and into `out` a picture or a page. Raises InputError as
    that.
    """
    output = JsonOutput(json)
    check_drawn(out, output)
    names = [each.strip() for each in slices.split(",")]
    if not all(names):
        raise InputError(Problem(f"{slices!r} leaves a name out; write names such as v6e_8,v6e_4x4", "--slices"))
    with Meter() as meter:
        made = scale(workload, names, hardware, **asked, progress=meter.step, note=tell)
    output.deliver(made.shown, *([partial(write_drawn, made, out, output.words_to, illustrated=True)] if out else []))
