"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.report.plots.formats import FORMATS, KNOWN

Workload = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="Shipped name (see tpusim list), .yaml path, or - for stdin.")
]
Hardware = Annotated[str, typer.Option(metavar="NAME|PATH", help="Shipped name or .yaml path.")]
Batch = Annotated[int, typer.Option(metavar="N", help="Images at a time.")]
Lowering = Annotated[str, typer.Option(metavar="NAME", help=f"How convolutions become passes: {', '.join(LOWERINGS)}.")]
Layers = Annotated[str, typer.Option(metavar="GLOB", help="Only the layers of such names: 'layer1.*'.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a hardware field: array.rows=64. Repeatable."),
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Of the random operands.")]
Json = Annotated[str | None, typer.Option(metavar="FILE|-", help="Write it as JSON; - is stdout, words go to stderr.")]
Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="NAME",
        help=f"Of pictures: {', '.join(KNOWN)}. Repeatable; default: {' and '.join(FORMATS)}.",
    ),
]
