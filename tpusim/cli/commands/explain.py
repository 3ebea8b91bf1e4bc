"""The command `tpusim explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console

from tpusim.base.errors import InputError
from tpusim.base.files import probe, write
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.options import BatchOption, ChangesOption, HardwareOption, LoweringOption, WorkloadOption
from tpusim.cli.screen import Meter
from tpusim.cli.terminal import errors_reported, interruption_told, say, show
from tpusim.flow.simulation import select_layers
from tpusim.machines.tpu.description import load_hardware
from tpusim.network.ops import Op
from tpusim.network.workload import Workload, load_workload
from tpusim.report.plots.formats import KNOWN
from tpusim.report.tables import explain_text as text
from tpusim.report.tables.explain_json import to_json
from tpusim.study.explain.bottleneck import Bottleneck, find_bottleneck
from tpusim.study.explain.relaxation import Case, relaxations

EXAMPLE = "Example: tpusim explain resnet50 --layer conv1"


def explain(
    workload: WorkloadOption,
    layer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which layer; a workload of one layer needs no name.")
    ] = None,
    hardware: HardwareOption = "tpu_v2",
    batch: BatchOption = 8,
    lowering: LoweringOption = "channel_first",
    changes: ChangesOption = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Write everything as JSON; - is stdout, words go to stderr.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Draw it: {', '.join(f'.{kind}' for kind in KNOWN)}.")
    ] = None,
) -> None:
    """Say why a layer takes as long as it does, and what would help most.

    The layer is simulated again and again, timing alone, each time with one thing made easier: twice the HBM
    bandwidth, twice the batch, a port for every client, ... What gains the most is what bounds it.
    """
    with errors_reported(), interruption_told():
        work = load_workload(workload, batch=batch)
        case = Case(_chosen(work, layer), batch, load_hardware(hardware, changes or []), lowering)
        output = JsonOutput(json)
        output.check()
        if _picture_file(out):
            probe(Path(str(out)))
        with Meter(len(relaxations(case))) as meter:
            found = find_bottleneck(case, meter.show)
        output.put(to_json(found, work.name))
        _report(found, work.name, output.words_to)
        if out:
            _draw(found, work.name, out)
            say(output.words_to, "", str(out))


def _chosen(work: Workload, name: str | None) -> Op:
    """The layer of that name, or the only one that matches."""
    if name is None and len(work.layers) == 1:
        return work.layers[0]
    found = [layer for layer in work.layers if layer.name == name] or select_layers(work, name or "*").layers
    if len(found) > 1:
        which = f"--layer {name} matches {len(found)} of them" if name else "name one with --layer"
        names = ", ".join(layer.name for layer in found[:8]) + (", ..." if len(found) > 8 else "")
        raise InputError(f"one layer at a time is explained; {work.name} has {len(work.layers)}, {which}: {names}")
    return found[0]


def _picture_file(out: Path | None) -> Path | None:
    if out is not None and out.suffix[1:] not in KNOWN:
        allowed = ", ".join(f".{kind}" for kind in KNOWN)
        raise InputError(f"{out}: a picture is written as {allowed}, not as {out.suffix or 'no suffix'}")
    return out


def _report(found: Bottleneck, workload: str, stream: TextIO) -> None:
    console = Console(file=stream)
    width = min(text.WIDTH, console.width) if console.is_terminal else text.WIDTH
    show(stream, text.heading(found, workload), "", text.verdict(found, width), "")
    show(stream, text.gains_table(found, console.width if console.is_terminal else None))
    show(stream, "", text.no_gain(found, width), "")
    show(stream, "Where the cycles of the array go", text.cycles_bars(found, width), text.units_line(found, width), "")
    show(stream, "How it is lowered", text.lowering_text(found, width))


def _draw(found: Bottleneck, workload: str, out: Path) -> None:
    # Here, because matplotlib takes longer to import than the simulations.
    from tpusim.report.plots.explain_picture import picture

    ((_, contents),) = picture(found, workload).files([out.suffix[1:]])
    write(out, contents)
