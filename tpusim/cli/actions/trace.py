"""The action of `tpusim trace`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tpusim.api.trace import trace
from tpusim.cli.actions.inputs import tell
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say


def print_or_write(workload: str, hardware: str | None, out: Path | None, **asked: Any) -> None:
    """Print the trace as text, or write it in the form that the suffix of `out` names. Raises InputError as `trace`."""
    with Meter() as meter:
        made = trace(workload, hardware, out, **asked, progress=meter.step, note=tell)
    if made.file is not None:
        say(sys.stdout, str(made.file))
    # Lines are printed as long as somebody reads them.
    for line in made:
        if not say(sys.stdout, line):
            break
