"""`tpusim list`: what it takes, and what it says of itself."""

from __future__ import annotations

from tpusim.cli.root import app
from tpusim.cli.terminal import errors_reported


@app.command("list", epilog="Example: tpusim list")
@errors_reported()
def list_shipped() -> None:
    """List workloads, machines, DRAMs, lowerings and sweeps."""
    from tpusim.cli.actions.hardware import show_shipped

    show_shipped()
