"""`tpusim dram`: what it takes, and what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tpusim.cli.names import MODELS
from tpusim.cli.options import Json, shipped_names, words
from tpusim.cli.root import app
from tpusim.cli.terminal import NO_FILE, errors_reported


@app.command(epilog="Example: tpusim dram trace.csv --device hbm2_16ch_700 --mapping rorababgcoch")
@errors_reported(NO_FILE)
def dram(
    trace: Annotated[
        Path,
        Argument(metavar="TRACE", help="A .csv file or -: time,address,bytes,rw (memory cycles or nothing; r or w)."),
    ],
    device: Annotated[
        str,
        Option(metavar="NAME|PATH", help="Shipped name or .yaml path.", autocompletion=shipped_names("configs/dram")),
    ] = "hbm2_16ch_700",
    mapping: Annotated[
        str | None, Option(metavar="TEXT", help="Which address bits are what: rorabgbachco, row:bank:column:channel.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        Option("--set", metavar="PATH=VALUE", help="Change a field of the device: timing.tRP=20. Repeatable."),
    ] = None,
    json: Json = None,
    engine: Annotated[
        str, Option(metavar="NAME", help=f"The model: {', '.join(MODELS)}.", autocompletion=words(MODELS))
    ] = "one_pass",
) -> None:
    """Play a trace of requests on a DRAM, bank by bank.

    A row without a time comes as soon as it can, in order.

    Exit code 0: done; 1: the two models differ (--engine both); 2: bad input.
    """
    from tpusim.cli.actions.hardware import play_trace

    more = [f"mapping={mapping}"] if mapping is not None else []
    play_trace(trace, device, [*(changes or []), *more], engine, json)
