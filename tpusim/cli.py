"""The `tpusim` command.

Exit codes: 0 done; 1 the check failed or the machine deadlocked; 2 bad input; 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tpusim import cli_compare, cli_explain, cli_plot, cli_report, cli_sweep, cli_trace, cli_validate
from tpusim.cli_options import (
    BatchOption,
    ChangesOption,
    HardwareOption,
    LayersOption,
    LoweringOption,
    SeedOption,
    WorkloadOption,
)
from tpusim.errors import CheckFailed, InputError
from tpusim.files import probe, write
from tpusim.hardware import load_hardware
from tpusim.outcome import ENGINES
from tpusim.report import tables
from tpusim.report.load import RESULT_FILE
from tpusim.screen import Progress, report
from tpusim.simulate import select_layers, simulate
from tpusim.terminal import (
    INTERRUPTED,
    Nowhere,
    errors_reported,
    leave_now,
    prepare_streams,
    say,
    show,
)
from tpusim.version import __version__
from tpusim.workload import load_workload
from tpusim.yaml_source import open_document, shipped

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


app.command(epilog=cli_trace.EXAMPLE)(cli_trace.trace)
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
