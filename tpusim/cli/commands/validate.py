"""`tpusim validate`: what it takes, and what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from tpusim.cli.names import GPU_SETS, MEMORY_SETS, NETWORK_SETS, NUMBER_SETS, NUMBER_WORDS
from tpusim.cli.options import AnotherLowering, Changes, Formats, Json, words
from tpusim.cli.root import app
from tpusim.cli.terminal import NO_FILE, errors_reported
from tpusim.report.plots import known_formats


@app.command(epilog="Example: tpusim validate --set-of-numbers vgg16")
@errors_reported(NO_FILE)
def validate(
    sets: Annotated[
        list[str] | None,
        Option(
            "--set-of-numbers",
            metavar="NAME",
            help=f"All that is {', '.join(NUMBER_WORDS)}, or one of {', '.join(NUMBER_SETS)}, or {NETWORK_SETS}, whole "
            f"networks, {MEMORY_SETS}, what is simulated, or {GPU_SETS}, what was measured on a GPU. Repeatable.",
            autocompletion=words((*NUMBER_WORDS, *NUMBER_SETS, NETWORK_SETS, MEMORY_SETS, GPU_SETS)),
        ),
    ] = None,
    lowering: AnotherLowering = None,
    changes: Changes = None,
    json: Json = None,
    out: Annotated[Path | None, Option(metavar="DIR", help="Draw parity and errors.")] = None,
    formats: Formats = None,
) -> None:
    """Compare cycles with what is known of the chip.

    Known are estimates and schedules of Google's compiler, and measurements. A single set is shown row by row.
    """
    from tpusim.cli.actions.validate import compare_and_report

    compare_and_report(sets or [], lowering, changes or [], json, out, known_formats(formats))
