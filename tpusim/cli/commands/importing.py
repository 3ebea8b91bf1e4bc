"""`tpusim import`: what it takes, and what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tpusim.cli.options import Batch, Dims, SkipUnknown
from tpusim.cli.root import app
from tpusim.cli.terminal import NO_FILE, errors_reported


@app.command("import", epilog="Example: tpusim import model.onnx -o my.yaml")
@errors_reported(NO_FILE)
def import_model(
    file: Annotated[Path, Argument(metavar="FILE", help="An .onnx model, or a .csv topology of SCALE-Sim.")],
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE", help="A .yaml file to write; default: text here.")
    ] = None,
    batch: Batch = 8,
    dims: Dims = None,
    skip_unknown: SkipUnknown = False,
) -> None:
    """Write a model of another tool as a workload file.

    The file is for any batch; --batch is that of the MACs told here. Ops that take no time in it are named, with
    how often they come.

    Exit code 0: done; 2: bad input.
    """
    from tpusim.cli.actions.importing import import_and_report
    from tpusim.cli.actions.inputs import asked_of

    import_and_report(file, out, batch, asked_of(dims, skip_unknown))
