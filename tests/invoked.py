"""The command in this process: tests of what it says need no other."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from tpusim.cli import app as cli


def tpusim(*arguments: str, stdin: str | bytes | None = None) -> Result:
    """What the command says and how it ends."""
    return CliRunner().invoke(cli.app, arguments, input=stdin)
