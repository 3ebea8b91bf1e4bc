"""The `tpusim` command.

Exit codes: 0 done; 1 the check failed or the machine deadlocked; 2 bad input; 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tpusim.base.version import __version__
from tpusim.cli.commands import compare, explain, plot, report, run, shipped, sweep, trace, validate
from tpusim.cli.terminal import INTERRUPTED, leave_now, prepare_streams, say

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


app.command(epilog=run.EXAMPLE)(run.run)
app.command(epilog=report.EXAMPLE)(report.report)
app.command(epilog=explain.EXAMPLE)(explain.explain)
app.command(epilog=compare.EXAMPLE)(compare.compare)
app.command(epilog=sweep.EXAMPLE)(sweep.sweep)
app.command(epilog=plot.EXAMPLE)(plot.plot)
app.command(epilog=trace.EXAMPLE)(trace.trace)
app.command(epilog=validate.EXAMPLE)(validate.validate)
app.command("list", epilog=shipped.EXAMPLE)(shipped.list_shipped)
