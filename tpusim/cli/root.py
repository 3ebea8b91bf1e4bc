"""The app that all commands belong to, and the options of `tpusim` itself."""

from __future__ import annotations

import sys
from typing import Annotated

from typer import Exit, Option, Typer

from tpusim.base.version import __version__
from tpusim.cli.terminal import say
from tpusim.cli.visitors import Commands

app = Typer(
    name="tpusim",
    cls=Commands,
    help="Simulate the matrix unit of a TPU v2, cycle by cycle, or a GPU, and check every output.",
    epilog="Example: tpusim run resnet50 --out results/resnet50",
    no_args_is_help=True,
    # Plain help and tracebacks: rich's take longer to import than a small run takes.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        say(sys.stdout, f"tpusim {__version__}")
        raise Exit


@app.callback()
def _common(
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Holds the options of `tpusim` itself; the help text is that of `app`."""
