"""The `tpusim` command.

Exit codes: 0 done; 1 the check failed or the machine deadlocked; 2 bad input; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain, takewhile
from pathlib import Path
from typing import Annotated

import typer

from tpusim import cli_compare, cli_explain, cli_plot, cli_report, cli_sweep, cli_validate
from tpusim.engine.trace import Cycle, Watch
from tpusim.errors import CheckFailed, InputError
from tpusim.files import probe, write
from tpusim.hardware import load_hardware
from tpusim.outcome import ENGINES
from tpusim.report import tables, trace_text
from tpusim.report.load import RESULT_FILE
from tpusim.report.trace_size import MOST_CYCLES
from tpusim.screen import Meter, Progress, report
from tpusim.simulate import LOWERINGS, select_layers, simulate
from tpusim.simulate import trace as simulated_trace
from tpusim.terminal import (
    INTERRUPTED,
    Nowhere,
    errors_reported,
    interruption_told,
    leave_now,
    prepare_streams,
    say,
    show,
)
from tpusim.version import __version__
from tpusim.workload import load_workload
from tpusim.yaml_source import open_document, shipped

TRACE_FORMATS = (".txt", ".png", ".svg")

app = typer.Typer(
    name="tpusim",
    help="Simulate the matrix unit of a TPU v2, cycle by cycle, and check every output.",
    epilog="Example: tpusim run resnet50 --out results/resnet50",
    no_args_is_help=True,
    add_completion=False,
    # Plain help and tracebacks: rich's take longer to import than a small run takes.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of the `tpusim` command."""
    prepare_streams()
    try:
        app(prog_name="tpusim")
    except KeyboardInterrupt:
        leave_now()
    except SystemExit as exit_:
        if exit_.code == INTERRUPTED:
            leave_now()
        raise


def _version(wanted: bool) -> None:
    if wanted:
        say(sys.stdout, f"tpusim {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Holds the options of `tpusim` itself; the help text is that of `app`."""


WorkloadOption = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="Shipped name (see tpusim list), .yaml path, or - for stdin.")
]
HardwareOption = Annotated[str, typer.Option(metavar="NAME|PATH", help="Shipped name or .yaml path.")]
BatchOption = Annotated[int, typer.Option(metavar="N", help="Images at a time.")]
LoweringOption = Annotated[
    str, typer.Option(metavar="NAME", help=f"How convolutions become passes: {', '.join(LOWERINGS)}.")
]
LayersOption = Annotated[str, typer.Option(metavar="GLOB", help="Only the layers of such names: 'layer1.*'.")]
ChangesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a hardware field: array.rows=64. Repeatable."),
]
SeedOption = Annotated[int, typer.Option(min=0, metavar="N", help="Of the random operands.")]


@app.command(epilog="Example: tpusim run resnet50 --batch 8 --set array.size=256 --json run.json")
def run(
    workload: WorkloadOption,
    hardware: HardwareOption = "tpu_v2",
    batch: BatchOption = 8,
    lowering: LoweringOption = "channel_first",
    engine: Annotated[str, typer.Option(metavar="NAME", help=f"What keeps time: {', '.join(ENGINES)}.")] = "event",
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compute and check every output.")] = True,
    layers: LayersOption = "*",
    changes: ChangesOption = None,
    seed: SeedOption = 0,
    json: Annotated[
        str | None,
        typer.Option(metavar="FILE|-", help="Write the result JSON; - is stdout, tables go to stderr."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help=f"Write DIR/{RESULT_FILE}, for tpusim plot DIR.")
    ] = None,
) -> None:
    """Simulate a workload: its time, its stalls, and every output checked.

    Exit code 0: done; 1: a wrong output (the JSON is still written) or a deadlock; 2: bad input.
    """
    with errors_reported():
        machine = load_hardware(hardware, changes or [])
        work = select_layers(load_workload(workload, batch=batch), layers)
        files = _json_files(json, out)
        for file in files:
            probe(file, make_folder=file.parent == out)
        report_to = sys.stderr if json == "-" else sys.stdout
        with Progress(work, report_to) as progress:
            result = simulate(
                work,
                machine,
                lowering=lowering,
                engine=engine,
                check=check,
                seed=seed,
                progress=progress,
                watch=progress.watch,
            )
        for file in files:
            write(file, f"{result.to_json()}\n".encode())
        if json == "-":
            say(sys.stdout, result.to_json())
        report(report_to, work, result)
        if not result.correct:
            raise CheckFailed(f"the check failed: {tables.first_wrong(result)}")


@app.command(epilog="Example: tpusim trace tiny --layers fig10 --hardware tiny_4x4 --batch 2")
def trace(
    workload: WorkloadOption,
    hardware: HardwareOption = "tpu_v2",
    batch: BatchOption = 8,
    lowering: LoweringOption = "channel_first",
    layers: LayersOption = "*",
    changes: ChangesOption = None,
    seed: SeedOption = 0,
    first: Annotated[int, typer.Option("--from", min=0, metavar="CYCLE", help="First cycle shown.")] = 0,
    last: Annotated[int | None, typer.Option("--to", min=0, metavar="CYCLE", help="Last cycle shown.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Write FILE: {', '.join(TRACE_FORMATS)}; default: text here.")
    ] = None,
) -> None:
    """Show what every lane does in every cycle of one layer, from the register engine."""
    with errors_reported(), interruption_told():
        if last is not None and last < first:
            raise InputError(f"--to {last} comes before --from {first}")
        work = select_layers(load_workload(workload, batch=batch), layers)
        machine = load_hardware(hardware, changes or [])
        if out is not None:
            _known_format(out)
            probe(out)
        total, cycles = simulated_trace(work, machine, lowering=lowering, seed=seed)
        end = min(total, total if last is None else last + 1)
        if first >= end:
            raise InputError(f"--from {first}: the layer has {total:,} cycles")
        if out is not None and out.suffix != ".txt" and end - first > MOST_CYCLES:
            raise InputError(f"{out}: a picture holds {MOST_CYCLES:,} cycles, not {end - first:,}; use --from and --to")
        if out is None:
            _print(cycles, first, end)
        else:
            with Meter(end) as meter:
                shown = list(_until(end, cycles(first, lambda done: meter.show(done, "cycles"))))
                write(out, _traced(shown, f"{work.name} {work.layers[0].name}", out))
            say(sys.stdout, str(out))


def _known_format(out: Path) -> None:
    if out.suffix not in TRACE_FORMATS:
        raise InputError(f"{out}: a trace is written as {', '.join(TRACE_FORMATS)}, not as {out.suffix or 'no suffix'}")


def _until(end: int, cycles: Iterator[Cycle]) -> Iterator[Cycle]:
    # One cycle more is asked for, so that a run to the end finds out whether it is the end.
    return takewhile(lambda cycle: cycle.number < end, cycles)


def _print(cycles: Callable[[int, Watch], Iterator[Cycle]], first: int, end: int) -> None:
    """Line by line, for as long as somebody reads them; how far it is, only before the first."""
    with Meter(first) as meter:

        def watch(done: int) -> None:
            if done < first:
                meter.show(done, "cycles")

        shown = _until(end, cycles(first, watch))
        head = next(shown)
    for line in trace_text.lines(chain([head], shown)):
        if not say(sys.stdout, line):
            break


def _traced(cycles: list[Cycle], title: str, out: Path) -> bytes:
    if out.suffix == ".txt":
        return "".join(f"{line}\n" for line in trace_text.lines(cycles)).encode()
    # Here, because matplotlib takes longer to import than a run does.
    from tpusim.report.trace_picture import picture

    return picture(cycles, title, out.suffix[1:])


@app.command("list", epilog="Example: tpusim list")
def list_shipped() -> None:
    """List the workloads and the hardware that come with tpusim."""
    with errors_reported():
        works = [(name, load_workload(name, batch=1), _source(name)) for name in shipped("workloads")]
        machines = [load_hardware(name) for name in shipped("configs")]
        show(
            sys.stdout,
            tables.workload_table(works),
            "",
            tables.hardware_table(machines),
            "",
            "Run one:      tpusim run resnet50 --batch 8 --out results/resnet50",
            "Plot it:      tpusim plot results/resnet50",
            "Change it:    tpusim run resnet50 --set array.size=256 --layers 'layer1.*'",
            "More:         tpusim run --help",
        )


app.command(epilog=cli_plot.EXAMPLE)(cli_plot.plot)
app.command(epilog=cli_report.EXAMPLE)(cli_report.report)
app.command(epilog=cli_sweep.EXAMPLE)(cli_sweep.sweep)
app.command(epilog=cli_validate.EXAMPLE)(cli_validate.validate)
app.command(epilog=cli_explain.EXAMPLE)(cli_explain.explain)
app.command(epilog=cli_compare.EXAMPLE)(cli_compare.compare)


def _source(workload: str) -> str:
    return " ".join(str(open_document(workload, "workloads").data.get("source", "")).split())


def _json_files(json: str | None, out: Path | None) -> list[Path]:
    if json == "-" and isinstance(sys.stdout, Nowhere):
        raise InputError("--json -: standard output is closed; give a file")
    files = [Path(json)] if json is not None and json != "-" else []
    return files if out is None else [*files, out / RESULT_FILE]
