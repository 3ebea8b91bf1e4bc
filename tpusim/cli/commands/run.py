"""`tpusim run`: what it takes, and what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from tpusim.cli.names import BATCH, DTYPES, ENGINES, RESULT_FILE, SUMS
from tpusim.cli.options import (
    Changes,
    Dims,
    Hardware,
    Json,
    Layers,
    Lowering,
    Ops,
    Seed,
    SkipUnknown,
    Workload,
    words,
)
from tpusim.cli.root import app
from tpusim.cli.terminal import NO_FILE, errors_reported

_Engine = Annotated[
    str, Option(metavar="NAME", help=f"What keeps time: {', '.join(ENGINES)}.", autocompletion=words(ENGINES))
]
_Batch = Annotated[
    int | None,
    Option(metavar="N", help=f"Images at a time: unless given, as many as --input holds, else {BATCH}.",
           show_default=False),
]  # fmt: skip
_Dtype = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help=f"What values are: {', '.join(DTYPES)}. Unless given, small integers of exact sums. f32, bf16: reals, "
        "held against float64 within a proven bound. It changes no times.",
        autocompletion=words(DTYPES),
    ),
]
_Sums = Annotated[
    str,
    Option(metavar="ORDER", help="Add in any order, or as the array does, which is slow.", autocompletion=words(SUMS)),
]
_Given = Annotated[
    Path | None,
    Option("--input", metavar="FILE.npz", help="Inputs of an ONNX model; values then go from layer to layer."),
]
_Saved = Annotated[
    Path | None,
    Option("--save-outputs", metavar="FILE.npz", help="Write its outputs; its inputs are random unless given."),
]


@app.command(epilog="Example: tpusim run resnet50 --batch 8 --set array.size=256 --json run.json")
@errors_reported(NO_FILE)
def run(
    workload: Workload,
    hardware: Hardware = "tpu_v2",
    batch: _Batch = None,
    lowering: Lowering = None,
    engine: _Engine = "event",
    check: Annotated[bool, Option("--check/--no-check", help="Compute and check every output.")] = True,
    layers: Layers = "*",
    changes: Changes = None,
    seed: Seed = 0,
    dtype: _Dtype = None,
    sums: _Sums = "any",
    dims: Dims = None,
    skip_unknown: SkipUnknown = False,
    ops: Ops = None,
    given: _Given = None,
    outputs: _Saved = None,
    json: Json = None,
    out: Annotated[Path | None, Option(metavar="DIR", help=f"Write DIR/{RESULT_FILE}, for tpusim plot DIR.")] = None,
) -> None:
    """Simulate a workload: time, stalls, and every output checked.

    Exit code 0: done; 1: a wrong output (the JSON is still written) or a deadlock; 2: bad input, or too little memory;
    130: Ctrl-C (the layers that were done are shown, and written where --out or --json says).
    """
    from tpusim.cli.actions.inputs import EndToEnd, asked_of, load
    from tpusim.cli.actions.run import simulate_and_report

    ends = EndToEnd(given, outputs)
    asked = asked_of(dims, skip_unknown, ops, ends.arrays)
    work, machine = load(workload, hardware, batch, changes, layers, asked, lowering)
    values: dict[str, Any] = {"check": check, "dtype": ends.dtype(dtype), "sums": sums, "seed": seed}
    journey = ends.journey(workload, work, asked, **values)
    simulate_and_report(work, machine, json, out, ends, journey=journey, lowering=lowering, engine=engine, **values)
